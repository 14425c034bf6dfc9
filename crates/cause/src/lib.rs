//! What held a late packet: a walk back along the path of those who had to act.
//!
//! [`Analyst::explain`] tiles the time between two sightings of a packet with [`Piece`]s, each with one [`Cause`] and who
//! did it. They sum to it exactly; what no rule covers is [`Cause::Unexplained`].
//!
//! [`Explained`] is a packet with that all the way, [`Usual`] what on-time packets spend where, [`Verdict`] a packet's causes
//! by what they took beyond the usual, [`Ranking`] those of all late packets,
//! [`advise`] what would cure one of them.

mod advice;
mod analyst;
mod cause;
mod compact;
mod context;
mod exit;
mod explained;
mod guests;
mod machine;
mod member;
mod queue;
mod ranking;
mod spell;
mod sums;
mod trail;
mod usual;
mod verdict;
mod walk;

pub use advice::{advise, Advice, Case};
pub use analyst::{Analyst, Piece, Who};
pub use cause::Cause;
pub use context::RunContext;
pub use exit::name as exit_name;
pub use explained::{Explained, Part};
pub use member::Member;
pub use ranking::{Others, Ranking, Row};
pub use usual::{Means, Usual};
pub use verdict::{Held, Verdict};
