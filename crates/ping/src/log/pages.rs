//! Memory whose pages are populated in advance, so that no page fault occurs during a measurement.
#![allow(unsafe_code)]

use super::LogError;
use latpath_linux::proc::number;
use latpath_linux::Map;
use std::{io, marker::PhantomData};

/// A fixed number of values in populated pages.
pub(super) struct Pages<T> {
    map: Map,
    count: usize,
    values: PhantomData<T>,
}

impl<T: Copy> Pages<T> {
    /// Allocates `count` copies of `value`.
    pub fn new(count: usize, value: T, huge: bool) -> Result<Self, LogError> {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let page_kb = if huge { huge_page_kb(&text) } else { 4 };
        let page = (page_kb * 1024) as usize;
        let needed = count.max(1).saturating_mul(size_of::<T>()).max(1);
        let bytes = needed.div_ceil(page).saturating_mul(page);
        let refused = |source| if huge { no_huge_pages(&text, bytes, source) } else { LogError::ring(source) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if huge { libc::MAP_HUGETLB } else { 0 };
        let map = Map::new(bytes, flags, -1, 0).map_err(refused)?;
        // SAFETY: the range is exactly the mapping from above. The call reports missing pages as an error; touching
        // them would kill the process.
        let there = unsafe { libc::madvise(map.at().as_ptr().cast(), map.len(), libc::MADV_POPULATE_WRITE) };
        if there != 0 {
            let error = io::Error::last_os_error();
            // The advice is unknown before Linux 5.14, or not permitted: the writes below populate the pages instead.
            if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM | libc::ENOSYS)) {
                return Err(refused(error));
            }
        }
        let pages = Self { map, count: count.max(1), values: PhantomData };
        for at in 0..pages.count {
            // SAFETY: the address is within the mapping, which is page-aligned and writable.
            unsafe { pages.map.at().cast::<T>().add(at).write(value) };
        }
        Ok(pages)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.count
    }
}

impl<T: Copy> std::ops::Deref for Pages<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote all `count` values; the mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.map.at().as_ptr().cast(), self.count) }
    }
}

impl<T: Copy> std::ops::DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.map.at().as_ptr().cast(), self.count) }
    }
}

/// The error for missing huge pages, with the figures of /proc/meminfo for the default size.
fn no_huge_pages(text: &str, bytes: usize, source: io::Error) -> LogError {
    let count = |key| number(text, key).unwrap_or(0);
    let (size_kb, free) = (huge_page_kb(text), count("HugePages_Free"));
    let need = (bytes as u64).div_ceil(size_kb * 1024);
    let reserve = count("HugePages_Total") + need.saturating_sub(free);
    LogError::HugePages { need, free, reserve, size_kb, source }
}

fn huge_page_kb(text: &str) -> u64 {
    number(text, "Hugepagesize").filter(|kb| *kb > 0).unwrap_or(2048)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_their_contents() {
        let mut pages = Pages::new(5000, 7u64, false).unwrap();
        assert!(pages.len() == 5000 && pages.iter().all(|v| *v == 7));
        pages[4999] = 8;
        assert_eq!(pages[4998..], [7, 8]);
    }

    #[test]
    fn missing_huge_pages_are_requested_by_size_and_number() {
        let text = "HugePages_Total:       5\nHugePages_Free:        2\nHugepagesize:       2048 kB\n";
        let error = no_huge_pages(text, 7 << 20, io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert!(error.contains("4 huge pages of 2048 kB, 2 are free"), "{error}");
        assert!(error.contains("echo 7 > /proc/sys/vm/nr_hugepages"), "{error}");
    }
}
