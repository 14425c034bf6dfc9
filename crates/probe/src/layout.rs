//! What user space and the kernel programs share: the build makes types and numbers of bpf/shared.h.

pub use crate::skel::types::{
    cached, percpu as PerCpu, point_entry as PointEntry, point_key as PointKey, reader_name as ReaderName,
    record as Record, remark as Remark, remark_key as RemarkKey,
};
use crate::skel::types::{name_short, selection};

pub mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}
pub use constants::{MAX_POINTS, REFUSED_POINT};

/// Memory that a sighting takes in the kernel's rings.
pub const RECORD_BYTES: usize = size_of::<Record>();

latpath_bpf::plain!(PerCpu, PointEntry, PointKey, ReaderName, Record, Remark, RemarkKey, cached, name_short, selection);

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_bpf::{bytes_of, from_bytes};
    use latpath_model::PointKind;
    use std::mem::offset_of;

    #[test]
    fn plain_values_survive_as_bytes() {
        let r = Record { t: 1, aux: 2, key: 3, tid: 4, stream: 5, cpu: 6, point: 7, synch: 0, generation: 8 };
        let back: Record = from_bytes(bytes_of(&r)).unwrap();
        assert_eq!((back.t, back.generation), (1, 8));
        assert!(from_bytes::<Record>(&[0; 31]).is_none());
    }

    #[test]
    fn plain_types_have_no_gaps() {
        assert_eq!(size_of::<Record>(), 32);
        assert_eq!(size_of::<PerCpu>(), 192 + 16 * 64 + 16 * PointKind::ALL.len() * constants::CACHE);
        assert_eq!(size_of::<PointEntry>(), 32 + 16 + 16 + 16);
        assert_eq!(offset_of!(PerCpu, tail) % 64, 0, "user space writes to a cache line of its own");
        assert_eq!(offset_of!(Record, point), 28, "publish() in bpf/sight.h relies on it");
    }
}
