//! A control group to be throttled.

use std::{fs, io, path::PathBuf};

/// A control group of this process's own, for the `cpu` controller.
pub struct Group(PathBuf);

impl Group {
    /// Makes it.
    pub fn new() -> io::Result<Self> {
        // Of the second hierarchy's root its groups get only what it is told to hand on.
        let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu");
        let first = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"].map(PathBuf::from);
        let root = first.iter().find(|r| r.join("cpu.cfs_quota_us").exists() || r.join("cgroup.controllers").exists());
        let group =
            Self(root.ok_or_else(|| io::Error::other(NO_GROUPS))?.join(format!("latpath-{}", std::process::id())));
        fs::create_dir(&group.0)?;
        if !group.0.join("cpu.cfs_quota_us").exists() && !group.0.join("cpu.max").exists() {
            return Err(io::Error::other(NO_GROUPS));
        }
        Ok(group)
    }

    /// Its directory.
    pub fn path(&self) -> &std::path::Path {
        &self.0
    }

    /// Takes a process in.
    pub fn take(&self, pid: i32) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())
    }
}

const NO_GROUPS: &str = "no control groups with the cpu controller";

/// Whether [`Group`] can be had.
pub fn need_group() -> Option<String> {
    Group::new().err().map(|e| format!("needs a cpu control group: {e}"))
}

impl Drop for Group {
    fn drop(&mut self) {
        // Who is in it goes first.
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let root = self.0.parent().map(|p| p.join("cgroup.procs")).unwrap_or_default();
            let _ = fs::write(root, pid);
        }
        let _ = fs::remove_dir(&self.0);
    }
}
