//! What held a late packet: a walk back along the path of those who had to act.
//!
//! [`Analyst::explain`] tiles the time between two sightings of a packet with [`Piece`]s, each with one [`Cause`] and who
//! did it. They sum to it exactly; what no rule covers is [`Cause::Unexplained`].

mod analyst;
mod cause;

pub use analyst::{Analyst, Ground, Piece, Who};
pub use cause::Cause;
