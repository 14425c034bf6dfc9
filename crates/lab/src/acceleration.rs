//! Acceleration of virtual machines: found by trial, since an existing `/dev/kvm` may still fail to run a kernel
//! (nested or restricted), and remembered until the next boot.

use crate::files::remembered;
use latpath_linux::proc::boot_id;
use std::{fmt, fs, time::Duration};

/// The acceleration of a guest's CPU and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// Hardware virtualisation; the host's kernel serves the network.
    KvmVhost,
    /// Hardware virtualisation; QEMU serves the network.
    Kvm,
    /// Emulation: sufficient to test function, order, counts and causes; its times do not represent real machines.
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

    /// The accelerations to try, best first: from the one that worked earlier in this boot, or all that the machine's
    /// devices offer.
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

    /// Maximum boot time of a guest. KVM boots in a second or two, or not at all.
    pub(crate) fn boot_limit(self) -> Duration {
        Duration::from_secs(if self == Self::Tcg { 120 } else { 20 })
    }

    /// Remembers this acceleration as a working one until this machine's next boot.
    pub(crate) fn remember(self) {
        // A failed write only makes the next boot of a guest slower.
        let _ = fs::write(remembered("acceleration"), format!("{} {self:?}", boot_id()));
    }
}

fn recall() -> Option<Acceleration> {
    let text = fs::read_to_string(remembered("acceleration")).ok()?;
    let (boot, name) = text.split_once(' ')?;
    Acceleration::ALL.into_iter().find(|a| boot == boot_id() && format!("{a:?}") == name)
}
