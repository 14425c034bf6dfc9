//! The path of a packet through the host, as far as it affects the delay.
//!
//! It follows from the points that saw the packet; nothing else is stored about it.

use crate::journey::MAX_POINTS;
use latpath_model::{PathMark, PointId, PointInfo};
use std::fmt;

/// A path through the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathClass {
    /// Through the stack: bridge, routing, macvtap.
    Direct,
    /// Through Open vSwitch's datapath, by an existing flow.
    Fast,
    /// Through ovs-vswitchd, because no flow matched.
    Upcall,
    /// Through ovs-vswitchd, by a flow's action; it handed the packet back.
    Slow,
    /// Redirected by an XDP program.
    Xdp,
}

impl PathClass {
    /// All paths, the common ones first.
    pub const ALL: [Self; 5] = [Self::Direct, Self::Fast, Self::Upcall, Self::Slow, Self::Xdp];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fast => "fast path",
            Self::Upcall => "upcall",
            Self::Slow => "slow action",
            Self::Xdp => "xdp",
        }
    }

    /// Its meaning, in a few words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Direct => "through the stack",
            Self::Fast => "Open vSwitch's datapath alone",
            Self::Upcall => "no flow: by way of ovs-vswitchd",
            Self::Slow => "a flow's action: by way of ovs-vswitchd",
            Self::Xdp => "redirected by an XDP program",
        }
    }
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Determines a journey's path from the points that saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paths {
    fast: u64,
    upcall: u64,
    slow: u64,
    returned: u64,
    xdp: u64,
    /// For each point at which packets enter: Open vSwitch's points on the same port, as bits.
    behind: [u64; MAX_POINTS],
}

impl Default for Paths {
    fn default() -> Self {
        Self { fast: 0, upcall: 0, slow: 0, returned: 0, xdp: 0, behind: [0; MAX_POINTS] }
    }
}

impl Paths {
    /// The classifier for these points.
    pub fn of_points(points: &[PointInfo]) -> Self {
        let mut paths = Self::default();
        for (id, info) in points.iter().enumerate().take(MAX_POINTS) {
            let set = match info.point.kind.info().path {
                PathMark::Flow => &mut paths.fast,
                PathMark::Upcall => &mut paths.upcall,
                PathMark::Returned => &mut paths.returned,
                PathMark::Slow => &mut paths.slow,
                PathMark::Xdp => &mut paths.xdp,
                PathMark::Any => &mut 0,
            };
            *set |= 1 << id;
            if info.point.kind.is_entry() {
                let port = |i: &PointInfo| (i.point.machine.clone(), i.netns, i.ifindex);
                let same = |(_, i): &(usize, &PointInfo)| i.point.kind.is_optional() && port(i) == port(info);
                let behind = points.iter().enumerate().take(MAX_POINTS).filter(same);
                paths.behind[id] = behind.fold(0, |set, (id, _)| set | 1 << id);
            }
        }
        paths
    }

    /// Whether there is more than one path.
    pub fn any(&self) -> bool {
        self.fast | self.upcall | self.slow | self.returned | self.xdp != 0
    }

    /// The path of a journey that these points saw; of several slow paths the slowest.
    #[inline]
    pub fn class(&self, seen: u64) -> PathClass {
        let by = |set: u64| seen & set != 0;
        if by(self.slow) {
            PathClass::Slow
        } else if by(self.upcall | self.returned) {
            // The packet's return alone also identifies an upcall, if its departure was not seen.
            PathClass::Upcall
        } else if by(self.xdp) {
            PathClass::Xdp
        } else if by(self.fast) {
            PathClass::Fast
        } else {
            PathClass::Direct
        }
    }

    /// The furthest point of a lost packet whose last point of the route was `last`: Open vSwitch's points on that port
    /// may have seen it later.
    pub fn furthest(&self, seen: u64, last: PointId) -> PointId {
        let seen = seen & self.behind.get(usize::from(last)).copied().unwrap_or(0);
        // From the last that a packet passes to the first.
        let passed = [self.returned, self.slow, self.upcall, self.fast].into_iter().find(|set| seen & set != 0);
        passed.map_or(last, |set| (seen & set).trailing_zeros() as PointId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_model::{Link, Point};

    fn paths() -> Paths {
        let names = [
            "host/nic-rx@nic0",
            "host/ovs-exec@nic0",
            "host/ovs-upcall@nic0",
            "host/ovs-return@nic0",
            "host/ovs-slow@nic0",
            "host/xdp-redirect@nic0",
            "host/tx@nic0",
            "guest0/nic-rx@nic0",
        ];
        let info = |name: &&str| PointInfo {
            point: name.parse::<Point>().unwrap(),
            link: Link::Nic,
            netns: 1,
            ifindex: 2,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: String::new(),
        };
        Paths::of_points(&names.iter().map(info).collect::<Vec<_>>())
    }

    #[test]
    fn the_slowest_of_several_paths_is_the_packets() {
        let p = paths();
        for (seen, class) in [
            (0b100_0001, PathClass::Direct),
            (0b100_0011, PathClass::Fast),
            (0b100_1101, PathClass::Upcall),
            (0b100_1001, PathClass::Upcall),
            (0b101_1011, PathClass::Slow),
            (0b110_0000, PathClass::Xdp),
        ] {
            assert_eq!(p.class(seen), class, "{seen:b}");
        }
    }

    #[test]
    fn a_packet_lost_in_the_daemon_has_a_journey() {
        let p = paths();
        assert_eq!(p.furthest(0b000_0101, 0), 2, "asked, and not answered");
        assert_eq!(p.furthest(0b000_1101, 0), 3, "came back, and was not sent");
        assert_eq!(p.furthest(0b000_0011, 0), 1, "its flow did not send it");
        assert_eq!(p.furthest(0b000_0001, 0), 0);
        assert_eq!(p.furthest(0b100_1101, 6), 6, "sent");
        assert_eq!(p.furthest(0b1100_0011, 7), 7, "in the guest");
        assert_eq!(p.furthest(0b0, PointId::MAX), PointId::MAX, "nowhere");
    }

    #[test]
    fn without_such_points_there_is_no_result() {
        assert!(paths().any());
        assert!(!Paths::of_points(&[]).any());
    }
}
