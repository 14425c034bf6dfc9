//! The kernel's interfaces that have no safe wrapper: device requests, socket options, messages with control data. All unsafe
//! code of this crate is here, each block with its reason.
#![allow(unsafe_code)]

mod device;
mod packet;
mod socket;

pub(crate) use device::Device;
pub(crate) use packet::PacketSocket;
pub(crate) use socket::set_option;
pub use socket::{receive, Control, Received};
