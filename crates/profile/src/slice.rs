//! What a sampler hands on: about once a second, one slice of time with all that was seen in it. The same for this
//! machine and another.

use latpath_model::Ns;

/// Maximum bytes of a name.
pub const MAX_NAME: usize = 256;
/// Maximum names: an empty one has no byte, and takes memory too.
pub const MAX_NAMES: usize = 1 << 18;
/// Maximum bytes of all names, those of threads and processes included.
pub const MAX_NAME_BYTES: usize = 16 << 20;
/// Maximum threads; each name of a thread counts.
pub const MAX_THREADS: usize = 1 << 16;
/// Maximum different call chains.
pub const MAX_STACKS: usize = 1 << 17;
/// Maximum frames of all call chains.
pub const MAX_FRAMES: usize = 1 << 21;
/// Maximum frames of one call chain, in user space and the kernel together.
pub const MAX_DEPTH: usize = 256;
/// Maximum CPUs of a machine.
pub const MAX_CPUS: u32 = 8192;
/// Maximum places in files without symbols.
pub const MAX_UNNAMED: usize = 1 << 14;
/// Maximum bytes of a build-id.
pub const MAX_BUILD_ID: usize = 64;

/// What a CPU did at a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    Idle,
    /// It ran a program.
    User,
    Kernel,
    Guest,
}

impl Mode {
    /// All of them, in order of their numbers.
    pub const ALL: [Self; 4] = [Self::Idle, Self::User, Self::Kernel, Self::Guest];
}

/// A thread. One that changes its name becomes another. It is sent as it is.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Thread {
    /// Its number; 0 of a CPU's idle thread.
    #[prost(uint32, tag = "1")]
    pub tid: u32,
    #[prost(uint32, tag = "2")]
    pub tgid: u32,
    /// The CPU, of an idle thread.
    #[prost(uint32, tag = "3")]
    pub cpu: u32,
    #[prost(string, tag = "4")]
    pub comm: String,
    #[prost(string, tag = "5")]
    pub process: String,
    /// Whether it is the kernel's own.
    #[prost(bool, tag = "6")]
    pub is_kernel: bool,
}

/// A frame of a call chain: the number of its function's name, and whether it is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId(u32);

impl FrameId {
    /// Makes it of a name's number below 2^31.
    pub fn new(name: u32, in_kernel: bool) -> Self {
        Self(name << 1 | u32::from(in_kernel))
    }

    pub fn of_raw(raw: u32) -> Self {
        Self(raw)
    }

    pub fn raw(self) -> u32 {
        self.0
    }

    pub fn name(self) -> usize {
        (self.0 >> 1) as usize
    }

    pub fn in_kernel(self) -> bool {
        self.0 & 1 == 1
    }
}

/// A call chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// What the CPU did.
    pub mode: Mode,
    /// Functions, innermost first.
    pub frames: Vec<FrameId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When, in the machine's `CLOCK_MONOTONIC`.
    pub t: Ns,
    pub cpu: u32,
    pub thread: u32,
    /// Number of the call chain.
    pub stack: u32,
}

/// A function whose name its machine does not know, because its file has no symbols. It is sent as it is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Unnamed {
    /// Number of its substitute name, which is the file's.
    #[prost(uint32, tag = "1")]
    pub name: u32,
    /// The file's build-id.
    #[prost(bytes = "vec", tag = "2")]
    pub build_id: Vec<u8>,
    /// Its address, as the file's symbols have it.
    #[prost(uint64, tag = "3")]
    pub address: u64,
}

/// Samples from one time to a later one. Names, threads and call chains are numbered as they come, from 0 on: a
/// slice brings the new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Its begin, in the machine's `CLOCK_MONOTONIC`: the end of the one before.
    pub from: Ns,
    pub until: Ns,
    /// Functions whose numbers are new.
    pub names: Vec<String>,
    /// Those of these names that are substitutes for places in files without symbols, where requested.
    pub unnamed: Vec<Unnamed>,
    pub threads: Vec<Thread>,
    /// New call chains.
    pub stacks: Vec<Stack>,
    pub seen: Vec<Seen>,
    /// How long threads ran in it, exactly, by their numbers.
    pub times: Vec<(u32, Ns)>,
    /// Samples that were lost.
    pub lost: u64,
    /// Time of threads for which there was no room, ns.
    pub unattributed: Ns,
}
