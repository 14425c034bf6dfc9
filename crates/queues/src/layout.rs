//! Types shared by user space and the programs, generated from the programs' BTF (bpf/shared.h).

pub(crate) use crate::skel::types::{queue as RawQueue, shared as Shared};

mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}
pub(crate) use constants::{READS, VHOST, WRITES};

latpath_bpf::plain!(RawQueue, Shared);
