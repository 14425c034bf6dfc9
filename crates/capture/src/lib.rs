//! Which packets are late, and what all machines did around them.
//!
//! A [`LateDetector`] takes every journey. It decides which packets are late ([`LatenessRule`]), groups those that lie close
//! together into one spike, requests a capture of its time ([`CaptureRequest`]), and gathers the packets that were under way in it
//! ([`CapturedPackets`]). From time to time it requests a baseline: a time in which all packets were on time. A [`RetentionPolicy`]
//! says which captures are kept: the worst. [`RankedCapture::encode`] makes bytes of a capture. The caller freezes and stores.

mod capture;
mod codec;
mod detector;
mod recent;
mod retention;
mod rule;

pub use capture::{Capture, CaptureKind, MachineSnapshot, Packet, PacketSighting, RankedCapture, UNKNOWN_CPU};
pub use codec::{BadCapture, Head, MAX_ENCODED, VERSION};
pub use detector::{CaptureRequest, CapturedPackets, LateCounts, LateDetector, Options};
pub use retention::{Decision, RetentionLimits, RetentionPolicy, StoredCapture};
pub use rule::LatenessRule;
