//! The counters of devices, by their places.

use latpath_net::{interfaces, Inode, Netns, Statistics};
use std::collections::{BTreeSet, HashMap};

/// What devices have counted, by their namespaces and their indexes in them.
pub type DeviceStatistics = HashMap<(Inode, u32), Statistics>;

/// What devices counted since `earlier`; those that are new, since they were made.
pub fn since(now: &DeviceStatistics, earlier: &DeviceStatistics) -> DeviceStatistics {
    let nothing = Statistics::default();
    now.iter().map(|(place, now)| (*place, now.since(earlier.get(place).unwrap_or(&nothing)))).collect()
}

/// What the devices of some namespaces have counted since they were made; nothing of namespaces that are gone.
pub fn statistics(namespaces: impl IntoIterator<Item = Inode>) -> DeviceStatistics {
    let namespaces: BTreeSet<Inode> = namespaces.into_iter().collect();
    let of_namespace = |inode: Inode| {
        let all = Netns::find(inode).and_then(|netns| interfaces(&netns)).unwrap_or_default();
        all.into_iter().map(move |device| ((inode, device.ifindex), device.statistics))
    };
    namespaces.into_iter().flat_map(of_namespace).collect()
}
