//! Sockets and network devices, where the kernel's interface has no safe wrapper: options, control messages, packet
//! sockets, device requests.
#![allow(unsafe_code)]

use libc::{c_int, c_ulong, ifreq, sockaddr_ll, socklen_t};
use nix::net::if_::if_nameindex;
use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};
use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Converts the result of a system call, and returns the error in `errno` if it failed.
///
/// # Errors
/// The error in `errno`, if the result is negative.
pub fn check(result: c_int) -> io::Result<c_int> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets a socket option to a plain C value.
///
/// # Errors
/// The kernel rejects the option or its value.
pub fn set_option<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as socklen_t;
    // SAFETY: `value` is valid for `len` bytes, which the kernel only reads.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) }).map(drop)
}

/// Sets the size of a socket's buffers (`SO_RCVBUF`, `SO_SNDBUF`), beyond the system's limit if permitted.
///
/// # Errors
/// The kernel rejects the size.
pub fn set_buffers(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        set_option(fd, libc::SOL_SOCKET, forced, &bytes)
            .or_else(|_| set_option(fd, libc::SOL_SOCKET, plain, &bytes))?;
    }
    Ok(())
}

/// Reads a socket option into a plain C value. Returns the number of bytes written: older kernels may write fewer.
///
/// # Errors
/// The socket does not have the option.
///
/// # Safety
/// `T` must be valid for any bytes.
pub unsafe fn get_option<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &mut T) -> io::Result<usize> {
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `value`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, std::ptr::from_mut(value).cast(), &mut len) })?;
    Ok(len as usize)
}

/// The control messages in a buffer, in the layout of cmsg(3), each as (level, type) and data. Ends at the first
/// invalid length.
pub fn control_messages(mut control: &[u8]) -> impl Iterator<Item = ((i32, i32), &[u8])> {
    const WORD: usize = size_of::<usize>();
    const HEADER: usize = (size_of::<libc::cmsghdr>()).next_multiple_of(WORD);
    let int = |bytes: &[u8], at: usize| Some(i32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    std::iter::from_fn(move || {
        // cmsg_len is a size_t in glibc, and an int with padding in musl, which has the same bytes on 64-bit
        // little-endian machines.
        let len = usize::from_ne_bytes(*control.first_chunk()?);
        let kind = (int(control, WORD)?, int(control, WORD + 4)?);
        let data = control.get(HEADER..len)?;
        control = control.get(len.checked_next_multiple_of(WORD)?..).unwrap_or_default();
        Some((kind, data))
    })
}

/// Inode number of the user namespace that owns a namespace (ioctl_ns(2)).
///
/// # Errors
/// The kernel does not report the owner, or this process may not see it.
pub fn owner_of(namespace: &File) -> io::Result<u64> {
    const NS_GET_USERNS: c_ulong = 0xb701;
    // SAFETY: the request takes no argument.
    let owner = check(unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) })?;
    // SAFETY: a new descriptor without another owner.
    let owner = File::from(unsafe { OwnedFd::from_raw_fd(owner) });
    Ok(owner.metadata()?.ino())
}

/// Devices of this namespace, for error messages: `lo, eth0`.
pub fn device_list() -> String {
    let names = if_nameindex()
        .map(|all| all.into_iter().map(|i| i.name().to_string_lossy().into_owned()).collect::<Vec<_>>().join(", "));
    names.unwrap_or_else(|e| format!("cannot be listed: {e}"))
}

/// A packet socket. It receives nothing until it is bound to a protocol, so that options can be set first.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens a packet socket; `flags` are additional ones (`SOCK_NONBLOCK`).
    ///
    /// # Errors
    /// The socket cannot be opened, e.g. without CAP_NET_RAW.
    pub fn open(flags: i32) -> io::Result<Self> {
        // SAFETY: no pointers. With protocol 0, nothing is received until `bind` sets another protocol.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags, 0) })?;
        // SAFETY: `fd` is a new descriptor without another owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Starts receiving frames of this protocol (`ETH_P_…`; 0 for none) on the device with this index.
    ///
    /// # Errors
    /// The device does not exist, or is down.
    pub fn bind(&self, device: u32, protocol: u16) -> io::Result<()> {
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut address: sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = device as i32;
        let len = size_of::<sockaddr_ll>() as socklen_t;
        // SAFETY: `address` is a sockaddr_ll of `len` bytes.
        check(unsafe { libc::bind(self.0.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) }).map(drop)
    }

    /// MAC address of the bound device; `None` if its frames do not begin with an Ethernet header.
    ///
    /// # Errors
    /// The kernel does not report the address.
    pub fn mac(&self) -> io::Result<Option<[u8; 6]>> {
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut address: sockaddr_ll = unsafe { zeroed() };
        let mut len = size_of::<sockaddr_ll>() as socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, the size of `address`.
        check(unsafe { libc::getsockname(self.0.as_raw_fd(), std::ptr::from_mut(&mut address).cast(), &mut len) })?;
        let ethernet = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&address.sll_hatype);
        Ok(address.sll_addr.first_chunk().copied().filter(|_| ethernet && address.sll_halen == 6))
    }

    /// Attaches a filter: only frames for which the program returns more than 0 are received.
    ///
    /// # Errors
    /// The kernel rejects the program.
    pub fn filter(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        set_option(self.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Makes the device with this index accept more frames until the socket is closed. `kind`: `PACKET_MR_…`; `group`:
    /// the address if `kind` is for a single group.
    ///
    /// # Errors
    /// The device does not exist, or the kernel rejects the request.
    pub fn join(&self, device: u32, kind: c_int, group: Option<[u8; 6]>) -> io::Result<()> {
        // SAFETY: all zeros is a valid packet_mreq.
        let mut request: libc::packet_mreq = unsafe { zeroed() };
        request.mr_ifindex = device as i32;
        request.mr_type = kind as u16;
        if let Some(group) = group {
            request.mr_alen = 6;
            request.mr_address[..6].copy_from_slice(&group);
        }
        set_option(self.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Number of frames dropped for lack of buffer space since the last call.
    pub fn dropped(&self) -> u64 {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        // SAFETY: the structure contains only integers.
        let got = unsafe { get_option(self.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats) };
        got.map_or(0, |_| stats.tp_drops.into())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A device of this network namespace, addressed by name.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    name: [u8; libc::IFNAMSIZ],
}

impl Device {
    /// Creates the socket for requests. A missing device is reported by the first request.
    ///
    /// # Errors
    /// The name is not valid for a device, or the socket cannot be created.
    pub fn named(device: &str) -> io::Result<Self> {
        let mut name = [0; libc::IFNAMSIZ];
        // The kernel's names end in a NUL; a longer name, or one that contains a NUL, is invalid.
        if device.is_empty() || device.len() >= libc::IFNAMSIZ || device.contains('\0') {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        name[..device.len()].copy_from_slice(device.as_bytes());
        // Requests work on any socket, and every kernel supports this family.
        let fd = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        Ok(Self { fd, name })
    }

    /// An ifreq with the device's name.
    fn named_request(&self) -> ifreq {
        // SAFETY: all zeros is a valid ifreq: an empty name and a null pointer.
        let mut request: ifreq = unsafe { zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name) {
            *to = from as libc::c_char;
        }
        request
    }

    /// # Safety
    /// The kernel must expect an ifreq with `data` for this request.
    unsafe fn request(&self, code: c_ulong, data: *mut libc::c_char) -> io::Result<ifreq> {
        let mut request = self.named_request();
        request.ifr_ifru.ifru_data = data;
        // SAFETY: the request is an ifreq that outlives the call.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), code as _, &mut request) }).map(|_| request)
    }

    /// Makes a request for which the kernel reads and writes `data`.
    ///
    /// # Errors
    /// The device does not exist, or the kernel rejects the request.
    ///
    /// # Safety
    /// `T` must be the C struct that the kernel expects for this request, and valid for any bytes.
    pub unsafe fn ask<T: Copy>(&self, code: c_ulong, data: &mut T) -> io::Result<()> {
        // SAFETY: the request has a pointer to `data`, which outlives the call; the caller guarantees its type.
        unsafe { self.request(code, std::ptr::from_mut(data).cast()) }.map(drop)
    }

    /// Flags of the device (`IFF_UP` …).
    ///
    /// # Errors
    /// The device does not exist.
    pub fn flags(&self) -> io::Result<i32> {
        // SAFETY: the kernel writes the flags into the ifreq; any bytes are a valid integer.
        unsafe { Ok(i32::from(self.request(libc::SIOCGIFFLAGS, std::ptr::null_mut())?.ifr_ifru.ifru_flags)) }
    }

    /// Maximum transmission unit, bytes: the largest frame without its Ethernet header.
    ///
    /// # Errors
    /// The device does not exist.
    pub fn mtu(&self) -> io::Result<usize> {
        // SAFETY: the kernel writes the MTU into the ifreq; any bytes are a valid integer.
        unsafe { Ok(self.request(libc::SIOCGIFMTU, std::ptr::null_mut())?.ifr_ifru.ifru_mtu as usize) }
    }
}

/// Opens a tap or tun of this network namespace, or creates it; it carries whole frames or packets without additional
/// headers. It is removed when the file closes, unless it is made persistent.
///
/// `node`: /dev/net/tun, or a macvtap's file; `mode`: `IFF_TAP` or `IFF_TUN`.
///
/// # Errors
/// The system's error: the file does not exist, the name belongs to another device, or a program holds the device.
pub fn open_tun(node: &Path, name: &str, mode: c_int) -> io::Result<File> {
    let mut request = Device::named(name)?.named_request();
    request.ifr_ifru.ifru_flags = (mode | libc::IFF_NO_PI) as i16;
    let file = File::options().read(true).write(true).open(node)?;
    // SAFETY: TUNSETIFF takes an ifreq, which outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) })?;
    Ok(file)
}

/// Creates a persistent tap; `flags` are additional ones (`IFF_MULTI_QUEUE`).
///
/// # Errors
/// As for [`open_tun`].
pub fn add_tap(name: &str, flags: c_int) -> io::Result<()> {
    let tap = open_tun(Path::new("/dev/net/tun"), name, libc::IFF_TAP | flags)?;
    // SAFETY: the request takes an integer.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETPERSIST as _, 1 as c_ulong) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_name_is_no_device() {
        for name in ["", "sixteen-letters-", "a\0b"] {
            assert_eq!(Device::named(name).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
    }
}
