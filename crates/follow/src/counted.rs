//! The kernel's own counters, from the beginning of a measurement on.

use latpath_counters::{Difference, Snapshot};
use latpath_model::{PointInfo, HOST};
use std::collections::HashMap;

/// What was counted before.
pub(crate) struct Counted(Snapshot);

impl Counted {
    pub fn begin() -> Self {
        Self(Snapshot::everywhere())
    }

    /// The kinds of queueing disciplines that each device had at the beginning, by network namespace and index.
    pub fn qdiscs(&self) -> HashMap<(u32, u32), Vec<String>> {
        self.0.qdiscs().collect()
    }

    /// What was counted since, in the namespaces of this host's points, and on their devices.
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
