//! Devices and packet sockets, where the kernel's interface has no safe wrapper. All unsafe code of Ethernet frames is here, each
//! block with its reason.
#![allow(unsafe_code)]

use crate::kernel::set_option;
use libc::{c_int, c_ulong, ifreq, sockaddr_ll, socklen_t};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A packet socket of one device, which hears nothing before [`PacketSocket::hear`].
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

/// What the kernel says of a device.
pub struct Facts {
    /// Its address.
    pub mac: [u8; 6],
    /// Its kind: ARPHRD_….
    pub kind: u16,
    /// Most bytes behind its header.
    pub mtu: usize,
    /// It is up.
    pub up: bool,
}

fn call(result: c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl PacketSocket {
    /// Opens a socket that receives nothing yet.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers. Protocol 0 receives nothing until bind names one, so that options come first.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a new descriptor that nothing else owns.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// For options, sending and receiving.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Asks the kernel about a device by its name.
    fn ask(&self, name: &str, code: c_ulong) -> io::Result<ifreq> {
        // SAFETY: all zeros is a valid ifreq: an empty name and no address.
        let mut request: ifreq = unsafe { zeroed() };
        // The kernel's name ends in a NUL.
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: the three requests below read the name and write their answer into the same ifreq.
        call(unsafe { libc::ioctl(self.fd.as_raw_fd(), code as _, &mut request) }).map(|()| request)
    }

    /// What the kernel says of a device.
    pub fn facts(&self, name: &str) -> io::Result<Facts> {
        let hardware = self.ask(name, libc::SIOCGIFHWADDR as c_ulong)?;
        // SAFETY: the kernel has set this member; any bytes are a valid sockaddr.
        let hardware = unsafe { hardware.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(hardware.sa_data) {
            *to = from as u8;
        }
        // SAFETY: the kernel has set this member; any bytes are a valid integer.
        let mtu = unsafe { self.ask(name, libc::SIOCGIFMTU as c_ulong)?.ifr_ifru.ifru_mtu };
        // SAFETY: as above.
        let flags = unsafe { self.ask(name, libc::SIOCGIFFLAGS as c_ulong)?.ifr_ifru.ifru_flags };
        let up = c_int::from(flags) & libc::IFF_UP != 0;
        Ok(Facts { mac, kind: hardware.sa_family, mtu: usize::try_from(mtu).unwrap_or(0), up })
    }

    /// From now on frames of this protocol (`ETH_P_…`; 0: none) that come to the device of this index are received.
    pub fn hear(&self, device: u32, protocol: u16) -> io::Result<()> {
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut address: sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = device as i32;
        let len = size_of::<sockaddr_ll>() as socklen_t;
        // SAFETY: `address` is a sockaddr_ll of `len` bytes.
        call(unsafe { libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) })
    }

    /// Lets only frames that the program returns non-zero for come in.
    pub fn filter(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        set_option(self.fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// The device of this index lets frames to this group in, until the socket closes.
    pub fn join(&self, device: u32, group: [u8; 6]) -> io::Result<()> {
        // SAFETY: all zeros is a valid packet_mreq.
        let mut request: libc::packet_mreq = unsafe { zeroed() };
        request.mr_ifindex = device as i32;
        request.mr_type = libc::PACKET_MR_MULTICAST as u16;
        request.mr_alen = 6;
        request.mr_address[..6].copy_from_slice(&group);
        set_option(self.fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Frames without room in the socket's buffer since this was asked last.
    pub fn dropped(&self) -> u64 {
        // SAFETY: all zeros is a valid tpacket_stats.
        let mut stats: libc::tpacket_stats = unsafe { zeroed() };
        let mut len = size_of::<libc::tpacket_stats>() as socklen_t;
        let (fd, at) = (self.fd.as_raw_fd(), std::ptr::from_mut(&mut stats).cast());
        // SAFETY: the kernel writes at most `len` bytes, the size of `stats`.
        let got = unsafe { libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, at, &mut len) };
        if got == 0 {
            stats.tp_drops.into()
        } else {
            0
        }
    }
}
