//! Checks whether this kernel and user can trace, before anything is attached.

use latpath_linux::proc::capabilities;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Reason why no program can be attached.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// The user is not root and lacks the capabilities.
    #[error("tracing needs root (or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN): run it with sudo")]
    NotRoot,
    /// The kernel has no type information (BTF).
    #[error(
        "this kernel ({0}) has no type information (/sys/kernel/btf/vmlinux): latpath needs a kernel built with \
         CONFIG_DEBUG_INFO_BTF=y, as Debian's, Ubuntu's, Red Hat's and SUSE's are"
    )]
    NoBtf(String),
    /// The type information cannot be read.
    #[error("/sys/kernel/btf/vmlinux cannot be read: {0}")]
    BadBtf(libbpf_rs::Error),
}

pub use latpath_linux::proc::kernel_release as release;

/// Checks whether this user and kernel can trace.
///
/// # Errors
/// They cannot; the error gives the reason.
pub fn able() -> Result<(), Unable> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Unable::NoBtf(release()));
    }
    // SAFETY: geteuid cannot fail and touches nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    // CAP_PERFMON and CAP_BPF, bits 38 and 39.
    if !is_root && capabilities() >> 38 & 3 != 3 {
        return Err(Unable::NotRoot);
    }
    Ok(())
}

/// The kernel's information about a program; `None` if the kernel provides none.
pub fn program_info(program: BorrowedFd<'_>) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `len` bytes to a value of that size, whose pointers are null; the descriptor is
    // open.
    let said = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut len) };
    (said == 0).then_some(info)
}

/// Whether an XDP program is loaded on this machine, in any namespace; `None` if the kernel does not list programs.
pub fn is_xdp_loaded() -> Option<bool> {
    let mut id = 0;
    loop {
        // SAFETY: the kernel writes one number to `id`.
        match unsafe { libbpf_sys::bpf_prog_get_next_id(id, &mut id) } {
            0 => {}
            error => return (error == -libc::ENOENT).then_some(false),
        }
        // SAFETY: takes a number, returns a descriptor or an error.
        let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
        if fd == -libc::ENOENT {
            continue;
        }
        if fd < 0 {
            return None;
        }
        // SAFETY: a fresh descriptor that nothing else owns.
        let program = unsafe { OwnedFd::from_raw_fd(fd) };
        if program_info(program.as_fd())?.type_ == libbpf_sys::BPF_PROG_TYPE_XDP {
            return Some(true);
        }
    }
}

/// Makes the kernel measure the run time of eBPF programs while the returned descriptor is open.
///
/// # Errors
/// If the kernel is older than 5.8, or a resource limit is reached.
pub fn measure() -> std::io::Result<OwnedFd> {
    // SAFETY: takes a number, returns a descriptor or an error.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
