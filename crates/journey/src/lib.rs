//! Journeys: the sightings of each packet, joined by key in bounded memory, and the route that they reveal; reactions:
//! pairs of journeys.

pub mod copies;
mod islands;
pub mod joiner;
pub mod journey;
mod matching;
pub mod paths;
pub mod reactions;
mod ring;
pub mod route;
mod sampling;
mod schedule;
pub mod segments;
mod send_plan;
mod senders;
mod span;
mod stream;

pub use joiner::{Joiner, Options, Totals};
pub use journey::Journey;
pub use paths::{PathClass, Paths};
pub use reactions::{ReactionCounts, Reactions};
pub use route::{arrival, reactions_of, Route, RouteFinder};
pub use sampling::Sampling;
pub use segments::{Layout, Segment};
pub use send_plan::SendPlan;
pub use span::Span;
