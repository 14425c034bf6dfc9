//! The scheduling priority of the process's threads, which is set per thread.

use crate::proc::{capabilities, Root};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Maximum number of threads of the process that are adjusted.
const MAX_THREADS: usize = 4096;
/// Nice value of [`Priority::Low`], which gets about a tenth of a busy CPU.
const LOW_NICE: i32 = 10;
/// Nice value of threads whose work can always wait some ms ([`lower_priority`]).
const LOWEST_NICE: i32 = 19;
/// Slice of background threads, ns: the scheduler's minimum (Linux 6.12 and later; earlier kernels ignore it). A waking
/// thread waits for a running one for at most a slice, by default some ms since Linux 6.6.
const SLICE_NS: u64 = 100_000;

/// Priority of the process's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Priority {
    /// `SCHED_IDLE`: every other thread that wakes takes the CPU.
    Idle,
    /// Nice 10 with slices of 0.1 ms.
    Low,
    /// The policy and nice value that the user gave the process.
    Normal,
}

impl Priority {
    pub fn of(value: u8) -> Self {
        match value {
            0 => Self::Idle,
            1 => Self::Low,
            _ => Self::Normal,
        }
    }
}

/// `struct sched_attr` (include/uapi/linux/sched/types.h), in the first version, which every kernel accepts.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

fn set_attributes(thread: i32, policy: i32, nice: i32, slice: u64) {
    let size = size_of::<SchedAttr>() as u32;
    let attr =
        SchedAttr { size, policy: policy as u32, flags: 0, nice, priority: 0, runtime: slice, deadline: 0, period: 0 };
    // SAFETY: the kernel reads `size` bytes of a value that outlives the call. For a thread that has ended the call
    // fails without effect.
    unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &attr, 0) };
}

fn nice_of(thread: i32) -> i32 {
    // SAFETY: takes plain numbers. For a thread that has ended the result is -1, and setting it has no effect.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, thread as libc::id_t) }
}

/// Lowers the calling thread permanently to nice 19: name resolution, compression, files and explanations can wait some
/// ms.
pub fn lower_priority() {
    // SAFETY: takes plain numbers; 0 is the calling thread, which may always lower itself.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST_NICE) };
}

/// Keeps the calling thread at normal priority while the process's other threads run in the background: for a thread
/// that nearly always sleeps and must act within some ms of a wakeup. Its policy, `SCHED_BATCH` with slices of 0.1 ms,
/// does not preempt running threads. A policy set by the user is kept.
pub fn keep_prompt() {
    // SAFETY: takes a number; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy == libc::SCHED_OTHER || policy == libc::SCHED_IDLE {
        set_attributes(0, libc::SCHED_BATCH, nice_of(0), SLICE_NS);
    }
}

/// Sets the priority of all threads of this process except one. Policies set by the user are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setter {
    /// The nice value that the user gave the process.
    nice: i32,
}

impl Setter {
    pub fn new() -> Self {
        Self { nice: nice_of(0) }
    }

    pub fn set(self, priority: Priority, except: Option<Pid>) {
        for thread in threads().filter(|thread| Some(*thread) != except).map(Pid::as_raw) {
            // SAFETY: takes a number.
            let policy = unsafe { libc::sched_getscheduler(thread) };
            if policy != libc::SCHED_OTHER && policy != libc::SCHED_IDLE {
                continue;
            }
            let lowest = nice_of(thread) == LOWEST_NICE;
            let nice = |nice| if lowest { LOWEST_NICE } else { nice };
            match priority {
                Priority::Idle => set_attributes(thread, libc::SCHED_IDLE, nice(self.nice), SLICE_NS),
                Priority::Low => set_attributes(thread, libc::SCHED_OTHER, nice(LOW_NICE.max(self.nice)), SLICE_NS),
                Priority::Normal => set_attributes(thread, libc::SCHED_OTHER, nice(self.nice), 0),
            }
        }
    }
}

pub(super) fn threads() -> impl Iterator<Item = Pid> {
    let numbers = Root::of(Path::new("/")).numbers("proc/self/task", MAX_THREADS).unwrap_or_default();
    numbers.into_iter().filter_map(|tid| i32::try_from(tid).ok()).map(Pid::from_raw)
}

/// Whether the kernel permits this process to leave `SCHED_IDLE` (sched(7)): CAP_SYS_NICE, or RLIMIT_NICE of 20 or
/// more.
pub(super) fn may_return() -> bool {
    const CAP_SYS_NICE: u32 = 23;
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NICE);
    capabilities() >> CAP_SYS_NICE & 1 == 1 || limit.is_ok_and(|(soft, _)| soft >= 20)
}

/// Whether the calling thread has the default policy, `SCHED_OTHER`.
pub(super) fn is_ordinary() -> bool {
    // SAFETY: takes a number; 0 is the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_OTHER }
}

/// Makes `command` start at normal priority, even from a background thread: a child inherits its parent's policy.
pub fn leave_at_exec(command: &mut Command) {
    let leave = || {
        // SAFETY: takes a number.
        if unsafe { libc::sched_getscheduler(0) } == libc::SCHED_IDLE {
            set_attributes(0, libc::SCHED_OTHER, nice_of(0), 0);
        }
        Ok(())
    };
    // SAFETY: between fork and exec it only makes system calls, and allocates nothing.
    unsafe { command.pre_exec(leave) };
}
