//! Types shared with the programs, generated from their type information (bpf/event.h, bpf/upcalls.h).

pub(crate) use crate::skel::types::{allowance as Allowance, event as RawEvent, head as Head, name as RawName};
pub(crate) use crate::upcalls_skel::types::datapath_record as DatapathRecord;

pub(crate) mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}
pub(crate) use constants::{BUDGET_EVENTS, NAMES};

latpath_bpf::plain!(Allowance, RawEvent, Head, RawName, DatapathRecord);

/// Marks an unknown vCPU or exit reason, and a thread's name while it is written.
pub(crate) const UNKNOWN: u32 = constants::UNKNOWN as u32;

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
