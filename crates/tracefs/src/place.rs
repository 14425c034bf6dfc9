//! Finds tracefs.

use crate::{Error, Result};
use latpath_linux::proc::{Mount, Root, Stat};
use nix::sys::statfs::{fstatfs, TRACEFS_MAGIC};
use std::{
    ffi::CStr,
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
};

/// Maximum number of this process's ancestors that are examined.
const MAX_ANCESTORS: usize = 64;

/// An open tracefs.
#[derive(Debug)]
pub struct Tracefs {
    /// Directory through which all files are accessed, so that other mounts and mount namespaces have no effect.
    directory: OwnedFd,
    shown: PathBuf,
}

impl Tracefs {
    /// Opens tracefs where it is mounted in this mount namespace, otherwise where it is mounted for an ancestor process
    /// (`ip netns exec` gives its command a /sys without tracefs), otherwise as a detached mount that ends when this is
    /// dropped.
    ///
    /// Before Linux 6.0, a second mount of tracefs would change the owner and mode of its files to those of that mount,
    /// so it is the last resort.
    ///
    /// # Errors
    /// tracefs cannot be found or mounted.
    pub fn open() -> Result<Self> {
        let own = mounted_at("self").into_iter();
        let above = ancestors().flat_map(|pid| {
            let root = PathBuf::from(format!("/proc/{pid}/root"));
            mounted_at(&pid.to_string()).into_iter().map(move |at| root.join(at.strip_prefix("/").unwrap_or(&at)))
        });
        let mut refused = None;
        for shown in own.chain(above) {
            match open_directory(&shown) {
                Ok(directory) if is_tracefs(&directory) => return Ok(Self { directory, shown }),
                // Another file system is mounted over it.
                Ok(_) => {}
                Err(source) => refused = refused.or(Some(Error::File { path: shown, source })),
            }
        }
        match mount_out_of_sight() {
            Ok(directory) => {
                let shown = format!("/proc/{}/fd/{}", std::process::id(), directory.as_raw_fd()).into();
                Ok(Self { directory, shown })
            }
            Err(source) => Err(refused.unwrap_or(Error::NoTracefs { source })),
        }
    }

    /// Its path as shown to the user, valid while this process runs.
    pub fn path(&self) -> &Path {
        &self.shown
    }

    /// Reads a file, e.g. `available_filter_functions`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, file: &str) -> Result<String> {
        fs::read_to_string(self.root().join(file)).map_err(Error::file(self.shown.join(file)))
    }

    /// The names of a system's events, sorted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn events(&self, system: &str) -> Result<Vec<String>> {
        let folder = format!("events/{system}");
        let failed = |source| Error::File { path: self.shown.join(&folder), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root().join(&folder)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort();
        Ok(names)
    }

    /// The path through which this process opens its files.
    pub(crate) fn root(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.directory.as_raw_fd()).into()
    }

    /// A directory that replaces tracefs in tests.
    #[cfg(test)]
    pub(crate) fn stand_in(path: &Path) -> Self {
        Self { directory: open_directory(path).expect("a directory"), shown: path.into() }
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)?;
    Ok(file.into())
}

fn is_tracefs(directory: &OwnedFd) -> bool {
    fstatfs(directory).is_ok_and(|s| s.filesystem_type() == TRACEFS_MAGIC)
}

/// The ancestors of this process, nearest first.
fn ancestors() -> impl Iterator<Item = u32> {
    let root = Root::of(Path::new("/"));
    let parent = move |pid: &u32| Some(Stat::read(&root, &format!("proc/{pid}"))?.parent).filter(|pid| *pid != 0);
    std::iter::successors(parent(&std::process::id()), parent).take(MAX_ANCESTORS)
}

/// The places where tracefs is mounted with its root directory, as seen by a process.
fn mounted_at(pid: &str) -> Vec<PathBuf> {
    whole_tracefs(Mount::all_of(pid))
}

fn whole_tracefs(mounts: Vec<Mount>) -> Vec<PathBuf> {
    mounts.into_iter().filter(|mount| mount.root == "/" && mount.kind == "tracefs").map(|mount| mount.at).collect()
}

/// Makes a detached mount of tracefs, which the kernel removes when its last descriptor is closed.
fn mount_out_of_sight() -> io::Result<OwnedFd> {
    const TRACEFS: &CStr = c"tracefs";
    // From include/uapi/linux/mount.h.
    const FSOPEN_CLOEXEC: libc::c_long = 1;
    const FSCONFIG_CMD_CREATE: libc::c_long = 6;
    const FSMOUNT_CLOEXEC: libc::c_long = 1;
    const MOUNT_ATTR_NOSUID_NODEV_NOEXEC: libc::c_long = 2 | 4 | 8;
    let checked = |answer: libc::c_long| if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as i32) };
    // SAFETY: the name is a static C string; the kernel returns a new descriptor without another owner.
    let context = unsafe {
        let fd = checked(libc::syscall(libc::SYS_fsopen, TRACEFS.as_ptr(), FSOPEN_CLOEXEC))?;
        OwnedFd::from_raw_fd(fd)
    };
    let fd = libc::c_long::from(context.as_raw_fd());
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes neither key nor value.
    checked(unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, null, null, 0 as libc::c_long) })?;
    // SAFETY: takes plain numbers, and returns a new descriptor without another owner.
    unsafe {
        let fd = checked(libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID_NODEV_NOEXEC))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_the_whole_tracefs_are_found_by_their_type() {
        let mount = |root: &str, at: &str, kind: &str| Mount { root: root.into(), at: at.into(), kind: kind.into() };
        let mounts = vec![
            mount("/", "/sys", "sysfs"),
            mount("/", "/sys/kernel/tracing", "tracefs"),
            mount("/instances/a", "/mnt/a", "tracefs"),
            mount("/", "/tracefs", "tmpfs"),
            mount("/", "/mnt/my trace", "tracefs"),
        ];
        assert_eq!(whole_tracefs(mounts), [Path::new("/sys/kernel/tracing"), Path::new("/mnt/my trace")]);
    }
}
