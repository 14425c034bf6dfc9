//! A profile: time by call chain.

use latpath_linux::Cpus;
use latpath_model::{Causality, Ns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A process, or kernel threads with the same task.
    Process,
    /// A function of a program.
    User,
    /// A function of the kernel.
    Kernel,
    /// A guest: the frames inside it are the guest's.
    Guest,
}

/// A frame of a call chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    /// Its name, without control characters and `;`.
    pub name: Arc<str>,
    /// Its kind.
    pub kind: Kind,
}

impl Frame {
    /// Creates a frame from a name of this machine, or from a checked name.
    pub fn new(name: &str, kind: Kind) -> Self {
        Self { name: name.into(), kind }
    }
}

/// Kinds of CPU time, as in the kernel's accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spent {
    /// In the host's kernel.
    HostSys,
    /// In programs of the host.
    HostUsr,
    /// In a guest's kernel.
    GuestSys,
    /// In programs of a guest.
    GuestUsr,
    /// In a guest that was not sampled from inside.
    GuestUnseen,
    /// In threads without a sample.
    NotSampled,
}

impl Spent {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::HostSys, Self::HostUsr, Self::GuestSys, Self::GuestUsr, Self::GuestUnseen, Self::NotSampled];
}

/// The only frame of threads whose run time was too short for a sample.
pub const NOT_SAMPLED: &str = "[not sampled]";

/// Metadata of a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Header {
    /// latpath's version.
    pub latpath: String,
    /// The kernel's release.
    pub kernel: String,
    /// Start of the window, UTC, ns.
    pub utc_ns: Ns,
    /// The sampled CPUs.
    #[schemars(with = "String")]
    pub cpus: Cpus,
    /// Samples per second, on each CPU.
    pub frequency: u32,
    /// Idle time of the CPUs, ns.
    pub idle_ns: Ns,
    /// Number of samples.
    pub samples: u64,
    /// Number of samples in programs, rather than in the kernel.
    pub user_samples: u64,
    /// Number of samples in programs whose call chain is a single function: the programs were built without frame
    /// pointers.
    pub user_samples_without_callers: u64,
    /// Time of threads that did not fit into the table of threads, ns; not part of the call chains.
    pub unattributed_ns: Ns,
    /// Guests that were sampled from inside.
    pub guests: Vec<GuestHeader>,
}

/// Metadata of a profile, with its window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Window {
    /// Length of the window, ns.
    pub window_ns: Ns,
    /// Number of lost samples; times are exact even without them.
    pub lost: u64,
    /// Metadata.
    #[serde(flatten)]
    pub header: Header,
}

/// A guest that was sampled from inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GuestHeader {
    /// The VM's name.
    pub name: String,
    /// Number of samples.
    pub samples: u64,
    /// Number of lost samples.
    pub lost: u64,
    /// Number of samples in programs, rather than in the kernel.
    pub user_samples: u64,
    /// Number of samples in programs whose call chain is a single function: the programs were built without frame
    /// pointers.
    pub user_samples_without_callers: u64,
    /// Error bound of its clock on the host's timeline, ns.
    pub clock_error_ns: Ns,
    /// How many samples were checked, and how many of them were taken at times at which their vCPU was not in the
    /// guest; `null` if they could not be checked.
    pub causality: Option<Causality>,
    /// Reason for an early end, if any.
    pub fault: Option<String>,
}

/// Time by call chain, outermost frame first; the first frame is a process. The times of all call chains, together with
/// idle and unattributed time, add up to the number of CPUs times the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Metadata.
    pub header: Header,
    /// Length of the window, ns.
    pub window_ns: Ns,
    /// Number of lost samples; times are exact even without them.
    pub lost: u64,
    /// Time of each call chain, ns.
    pub stacks: BTreeMap<Vec<Frame>, Ns>,
}

impl Profile {
    /// Metadata with the window.
    pub fn window(&self) -> Window {
        Window { window_ns: self.window_ns, lost: self.lost, header: self.header.clone() }
    }

    /// Adds time to a call chain.
    pub fn add(&mut self, frames: Vec<Frame>, ns: Ns) {
        if ns > 0 {
            *self.stacks.entry(frames).or_default() += ns;
        }
    }

    /// Busy time of the CPUs, ns.
    pub fn busy(&self) -> Ns {
        self.stacks.values().sum::<Ns>() + self.header.unattributed_ns
    }

    /// Total time: the number of CPUs times the window, ns.
    pub fn total(&self) -> Ns {
        self.busy() + self.header.idle_ns
    }
}

/// Kind of a call chain's time.
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
