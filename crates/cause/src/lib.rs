//! Explains late packets by following back the chain of threads, softirqs and interrupts that had to act.
//!
//! [`Analyst::explain`] divides the time between two sightings of a packet into [`CauseInterval`]s, each with one
//! [`Cause`], an actor and a culprit. They sum to that time exactly; time that no rule covers is
//! [`Cause::Unexplained`].
//!
//! [`PacketTimeline`] contains the intervals of a packet's whole route, [`Baseline`] the mean times of on-time packets.
//! [`Attribution`] ranks a packet's causes by their time beyond the baseline, [`Ranking`] those of all late packets,
//! and [`advise`] returns the fixes for a cause.

mod actor;
mod advice;
mod analyst;
mod attribution;
mod baseline;
mod causality;
mod cause;
mod compact;
mod context;
mod cross_machine;
mod guests;
mod irq_interval;
mod kernel_time;
mod machine;
mod no_flow;
mod note;
mod packet_timeline;
mod queue;
mod ranking;
mod sums;
mod wakeup_chain;

pub use actor::{Actor, Process, LATPATH_ITSELF};
pub use advice::{advise, held_at, held_by, Advice};
pub use analyst::{Analyst, CauseInterval, Executor};
pub use attribution::{Attribution, CauseShare};
pub use baseline::{Baseline, MeanTimes};
pub use causality::GuestCausality;
pub use cause::{ActorState, Cause, CauseInfo, Culprit, Detail, Link, OfHolder, Rival, Subject};
pub use context::RunContext;
pub use latpath_vms::exit_reason::recorded_name as exit_name;
pub use no_flow::{DaemonVisit, NoFlow, VisitParts};
pub use note::Note;
pub use packet_timeline::{send_time, Hop, PacketTimeline};
pub use ranking::{Others, Ranking, Row};
