//! Waits for other processes. A busy machine may keep a process from running for seconds, so a test waits for the state
//! that it needs, never for a fixed time.

use crate::{Failed, Started};
use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum duration of a wait, sufficient on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Sleeps between two packets, rows or polls. To wait for an observable state, use [`until`].
#[allow(clippy::disallowed_methods)] // the one place
pub fn pace(time: Duration) {
    thread::sleep(time);
}

/// Sleeps for the duration of a fault, or of a process that will be killed: a time that does not depend on other
/// processes.
pub fn fault_for(time: Duration) {
    pace(time);
}

/// Waits until `done` returns true, for at most [`LIMIT`].
///
/// # Errors
/// If `done` does not return true within [`LIMIT`].
pub fn until(what: &str, done: impl FnMut() -> bool) -> Result<(), Failed> {
    until_within(LIMIT, what, done)
}

/// Like [`until`], but with another limit.
///
/// # Errors
/// If `done` does not return true within `limit`.
pub fn until_within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) -> Result<(), Failed> {
    let end = Instant::now() + limit;
    while !done() {
        if Instant::now() > end {
            return Err(format!("waited for {limit:?}: {what}").into());
        }
        pace(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until a command has printed these words to standard error.
///
/// # Errors
/// If the command ends first, or does not print them within [`LIMIT`].
pub fn says(started: &mut Started, words: &str) -> Result<(), Failed> {
    until(&format!("it says {words:?}"), || {
        let runs = started.runs();
        started.said().contains(words) || !runs
    })?;
    match started.said() {
        said if said.contains(words) => Ok(()),
        said => Err(format!("it ended before it said {words:?}: {said}").into()),
    }
}

/// Waits until a `latpath subscribe` is ready to receive frames.
///
/// # Errors
/// If the command ends first, or opens no packet socket within [`LIMIT`].
pub fn listens(application: &mut Started) -> Result<(), Failed> {
    let pid = application.pid();
    until("the application listens", || queued(pid).is_some() || !application.runs())?;
    match application.runs() {
        true => Ok(()),
        false => Err(format!("the application ended: {}", application.said()).into()),
    }
}

/// Waits until a `latpath subscribe` has read all received frames.
///
/// # Errors
/// If frames remain unread after [`LIMIT`].
pub fn has_read(application: &Started) -> Result<(), Failed> {
    until("the application has read what came", || queued(application.pid()) == Some(0))
}

/// Whether all packet sockets in this text are empty; `sockets` is the content of /proc/net/packet on this machine or
/// another.
pub fn all_read(sockets: &str) -> bool {
    sockets.lines().skip(1).all(|line| line.split_whitespace().nth(6) == Some("0"))
}

/// Bytes queued in a process's packet socket that is bound to Sampled Values, GOOSE or all protocols; `None` while it
/// has no such socket. The columns of /proc/net/packet are: address, references, type, protocol, device, running,
/// bytes, user, inode.
fn queued(pid: u32) -> Option<u64> {
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/packet")).ok()?;
    let own = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let own: Vec<String> = own.map(|target| target.display().to_string()).collect();
    sockets.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, "88ba" | "88b8" | "0003", _, "1", bytes, _, inode] = columns[..] else { return None };
        own.contains(&format!("socket:[{inode}]")).then(|| bytes.parse().ok())?
    })
}

/// Waits until a process is in this state: S (sleeping), T (stopped).
///
/// # Errors
/// If the process does not reach the state within [`LIMIT`].
pub fn is_in_state(pid: u32, state: char) -> Result<(), Failed> {
    until(&format!("process {pid} is in state {state}"), || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(state))
    })
}

/// Waits until all packets that devices of this machine have sent are delivered. The softirq that delivers them may run
/// much later. But if each CPU's backlog has been empty, and a thread has run on the CPU since, then the last packet
/// taken from the backlog has been delivered.
///
/// # Errors
/// If a backlog is not empty within [`LIMIT`].
pub fn delivered() -> Result<(), Failed> {
    let mut waiting: Vec<usize> = (0..backlogs().len()).collect();
    until("packets between devices are delivered", || {
        let now = backlogs();
        waiting.retain(|cpu| now.get(*cpu).is_some_and(|packets| *packets > 0));
        waiting.is_empty()
    })?;
    let run_at = |cpu: usize| {
        let mut set = CpuSet::new();
        let _ = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    };
    (0..backlogs().len()).for_each(|cpu| drop(thread::spawn(move || run_at(cpu)).join()));
    Ok(())
}

/// Length of each CPU's backlog, packets: column 12 of /proc/net/softnet_stat, which exists since Linux 5.10.
fn backlogs() -> Vec<u64> {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let packets = |line: &str| u64::from_str_radix(line.split(' ').nth(11)?, 16).ok();
    text.lines().map(|line| packets(line).unwrap_or(0)).collect()
}

/// Number of frames that a device in a process's network namespace has sent; 0 if the device does not exist. Unlike
/// `ip`, this does not wait for concurrent configuration changes.
pub fn sent(pid: u32, device: &str) -> u64 {
    let devices = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    let line = devices.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().nth(9)?.parse().ok()).unwrap_or(0)
}
