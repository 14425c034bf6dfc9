//! Socket options, and messages with control data.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets a socket option to a plain C value.
pub(crate) fn set_option<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for `len` bytes, which the kernel only reads.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Room for what comes beside a packet: stamps, the device, an error with the address that caused it.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub struct Control([u8; Control::ROOM]);

impl Control {
    /// Bytes of room; all messages that this crate asks for take some 250.
    pub const ROOM: usize = 512;

    /// Empty room.
    pub const fn new() -> Self {
        Self([0; Self::ROOM])
    }

    /// All of it, for a `msghdr` of one's own.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// The first bytes: those that the kernel has filled (`msg_controllen`).
    pub fn filled(&self, len: usize) -> &[u8] {
        &self.0[..len.min(Self::ROOM)]
    }
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

/// A packet that [`receive`] has read.
#[derive(Clone, Copy, Debug)]
pub struct Received<'c> {
    /// Bytes of the packet in the caller's buffer.
    pub len: usize,
    /// The packet was longer than the buffer, and is cut.
    pub cut: bool,
    /// What came beside it, for [`rx_stamps`](crate::rx_stamps) or [`from_error_queue`](crate::from_error_queue).
    pub control: &'c [u8],
}

/// Reads one packet. `flags` are those of recvmsg(2), as `MSG_DONTWAIT` and `MSG_ERRQUEUE`. A packet of the error queue comes
/// with all its headers from the link layer's on: what the program had sent are its **last** bytes.
pub fn receive<'c>(
    fd: BorrowedFd<'_>,
    data: &mut [u8],
    control: &'c mut Control,
    flags: i32,
) -> io::Result<Received<'c>> {
    let mut vector = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: all zeros is a valid msghdr: no name, no data, no control.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = Control::ROOM as _;
    // SAFETY: the header points to one vector over `data` and to all of `control`, which outlive the call; the kernel writes no
    // more than their lengths.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, flags) };
    match usize::try_from(len) {
        Ok(len) => {
            let cut = header.msg_flags & libc::MSG_TRUNC != 0;
            Ok(Received { len: len.min(data.len()), cut, control: control.filled(header.msg_controllen as usize) })
        }
        Err(_) => Err(io::Error::last_os_error()),
    }
}
