//! Spikes: which packets are late, and what all machines did around them.

mod scene;

pub use scene::{Kind, MachineRecord, Packet, Scene, Seen};
