//! Journeys: the sightings of each packet, joined by key in bounded memory, and the route that they reveal.

pub mod copies;
mod islands;
pub mod joiner;
pub mod journey;
mod matching;
pub mod paths;
mod ring;
pub mod route;
mod sampling;
mod schedule;
pub mod segments;
mod senders;
mod span;
mod stream;

pub use joiner::{Joiner, Options, Totals};
pub use journey::Journey;
pub use paths::{PathClass, Paths};
pub use route::{Route, RouteFinder};
pub use sampling::Sampling;
pub use segments::{Layout, Segment};
pub use span::Span;
