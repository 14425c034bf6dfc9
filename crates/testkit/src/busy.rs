//! A program that is busy for a known share of the time, measured by its own CPU clock, for tests of profiles. A test's
//! executable acts as this program if an environment variable requests it.

use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

const ASKED: &str = "LATPATH_TEST_BUSY";
const REALTIME: &str = "realtime";
/// Period of working and sleeping.
const CYCLE: Duration = Duration::from_millis(20);

/// The command that makes this executable use `percent` % of a CPU, as process `busyPERCENT`: see [`run_if_asked`].
///
/// # Errors
/// If the path of this executable is unknown.
pub fn command(percent: u32, seconds: u32) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(format!("busy{percent}")).env(ASKED, words(percent, seconds));
    Ok(command)
}

/// The same command as a shell command line; `program` is the path of this executable.
pub fn script(program: &str, percent: u32, seconds: u32) -> String {
    format!("{ASKED}={} {program}", words(percent, seconds))
}

/// The same command line, but with a real-time priority (SCHED_FIFO).
pub fn realtime_script(program: &str, percent: u32, seconds: u32) -> String {
    format!("{ASKED}={}:{REALTIME} {program}", words(percent, seconds))
}

fn words(percent: u32, seconds: u32) -> String {
    format!("{percent}:{seconds}")
}

/// Runs the busy program if the environment requests it: prints its CPU time and the elapsed time, ns, and exits. Call
/// this first in a test's `main`.
pub fn run_if_asked() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let mut words = asked.split(':');
    let mut number = || words.next().and_then(|word| word.parse::<u32>().ok()).expect("PERCENT:SECONDS");
    let (percent, seconds) = (number(), u64::from(number()));
    if words.next() == Some(REALTIME) {
        let priority = libc::sched_param { sched_priority: 10 };
        // SAFETY: the struct outlives the call.
        let failed = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) };
        assert_eq!(failed, 0, "a real-time priority: {}", std::io::Error::last_os_error());
    }
    let name = std::ffi::CString::new(format!("busy{percent}")).expect("a name");
    // SAFETY: the name outlives the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    let work = match percent {
        ..35 => busy_twenty,
        35..75 => busy_fifty,
        _ => busy_always,
    };
    let (began, mut cycle) = (Instant::now(), Instant::now());
    while began.elapsed() < Duration::from_secs(seconds) {
        work(cpu_time() + CYCLE * percent / 100);
        cycle += CYCLE;
        crate::waits::pace(cycle.saturating_duration_since(Instant::now()));
        cycle = cycle.max(Instant::now() - CYCLE);
    }
    println!("{} {}", cpu_time().as_nanos(), began.elapsed().as_nanos());
    std::process::exit(0);
}

fn cpu_time() -> Duration {
    // SAFETY: the struct consists of integers, and outlives the call.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Functions that a profile must find. They differ, so that the compiler does not merge them. They rarely read the
/// clock, because that time is not attributed to them.
#[inline(never)]
fn busy_twenty(until: Duration) {
    while cpu_time() < until {
        (0..400_000u64).for_each(|n| _ = black_box(n * 3));
    }
}

#[inline(never)]
fn busy_always(until: Duration) {
    while cpu_time() < until {
        (0..450_000u64).for_each(|n| _ = black_box(n + 7));
    }
}

#[inline(never)]
fn busy_fifty(until: Duration) {
    while cpu_time() < until {
        (0..500_000u64).for_each(|n| _ = black_box(n ^ 5));
    }
}
