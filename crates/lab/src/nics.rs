//! NICs of the lab's hypervisor that QEMU emulates as the real ones are, for tests that load their drivers.

use crate::{acceleration::Acceleration, emulator::Emulator, error::Result, Progress, Stop};

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

impl Nics {
    /// Makes sure that the emulator is in the cache, if it is not this machine's own.
    pub fn fetch(self, progress: Progress, stop: Stop) -> Result<()> {
        self.emulator(Acceleration::Tcg, progress, stop).map(drop)
    }

    /// The QEMU that has them, for a machine that runs so.
    pub(crate) fn emulator(self, acceleration: Acceleration, progress: Progress, stop: Stop) -> Result<Emulator> {
        match self {
            Self::Igb => Emulator::sound(progress, stop),
            Self::E1000e => Emulator::fit_for(acceleration, progress, stop),
        }
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
