//! Files for a guest that another program starts: a kernel, an initial RAM disk, QEMU's arguments, and the shell in the
//! guest.

use crate::{
    arch::Arch,
    error::{Doing, Error, Result},
    image, kernel,
    qemu::comma,
    shell::Shell,
    Lab, Output, Progress, Stop,
};
use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(50);

/// A kernel and an initial RAM disk, in the lab's folder. The guest's NIC is `eth0`, and is up.
#[derive(Debug)]
pub struct GuestFiles {
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub initramfs: PathBuf,
    /// The kernel's command line.
    pub append: String,
    /// Minimum memory of the guest, MiB.
    pub memory_mib: u64,
    /// QEMU's arguments for its shell and its agent's port.
    pub arguments: Vec<String>,
    shell: PathBuf,
    agent: PathBuf,
    // Keeps the folder from being removed.
    _lab: Lab,
}

/// The shell of a guest that runs from [`GuestFiles`].
#[derive(Debug)]
pub struct GuestShell(Shell);

impl GuestFiles {
    /// Builds the files of a guest with these programs: file on the host, path in the guest. Fetches a kernel if this
    /// machine has none for guests.
    ///
    /// # Errors
    /// If there is no kernel, or the files cannot be written.
    pub fn build(
        lab: &Lab,
        name: &str,
        programs: &[(PathBuf, String)],
        progress: Progress,
        stop: Stop,
    ) -> Result<Self> {
        let kernel = kernel::find(progress, stop)?;
        let image = image::build(&kernel, &[], programs)?;
        let file = |end: &str| lab.folder().join(format!("{name}.{end}"));
        let (initramfs, shell, agent) = (file("initramfs"), file("shell"), file("agent"));
        fs::write(&initramfs, &image).doing(format!("write {}", initramfs.display()))?;
        let mut arguments: Vec<String> =
            ["-no-reboot", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci"].map(str::to_owned).to_vec();
        for (id, socket) in [("agent", &agent), ("shell", &shell)] {
            arguments.extend([
                "-chardev".to_owned(),
                format!("socket,id={id},path={},server=on,wait=off", comma(socket)),
                "-device".to_owned(),
                format!("virtserialport,chardev={id},name=latpath.{id}"),
            ]);
        }
        let mut append = format!("console={} panic=-1 mitigations=off ipv6.disable=1 loglevel=5", Arch::OWN.console());
        if Arch::OWN == Arch::X86 {
            // Otherwise an emulated guest finds the TSC unstable and reads the slow HPET.
            append.push_str(" tsc=reliable");
        }
        // The archive and its unpacked files are temporarily both in memory.
        let memory_mib = 256 + 2 * (image.len() as u64).div_ceil(1 << 20);
        Ok(Self { kernel: kernel.image, initramfs, append, memory_mib, arguments, shell, agent, _lab: lab.clone() })
    }

    /// The unix socket behind the guest's port `/dev/virtio-ports/latpath.agent`.
    pub fn agent_socket(&self) -> &Path {
        &self.agent
    }

    /// Waits until the guest, which the caller has started in QEMU, has booted, and returns its shell.
    ///
    /// # Errors
    /// If it does not answer within `limit`, or the user requests a stop.
    pub fn shell(&self, limit: Duration, stop: Stop) -> Result<GuestShell> {
        let until = Instant::now() + limit;
        let stream = loop {
            match UnixStream::connect(&self.shell) {
                Ok(stream) => break stream,
                Err(_) if stop() => return Err(Error::Interrupted),
                Err(_) if Instant::now() < until => thread::sleep(TICK),
                Err(e) => {
                    return Err(Error::Io { doing: format!("connect to {}", self.shell.display()), source: e });
                }
            }
        };
        let mut shell = Shell::new("guest", stream)?;
        shell.ready(until, stop)?;
        Ok(GuestShell(shell))
    }
}

impl GuestShell {
    /// Runs a shell script in the guest and waits for its end.
    ///
    /// # Errors
    /// If the guest does not answer within `limit`, or the user requests a stop.
    pub fn run(&mut self, script: &str, limit: Duration, stop: Stop) -> Result<Output> {
        self.0.run(script, limit, stop)
    }
}
