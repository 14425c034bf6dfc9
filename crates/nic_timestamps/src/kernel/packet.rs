//! A packet socket on one device, to try its stamps with.

use super::set_option;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `PACKET_IGNORE_OUTGOING` of `linux/if_packet.h`.
const PACKET_IGNORE_OUTGOING: i32 = 23;

/// A raw packet socket.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    fd: OwnedFd,
    ifindex: u32,
}

impl PacketSocket {
    /// Opens one that receives nothing yet.
    pub(crate) fn open(ifindex: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers. Protocol 0 receives nothing.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a new descriptor that nothing else owns.
        let socket = Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, ifindex };
        socket.bind(0)?;
        Ok(socket)
    }

    fn bind(&self, protocol: i32) -> io::Result<()> {
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut addr: libc::sockaddr_ll = unsafe { zeroed() };
        addr.sll_family = libc::AF_PACKET as u16;
        addr.sll_protocol = (protocol as u16).to_be();
        addr.sll_ifindex = self.ifindex as i32;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `addr` is a sockaddr_ll of `len` bytes.
        match unsafe { libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(&addr).cast(), len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// From now on all that the device receives comes here too.
    pub(crate) fn listen(&self) -> io::Result<()> {
        set_option(self.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32)?;
        self.bind(libc::ETH_P_ALL)
    }

    /// The device's MAC; `None` where it has none, and so sends no Ethernet frames.
    pub(crate) fn mac(&self) -> io::Result<Option<[u8; 6]>> {
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut addr: libc::sockaddr_ll = unsafe { zeroed() };
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, the size of `addr`.
        match unsafe { libc::getsockname(self.fd.as_raw_fd(), std::ptr::from_mut(&mut addr).cast(), &mut len) } {
            0 => {
                let ethernet = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&addr.sll_hatype);
                Ok(addr.sll_addr.first_chunk().copied().filter(|_| ethernet && addr.sll_halen == 6))
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends one frame.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: `frame` is valid for its length, and only read.
        match unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
