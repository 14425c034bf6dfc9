//! The counters of devices, by namespace and index.

use latpath_net::{interfaces, Inode, Netns, Statistics};
use std::collections::{BTreeSet, HashMap};

/// Counters of devices, by namespace and index.
pub type DeviceStatistics = HashMap<(Inode, u32), Statistics>;

/// Increments since `earlier`; new devices count from 0.
pub fn since(now: &DeviceStatistics, earlier: &DeviceStatistics) -> DeviceStatistics {
    let nothing = Statistics::default();
    now.iter().map(|(place, now)| (*place, now.since(earlier.get(place).unwrap_or(&nothing)))).collect()
}

/// Counters of the devices in some namespaces; namespaces that no longer exist are omitted.
pub fn statistics(namespaces: impl IntoIterator<Item = Inode>) -> DeviceStatistics {
    let namespaces: BTreeSet<Inode> = namespaces.into_iter().collect();
    let of_namespace = |inode: Inode| {
        let all = Netns::find(inode).and_then(|netns| interfaces(&netns)).unwrap_or_default();
        all.into_iter().map(move |device| ((inode, device.ifindex), device.statistics))
    };
    namespaces.into_iter().flat_map(of_namespace).collect()
}
