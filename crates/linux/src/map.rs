//! Memory by mmap(2).
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

/// Memory that is mapped for reading and writing, and unmapped on drop.
#[derive(Debug)]
pub struct Map {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone within the process; callers reach what the kernel shares by atomic or volatile accesses.
unsafe impl Send for Map {}

impl Map {
    /// As mmap(2) does: new memory (`fd` is -1), or what the file has at this offset; `len` in bytes.
    pub fn new(len: usize, flags: i32, fd: i32, offset: i64) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset) };
        match NonNull::new(at.cast()) {
            Some(at_) if at != libc::MAP_FAILED => Ok(Self { at: at_, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Where it begins, at a page's border.
    pub fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Its bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}
