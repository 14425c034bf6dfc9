//! Follows streams: turns the output of all machines' probes and agents into journeys, the route, and figures.
//!
//! [`Follow`] hands over every journey, across machines. [`Live`] counts these journeys as they arrive.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod counted;
mod door;
mod early_completion;
mod flight;
mod follow;
mod live;
mod merge;
mod named;
mod reactions;
mod sampling;
mod senders;
mod tables;
mod taps;

pub use flight::FlightOptions;
pub use follow::{sum, Follow, FollowError, JourneySink, LayoutChange, Options};
pub use live::Live;
pub use merge::Origin;
#[doc(hidden)] // for tests that need no machine
pub use merge::{Feed, Merge};
pub use named::{hypervisors, NamedMachine};
pub use tables::PointFilter;
#[doc(hidden)]
pub use tables::Tables;
