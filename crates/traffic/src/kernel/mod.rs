//! Kernel interfaces without safe wrappers: packet sockets, their mapped ring, scheduling. This module holds all unsafe
//! code of the crate.
#![allow(unsafe_code)]

pub mod filter;
mod ring;
mod socket;
mod thread;

pub use ring::RingReceiver;
pub use socket::{removed_tag, CopyReceiver, Groups, Listen, PacketSocket, Received, Sent};
pub use thread::{
    lock_memory, may_lock_memory, pin, set_fifo, set_name, touch_stack, wait_until, CpuLatencyRequest, ThreadError,
    WakeUp,
};
