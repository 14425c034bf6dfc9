//! The kernel's interfaces that have no safe wrapper: packet sockets, their mapped ring, scheduling. All unsafe code of this
//! crate is here, each block with its reason.
#![allow(unsafe_code)]

mod filter;
mod ring;
mod socket;
mod thread;

pub use ring::RingReceiver;
pub use socket::{device_list, tag_of, CopyReceiver, DeviceError, Groups, Listen, PacketSocket, Received, Sent};
pub use thread::{lock_memory, pin, set_fifo, set_name, wait_until, Awake, ThreadError, Woken};

/// Sets a socket option to a plain C value.
fn set_option<T: Copy>(fd: std::os::fd::BorrowedFd<'_>, level: i32, name: i32, value: &T) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for `len` bytes, which the kernel only reads.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
