//! A profile: time by call chain.

use latpath_linux::Cpus;
use latpath_model::{Causality, Ns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A process, or threads of the kernel with the same task.
    Process,
    /// A function of a program.
    User,
    Kernel,
    /// A guest: the frames inside it are the guest's.
    Guest,
}

/// One step of a call chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    /// Its name: no control character, no `;`.
    pub name: Arc<str>,
    pub kind: Kind,
}

impl Frame {
    /// From a name that comes from this machine, or has been checked.
    pub fn new(name: &str, kind: Kind) -> Self {
        Self { name: name.into(), kind }
    }
}

/// Kinds of CPU time, as the kernel accounts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spent {
    /// In the host's kernel.
    HostSys,
    HostUsr,
    /// In a guest's kernel.
    GuestSys,
    GuestUsr,
    /// In a guest into which nobody looked.
    GuestUnseen,
    /// By threads without a sample.
    NotSampled,
}

impl Spent {
    pub const ALL: [Self; 6] =
        [Self::HostSys, Self::HostUsr, Self::GuestSys, Self::GuestUsr, Self::GuestUnseen, Self::NotSampled];
}

/// The only frame of threads that ran too shortly for a sample.
pub const NOT_SAMPLED: &str = "[not sampled]";

/// What a profile is of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Header {
    /// latpath's version.
    pub latpath: String,
    /// The kernel's release.
    pub kernel: String,
    /// Begin of the window, UTC.
    pub utc_ns: Ns,
    /// The CPUs that were watched.
    #[schemars(with = "String")]
    pub cpus: Cpus,
    /// Samples a second.
    pub frequency: u32,
    /// Time in which CPUs had nothing to do.
    pub idle_ns: Ns,
    /// Samples.
    pub samples: u64,
    /// Samples that met a program, not the kernel.
    pub user_samples: u64,
    /// Those of them whose call chain is one function: programs that were built without frame pointers.
    pub user_samples_without_callers: u64,
    /// Time of threads for which there was no room in the table of threads: it is not in the call chains.
    pub unattributed_ns: Ns,
    /// Guests that were sampled from inside.
    pub guests: Vec<GuestHeader>,
}

/// What a profile is of, with its window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Window {
    /// Length of the window.
    pub window_ns: Ns,
    /// Samples that were lost; times are exact also without them.
    pub lost: u64,
    /// What it is of.
    #[serde(flatten)]
    pub header: Header,
}

/// A guest that was sampled from inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GuestHeader {
    /// The VM's name.
    pub name: String,
    /// Samples.
    pub samples: u64,
    /// Samples that were lost.
    pub lost: u64,
    /// Samples that met a program, not the kernel.
    pub user_samples: u64,
    /// Those of them whose call chain is one function: programs that were built without frame pointers.
    pub user_samples_without_callers: u64,
    /// Its clock's error bound on the host's timeline.
    pub clock_error_ns: Ns,
    /// Samples from times at which their vCPU was not in the guest; `null` where that could not be checked.
    pub causality: Option<Causality>,
    /// Why it ended early, if it did.
    pub fault: Option<String>,
}

/// Time by call chain, outermost frame first; the first one is a process. The sum of all, with idle and
/// unattributed time, is the number of CPUs times the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    pub header: Header,
    /// Length of the window.
    pub window_ns: Ns,
    /// Samples that were lost; times are exact also without them.
    pub lost: u64,
    /// Time of each call chain, ns.
    pub stacks: BTreeMap<Vec<Frame>, Ns>,
}

impl Profile {
    /// What it is of, with its window.
    pub fn window(&self) -> Window {
        Window { window_ns: self.window_ns, lost: self.lost, header: self.header.clone() }
    }

    /// Adds time to a call chain.
    pub fn add(&mut self, frames: Vec<Frame>, ns: Ns) {
        if ns > 0 {
            *self.stacks.entry(frames).or_default() += ns;
        }
    }

    /// All time that CPUs worked.
    pub fn busy(&self) -> Ns {
        self.stacks.values().sum::<Ns>() + self.header.unattributed_ns
    }

    /// All time: the CPUs times the window.
    pub fn total(&self) -> Ns {
        self.busy() + self.header.idle_ns
    }
}

/// How a call chain's time counts.
pub fn spent(frames: &[Frame]) -> Spent {
    let in_guest = frames.iter().any(|frame| frame.kind == Kind::Guest);
    match frames.last() {
        Some(frame) if &*frame.name == NOT_SAMPLED => Spent::NotSampled,
        Some(frame) if frame.kind == Kind::Guest => Spent::GuestUnseen,
        Some(frame) if frame.kind == Kind::Kernel && in_guest => Spent::GuestSys,
        Some(frame) if frame.kind == Kind::Kernel => Spent::HostSys,
        _ if in_guest => Spent::GuestUsr,
        _ => Spent::HostUsr,
    }
}
