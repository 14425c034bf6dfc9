//! What user space and the programs share. The types come from the programs' own type information (bpf/event.h).

pub(crate) use crate::skel::types::{event as RawEvent, head as Head, name as RawName};
use latpath_probe::Plain;

// SAFETY: repr(C) with integers only; bpf/event.h spells out every gap as a field.
unsafe impl Plain for RawEvent {}
// SAFETY: the same.
unsafe impl Plain for Head {}
// SAFETY: the same.
unsafe impl Plain for RawName {}

/// Threads whose names are known.
pub(crate) const NAMES: usize = 16384;
/// What is not known, of vCPUs and exit reasons; and a name that is being written.
pub(crate) const UNKNOWN: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_types_have_no_gaps() {
        assert_eq!(size_of::<RawEvent>(), 32, "half a cache line");
        assert_eq!(size_of::<Head>(), 64, "a cache line of its own for each CPU");
        assert_eq!(size_of::<RawName>(), 32);
    }
}
