//! System calls of transports and logs: waiting, drop counters.
#![allow(unsafe_code)]

use latpath_linux::net::get_option;
use latpath_model::Ns;
use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::time::TimeSpec;
use std::os::fd::BorrowedFd;

/// Waits for a message until `deadline` (`CLOCK_MONOTONIC`); a signal or a message in the error queue ends the wait
/// early.
pub(crate) fn wait_until(fd: BorrowedFd<'_>, deadline: Ns) {
    let left = (deadline - latpath_linux::monotonic()).max(0);
    let timeout = TimeSpec::new(left / 1_000_000_000, left % 1_000_000_000);
    // The result is irrelevant: the caller checks its socket and its clock next.
    let _ = ppoll(&mut [PollFd::new(fd, PollFlags::POLLIN)], Some(timeout), None);
}

/// Datagrams dropped by the kernel at this socket so far.
pub(crate) fn drops(fd: BorrowedFd<'_>) -> u64 {
    /// `SK_MEMINFO_VARS` in `linux/sock_diag.h`.
    const VARS: usize = 9;
    /// `SK_MEMINFO_DROPS` in `linux/sock_diag.h`.
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
    fn drops_of_a_full_buffer_are_counted() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_option(server.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &1i32).unwrap();
        for _ in 0..100 {
            server.send_to(&[0; 1000], server.local_addr().unwrap()).unwrap();
        }
        assert!(drops(server.as_fd()) > 0);
    }
}
