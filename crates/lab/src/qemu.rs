//! QEMU: how the guest is started on this machine. What accelerates it is found by trying, since a `/dev/kvm` that exists
//! may still not run a kernel (nested, or restricted), and remembered for this boot.

use crate::{
    error::{Doing, Result},
    files::remembered,
    process::Running,
    Namespace,
};
use nix::sys::signal::Signal;
use std::{
    ffi::OsStr,
    fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// The emulator of this machine's own architecture.
#[cfg(target_arch = "aarch64")]
pub(crate) const PROGRAM: &str = "qemu-system-aarch64";
/// The emulator of this machine's own architecture.
#[cfg(not(target_arch = "aarch64"))]
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
/// Debian's package of it.
pub(crate) const PACKAGE: &str = if cfg!(target_arch = "aarch64") { "qemu-system-arm" } else { "qemu-system-x86" };

/// What runs the guest's instructions and its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// Hardware virtualisation, the network served by the host's kernel.
    KvmVhost,
    /// Hardware virtualisation, the network served by QEMU.
    Kvm,
    /// Emulation: for function, order, counts and causes; its times say nothing about real machines.
    Tcg,
}

impl fmt::Display for Acceleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::KvmVhost => "KVM with vhost",
            Self::Kvm => "KVM",
            Self::Tcg => "emulation (TCG)",
        })
    }
}

impl Acceleration {
    const ALL: [Self; 3] = [Self::KvmVhost, Self::Kvm, Self::Tcg];

    /// What to try, best first: what worked earlier in this boot, or all that the machine's devices promise.
    pub(crate) fn to_try() -> Vec<Self> {
        let all = Self::ALL.into_iter();
        if let Some(known) = recall() {
            return all.skip_while(|a| *a != known).collect();
        }
        let promised = |device: &str| fs::OpenOptions::new().read(true).write(true).open(device).is_ok();
        let (kvm, vhost) = (promised("/dev/kvm"), promised("/dev/vhost-net"));
        all.filter(|a| match a {
            Self::KvmVhost => kvm && vhost,
            Self::Kvm => kvm,
            Self::Tcg => true,
        })
        .collect()
    }

    /// How long a guest may take to boot with it. KVM boots in a second or two, or not at all.
    pub(crate) fn boot_limit(self) -> Duration {
        Duration::from_secs(if self == Self::Tcg { 120 } else { 20 })
    }

    /// Remembers, until the machine is booted anew, that this one worked.
    pub(crate) fn remember(self) {
        let (Some(boot), Some(file)) = (boot_id(), Some(remembered("acceleration"))) else { return };
        // Not remembered is only slower.
        let _ = fs::write(file, format!("{boot} {self:?}"));
    }
}

fn recall() -> Option<Acceleration> {
    let text = fs::read_to_string(remembered("acceleration")).ok()?;
    let (boot, name) = text.split_once(' ')?;
    if Some(boot) != boot_id().as_deref() {
        return None;
    }
    Acceleration::ALL.into_iter().find(|a| format!("{a:?}") == name)
}

fn boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
}

/// Which QEMU.
#[derive(Clone, Debug)]
pub(crate) struct Emulator {
    pub(crate) program: PathBuf,
    /// Where its firmware is, if it is not where it was built to look.
    pub(crate) firmware: Vec<PathBuf>,
    /// The same of its modules.
    pub(crate) modules: Option<PathBuf>,
}

impl Default for Emulator {
    /// This machine's.
    fn default() -> Self {
        Self { program: PROGRAM.into(), firmware: Vec::new(), modules: None }
    }
}

impl Emulator {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.firmware.iter().flat_map(|folder| [OsStr::new("-L"), folder.as_os_str()]));
        command.envs(self.modules.iter().map(|folder| ("QEMU_MODULE_DIR", folder)));
        command
    }
}

/// One start of QEMU.
pub(crate) struct Start<'a> {
    pub(crate) emulator: &'a Emulator,
    pub(crate) name: &'a str,
    /// Where it runs; `None`: where we are.
    pub(crate) namespace: Option<&'a Namespace>,
    pub(crate) acceleration: Acceleration,
    /// The CPU that is emulated, where it is and another than QEMU's most capable is wanted.
    pub(crate) cpu: Option<&'a str>,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u64,
    /// More words for the kernel's command line.
    pub(crate) append: &'a str,
    /// More options, parted at spaces.
    pub(crate) devices: Vec<String>,
    /// Its sockets, its console and its own messages.
    pub(crate) files: &'a Files,
    /// The kernel's messages on the console, for a boot that failed silently.
    pub(crate) verbose: bool,
}

/// The files of a running QEMU.
pub(crate) struct Files {
    pub(crate) agent: PathBuf,
    pub(crate) shell: PathBuf,
    pub(crate) console: PathBuf,
    pub(crate) messages: PathBuf,
    /// Where a debugger may connect, for those that have such a device.
    pub(crate) debugger: PathBuf,
}

impl Files {
    pub(crate) fn of(folder: &Path, machine: &str) -> Self {
        let file = |end: &str| folder.join(format!("{machine}.{end}"));
        let (agent, shell, console) = (file("agent"), file("shell"), file("console"));
        Self { agent, shell, console, messages: file("qemu"), debugger: file("debugger") }
    }
}

impl Start<'_> {
    /// Starts it; it dies with this process.
    pub(crate) fn start(&self) -> Result<Running> {
        for file in [&self.files.agent, &self.files.shell, &self.files.console, &self.files.debugger] {
            let _ = fs::remove_file(file);
        }
        let messages = &self.files.messages;
        let messages = fs::File::create(messages).doing(format!("write {}", messages.display()))?;
        let mut command = self.emulator.command();
        command.args(self.arguments()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
        match self.namespace {
            Some(namespace) => namespace.start(command, Signal::SIGKILL),
            None => Running::start(command, None, Signal::SIGKILL),
        }
    }

    fn arguments(&self) -> Vec<String> {
        let arm = cfg!(target_arch = "aarch64");
        let (console, machine) = if arm { ("ttyAMA0", "virt") } else { ("ttyS0", "q35") };
        let (accelerator, cpu) = match self.acceleration {
            Acceleration::Tcg => ("tcg,thread=multi", self.cpu.unwrap_or("max")),
            _ => ("kvm", "host"),
        };
        let mut append = format!("console={console} panic=-1 mitigations=off {}", self.append);
        if !self.verbose {
            // Warnings and worse.
            append.push_str(" loglevel=5");
        }
        if self.acceleration == Acceleration::Tcg && !arm {
            // Without it Linux 6.1 finds the emulated TSC unstable and reads the slow HPET instead.
            append.push_str(" tsc=reliable");
        }
        let Files { agent, shell, console, .. } = self.files;
        let words = [
            format!("-name latpath-{},debug-threads=on", self.name),
            format!("-accel {accelerator} -machine {machine} -cpu {cpu} -smp {} -m {}M", self.cpus, self.memory_mib),
            "-nodefaults -no-user-config -no-reboot -display none -device virtio-rng-pci".into(),
            "-device virtio-serial-pci".into(),
        ];
        let words = words.iter().chain(&self.devices).flat_map(|w| w.split(' ')).filter(|w| !w.is_empty());
        let mut arguments: Vec<String> = words.map(str::to_owned).collect();
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        option("-kernel", self.kernel.display().to_string());
        option("-initrd", self.initramfs.display().to_string());
        option("-append", append);
        option("-serial", format!("file:{}", comma(console)));
        for (id, socket) in [("agent", agent), ("shell", shell)] {
            option("-chardev", format!("socket,id={id},path={},server=on,wait=off", comma(socket)));
            option("-device", format!("virtserialport,chardev={id},name=latpath.{id}"));
        }
        arguments
    }
}

/// QEMU parts its options at commas; one in a path is written twice.
pub(crate) fn comma(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
