//! Reads packets with their control messages, and waits for them.
#![allow(unsafe_code)]

use crate::control::{discarded, from_error_queue, Discarded, TxStamp};
use latpath_linux::net::get_option;
use latpath_model::Ns;
use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::socket::SockaddrStorage;
use nix::sys::time::TimeSpec;
use std::io;
use std::mem::zeroed;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Buffer for a packet's control messages: timestamps, the device, and an error with the address that caused it.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub struct Control([u8; Control::ROOM]);

impl Control {
    /// Size of the buffer, bytes; all messages that this crate requests together take about 250.
    const ROOM: usize = 512;

    /// An empty buffer.
    pub const fn new() -> Self {
        Self([0; Self::ROOM])
    }
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

/// A packet read by [`receive`].
#[derive(Clone, Copy, Debug)]
pub struct Message<'c> {
    /// Number of bytes of the packet in the caller's buffer.
    pub len: usize,
    /// Whether the packet was truncated because it was longer than the buffer.
    pub cut: bool,
    /// The control messages, for [`rx_stamps`](crate::rx_stamps) or [`from_error_queue`](crate::from_error_queue).
    pub control: &'c [u8],
    /// The sender's address, if the packet was received over IP.
    pub from: Option<SocketAddr>,
}

/// Reads a packet. `flags` are those of recvmsg(2), e.g. `MSG_DONTWAIT` and `MSG_ERRQUEUE`. A packet from the error
/// queue includes all headers from the link layer on: the bytes that the program sent are its **last** ones.
///
/// # Errors
/// The packet cannot be read; `EAGAIN` if there is none.
pub fn receive<'c>(
    fd: BorrowedFd<'_>,
    data: &mut [u8],
    control: &'c mut Control,
    flags: i32,
) -> io::Result<Message<'c>> {
    let mut vector = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: all zeros is a valid address, and a valid msghdr: no name, no data, no control.
    let (mut from, mut header): (SockaddrStorage, libc::msghdr) = unsafe { zeroed() };
    header.msg_name = std::ptr::from_mut(&mut from).cast();
    header.msg_namelen = size_of_val(&from) as libc::socklen_t;
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = Control::ROOM as _;
    // SAFETY: the header points to an address, one vector over `data` and all of `control`, which outlive the call; the
    // kernel writes at most their lengths.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, flags) };
    let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
    Ok(Message {
        len: len.min(data.len()),
        cut: header.msg_flags & libc::MSG_TRUNC != 0,
        control: &control.0[..header.msg_controllen.min(Control::ROOM)],
        from: ip_address(&from),
    })
}

/// Reads a packet without its control messages, which costs less than [`receive`]. Returns its length and, if it was
/// received over IP, its sender. `flags` are those of recvfrom(2).
///
/// # Errors
/// The packet cannot be read; `EAGAIN` if there is none.
#[inline]
pub fn receive_from(fd: BorrowedFd<'_>, data: &mut [u8], flags: i32) -> io::Result<(usize, Option<SocketAddr>)> {
    // SAFETY: all zeros is a valid address.
    let mut from: SockaddrStorage = unsafe { zeroed() };
    let mut room = size_of_val(&from) as libc::socklen_t;
    let address = std::ptr::from_mut(&mut from).cast();
    // SAFETY: the kernel writes at most `data.len()` bytes to `data` and `room` bytes to `from`; both outlive the call.
    let len =
        unsafe { libc::recvfrom(fd.as_raw_fd(), data.as_mut_ptr().cast(), data.len(), flags, address, &mut room) };
    let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
    Ok((len.min(data.len()), ip_address(&from)))
}

fn ip_address(from: &SockaddrStorage) -> Option<SocketAddr> {
    let four = from.as_sockaddr_in().map(|a| SocketAddrV4::from(*a).into());
    four.or_else(|| from.as_sockaddr_in6().map(|a| SocketAddrV6::from(*a).into()))
}

/// A message in a socket's error queue about a sent packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// A timestamp.
    Stamp(TxStamp),
    /// A queueing discipline discarded the packet because of its send time.
    Discarded(Discarded),
}

/// Calls `each` with the timestamps of sent packets in a socket's error queue; otherwise as [`error_queue`].
///
/// # Errors
/// The error queue cannot be read. An empty queue is not an error.
pub fn sent_stamps(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut Control,
    most: usize,
    each: &mut dyn FnMut(TxStamp, &[u8]),
) -> io::Result<usize> {
    error_queue(fd, buffer, control, most, &mut |queued, packet| {
        if let Queued::Stamp(stamp) = queued {
            each(stamp, packet);
        }
    })
}

/// Calls `each` with up to `most` messages about sent packets from a socket's error queue, each with the bytes of its
/// packet from the link layer header on: the bytes that the program sent are its **last** ones. Returns the number of
/// messages read, including other errors. `buffer` must have room for a packet.
///
/// # Errors
/// The error queue cannot be read. An empty queue is not an error.
pub fn error_queue(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut Control,
    most: usize,
    each: &mut dyn FnMut(Queued, &[u8]),
) -> io::Result<usize> {
    for count in 0..most {
        match receive(fd, buffer, control, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) {
            Ok(got) => {
                let stamp = || from_error_queue(got.control).map(Queued::Stamp);
                let queued = discarded(got.control).map(Queued::Discarded).or_else(stamp);
                queued.into_iter().for_each(|queued| each(queued, &buffer[..got.len]));
            }
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => return Ok(count),
            Err(e) => return Err(e),
        }
    }
    Ok(most)
}

/// Waits for `events` on a socket until `deadline` (`CLOCK_MONOTONIC`, ns); a signal or a message in the error queue
/// ends the wait early.
pub fn wait_for(fd: BorrowedFd<'_>, events: PollFlags, deadline: Ns) {
    let left = (deadline - latpath_linux::monotonic()).max(0);
    let timeout = TimeSpec::new(left / 1_000_000_000, left % 1_000_000_000);
    // The result does not matter: the caller checks its socket and its clock next.
    let _ = ppoll(&mut [PollFd::new(fd, events)], Some(timeout), None);
}

/// Number of datagrams that the kernel has dropped at this socket so far.
pub fn drops(fd: BorrowedFd<'_>) -> u64 {
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
