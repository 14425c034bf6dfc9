//! Kernel maps: arrays in memory shared with the running programs, and hash tables.

use latpath_linux::Map;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::{io, marker::PhantomData, os::fd::AsRawFd};

/// Types of plain bytes: any bit pattern is a valid value, and there is no padding.
///
/// # Safety
/// The type must be a `repr(C)` struct of integers without padding.
pub unsafe trait Plain: Copy + 'static {}

/// Implements [`Plain`](crate::Plain) for structs generated from the programs' types.
#[macro_export]
macro_rules! plain {
    ($($t:ty),* $(,)?) => { $(
        // SAFETY: repr(C) with integers only; the programs' headers declare all padding as fields.
        unsafe impl $crate::Plain for $t {}
    )* };
}

plain!((), u8, u16, u32, u64);

/// Converts a program's `struct coarse_histogram` (include/histogram.h) to a `latpath_histogram::Histogram`.
#[macro_export]
macro_rules! histogram {
    ($counted:expr) => {{
        let counted = &$counted;
        let whole = |low: u64, high: u64| u128::from(high) << 64 | u128::from(low);
        let large = whole(counted.squares_of_large.low, counted.squares_of_large.high);
        let squares = whole(counted.squares.low, counted.squares.high)
            .saturating_add(large.saturating_mul(1 << $crate::SMALL_BITS));
        let sum = i128::try_from(whole(counted.sum.low, counted.sum.high)).unwrap_or(i128::MAX);
        let (min, max) = (counted.min as i64, counted.max as i64);
        const STEP_BITS: u32 = $crate::STEP_BITS as u32;
        latpath_histogram::Histogram::of_coarse::<STEP_BITS>(&counted.buckets, sum, squares, min, max)
    }};
}

/// The bytes of a plain value.
pub fn bytes_of<T: Plain>(v: &T) -> &[u8] {
    // SAFETY: T is Plain: all its bytes are initialised, and the slice borrows it.
    unsafe { std::slice::from_raw_parts((v as *const T).cast(), size_of::<T>()) }
}

/// Reads a plain value from exactly its bytes; `None` if there are more or fewer.
pub fn from_bytes<T: Plain>(b: &[u8]) -> Option<T> {
    // SAFETY: the length is checked, any bytes are a value of a Plain type, and the read may be unaligned.
    (b.len() == size_of::<T>()).then(|| unsafe { b.as_ptr().cast::<T>().read_unaligned() })
}

/// Returns all entries of a hash table; none if it cannot be read.
pub fn entries<K: Plain, V: Plain>(table: &MapHandle) -> Vec<(K, V)> {
    // Reads all entries in one batch: the kernel ends a smaller batch early if the next bucket does not fit, and
    // libbpf-rs takes a batch that is not full for the last one.
    let all = table.lookup_batch(table.max_entries(), MapFlags::ANY, MapFlags::ANY);
    all.into_iter().flatten().filter_map(|(key, value)| Some((from_bytes(&key)?, from_bytes(&value)?))).collect()
}

/// Reinterprets a value as another type with the same layout: each skeleton has its own Rust types for those of the
/// shared headers.
pub fn convert<A: Plain, B: Plain>(value: &A) -> B {
    from_bytes(bytes_of(value)).expect("the types are twins of one C type")
}

/// An array map in this process's memory. The kernel may change it at any time, so every access is volatile and by
/// copy.
pub struct Mapped<T: Plain> {
    map: Map,
    len: usize,
    stride: usize,
    _of: PhantomData<T>,
}

impl<T: Plain> Mapped<T> {
    /// Maps `len` entries of an array map with `BPF_F_MMAPABLE`.
    ///
    /// # Errors
    /// If mmap(2) fails.
    pub fn new(map: &impl AsRawFd, len: usize) -> io::Result<Self> {
        // The kernel rounds the size of a value up to 8 bytes.
        let stride = size_of::<T>().next_multiple_of(8);
        // SAFETY: reads a system constant.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let bytes = (stride * len).next_multiple_of(page);
        let map = Map::new(bytes, libc::MAP_SHARED, map.as_raw_fd(), 0)?;
        Ok(Self { map, len, stride, _of: PhantomData })
    }

    #[allow(clippy::len_without_is_empty)]
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of entry `i`.
    fn at(&self, i: usize) -> *mut T {
        assert!(i < self.len, "entry {i} of a map of {}", self.len);
        // SAFETY: i is in range, so the address is inside the mapping; entries are 8-byte aligned like T.
        unsafe { self.map.at().as_ptr().add(i * self.stride).cast() }
    }

    /// A copy of entry `i`; its fields may be from different moments.
    pub fn get(&self, i: usize) -> T {
        self.field(i, 0)
    }

    /// Replaces entry `i`.
    pub fn set(&self, i: usize, value: T) {
        self.set_field(i, 0, value)
    }

    /// Reads one field of entry `i`, `offset` bytes from its start.
    pub fn field<F: Plain>(&self, i: usize, offset: usize) -> F {
        assert!(offset + size_of::<F>() <= size_of::<T>());
        // SAFETY: the assertion keeps the field inside the entry; it is aligned as a repr(C) field, and any bytes are a
        // value.
        unsafe { self.at(i).cast::<u8>().add(offset).cast::<F>().read_volatile() }
    }

    /// Writes one field of entry `i`.
    pub fn set_field<F: Plain>(&self, i: usize, offset: usize, value: F) {
        assert!(offset + size_of::<F>() <= size_of::<T>());
        // SAFETY: as for `field`; the programs expect writes from user space.
        unsafe { self.at(i).cast::<u8>().add(offset).cast::<F>().write_volatile(value) }
    }
}
