//! Spikes: which packets are late, and what all machines did around them.
//!
//! A [`Chooser`] sees every journey. It decides which are late ([`Rule`]), takes those that lie close together as one scene, says
//! when its time is to be frozen ([`Order`]), and gathers the packets that were on their way in it ([`Gathered`]); now and then it
//! orders a time in which all were on time, so that what is usual is known. A [`Keeper`] says which scenes stay where room is
//! bounded: the worst. [`Frozen::encode`] makes bytes of a scene. All of it is pure: whoever calls freezes and stores.

mod chooser;
mod codec;
mod keeper;
mod recent;
mod rule;
mod scene;

pub use chooser::{Chooser, Counted, Gathered, Options, Order};
pub use codec::{BadScene, Head, MAX_ENCODED, VERSION};
pub use keeper::{Bounds, Decision, Entry, Keeper};
pub use rule::Rule;
pub use scene::{Frozen, Kind, MachineRecord, Packet, Scene, Seen};
