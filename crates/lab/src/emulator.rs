//! The QEMU that runs a machine: this machine's own, or a newer one from Debian, fetched once. The kernel patches its
//! own code wherever a program is attached, while other CPUs run it. Emulation before QEMU 8.1 sometimes keeps the
//! temporary breakpoint, and a CPU that reaches it loops forever.

use crate::{
    acceleration::Acceleration,
    apt::{self, View, Work},
    arch::Arch,
    error::{Error, Result},
    layers, process, Progress, Stop,
};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// The first QEMU version that does not translate a page while another CPU writes to it. The lab's igb also needs a
/// newer version than 7.2.
const SOUND: (u32, u32) = (8, 1);

/// The suite of the newer QEMU, and the suite of its dependencies.
const NEWER: [&str; 2] = ["bookworm-backports", "bookworm"];

#[derive(Clone, Debug)]
pub(crate) struct Emulator {
    program: PathBuf,
    /// The root into which it was unpacked; `None` if it is installed.
    root: Option<PathBuf>,
}

impl Emulator {
    /// This machine's own QEMU.
    pub(crate) fn own() -> Self {
        Self { program: Arch::OWN.emulator().into(), root: None }
    }

    /// A QEMU whose emulation is correct: this machine's own, or the cached one, which is fetched if missing.
    pub(crate) fn sound(progress: Progress, stop: Stop) -> Result<Self> {
        let own = Self::own();
        if own.version(stop)? >= SOUND {
            return Ok(own);
        }
        Self::newer(Arch::OWN, progress, stop)
    }

    /// The newer QEMU from Debian: the cached one, which is fetched if missing.
    pub(crate) fn newer(arch: Arch, progress: Progress, stop: Stop) -> Result<Self> {
        let cache = layers::cache()?;
        let root = match arch == Arch::OWN {
            true => cache.join(format!("qemu-{}", NEWER[0])),
            false => cache.join(format!("{}-{}", arch.package(), NEWER[0])),
        };
        if !root.is_dir() {
            progress("fetching a QEMU that emulates rewritten code rightly (20 MB, once)");
            layers::fetch(&cache, |work| fetch(arch, work, &root, stop), "a QEMU of 8.1 or later")?;
        }
        Ok(Self { program: root.join("usr/bin").join(arch.emulator()), root: Some(root) })
    }

    /// The best available QEMU for this acceleration. Without a network, an emulated machine may have to use this
    /// machine's own QEMU.
    pub(crate) fn fit_for(acceleration: Acceleration, progress: Progress, stop: Stop) -> Result<Self> {
        if acceleration != Acceleration::Tcg {
            return Ok(Self::own());
        }
        match Self::sound(progress, stop) {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                progress(&format!(
                    "{error}; with this machine's own QEMU an emulated machine may stand still now and then"
                ));
                Ok(Self::own())
            }
            sound => sound,
        }
    }

    /// A command that runs this QEMU, to which the caller adds arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(root) = &self.root {
            let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
            for firmware in ["usr/share/qemu", "usr/share/seabios"] {
                command.args([OsStr::new("-L"), root.join(firmware).as_os_str()]);
            }
            command.env("QEMU_MODULE_DIR", libraries.join("qemu")).env("LD_LIBRARY_PATH", libraries);
        }
        command
    }

    fn version(&self, stop: Stop) -> Result<(u32, u32)> {
        let printed = process::run(self.command().arg("--version"), Duration::from_secs(20), stop)?;
        let printed = String::from_utf8_lossy(&printed);
        version(&printed).ok_or_else(|| Error::Command {
            command: format!("{} --version", self.program.display()),
            why: format!("it printed no version: {}", printed.lines().next().unwrap_or_default()),
        })
    }
}

/// Parses `QEMU emulator version 7.2.22 (Debian …)`, e.g. as `(7, 2)`.
fn version(printed: &str) -> Option<(u32, u32)> {
    let mut numbers = printed.split_once("version ")?.1.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn fetch(arch: Arch, work: &Work, target: &Path, stop: Stop) -> Result<()> {
    let (program, package) = (arch.emulator(), arch.package());
    let view = View::suites(work, &NEWER, Arch::OWN, stop)?;
    let root = apt::unpack_all(&view.download_lacking(&[package], work, stop)?, work, stop)?;
    if !root.join("usr/bin").join(program).is_file() {
        let (command, why) = (format!("unpack {package} of {}", NEWER[0]), format!("no {program}"));
        return Err(Error::Command { command, why });
    }
    work.keep(&root, target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_numbers() {
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright"), Some((7, 2)));
        assert!(version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)").unwrap() >= SOUND);
        assert!(version("QEMU emulator version 8.0.50").unwrap() < SOUND);
        assert_eq!(version("bash: qemu: command not found"), None);
    }
}
