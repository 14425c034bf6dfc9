//! Starting a machine in QEMU.

use crate::{
    acceleration::Acceleration,
    arch::Arch,
    emulator::Emulator,
    error::{Doing, Result},
    process::Running,
    Namespace,
};
use nix::sys::signal::Signal;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Descriptor of a macvtap in QEMU.
pub(crate) const MACVTAP_FD: u32 = 3;
/// Opens the macvtap and becomes QEMU.
const OPEN_THEN_BECOME: &str = "node=$1; shift; exec \"$@\" 3<>\"$node\"";

pub(crate) struct Start<'a> {
    pub(crate) emulator: &'a Emulator,
    pub(crate) name: &'a str,
    /// Network namespace of QEMU; `None` for this process's own.
    pub(crate) namespace: Option<&'a Namespace>,
    pub(crate) acceleration: Acceleration,
    pub(crate) arch: Arch,
    /// QEMU's machine and CPU types, if not the default machine with QEMU's most capable CPU.
    pub(crate) nesting: Option<(&'a str, &'a str)>,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u64,
    /// Further kernel parameters.
    pub(crate) append: &'a str,
    /// Further options, separated by spaces.
    pub(crate) devices: Vec<String>,
    /// The macvtap of its NIC, open as [`MACVTAP_FD`].
    pub(crate) macvtap: Option<&'a Path>,
    /// Files of its sockets, its console and its messages.
    pub(crate) files: &'a Files,
    /// Whether the console shows the kernel's messages, for the second attempt after a silent failure.
    pub(crate) verbose: bool,
}

/// The files of a running QEMU.
pub(crate) struct Files {
    pub(crate) agent: PathBuf,
    pub(crate) shell: PathBuf,
    pub(crate) console: PathBuf,
    pub(crate) messages: PathBuf,
    /// Socket of the debugger stub, for machines that have one.
    pub(crate) debugger: PathBuf,
    /// Socket of the QEMU Machine Protocol (QMP).
    pub(crate) monitor: PathBuf,
}

impl Files {
    pub(crate) fn of(folder: &Path, machine: &str) -> Self {
        let file = |end: &str| folder.join(format!("{machine}.{end}"));
        let (agent, shell, console) = (file("agent"), file("shell"), file("console"));
        Self { agent, shell, console, messages: file("qemu"), debugger: file("debugger"), monitor: file("monitor") }
    }
}

impl Start<'_> {
    /// Starts QEMU, which dies with this process.
    pub(crate) fn start(&self) -> Result<Running> {
        let Files { agent, shell, console, messages: _, debugger, monitor } = self.files;
        for file in [agent, shell, console, debugger, monitor] {
            let _ = fs::remove_file(file);
        }
        let messages = &self.files.messages;
        let messages = fs::File::create(messages).doing(format!("write {}", messages.display()))?;
        let mut command = self.emulator.command();
        command.args(self.arguments());
        if let Some(node) = self.macvtap {
            command = with_macvtap(&command, node);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
        match self.namespace {
            Some(namespace) => namespace.start(command, Signal::SIGKILL),
            None => Running::start(command, None, Signal::SIGKILL),
        }
    }

    fn arguments(&self) -> Vec<String> {
        let usual = self.arch.machine();
        let (accelerator, (machine, cpu)) = match self.acceleration {
            Acceleration::Tcg => ("tcg,thread=multi", self.nesting.unwrap_or((usual, "max"))),
            _ => ("kvm", (usual, "host")),
        };
        let mut append = format!("console={} panic=-1 mitigations=off {}", self.arch.console(), self.append);
        if !self.verbose {
            // Shows only warnings and errors.
            append.push_str(" loglevel=5");
        }
        if self.acceleration == Acceleration::Tcg && self.arch == Arch::X86 {
            // Otherwise Linux 6.1 finds the emulated TSC unstable and reads the slow HPET.
            append.push_str(" tsc=reliable");
        }
        let Files { agent, shell, console, monitor, .. } = self.files;
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
        option("-qmp", format!("unix:{},server=on,wait=off", comma(monitor)));
        for (id, socket) in [("agent", agent), ("shell", shell)] {
            option("-chardev", format!("socket,id={id},path={},server=on,wait=off", comma(socket)));
            option("-device", format!("virtserialport,chardev={id},name=latpath.{id}"));
        }
        arguments
    }
}

/// The command with a macvtap's character device as its descriptor [`MACVTAP_FD`].
fn with_macvtap(command: &Command, node: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", OPEN_THEN_BECOME, "sh"]).arg(node).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

/// A path as an option of QEMU, where a comma is doubled.
pub(crate) fn comma(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
