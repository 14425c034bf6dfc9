//! Redundant networks (IEC 62439-3: PRP, HSR): a sender sends each packet through two LANs, and receivers use the copy
//! that arrives first.
//!
//! Each point of a LAN sees one copy (`nic-rx@eth0:A`). For each machine, network namespace and kind, two computed
//! points combine the LANs' points: `nic-rx@copy:first` is on the route, whichever LAN was faster; `nic-rx@copy:second`
//! is where the other copy arrives. So a route, its segments and its losses do not depend on the LAN, and the time
//! between the two copies is a separate segment.

use crate::journey::MAX_POINTS;
use latpath_model::point::{Copies, Lan};
use latpath_model::{PointId, PointInfo, PointKind};

/// The points at which a machine sees the copies of a packet, at one place on their route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPoints {
    /// The points of LAN A and of LAN B, as bits `1 << PointId`.
    pub lans: [u64; 2],
    /// Computed point of the first copies.
    pub first: PointId,
    /// Computed point of the second copies.
    pub second: PointId,
}

impl CopyPoints {
    /// The points of both LANs.
    pub fn all(&self) -> u64 {
        self.lans[0] | self.lans[1]
    }
}

/// The properties that the points of both copies have in common at a place: machine, network namespace and kind.
fn place(info: &PointInfo) -> (&str, u32, PointKind) {
    (&info.point.machine, info.netns, info.point.kind)
}

/// Whether every packet of a route can pass through points of this kind.
fn is_step(kind: PointKind) -> bool {
    kind.can_be_on_route() && !kind.is_optional()
}

/// Adds computed points for the LANs' points that have none yet, up to the maximum number of points. `name_of`: returns
/// the name of the network namespace with this inode number.
pub fn add_points(points: &mut Vec<PointInfo>, name_of: impl Fn(u32) -> Option<String>) {
    for at in 0..points.len() {
        let info = &points[at];
        let is_lan = matches!(info.point.copies(), Some(Copies::Lan(_)));
        let is_known = |other: &PointInfo| other.point.copies() == Some(Copies::First) && place(other) == place(info);
        if !is_lan || !is_step(info.point.kind) || points.iter().any(is_known) || points.len() + 2 > MAX_POINTS {
            continue;
        }
        let computed = [Copies::First, Copies::Second].map(|copies| {
            let mut point = info.point.of_copies(copies);
            if points.iter().any(|other| other.point == point) {
                // A point in another namespace already has this name, so append the namespace.
                point.device += &format!("%{}", name_of(info.netns).unwrap_or_else(|| info.netns.to_string()));
            }
            PointInfo { point, ifindex: 0, peer: 0, peer_netns: 0, ..info.clone() }
        });
        points.extend(computed);
    }
}

/// Finds the places that have computed points.
pub fn of_points(points: &[PointInfo]) -> Vec<CopyPoints> {
    let points = &points[..points.len().min(MAX_POINTS)];
    let find = |of: &PointInfo, copies| {
        let is_it = |info: &PointInfo| info.point.copies() == Some(copies) && place(info) == place(of);
        points.iter().position(is_it).map(|at| at as PointId)
    };
    let mask = |of: &PointInfo, lan| {
        let is_it = |info: &PointInfo| info.point.copies() == Some(Copies::Lan(lan)) && place(info) == place(of);
        points.iter().enumerate().filter(|(_, info)| is_it(info)).fold(0, |mask, (at, _)| mask | 1 << at)
    };
    let first = |info: &&PointInfo| info.point.copies() == Some(Copies::First);
    let of = |info: &PointInfo| {
        Some(CopyPoints {
            lans: Lan::ALL.map(|lan| mask(info, lan)),
            first: find(info, Copies::First)?,
            second: find(info, Copies::Second)?,
        })
    };
    points.iter().filter(first).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_model::Point;

    fn points(names: &[(&str, u32)]) -> Vec<PointInfo> {
        let info = |(name, netns): &(&str, u32)| {
            let point: Point = name.parse().unwrap();
            PointInfo { netns: *netns, ifindex: 4, ..point.into() }
        };
        names.iter().map(info).collect()
    }

    #[test]
    fn each_place_with_lans_has_two_computed_points() {
        let mut all = points(&[
            ("host/tx@eth0:A%pub", 1),
            ("host/nic-rx@eth0:A", 2),
            ("host/nic-rx@eth1:B", 2),
            ("host/nic-rx@hsr0", 2),
            ("host/drop@eth1:B", 2),
        ]);
        add_points(&mut all, |_| None);
        let added: Vec<String> = all[5..].iter().map(|info| info.point.to_string()).collect();
        assert_eq!(
            added,
            ["host/tx@copy:first%pub", "host/tx@copy:second%pub", "host/nic-rx@copy:first", "host/nic-rx@copy:second"]
        );
        assert_eq!((all[7].netns, all[7].ifindex), (2, 0));
        assert_eq!(
            of_points(&all),
            [
                CopyPoints { lans: [0b1, 0], first: 5, second: 6 },
                CopyPoints { lans: [0b10, 0b100], first: 7, second: 8 }
            ]
        );
        let before = all.clone();
        add_points(&mut all, |_| None);
        assert_eq!(all, before);
    }

    #[test]
    fn a_full_table_of_points_gets_none() {
        let name = |n: usize| format!("host/nic-rx@e{n}:A").parse::<Point>().unwrap();
        let mut all: Vec<PointInfo> = (0..MAX_POINTS - 1).map(|n| name(n).into()).collect();
        add_points(&mut all, |_| None);
        assert_eq!((all.len(), of_points(&all)), (MAX_POINTS - 1, vec![]));
    }
}
