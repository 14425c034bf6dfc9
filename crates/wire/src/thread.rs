//! Settings that make a thread punctual, and precise waiting.
#![allow(unsafe_code)]

use latpath_linux::read_clock;
use latpath_model::Ns;
use nix::sched::{sched_setaffinity, CpuSet};
use nix::sys::prctl;
use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};
use nix::time::{clock_nanosleep, ClockId, ClockNanosleepFlags};
use nix::unistd::Pid;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a thread could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// SCHED_FIFO was refused.
    #[error("SCHED_FIFO priority {priority}: {cause}; it needs root, CAP_SYS_NICE or a limit (ulimit -r) of at least {priority}")]
    Fifo {
        /// The priority, 1 to 99.
        priority: u8,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The CPU does not exist or is not permitted.
    #[error("CPU {cpu}: {cause} (CPUs that this process may use: {allowed})")]
    Cpu {
        /// The CPU.
        cpu: usize,
        /// The kernel's error.
        cause: io::Error,
        /// The permitted CPUs.
        allowed: String,
    },
    /// The CPUs could not be kept out of deep idle states.
    #[error("/dev/cpu_dma_latency: {0}; keeping CPUs awake needs root and a kernel that offers this file")]
    CpuLatencyRequest(io::Error),
    /// Memory could not be locked.
    #[error("locking memory: {0}; it needs root, CAP_IPC_LOCK or a higher limit (ulimit -l)")]
    Memory(io::Error),
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeUp {
    /// Time of waking up, by the clock used for the wait, ns.
    pub now: Ns,
    /// Whether the deadline was still in the future when the wait began.
    pub waited: bool,
}

/// Sleeps until `deadline` (`CLOCK_MONOTONIC`, ns), busy-waiting for the last `spin` ns. `None` if `stop` was set,
/// which is checked on every signal and at least every 100 ms.
pub fn wait_until(deadline: Ns, spin: Ns, stop: &AtomicBool) -> Option<WakeUp> {
    wait_until_by(ClockId::CLOCK_MONOTONIC, deadline, spin, stop)
}

/// As [`wait_until`], by `CLOCK_TAI`, `CLOCK_REALTIME` or `CLOCK_MONOTONIC`. If the clock is set during the wait, its
/// new time applies.
pub fn wait_until_by(clock: ClockId, deadline: Ns, spin: Ns, stop: &AtomicBool) -> Option<WakeUp> {
    let mut waited = false;
    loop {
        let now = read_clock(clock);
        if now >= deadline {
            return Some(WakeUp { now, waited });
        }
        waited = true;
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let wake = (deadline - spin).min(now + 100_000_000);
        if wake > now {
            let at = nix::sys::time::TimeSpec::new(wake / 1_000_000_000, wake % 1_000_000_000);
            // The only possible error is EINTR: the loop checks `stop` and sleeps again.
            let _ = clock_nanosleep(clock, ClockNanosleepFlags::TIMER_ABSTIME, &at);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Sets the calling thread to SCHED_FIFO at `priority` (1 to 99).
///
/// # Errors
/// The kernel refuses the policy or the priority.
pub fn set_fifo(priority: u8) -> Result<(), ThreadError> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: `param` outlives the call; pid 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } {
        0 => Ok(()),
        _ => Err(ThreadError::Fifo { priority, cause: io::Error::last_os_error() }),
    }
}

/// Pins the calling thread to one CPU.
///
/// # Errors
/// The CPU does not exist or is not permitted.
pub fn pin(cpu: usize) -> Result<(), ThreadError> {
    let mut set = CpuSet::new();
    set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|e| {
        let allowed = nix::sched::sched_getaffinity(Pid::from_raw(0)).map_or_else(
            |_| "?".into(),
            |s| {
                let cpus = (0..CpuSet::count()).filter(|c| s.is_set(*c).unwrap_or(false));
                cpus.map(|c| c.to_string()).collect::<Vec<_>>().join(",")
            },
        );
        ThreadError::Cpu { cpu, cause: e.into(), allowed }
    })
}

/// While it exists, keeps the machine's CPUs out of idle states that have a wake-up latency
/// (Documentation/power/pm_qos_interface.rst).
#[derive(Debug)]
pub struct CpuLatencyRequest(
    #[allow(dead_code, reason = "held open: the kernel drops the request when it is closed")] File,
);

impl CpuLatencyRequest {
    /// Requests a wake-up latency of 0 µs from the kernel.
    ///
    /// # Errors
    /// /dev/cpu_dma_latency cannot be written.
    pub fn new() -> Result<Self, ThreadError> {
        let open = || {
            let mut file = File::options().write(true).open("/dev/cpu_dma_latency")?;
            file.write_all(&0i32.to_ne_bytes())?;
            Ok(Self(file))
        };
        open().map_err(ThreadError::CpuLatencyRequest)
    }
}

/// Locks all present and future memory of the process.
///
/// # Errors
/// The kernel refuses to lock the memory.
pub fn lock_memory() -> Result<(), ThreadError> {
    // SAFETY: takes flags only.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } {
        0 => Ok(()),
        _ => Err(ThreadError::Memory(io::Error::last_os_error())),
    }
}

/// Number of the capability for locking memory (capabilities(7)).
const CAP_IPC_LOCK: u32 = 14;

/// Whether this process may lock all memory, including later allocations: it has CAP_IPC_LOCK, or no limit (`ulimit
/// -l`). With a limit, an allocation beyond it would fail while memory is locked.
pub fn may_lock_memory() -> bool {
    let unlimited = getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(soft, _)| soft == RLIM_INFINITY);
    unlimited || latpath_linux::proc::capabilities() >> CAP_IPC_LOCK & 1 == 1
}

/// Number of bytes of a thread's stack that are touched in advance.
const STACK_TOUCHED: usize = 256 << 10;

/// Touches the calling thread's stack, so that later accesses cause no page faults. Locked memory stays resident.
#[inline(never)]
pub fn touch_stack() {
    std::hint::black_box(&mut [0_u8; STACK_TOUCHED]);
}

/// Names the calling thread (at most 15 bytes) and makes its timers precise: without real-time priority, the kernel
/// might otherwise delay them by 50 µs.
pub fn set_name(name: &str) {
    let short: Vec<u8> = name.bytes().filter(|b| *b != 0).take(15).collect();
    if let Ok(short) = CString::new(short) {
        // Neither call can fail with these arguments, and nothing but the precision and the name depends on them.
        let _ = prctl::set_name(&short);
    }
    let _ = prctl::set_timerslack(1);
}
