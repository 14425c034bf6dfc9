//! What user space and the kernel programs share. The types come from the programs' own type information (bpf/shared.h).

pub use crate::skel::types::{
    percpu as PerCpu, point_entry as PointEntry, record as Record, stream_conf as StreamConf, svid_short as SvidShort,
};

/// Points of one machine.
pub const MAX_POINTS: usize = 32;
/// Longest svID that takes the open table.
pub const SVID_SHORT: usize = 32;
/// Places of the open table of short svIDs.
pub const SVID_PLACES: u32 = 2048;
/// Places from its hash's on where an svID may be.
pub const SVID_PROBES: u32 = 4;
/// Longest svID that the programs can compare.
pub const SVID_LONG: usize = 135;
/// `stream_conf.next` of the last stream in a chain.
pub const NONE: u16 = 0xffff;

/// Types that are plain bytes: any bit pattern is a value, and there is no padding.
///
/// # Safety
/// Only for `repr(C)` structs of integers whose fields leave no gap.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: an integer, or repr(C) with integers only; bpf/shared.h spells out every gap as a field.
        unsafe impl Plain for $t {}
    )* };
}
/// Memory that a sighting takes in the kernel's rings.
pub const RECORD_BYTES: usize = size_of::<Record>();

plain!(u32, u64, PerCpu, PointEntry, Record, StreamConf, SvidShort);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_survive_as_bytes() {
        let r = Record { t: 1, aux: 2, key: 3, tid: 4, stream: 5, cpu: 6, point: 7, pad: 0, lap: 8 };
        let back: Record = from_bytes(bytes_of(&r)).unwrap();
        assert_eq!((back.t, back.lap), (1, 8));
        assert!(from_bytes::<Record>(&[0; 31]).is_none());
    }

    #[test]
    fn plain_types_have_no_gaps() {
        assert_eq!(size_of::<Record>(), 32);
        assert_eq!(size_of::<PerCpu>(), 192 + 16 * 13 * 32);
        assert_eq!(size_of::<SvidShort>(), 64, "a cache line");
        assert_eq!(size_of::<PointEntry>(), 32 + 16 + 16 + 8);
        assert_eq!(std::mem::offset_of!(PerCpu, tail) % 64, 0, "user space writes to a cache line of its own");
        assert_eq!(std::mem::offset_of!(Record, point), 28, "publish() in bpf/sight.h relies on it");
    }
}
