//! The kernel's own counters since the start of a measurement.

use latpath_counters::{Difference, Snapshot};
use latpath_model::{PointId, PointInfo, HOST};
use std::collections::{BTreeSet, HashMap};

/// The counters at the start.
pub(crate) struct KernelCounters(Snapshot);

impl KernelCounters {
    pub fn begin() -> Self {
        Self(Snapshot::everywhere())
    }

    /// The queueing disciplines of each device at the start, by network namespace and index.
    pub fn qdiscs(&self) -> HashMap<(u32, u32), Vec<String>> {
        self.0.qdiscs().collect()
    }

    /// Changes since the start, in the network namespaces of this host's points, and for their devices. `renewed`:
    /// points whose devices were replaced.
    pub fn since(&self, points: &[PointInfo], renewed: &BTreeSet<PointId>) -> Difference {
        of_points(Snapshot::everywhere().since(&self.0), points, renewed)
    }
}

/// The part of a difference that belongs to these points.
fn of_points(mut all: Difference, points: &[PointInfo], renewed: &BTreeSet<PointId>) -> Difference {
    let here = || points.iter().filter(|info| info.point.machine == HOST);
    all.namespaces.retain(|netns, _| here().any(|info| info.netns == *netns));
    for (netns, space) in &mut all.namespaces {
        space.devices.retain(|ifindex, _| here().any(|info| (info.netns, info.ifindex) == (*netns, *ifindex)));
        if let Some(sockets) = &mut space.sockets.packet {
            sockets.retain(|socket| socket.dropped > 0);
        }
    }
    for info in renewed.iter().filter_map(|point| points.get(usize::from(*point))) {
        let devices = all.namespaces.get_mut(&info.netns).map(|space| &mut space.devices);
        let device = devices.filter(|_| info.point.machine == HOST).and_then(|devices| devices.get_mut(&info.ifindex));
        device.into_iter().for_each(|device| device.is_renewed = true);
    }
    let mut gone = std::mem::take(&mut all.gone);
    gone.retain(|(netns, device)| {
        let is_its = |info: &&PointInfo| info.netns == *netns && info.point.device_name() == device.name;
        here().find(is_its).is_some_and(|info| all.device(*netns, info.ifindex).is_none())
    });
    Difference { gone, ..all }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_counters::{DeviceCounters, Namespace};
    use latpath_model::Point;
    use std::collections::BTreeMap;

    const NETNS: u32 = 7;

    #[test]
    fn a_tap_that_returned_is_not_gone_and_its_counters_are_marked() {
        let device = |name: &str| DeviceCounters { name: name.into(), ..DeviceCounters::default() };
        let devices = [(3, "eth0"), (11, "vnet9"), (12, "vnet8"), (13, "other")];
        let devices = devices.into_iter().map(|(ifindex, name)| (ifindex, device(name)));
        let space = Namespace { devices: devices.collect(), ..Namespace::default() };
        let gone = ["vnet6", "vnet7", "strange"].map(|name| (NETNS, device(name))).to_vec();
        let all = Difference { namespaces: BTreeMap::from([(NETNS, space)]), gone, ..Difference::default() };
        let at = |(name, ifindex): (&str, u32)| {
            let point: Point = name.parse().unwrap();
            PointInfo { netns: NETNS, ifindex, ..point.into() }
        };
        let points = [("host/nic-rx@eth0", 3), ("host/tx@vnet7", 12), ("host/tx@vnet6", 10), ("host/tx@vnet9", 11)];
        let points = points.map(at);
        let counted = of_points(all, &points, &BTreeSet::from([1, 2]));
        let gone: Vec<&str> = counted.gone.iter().map(|(_, device)| device.name.as_str()).collect();
        assert_eq!(gone, ["vnet6"], "it returned and ended again");
        let is_renewed = |ifindex| counted.device(NETNS, ifindex).map(|device| device.is_renewed);
        assert_eq!([3, 11, 12, 13].map(is_renewed), [Some(false), Some(false), Some(true), None]);
    }
}
