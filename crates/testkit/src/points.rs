//! Points for the runs and captures of tests.

use latpath_model::{Link, PointInfo};

/// The point with this name, at a NIC in the test's first namespace.
///
/// # Panics
/// If no point can have this name.
pub fn point(name: &str) -> PointInfo {
    PointInfo {
        point: name.parse().expect("a point's name"),
        link: Link::Nic,
        netns: 1,
        ifindex: 1,
        peer: 0,
        peer_netns: 0,
        error_bound_ns: 0,
        clock: "CLOCK_MONOTONIC".into(),
    }
}
