//! Control groups whose processes can be throttled.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// A control group of this process with the `cpu` controller, and an empty group that always has a limit. Without the
/// empty group, the kernel would patch its own code (a static key) when the first group gets a limit and when the last
/// one loses it, and an emulated CPU fails on code that changes while it runs.
pub struct Group {
    path: PathBuf,
    limited: PathBuf,
}

impl Group {
    /// Creates both groups.
    pub fn new() -> io::Result<Self> {
        // In cgroup v2 a group has only the controllers that its parent delegates.
        let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu");
        let first = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"].map(PathBuf::from);
        let root = first.iter().find(|r| r.join("cpu.cfs_quota_us").exists() || r.join("cgroup.controllers").exists());
        let root = root.ok_or_else(|| io::Error::other(NO_GROUPS))?;
        let named = |end: &str| root.join(format!("latpath-{}{end}", std::process::id()));
        let group = Self { path: named(""), limited: named("-limited") };
        fs::create_dir(&group.path)?;
        if !group.path.join("cpu.cfs_quota_us").exists() && !group.path.join("cpu.max").exists() {
            return Err(io::Error::other(NO_GROUPS));
        }
        fs::create_dir(&group.limited)?;
        quota(&group.limited, Some(Duration::from_millis(50)))?;
        Ok(group)
    }

    /// Path of the group.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves a process into the group.
    pub fn take(&self, pid: i32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }
}

const NO_GROUPS: &str = "no control groups with the cpu controller";

/// Why [`Group`] cannot be created; `None` if it can.
pub fn need_group() -> Option<String> {
    Group::new().err().map(|e| format!("needs a cpu control group: {e}"))
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes must leave the group before it can be removed.
        for pid in fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default().lines() {
            let root = self.path.parent().map(|p| p.join("cgroup.procs")).unwrap_or_default();
            let _ = fs::write(root, pid);
        }
        for group in [&self.path, &self.limited] {
            let _ = fs::remove_dir(group);
        }
    }
}

/// A control group in the hierarchy of one cgroup v1 controller.
pub struct OldGroup(PathBuf);

impl OldGroup {
    /// Creates the group, and writes these files in it: pairs of name and content.
    pub fn new(controller: &str, files: &[(&str, String)]) -> io::Result<Self> {
        let group = Path::new("/sys/fs/cgroup").join(controller).join(format!("latpath-{}", std::process::id()));
        fs::create_dir(&group)?;
        let group = Self(group);
        for (file, text) in files {
            fs::write(group.0.join(file), text).map_err(|e| io::Error::new(e.kind(), format!("{file}: {e}")))?;
        }
        Ok(group)
    }

    /// Path of the group.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Moves a process into the group.
    pub fn take(&self, pid: i32) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for OldGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Why [`OldGroup`] cannot be created with this file; `None` if it can.
pub fn need_old_group(controller: &str, file: &str) -> Option<String> {
    let lack = || Some(format!("needs the {controller} controller of control groups of version 1, with {file}"));
    OldGroup::new(controller, &[]).ok().filter(|group| group.0.join(file).exists()).map_or_else(lack, |_| None)
}

/// Limits a control group to `quota` in each 100 ms, or removes the limit.
pub fn quota(group: &Path, quota: Option<Duration>) -> io::Result<()> {
    let second = group.join("cpu.max");
    if second.exists() {
        let text = quota.map_or("max 100000".into(), |q| format!("{} 100000", q.as_micros()));
        return fs::write(second, text);
    }
    fs::write(group.join("cpu.cfs_quota_us"), quota.map_or("-1".into(), |q| q.as_micros().to_string()))
}
