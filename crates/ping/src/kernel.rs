//! What transports and logs ask of the kernel: waiting, counts of drops, memory.
#![allow(unsafe_code)]

use latpath_linux::net::get_option;
use latpath_model::Ns;
use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::time::TimeSpec;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Waits for a message until `deadline` (`CLOCK_MONOTONIC`); a signal ends it early. A message of the error queue ends it too.
pub(crate) fn wait_until(fd: BorrowedFd<'_>, deadline: Ns) {
    let left = (deadline - latpath_linux::monotonic()).max(0);
    let timeout = TimeSpec::new(left / 1_000_000_000, left % 1_000_000_000);
    // Whatever it returns, the caller looks at its socket and its clock next.
    let _ = ppoll(&mut [PollFd::new(fd, PollFlags::POLLIN)], Some(timeout), None);
}

/// Memory that is mapped, and goes with this value.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) at: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: the mapping belongs to this value alone within the process; what the kernel shares is reached through atomics only.
unsafe impl Send for Map {}

impl Map {
    /// As mmap(2) does: new memory, or what the file has at this offset.
    pub(crate) fn new(len: usize, flags: i32, fd: i32, offset: i64) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset) };
        match NonNull::new(at.cast()) {
            Some(at_) if at != libc::MAP_FAILED => Ok(Self { at: at_, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Datagrams that the kernel dropped at this socket so far.
pub(crate) fn drops(fd: BorrowedFd<'_>) -> u64 {
    /// `SK_MEMINFO_VARS` of `linux/sock_diag.h`.
    const VARS: usize = 9;
    /// `SK_MEMINFO_DROPS`.
    const DROPS: usize = 8;
    let mut values = [0u32; VARS];
    // SAFETY: integers only.
    let got = unsafe { get_option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut values) };
    got.map_or(0, |_| values[DROPS].into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_linux::net::set_option;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn drops_are_counted_where_the_buffer_is_full() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_option(server.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &1i32).unwrap();
        for _ in 0..100 {
            server.send_to(&[0; 1000], server.local_addr().unwrap()).unwrap();
        }
        assert!(drops(server.as_fd()) > 0);
    }
}
