//! Which packets are late, and the records of all machines around them.
//!
//! A [`LateDetector`] examines every journey. It decides which packets are late ([`LatenessRule`]), groups those close
//! together into one spike, requests a capture of its interval ([`CaptureRequest`]), and collects the packets that were
//! in flight in it ([`CapturedPackets`]). Occasionally it requests a baseline: an interval in which all packets were on
//! time. A [`RetentionPolicy`] keeps the worst captures. [`RankedCapture::encode`] encodes a capture. The caller
//! collects the records and stores the captures.

mod capture;
mod codec;
mod detector;
mod queue;
mod recent;
mod retention;
mod rule;

pub use capture::{Capture, CaptureKind, MachineSnapshot, Packet, RankedCapture};
pub use codec::{BadCapture, Head, MAX_ENCODED, VERSION};
pub use detector::{CaptureRequest, CapturedPackets, LateCounts, LateDetector, Options};
pub use queue::{BoundedCaptures, WaitingCaptures, MAX_WAITING_BYTES};
pub use retention::{Decision, RetentionLimits, RetentionPolicy, StoredCapture};
pub use rule::LatenessRule;
