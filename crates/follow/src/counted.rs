//! The kernel's own counters since the start of a measurement.

use latpath_counters::{Difference, Snapshot};
use latpath_model::{PointInfo, HOST};
use std::collections::HashMap;

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

    /// Changes since the start, in the namespaces of this host's points, and on their devices.
    pub fn since(&self, points: &[PointInfo]) -> Difference {
        let mut all = Snapshot::everywhere().since(&self.0);
        let here = || points.iter().filter(|info| info.point.machine == HOST);
        all.namespaces.retain(|netns, _| here().any(|info| info.netns == *netns));
        for (netns, space) in &mut all.namespaces {
            space.devices.retain(|ifindex, _| here().any(|info| (info.netns, info.ifindex) == (*netns, *ifindex)));
            if let Some(sockets) = &mut space.sockets.packet {
                sockets.retain(|socket| socket.dropped > 0);
            }
        }
        all.gone.retain(|(netns, device)| {
            here().any(|info| info.netns == *netns && info.point.device_name() == device.name)
        });
        all
    }
}
