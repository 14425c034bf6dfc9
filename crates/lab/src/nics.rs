//! NICs of the lab's hypervisor that QEMU emulates as the real ones are, for tests that load their drivers.

use crate::{
    apt::{self, View, Work},
    error::{Doing, Error, Result},
    layers,
    qemu::{Emulator, PROGRAM},
    Progress, Stop,
};
use std::{fs, path::Path};

/// Which two NICs it has, with a cable between them. Their driver is loaded by who wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nics {
    /// Intel's e1000e. Asked for hardware timestamps it promises all, and makes none.
    #[default]
    E1000e,
    /// Intel's igb, by a newer QEMU than Debian's own: a clock that can be set and slewed, and stamps on what is sent;
    /// none on what is received.
    Igb,
}

/// Where the QEMU comes from that has an igb, and what it takes for granted that is not in this suite.
const NEWER: [&str; 2] = ["bookworm-backports", "bookworm"];
const PACKAGE: &str = "qemu-system-x86";

impl Nics {
    /// Makes sure that the emulator is in the cache, if it is not this machine's own.
    pub fn fetch(self, progress: Progress, stop: Stop) -> Result<()> {
        self.emulator(progress, stop).map(drop)
    }

    /// The QEMU that has them.
    pub(crate) fn emulator(self, progress: Progress, stop: Stop) -> Result<Emulator> {
        if self == Self::E1000e {
            return Ok(Emulator::default());
        }
        let cache = layers::cache()?;
        let root = cache.join(format!("qemu-{}", NEWER[0]));
        if !root.is_dir() {
            progress("fetching a QEMU that emulates igb (14 MB, once)");
            layers::fetch(&cache, |work| fetch(work, &root, stop), "a QEMU that emulates igb")?;
        }
        let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        Ok(Emulator {
            program: root.join("usr/bin").join(PROGRAM),
            firmware: vec![root.join("usr/share/qemu"), root.join("usr/share/seabios")],
            modules: Some(libraries.join("qemu")),
        })
    }

    /// QEMU's options.
    pub(crate) fn devices(self) -> &'static str {
        match self {
            Self::E1000e => {
                "-netdev hubport,id=left,hubid=0 -device e1000e,netdev=left,mac=02:00:00:00:01:00,romfile= \
                 -netdev hubport,id=right,hubid=0 -device e1000e,netdev=right,mac=02:00:00:00:01:01,romfile="
            }
            // It is more than one PCI function, and wants a port of its own.
            Self::Igb => {
                "-device pcie-root-port,id=port0,chassis=1 -device pcie-root-port,id=port1,chassis=2 \
                 -netdev hubport,id=left,hubid=0 -device igb,bus=port0,netdev=left,mac=02:00:00:00:01:00,romfile= \
                 -netdev hubport,id=right,hubid=0 -device igb,bus=port1,netdev=right,mac=02:00:00:00:01:01,romfile="
            }
        }
    }
}

fn fetch(work: &Work, target: &Path, stop: Stop) -> Result<()> {
    let view = View::suites(work, &NEWER, stop)?;
    view.update(work, stop)?;
    let root = work.folder().join("root");
    fs::create_dir_all(&root).doing(format!("make folder {}", root.display()))?;
    for package in view.download_lacking(&[PACKAGE], work, stop)? {
        apt::unpack(&package, &root, &[], stop)?;
    }
    let program = root.join("usr/bin").join(PROGRAM);
    if !program.is_file() {
        return Err(Error::Command {
            command: format!("unpack {PACKAGE} of {}", NEWER[0]),
            why: format!("no {PROGRAM}"),
        });
    }
    work.keep(&root, target)
}
