//! The output of a sampler: about once a second, one slice of time with its samples. The format is the same for this
//! machine and others.

use latpath_model::Ns;

/// Maximum size of a name, bytes.
pub const MAX_NAME: usize = 256;
/// Maximum number of names: even an empty name takes memory.
pub const MAX_NAMES: usize = 1 << 18;
/// Maximum size of all names, bytes, including those of threads and processes.
pub const MAX_NAME_BYTES: usize = 16 << 20;
/// Maximum number of threads; a renamed thread counts again.
pub const MAX_THREADS: usize = 1 << 16;
/// Maximum number of different call chains.
pub const MAX_STACKS: usize = 1 << 17;
/// Maximum number of frames of all call chains.
pub const MAX_FRAMES: usize = 1 << 21;
/// Maximum number of frames of one call chain, in user space and the kernel together.
pub const MAX_DEPTH: usize = 256;
/// Maximum number of CPUs of a machine.
pub const MAX_CPUS: u32 = 8192;
/// Maximum number of unnamed places in files without symbols.
pub const MAX_UNNAMED: usize = 1 << 14;
/// Maximum size of a build-id, bytes.
pub const MAX_BUILD_ID: usize = 64;

/// Mode of a CPU at the time of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Idle.
    Idle,
    /// Running a program.
    User,
    /// Running in the kernel.
    Kernel,
    /// Running a guest.
    Guest,
}

impl Mode {
    /// All modes, in the order of their encoding.
    pub const ALL: [Self; 4] = [Self::Idle, Self::User, Self::Kernel, Self::Guest];
}

/// A thread; a renamed thread is a new thread. Sent unchanged, as a protobuf message.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Thread {
    /// Thread ID (TID); 0 for a CPU's idle thread.
    #[prost(uint32, tag = "1")]
    pub tid: u32,
    /// Process ID (TGID).
    #[prost(uint32, tag = "2")]
    pub tgid: u32,
    /// The CPU of an idle thread; otherwise 0.
    #[prost(uint32, tag = "3")]
    pub cpu: u32,
    /// Its name.
    #[prost(string, tag = "4")]
    pub comm: String,
    /// Name of its process's main thread.
    #[prost(string, tag = "5")]
    pub process: String,
    /// Whether it is a kernel thread.
    #[prost(bool, tag = "6")]
    pub is_kernel: bool,
}

/// A frame of a call chain: the index of its function's name, and whether the function is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId(u32);

impl FrameId {
    /// Creates a frame from the index of a name, which must be below 2^31.
    pub fn new(name: u32, in_kernel: bool) -> Self {
        Self(name << 1 | u32::from(in_kernel))
    }

    /// Restores a frame from [`Self::raw`].
    pub fn of_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The frame as encoded in messages.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// Index of the function's name.
    pub fn name(self) -> usize {
        (self.0 >> 1) as usize
    }

    /// Whether the function is in the kernel.
    pub fn in_kernel(self) -> bool {
        self.0 & 1 == 1
    }
}

/// A call chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Mode of the CPU.
    pub mode: Mode,
    /// Functions, innermost first.
    pub frames: Vec<FrameId>,
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Time in the machine's `CLOCK_MONOTONIC`, ns.
    pub t: Ns,
    /// The CPU.
    pub cpu: u32,
    /// Index of the thread.
    pub thread: u32,
    /// Index of the call chain.
    pub stack: u32,
}

/// A function without a name on its machine, because its file has no symbols. Sent unchanged, as a protobuf message.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Unnamed {
    /// Index of its substitute name, which is the file's name.
    #[prost(uint32, tag = "1")]
    pub name: u32,
    /// The file's build-id.
    #[prost(bytes = "vec", tag = "2")]
    pub build_id: Vec<u8>,
    /// Its address, as in the file's symbol table.
    #[prost(uint64, tag = "3")]
    pub address: u64,
}

/// The samples of an interval. Names, threads and call chains have indexes from 0 in order of appearance; a slice
/// contains only the new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Start in the machine's `CLOCK_MONOTONIC`, ns: the end of the previous slice.
    pub from: Ns,
    /// End, ns.
    pub until: Ns,
    /// New names of functions.
    pub names: Vec<String>,
    /// New places in files without symbols; each has a substitute name in `names`. Only if requested.
    pub unnamed: Vec<Unnamed>,
    /// New threads.
    pub threads: Vec<Thread>,
    /// New call chains.
    pub stacks: Vec<Stack>,
    /// Samples.
    pub seen: Vec<Seen>,
    /// Exact run times of threads in the slice: thread index and time, ns.
    pub times: Vec<(u32, Ns)>,
    /// Number of lost samples.
    pub lost: u64,
    /// Time of threads that did not fit into the table of threads, ns.
    pub unattributed: Ns,
}
