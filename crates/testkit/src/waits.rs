//! Waiting for what other processes do. A busy machine may keep any of them from running for seconds: a test waits for what it
//! needs to see, and never just for a while.

use crate::{Failed, Started};
use std::fs;
use std::time::{Duration, Instant};

/// More than anything here needs, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Waits for something that another process does.
pub fn until(what: &str, done: impl FnMut() -> bool) -> Result<(), Failed> {
    until_within(LIMIT, what, done)
}

/// The same for what may take longer, or must not.
pub fn until_within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) -> Result<(), Failed> {
    let end = Instant::now() + limit;
    while !done() {
        if Instant::now() > end {
            return Err(format!("waited for {limit:?}: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until a `latpath subscribe` takes frames.
pub fn listens(application: &mut Started) -> Result<(), Failed> {
    let pid = application.pid();
    until("the application listens", || queued(pid).is_some() || !application.runs())?;
    match application.runs() {
        true => Ok(()),
        false => Err(format!("the application ended: {}", application.said()).into()),
    }
}

/// Waits until a `latpath subscribe` has read what came.
pub fn has_read(application: &Started) -> Result<(), Failed> {
    until("the application has read what came", || queued(application.pid()) == Some(0))
}

/// Bytes that wait for a process in a packet socket that is bound to Sampled Values, or to all protocols; `None` as long as it has
/// none. The columns of /proc/net/packet: address, references, type, protocol, device, running, bytes, user, inode.
fn queued(pid: u32) -> Option<u64> {
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/packet")).ok()?;
    let own = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let own: Vec<String> = own.map(|target| target.display().to_string()).collect();
    sockets.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, "88ba" | "0003", _, "1", bytes, _, inode] = columns[..] else { return None };
        own.contains(&format!("socket:[{inode}]")).then(|| bytes.parse().ok())?
    })
}

/// Frames that a device in the network namespace of a process has sent; 0 where it is not there. Unlike `ip`, it waits for nobody
/// who changes devices.
pub fn sent(pid: u32, device: &str) -> u64 {
    let devices = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    let line = devices.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().nth(9)?.parse().ok()).unwrap_or(0)
}
