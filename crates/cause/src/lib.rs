//! What held a late packet: a walk back along the path of those who had to act.
//!
//! [`Analyst::explain`] tiles the time between two sightings of a packet with [`CauseInterval`]s, each with one [`Cause`] and who
//! did it. They sum to it exactly; what no rule covers is [`Cause::Unexplained`].
//!
//! [`PacketTimeline`] is a packet with that all the way, [`Baseline`] what on-time packets spend where, [`Attribution`] a packet's causes
//! by what they took beyond the usual, [`Ranking`] those of all late packets,
//! [`advise`] what would cure one of them.

mod actor;
mod advice;
mod analyst;
mod attribution;
mod baseline;
mod cause;
mod compact;
mod context;
mod cross_machine;
mod exit;
mod guests;
mod irq_interval;
mod machine;
mod packet_timeline;
mod queue;
mod ranking;
mod sums;
mod wakeup_chain;

pub use actor::Actor;
pub use advice::{advise, Advice, Case};
pub use analyst::{Analyst, CauseInterval, Executor};
pub use attribution::{Attribution, CauseShare};
pub use baseline::{Baseline, MeanTimes};
pub use cause::{ActorState, Cause, CauseInfo, Detail, Link};
pub use context::RunContext;
pub use exit::name as exit_name;
pub use packet_timeline::{Hop, PacketTimeline};
pub use ranking::{Others, Ranking, Row};
