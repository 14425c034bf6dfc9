//! What accelerates a virtual machine: found by trying, since a `/dev/kvm` that exists may still not run a kernel (nested, or
//! restricted), and remembered for this boot.

use crate::files::remembered;
use latpath_linux::proc::boot_id;
use std::{fmt, fs, time::Duration};

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

    /// Remembers, until the next boot of this machine, that this one worked.
    pub(crate) fn remember(self) {
        // Not remembered is only slower.
        let _ = fs::write(remembered("acceleration"), format!("{} {self:?}", boot_id()));
    }
}

fn recall() -> Option<Acceleration> {
    let text = fs::read_to_string(remembered("acceleration")).ok()?;
    let (boot, name) = text.split_once(' ')?;
    Acceleration::ALL.into_iter().find(|a| boot == boot_id() && format!("{a:?}") == name)
}
