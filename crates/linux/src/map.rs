//! Memory mapped by mmap(2).
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

/// Memory mapped for reading and writing; unmapped on drop.
#[derive(Debug)]
pub struct Map {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: this value owns the mapping within the process; callers access memory shared with the kernel atomically or as
// volatile.
unsafe impl Send for Map {}

impl Map {
    /// Maps memory, as by mmap(2): anonymous (`fd` is -1), or `len` bytes of the file at this offset.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub fn new(len: usize, flags: i32, fd: i32, offset: i64) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address chosen by the kernel.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset) };
        match NonNull::new(at.cast()) {
            Some(at_) if at != libc::MAP_FAILED => Ok(Self { at: at_, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Start of the mapping, page-aligned.
    pub fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Length, bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping created in `new`, unmapped once.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}
