//! A whole hypervisor in a virtual machine: a Debian kernel with all its modules and KVM, on a temporary layer over
//! this machine's root, so that all its tools and files are available. Only files written to `/out` reach this machine.

use crate::{
    acceleration::Acceleration,
    arch::Arch,
    constant_tsc,
    debugger::Debugger,
    emulator::Emulator,
    error::{Doing, Error, Result},
    files::tail,
    image,
    layers::{LabKernel, Layers},
    machine::Machine,
    nics::Nics,
    qemu::{comma, Files, Start},
    starvation::Watch,
    Lab, Progress, Stop,
};
use std::{
    fs,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    time::Duration,
};

const CPUS: u32 = 2;
const MEMORY_MIB: u64 = 3072;
/// Modules loaded after the boot; the kernel loads others itself.
const MODULES: [&str; 5] = ["tun", "vhost_net", "vhost_vsock", "openvswitch", "8021q"];
/// Kernel parameters. The console is searched for warnings, so warnings about slow emulation are disabled.
const APPEND: &str = "ipv6.disable=1 nokaslr nowatchdog rcupdate.rcu_cpu_stall_suppress=1";
/// Kernel parameters that isolate a third CPU for a guest, as the profile sv-hypervisor of `latpath tune` requires.
const ISOLATED: &str = "isolcpus=managed_irq,domain,2 nohz_full=2 rcu_nocbs=2 rcu_nocb_poll irqaffinity=0-1 \
                            skew_tick=1 nosoftlockup processor.max_cstate=1 kvm.kvmclock_periodic_sync=N";

/// A running hypervisor, which ends when this value is dropped.
#[derive(Debug)]
pub struct Hypervisor {
    machine: Machine,
    kernel: LabKernel,
    nics: Nics,
    is_isolated: bool,
    acceleration: Acceleration,
    out: PathBuf,
    debugger: PathBuf,
    /// Number of console bytes already checked.
    checked: usize,
    // Keeps the folder of its sockets from being removed.
    _lab: Lab,
}

impl Deref for Hypervisor {
    type Target = Machine;
    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Hypervisor {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

impl Hypervisor {
    /// Boots a hypervisor and loads its modules. Fetches parts that are not in the cache.
    ///
    /// # Errors
    /// If a part cannot be fetched, or no acceleration boots it.
    pub fn boot(lab: &Lab, kernel: LabKernel, nics: Nics, progress: Progress, stop: Stop) -> Result<Self> {
        Self::boot_with(lab, kernel, nics, false, progress, stop)
    }

    /// Like [`Hypervisor::boot`]; `is_isolated` adds a CPU that the kernel isolates for a guest.
    ///
    /// # Errors
    /// If a part cannot be fetched, or no acceleration boots it.
    pub fn boot_with(
        lab: &Lab,
        kernel: LabKernel,
        nics: Nics,
        is_isolated: bool,
        progress: Progress,
        stop: Stop,
    ) -> Result<Self> {
        let layers = Layers::of(kernel, progress, stop)?;
        let found = layers.kernel()?;
        let name = format!("hypervisor-{}", kernel.name);
        let initramfs = lab.folder().join(format!("{name}.initramfs"));
        let is_foreign = kernel.arch != Arch::OWN;
        let busybox = if is_foreign { layers.tools.join("usr/bin/busybox") } else { image::busybox()? };
        let archive = image::build_hypervisor(&found, &busybox, is_foreign)?;
        fs::write(&initramfs, archive).doing(format!("write {}", initramfs.display()))?;
        let out = lab.folder().join(format!("{name}.out"));
        fs::create_dir_all(&out).doing(format!("make folder {}", out.display()))?;
        let files = Files::of(lab.folder(), &name);
        let append = format!("{APPEND} {}", if is_isolated { ISOLATED } else { "" });
        let mut failures = Vec::new();
        for acceleration in accelerations(is_foreign) {
            let emulator = match is_foreign {
                true => Emulator::newer(kernel.arch, progress, stop)?,
                false => nics.emulator(acceleration, progress, stop)?,
            };
            progress(&format!("booting Linux {} as the lab's hypervisor, {acceleration}", found.release));
            let start = Start {
                emulator: &emulator,
                name: &name,
                namespace: None,
                acceleration,
                arch: kernel.arch,
                nesting: Some(kernel.arch.nesting()),
                kernel: &found.image,
                initramfs: &initramfs,
                cpus: CPUS + u32::from(is_isolated),
                memory_mib: MEMORY_MIB,
                append: append.trim_end(),
                devices: devices(&layers, nics, &out, &files),
                macvtap: None,
                files: &files,
                verbose: false,
            };
            let booted = Machine::boot(&start, limit(acceleration), stop).and_then(|machine| {
                let (out, debugger, lab) = (out.clone(), files.debugger.clone(), lab.clone());
                let mut hypervisor =
                    Self { machine, kernel, nics, is_isolated, acceleration, out, debugger, checked: 0, _lab: lab };
                hypervisor.prepare(stop)?;
                Ok(hypervisor)
            });
            match booted {
                Ok(hypervisor) => {
                    // Which of the two KVM variants is best shows only when a guest boots, so only emulation is
                    // remembered here.
                    if acceleration == Acceleration::Tcg && !is_foreign {
                        acceleration.remember();
                    }
                    return Ok(hypervisor);
                }
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => {
                    progress(&format!("{acceleration} does not make a hypervisor here: {error}"));
                    failures.push(format!("{acceleration}: {error}"));
                }
            }
        }
        Err(Error::Boot { why: failures.join("; "), console: tail(&files.console, 40) })
    }

    /// Loads the modules that tests need, and KVM.
    fn prepare(&mut self, stop: Stop) -> Result<()> {
        self.expect(&format!("modprobe -a {}", MODULES.join(" ")), stop)?;
        if self.kernel.real_time && self.acceleration == Acceleration::Tcg {
            let printed = self.expect(
                "cp /sys/kernel/btf/vmlinux /out/.types && awk '$3 == \"boot_cpu_data\" { print $1 }' /proc/kallsyms",
                stop,
            )?;
            let types = self.out.join(".types");
            let bad = || Error::Guest { guest: "hypervisor".into(), why: format!("boot_cpu_data is at {printed:?}") };
            let boot_cpu = u64::from_str_radix(printed.trim(), 16).map_err(|_| bad())?;
            constant_tsc::promise(&self.debugger, boot_cpu, &types)?;
            let _ = fs::remove_file(types);
        }
        // On ARM, KVM is not a module.
        self.expect(
            "[ -e /dev/kvm ] || modprobe kvm_amd nested=1 || modprobe kvm_intel nested=1; [ -e /dev/kvm ]",
            stop,
        )?;
        Ok(())
    }

    /// The path, in the hypervisor, of a file of this machine.
    pub fn path_of(&self, file: &Path) -> PathBuf {
        match self.kernel.arch == Arch::OWN {
            true => file.into(),
            false => Path::new("/host").join(file.strip_prefix("/").unwrap_or(file)),
        }
    }

    /// The hypervisor's kernel.
    pub fn kernel(&self) -> LabKernel {
        self.kernel
    }

    /// The type of its NICs.
    pub fn nics(&self) -> Nics {
        self.nics
    }

    /// Whether its kernel isolates a CPU for a guest.
    pub fn is_isolated(&self) -> bool {
        self.is_isolated
    }

    /// The acceleration that it runs with.
    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }

    /// The folder mounted as `/out`; it exists until the lab is dropped.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// Starts to measure whether the machine gets the CPU time that it needs.
    pub fn watch(&self) -> Watch {
        Watch::new(self.pid())
    }

    /// Instruction pointers of its CPUs, for a machine that does not answer. Its kernel is not relocated (nokaslr).
    ///
    /// # Errors
    /// If QEMU's debugger does not answer.
    pub fn stands_at(&self) -> Result<Vec<u64>> {
        let mut debugger = Debugger::connect(&self.debugger)?;
        let addresses = (1..=CPUS).map(|cpu| debugger.instruction(cpu)).collect();
        debugger.leave()?;
        addresses
    }

    /// The kernel's complaints since the last call: see [`complaints`].
    pub fn complaints(&mut self) -> Vec<String> {
        let console = fs::read(self.console()).unwrap_or_default();
        let new = console.get(self.checked..).unwrap_or_default();
        self.checked = console.len();
        complaints(&String::from_utf8_lossy(new))
    }
}

/// Maximum boot time. KVM boots in some seconds, or not at all; an emulated machine on a busy host takes longer.
fn limit(acceleration: Acceleration) -> Duration {
    Duration::from_secs(if acceleration == Acceleration::Tcg { 180 } else { 60 })
}

/// The accelerations to try: KVM and emulation, since the hypervisor's own network is not used.
fn accelerations(is_foreign: bool) -> Vec<Acceleration> {
    if is_foreign {
        return vec![Acceleration::Tcg];
    }
    let mut tries: Vec<_> = Acceleration::to_try().into_iter().filter(|a| *a != Acceleration::KvmVhost).collect();
    if tries.is_empty() {
        tries.push(Acceleration::Tcg);
    }
    tries
}

/// QEMU options: this machine's root and the layers over it, read-only; the folder for output; the debugger's socket;
/// the NICs.
fn devices(layers: &Layers, nics: Nics, out: &Path, files: &Files) -> Vec<String> {
    let share = |tag: &str, path: &Path, options: &str| {
        format!("-virtfs local,path={},mount_tag={tag},security_model=none,multidevs=remap{options}", comma(path))
    };
    vec![
        share("root", Path::new("/"), ",readonly=on"),
        share("kernel", &layers.kernel, ",readonly=on"),
        share("tools", &layers.tools, ",readonly=on"),
        share("out", out, ""),
        format!("-chardev socket,id=debugger,path={},server=on,wait=off -gdb chardev:debugger", comma(&files.debugger)),
        nics.devices().into(),
    ]
}

/// The line that a machine's init prints on the console after the boot.
const UP: &str = "latpath: up";

/// The lines of a console that report a fault of the kernel: oopses, warnings, panics. If the machine has booted, those
/// before the end of the boot are omitted: they concern its emulated CPU.
pub fn complaints(console: &str) -> Vec<String> {
    const SIGNS: [&str; 8] = [
        "BUG: ",
        "Oops: ",
        "WARNING: CPU",
        "Kernel panic",
        "general protection fault",
        "kernel BUG at",
        "INFO: task",
        "possible circular locking",
    ];
    let running = console.rfind(UP).map_or(console, |at| &console[at..]);
    let lines = running.lines().filter(|line| SIGNS.iter().any(|sign| line.contains(sign)));
    lines.map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::complaints;

    #[test]
    fn a_kernels_complaints_are_distinguished_from_its_other_messages() {
        let console = "[ 1.0] kvm: Nested Virtualization enabled\r\n\
                       [ 2.0] BUG: kernel NULL pointer dereference, address: 0000000000000010\r\n\
                       [ 2.1] WARNING: CPU: 1 PID: 7 at net/core/dev.c:1 x+0x1/0x2\r\n";
        let found = complaints(console);
        assert_eq!(found.len(), 2);
        assert!(found[0].ends_with("0000000000000010"));
        assert!(complaints(&format!("{console}latpath: up\n")).is_empty());
    }
}
