//! Spikes: which packets are late, and what all machines did around them.
//!
//! A [`LateDetector`] sees every journey. It decides which are late ([`Rule`]), takes those that lie close together as one capture, says
//! when its time is to be frozen ([`Order`]), and gathers the packets that were on their way in it ([`Gathered`]); now and then it
//! orders a time in which all were on time, so that what is usual is known. A [`Keeper`] says which captures stay where room is
//! bounded: the worst. [`RankedCapture::encode`] makes bytes of a capture. All of it is pure: whoever calls freezes and stores.

mod capture;
mod codec;
mod detector;
mod keeper;
mod recent;
mod rule;

pub use capture::{Capture, Kind, MachineRecord, Packet, RankedCapture, Seen};
pub use codec::{BadCapture, Head, MAX_ENCODED, VERSION};
pub use detector::{Counted, Gathered, LateDetector, Options, Order};
pub use keeper::{Bounds, Decision, Entry, Keeper};
pub use rule::Rule;
