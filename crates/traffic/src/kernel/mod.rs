//! The kernel's interfaces that have no safe wrapper: packet sockets, their mapped ring, scheduling. All unsafe code of this
//! crate is here, each block with its reason.
#![allow(unsafe_code)]

pub mod filter;
mod ring;
mod socket;
mod thread;

pub use ring::RingReceiver;
pub use socket::{removed_tag, CopyReceiver, Groups, Listen, PacketSocket, Received, Sent};
pub use thread::{lock_memory, pin, set_fifo, set_name, wait_until, Awake, ThreadError, Woken};
