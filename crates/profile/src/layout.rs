//! Types shared by user space and the programs, generated from the programs' BTF (bpf/shared.h).

pub(crate) use crate::skel::types::{
    absence as RawAbsence, call as Call, call_time as CallTime, guest_time as RawGuestTime, here as Here,
    sample as RawSample, shared as Shared, thread as ThreadKey, thread_time as RawTime,
};

mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

/// The vCPU's thread ran its guest.
pub(crate) const GUEST: u32 = constants::GUEST as u32;
/// The thread is a kernel thread.
pub(crate) const KERNEL_THREAD: u32 = constants::KERNEL_THREAD as u32;

latpath_bpf::plain!(RawAbsence, Call, CallTime, RawGuestTime, Here, RawSample, RawTime, Shared, ThreadKey);
