//! Points of runs and captures that tests make.

use latpath_model::{Link, PointInfo};

/// The point with this name, at a network card in the first of the test's namespaces.
///
/// # Panics
/// If the name is not that of a point.
pub fn point(name: &str) -> PointInfo {
    PointInfo {
        point: name.parse().expect("a point's name"),
        link: Link::Nic,
        netns: 1,
        ifindex: 1,
        peer: 0,
        peer_netns: 0,
        clock: "CLOCK_MONOTONIC".into(),
    }
}
