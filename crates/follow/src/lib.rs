//! Following streams: probes and agents of all machines to journeys, the route, and figures.
//!
//! [`Follow`] hands over every journey, across machines; [`Watch`] keeps figures of the moment: counted in the kernel where
//! all points are on this machine, from journeys where another machine takes part.

mod ahead;
mod by_path;
mod cost;
mod counted;
mod flight;
mod follow;
mod freezer;
mod housekeeping;
mod joined;
mod layout;
mod live;
mod merge;
mod over;
mod span;
mod tables;
mod watch;

pub use cost::CostMeter;
pub use flight::FlightOptions;
pub use follow::{sum, Follow, FollowError, Options};
pub use housekeeping::keep_off_isolated_cpus;
pub use layout::Layout;
pub use tables::PointFilter;
pub use watch::Watch;
