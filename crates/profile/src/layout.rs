//! What user space and the programs share. The types come from the programs' own type information (bpf/shared.h).

pub(crate) use crate::skel::types::{
    absence as RawAbsence, call as Call, call_time as CallTime, guest_time as RawGuestTime, here as Here,
    sample as RawSample, shared as Shared, thread as ThreadKey, thread_time as RawTime,
};

mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

/// The vCPU's thread ran its guest.
pub(crate) const GUEST: u32 = constants::GUEST as u32;
/// A thread of the kernel.
pub(crate) const KERNEL_THREAD: u32 = constants::KERNEL_THREAD as u32;

latpath_bpf::plain!(RawAbsence, Call, CallTime, RawGuestTime, Here, RawSample, RawTime, Shared, ThreadKey);
