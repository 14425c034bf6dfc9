//! Datagrams of sockets, without an allocation or a copy more than there must be. All unsafe code of the UDP transport is
//! here, each block with its reason.
#![allow(unsafe_code)]

use latpath_model::Ns;
use latpath_nic_timestamps::Control;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

fn result(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// recv(2).
#[inline]
pub(crate) fn receive(fd: BorrowedFd<'_>, data: &mut [u8], flags: i32) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `data.len()` bytes into `data`.
    result(unsafe { libc::recv(fd.as_raw_fd(), data.as_mut_ptr().cast(), data.len(), flags) })
}

/// send(2).
#[inline]
pub(crate) fn send(fd: BorrowedFd<'_>, data: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads `data.len()` bytes of `data`.
    result(unsafe { libc::send(fd.as_raw_fd(), data.as_ptr().cast(), data.len(), libc::MSG_NOSIGNAL) })
}

/// Room for a socket address of either family.
#[repr(C)]
union Address {
    four: libc::sockaddr_in,
    six: libc::sockaddr_in6,
    family: libc::sa_family_t,
}

impl Address {
    fn of(addr: &SocketAddr) -> (Self, libc::socklen_t) {
        // SAFETY: all zeros is a valid address of either family.
        let mut room: Self = unsafe { zeroed() };
        match addr {
            SocketAddr::V4(a) => {
                room.four = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (room, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(a) => {
                room.six = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
                (room, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    fn read(&self) -> Option<SocketAddr> {
        // SAFETY: the family stands first in every socket address, and says which one the kernel wrote.
        unsafe {
            match i32::from(self.family) {
                libc::AF_INET => {
                    let a = &self.four;
                    let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
                    Some(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into())
                }
                libc::AF_INET6 => {
                    let a = &self.six;
                    let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                    Some(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), 0, a.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }
}

/// recvmsg(2) with the sender's address: it, the bytes of the datagram (those of it that were too many are gone), and how much of
/// `control` was filled.
#[inline]
pub(crate) fn receive_from(
    fd: BorrowedFd<'_>,
    data: &mut [u8],
    control: Option<&mut Control>,
    flags: i32,
) -> io::Result<(Option<SocketAddr>, usize, usize)> {
    if control.is_none() {
        // SAFETY: all zeros is a valid address.
        let mut address: Address = unsafe { zeroed() };
        let mut address_len = size_of::<Address>() as libc::socklen_t;
        let (at, fd) = (std::ptr::from_mut(&mut address).cast(), fd.as_raw_fd());
        // SAFETY: the kernel writes at most `data.len()` bytes into `data`, and `address_len` into `address`.
        let len =
            result(unsafe { libc::recvfrom(fd, data.as_mut_ptr().cast(), data.len(), flags, at, &mut address_len) })?;
        return Ok((address.read(), len.min(data.len()), 0));
    }
    let mut vector = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: all zeros is a valid address, and a valid msghdr: no name, no data, no control.
    let (mut address, mut header): (Address, libc::msghdr) = unsafe { zeroed() };
    header.msg_name = std::ptr::from_mut(&mut address).cast();
    header.msg_namelen = size_of::<Address>() as libc::socklen_t;
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    if let Some(control) = control {
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = Control::ROOM as _;
    }
    // SAFETY: the header points to an address, one vector over `data` and to all of `control`, which outlive the call; the
    // kernel writes no more than their lengths.
    let len = result(unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, flags) })?;
    Ok((address.read(), len.min(data.len()), header.msg_controllen as _))
}

/// One control message that names the address to send from.
#[repr(C, align(8))]
struct From<T> {
    header: libc::cmsghdr,
    info: T,
}

/// sendmsg(2) to an address, from this one of the machine's where it is given.
#[inline]
pub(crate) fn send_to(fd: BorrowedFd<'_>, data: &[u8], to: &SocketAddr, from: Option<IpAddr>) -> io::Result<usize> {
    let (address, address_len) = Address::of(to);
    let fd = fd.as_raw_fd();
    let at = std::ptr::from_ref(&address);
    let send_message = |control: *mut libc::c_void, len: usize| {
        let mut vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
        // SAFETY: all zeros is a valid msghdr.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = at.cast_mut().cast();
        header.msg_namelen = address_len;
        header.msg_iov = &mut vector;
        header.msg_iovlen = 1;
        header.msg_control = control;
        header.msg_controllen = len as _;
        // SAFETY: the header points to an address, a vector over `data` and `len` bytes of control, all of which outlive the
        // call; the kernel only reads them.
        result(unsafe { libc::sendmsg(fd, &header, libc::MSG_NOSIGNAL) })
    };
    match from {
        None => {
            let flags = libc::MSG_NOSIGNAL;
            // SAFETY: the kernel reads `data.len()` bytes of `data` and `address_len` bytes of `address`.
            result(unsafe { libc::sendto(fd, data.as_ptr().cast(), data.len(), flags, at.cast(), address_len) })
        }
        Some(IpAddr::V4(ip)) => {
            let source = libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: libc::in_addr { s_addr: 0 } };
            let (header, len) = header(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            let mut control = From { header, info };
            send_message(std::ptr::from_mut(&mut control).cast(), len)
        }
        Some(IpAddr::V6(ip)) => {
            let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: ip.octets() }, ipi6_ifindex: 0 };
            let (header, len) = header(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            let mut control = From { header, info };
            send_message(std::ptr::from_mut(&mut control).cast(), len)
        }
    }
}

fn header<T>(level: i32, kind: i32, _info: &T) -> (libc::cmsghdr, usize) {
    // SAFETY: all zeros is a valid cmsghdr.
    let mut header: libc::cmsghdr = unsafe { zeroed() };
    header.cmsg_level = level;
    header.cmsg_type = kind;
    header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<T>()) as _;
    (header, size_of::<From<T>>())
}

/// Waits for a message until `deadline` (`CLOCK_MONOTONIC`); a signal ends it early. A message of the error queue ends it too.
pub(crate) fn wait_until(fd: BorrowedFd<'_>, deadline: Ns) {
    let left = (deadline - latpath_linux::monotonic()).max(0);
    let timeout = libc::timespec { tv_sec: left / 1_000_000_000, tv_nsec: left % 1_000_000_000 };
    let mut one = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd and one timespec that outlive the call, no signal mask. Whatever it returns, the caller looks at its
    // socket and its clock next.
    unsafe { libc::ppoll(&mut one, 1, &timeout, std::ptr::null()) };
}

/// Sets a socket option to a plain C value.
pub(crate) fn set_option<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for `len` bytes, which the kernel only reads.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Datagrams that the kernel dropped at this socket so far.
pub(crate) fn drops(fd: BorrowedFd<'_>) -> u64 {
    /// `SK_MEMINFO_VARS` of `linux/sock_diag.h`.
    const VARS: usize = 9;
    /// `SK_MEMINFO_DROPS`.
    const DROPS: usize = 8;
    let mut values = [0u32; VARS];
    let mut len = size_of::<[u32; VARS]>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `values`.
    let got = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, values.as_mut_ptr().cast(), &mut len)
    };
    if got == 0 {
        values[DROPS].into()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn addresses_of_both_families_go_there_and_back() {
        for text in ["10.1.2.3:4567", "[fe80::1]:89", "[::1]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::of(&addr).0.read(), Some(addr));
        }
    }

    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        for (any, asked) in [("0.0.0.0:0", "127.0.0.7"), ("[::]:0", "::1")] {
            let Ok(server) = UdpSocket::bind(any) else { continue };
            let asked: IpAddr = asked.parse().unwrap();
            let client =
                UdpSocket::bind(SocketAddr::new(if asked.is_ipv4() { "127.0.0.1" } else { "::1" }.parse().unwrap(), 0));
            let client = client.unwrap();
            let port = server.local_addr().unwrap().port();
            client.connect((asked, port)).unwrap();
            send_to(server.as_fd(), b"hello", &client.local_addr().unwrap(), Some(asked)).unwrap();
            client.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
            let mut data = [0; 16];
            assert_eq!(client.recv(&mut data).unwrap(), 5, "a connected socket takes nothing from other addresses");
        }
    }

    #[test]
    fn drops_are_counted_where_the_buffer_is_full() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_option(server.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &1i32).unwrap();
        for _ in 0..100 {
            send_to(server.as_fd(), &[0; 1000], &server.local_addr().unwrap(), None).unwrap();
        }
        assert!(drops(server.as_fd()) > 0);
    }
}
