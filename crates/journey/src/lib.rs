//! Journeys: all sightings of one packet, joined by key in bounded memory, and the order of points they reveal.

pub mod journey;

pub use journey::Journey;
