//! Spikes: which packets are late, and what all machines did around them.
//!
//! A [`LateDetector`] sees every journey. It decides which are late ([`LatenessRule`]), takes those that lie close together as one capture, says
//! when its time is to be frozen ([`CaptureRequest`]), and gathers the packets that were on their way in it ([`CapturedPackets`]); now and then it
//! orders a time in which all were on time, so that what is usual is known. A [`RetentionPolicy`] says which captures stay where room is
//! bounded: the worst. [`RankedCapture::encode`] makes bytes of a capture. All of it is pure: whoever calls freezes and stores.

mod capture;
mod codec;
mod detector;
mod recent;
mod retention;
mod rule;

pub use capture::{Capture, CaptureKind, MachineRecord, Packet, PacketSighting, RankedCapture};
pub use codec::{BadCapture, Head, MAX_ENCODED, VERSION};
pub use detector::{CaptureRequest, CapturedPackets, LateCounts, LateDetector, Options};
pub use retention::{Decision, RetentionLimits, RetentionPolicy, StoredCapture};
pub use rule::LatenessRule;
