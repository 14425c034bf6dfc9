//! Owners of changes: processes, identified so that no later process can be mistaken for them.

use latpath_linux::proc::{start_ticks, Root};
use serde::{Deserialize, Serialize};
use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// A process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Process ID, as in /proc.
    pub pid: u32,
    /// Start time, clock ticks since boot; distinguishes it from later processes with the same ID.
    pub start_ticks: u64,
    /// Inode number of the PID namespace to which the ID belongs.
    pub pid_namespace: u64,
}

impl Owner {
    /// This process.
    pub fn this() -> Self {
        let shown = fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
        let pid = shown.unwrap_or_else(std::process::id);
        Self { pid, start_ticks: started(pid).unwrap_or(0), pid_namespace: own_pid_namespace() }
    }

    /// Whether the process is still running. A process in another PID namespace cannot be checked, and counts as
    /// running.
    pub fn is_alive(&self) -> bool {
        self.pid_namespace != own_pid_namespace() || started(self.pid) == Some(self.start_ticks)
    }
}

fn started(pid: u32) -> Option<u64> {
    start_ticks(&Root::of(Path::new("/")), pid)
}

fn own_pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let this = Owner::this();
        assert!(this.is_alive() && this.start_ticks > 0);
        assert!(!Owner { start_ticks: this.start_ticks + 1, ..this }.is_alive(), "another process with its number");
        assert!(!Owner { pid: u32::MAX, ..this }.is_alive());
        assert!(Owner { pid: u32::MAX, pid_namespace: 1, ..this }.is_alive(), "it cannot be judged from here");
    }
}
