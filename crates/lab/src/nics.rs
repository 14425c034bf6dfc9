//! NICs of the lab's hypervisor: QEMU emulates real ones, for tests that load their drivers.

use crate::{acceleration::Acceleration, emulator::Emulator, error::Result, Progress, Stop};

/// The type of the hypervisor's two NICs, which a cable joins. Each test loads their driver itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nics {
    /// Intel's e1000e. It accepts every request for hardware timestamps, and makes none.
    #[default]
    E1000e,
    /// Intel's igb, from a newer QEMU than Debian's default: a clock that can be set and slewed, and stamps of sent
    /// packets, but not of received ones.
    Igb,
}

impl Nics {
    /// Fetches the emulator into the cache, unless this machine's own suffices.
    ///
    /// # Errors
    /// If the emulator cannot be fetched.
    pub fn fetch(self, progress: Progress, stop: Stop) -> Result<()> {
        self.emulator(Acceleration::Tcg, progress, stop).map(drop)
    }

    /// The QEMU that emulates these NICs, for a machine with this acceleration.
    pub(crate) fn emulator(self, acceleration: Acceleration, progress: Progress, stop: Stop) -> Result<Emulator> {
        match self {
            Self::Igb => Emulator::sound(progress, stop),
            Self::E1000e => Emulator::fit_for(acceleration, progress, stop),
        }
    }

    /// QEMU options.
    pub(crate) fn devices(self) -> &'static str {
        match self {
            Self::E1000e => {
                "-netdev hubport,id=left,hubid=0 -device e1000e,netdev=left,mac=02:00:00:00:01:00,romfile= \
                 -netdev hubport,id=right,hubid=0 -device e1000e,netdev=right,mac=02:00:00:00:01:01,romfile="
            }
            // igb has several PCI functions, and needs a root port for each NIC.
            Self::Igb => {
                "-device pcie-root-port,id=port0,chassis=1 -device pcie-root-port,id=port1,chassis=2 \
                 -netdev hubport,id=left,hubid=0 -device igb,bus=port0,netdev=left,mac=02:00:00:00:01:00,romfile= \
                 -netdev hubport,id=right,hubid=0 -device igb,bus=port1,netdev=right,mac=02:00:00:00:01:01,romfile="
            }
        }
    }
}
