//! The /sys of a network namespace. A /sys shows the devices of the namespace in which it was mounted.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null;

/// include/uapi/linux/mount.h
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const MOUNT_ATTR_RDONLY: libc::c_uint = 1;

/// Mounts the /sys of the calling thread's network namespace without attaching it to a path. The mount is accessible
/// through its descriptor, as `/proc/self/fd/N`, and ends when the descriptor is closed.
///
/// # Errors
/// The system's error: EPERM without CAP_SYS_ADMIN, ENOSYS before Linux 5.2.
pub fn sysfs_of_own_netns() -> io::Result<OwnedFd> {
    mounted(MOUNT_ATTR_RDONLY)
}

/// Like [`sysfs_of_own_netns`], with files that can be written.
///
/// # Errors
/// Like [`sysfs_of_own_netns`].
pub fn writable_sysfs_of_own_netns() -> io::Result<OwnedFd> {
    mounted(0)
}

fn mounted(attributes: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string that outlives the call.
    let context = descriptor(unsafe { libc::syscall(libc::SYS_fsopen, c"sysfs".as_ptr(), FSOPEN_CLOEXEC) })?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&context);
    let (no_key, no_value) = (null::<libc::c_char>(), null::<libc::c_void>());
    // SAFETY: this command takes neither a key nor a value.
    let made = unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, no_key, no_value, 0) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers only.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, attributes) })
}

/// The descriptor or the error that a system call returned.
fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: a new descriptor without another owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
