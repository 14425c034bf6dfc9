//! All counters at one time, and differences between two snapshots.

use crate::{
    datapath::{datapaths, Datapath},
    qdisc::{queueing, Queueing},
    sockets::{sockets, PacketSocket, Sockets},
    softnet::Softnet,
};
use latpath_linux::proc::{CpuAccount, Root};
use latpath_model::Ns;
use latpath_net::{interfaces, Inode, Interface, Netns, Statistics};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

/// The kernel's counters at one time. The parts are read one after the other, within milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time of the snapshot, `CLOCK_MONOTONIC`.
    pub t_ns: Ns,
    /// The namespaces that were read, by inode number.
    pub namespaces: BTreeMap<Inode, Namespace>,
    /// The CPUs' input queues.
    pub softnet: Softnet,
    /// Steal time of each CPU since boot: time that the hypervisor did not let it run, ns, in steps of a clock tick.
    #[serde(default)]
    pub stolen: BTreeMap<u32, Ns>,
    /// Counters that could not be read, with the reasons.
    pub unread: Vec<String>,
}

/// Counters of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Devices by index.
    pub devices: BTreeMap<u32, DeviceCounters>,
    /// Open vSwitch's datapaths.
    pub datapaths: Vec<Datapath>,
    /// UDP and packet sockets.
    pub sockets: Sockets,
}

/// A device's counters; in a [`Difference`], their increments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Name of the device.
    pub name: String,
    /// Kind of a virtual device, as shown by `ip -d link`.
    pub kind: Option<String>,
    /// The device's own counters.
    pub statistics: Statistics,
    /// Number of times that its link went down: it lost its carrier, or was set down.
    #[serde(default)]
    pub link_downs: u32,
    /// Counters of its queueing disciplines; `None` if it has none.
    pub queueing: Option<Queueing>,
    /// In a [`Difference`]: whether the device replaced another one at the same points, as a VM's tap does at each
    /// start of the VM. The counters are only those of the last device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_renewed: bool,
}

/// The difference between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Time between the snapshots.
    pub elapsed_ns: Ns,
    /// Increments by namespace. Devices and datapaths that only the later snapshot has count from 0, because they were
    /// created between the snapshots.
    pub namespaces: BTreeMap<Inode, Namespace>,
    /// The CPUs' input queues.
    pub softnet: Softnet,
    /// Steal time of each CPU: time that the hypervisor did not let it run, ns; CPUs with 0 are omitted.
    #[serde(default)]
    pub stolen: BTreeMap<u32, Ns>,
    /// Devices that were removed, with their counters in the earlier snapshot: any later increments are unknown.
    pub gone: Vec<(Inode, DeviceCounters)>,
    /// Counters missing from either snapshot because they could not be read, with the reasons.
    pub unread: Vec<String>,
}

impl Snapshot {
    /// Reads the counters of all devices in all namespaces that this process can find, because a measurement may begin
    /// before its devices are known. Never fails: [`Snapshot::unread`] lists counters that could not be read.
    pub fn everywhere() -> Self {
        let mut snapshot = Self { t_ns: latpath_linux::monotonic(), ..Self::default() };
        match Softnet::read() {
            Some(softnet) => snapshot.softnet = softnet,
            None => snapshot.unread.push("/proc/net/softnet_stat: cannot be read".into()),
        }
        let accounts = CpuAccount::of_each(&Root::of(Path::new("/"))).unwrap_or_default();
        snapshot.stolen = accounts.into_iter().map(|(cpu, account)| (cpu, account.steal as Ns)).collect();
        Netns::all().values().for_each(|netns| snapshot.add(netns));
        snapshot
    }

    fn add(&mut self, netns: &Netns) {
        let mut note = |e: latpath_net::Error| {
            let text = e.to_string();
            if !self.unread.contains(&text) {
                self.unread.push(text);
            }
        };
        let all = match interfaces(netns) {
            Ok(all) => all,
            Err(e) => return note(e),
        };
        let queues = queueing(netns).map_err(&mut note).unwrap_or_default();
        let device = |i: Interface| {
            let queueing = queues.get(&i.ifindex).cloned();
            let Interface { name, kind, statistics, link_downs, .. } = i;
            (i.ifindex, DeviceCounters { name, kind, statistics, link_downs, queueing, is_renewed: false })
        };
        let space = Namespace {
            devices: all.into_iter().map(device).collect(),
            datapaths: datapaths(netns).map_err(&mut note).unwrap_or_default(),
            sockets: sockets(netns).map_err(&mut note).unwrap_or_default(),
        };
        self.namespaces.insert(netns.inode(), space);
    }

    /// The kinds of each device's queueing disciplines, as in [`Difference::qdiscs`].
    pub fn qdiscs(&self) -> impl Iterator<Item = ((Inode, u32), Vec<String>)> + '_ {
        qdiscs(&self.namespaces)
    }

    /// Increments since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Difference {
        let nothing = Namespace::default();
        let stolen = |(cpu, now): (&u32, &Ns)| {
            let took = now - earlier.stolen.get(cpu)?;
            (took > 0).then_some((*cpu, took))
        };
        let mut difference = Difference {
            elapsed_ns: self.t_ns - earlier.t_ns,
            softnet: self.softnet.since(&earlier.softnet),
            stolen: self.stolen.iter().filter_map(stolen).collect(),
            unread: earlier.unread.clone(),
            ..Difference::default()
        };
        difference.unread.extend(self.unread.iter().filter(|text| !earlier.unread.contains(text)).cloned());
        for (netns, now) in &self.namespaces {
            let then = earlier.namespaces.get(netns).unwrap_or(&nothing);
            difference.namespaces.insert(*netns, now.since(then));
        }
        for (netns, then) in &earlier.namespaces {
            let now = self.namespaces.get(netns).unwrap_or(&nothing);
            let gone = then.devices.iter().filter(|(ifindex, _)| !now.devices.contains_key(ifindex));
            difference.gone.extend(gone.map(|(_, device)| (*netns, device.clone())));
        }
        difference
    }
}

/// Kind of queueing discipline of devices that have no queue.
const NO_QUEUE: &str = "noqueue";

fn qdiscs(namespaces: &BTreeMap<Inode, Namespace>) -> impl Iterator<Item = ((Inode, u32), Vec<String>)> + '_ {
    let of = |(netns, space): (&Inode, &Namespace)| {
        let netns = *netns;
        let kinds = |(ifindex, device): (&u32, &DeviceCounters)| {
            let mut kinds = device.queueing.as_ref()?.kinds.clone();
            kinds.retain(|kind| kind != NO_QUEUE);
            (!kinds.is_empty()).then_some(((netns, *ifindex), kinds))
        };
        space.devices.iter().filter_map(kinds).collect::<Vec<_>>()
    };
    namespaces.iter().flat_map(of)
}

impl Namespace {
    fn since(&self, then: &Self) -> Self {
        let device = |(ifindex, now): (&u32, &DeviceCounters)| {
            let then = then.devices.get(ifindex).cloned().unwrap_or_default();
            let queueing = now.queueing.as_ref().map(|queueing| queueing.since(&then.queueing.unwrap_or_default()));
            let link_downs = now.link_downs.checked_sub(then.link_downs).unwrap_or(now.link_downs);
            let statistics = now.statistics.since(&then.statistics);
            (*ifindex, DeviceCounters { statistics, queueing, link_downs, ..now.clone() })
        };
        let less = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        let datapath = |now: &Datapath| {
            let then = then.datapaths.iter().find(|then| then.name == now.name).cloned().unwrap_or_default();
            Datapath {
                hit: less(now.hit, then.hit),
                missed: less(now.missed, then.missed),
                lost: less(now.lost, then.lost),
                ..now.clone()
            }
        };
        let (now, before) = (&self.sockets, &then.sockets);
        let packet_socket = |socket: &PacketSocket| {
            let earlier = before.packet.iter().flatten().find(|earlier| earlier.inode == socket.inode);
            PacketSocket { dropped: socket.dropped.wrapping_sub(earlier.map_or(0, |e| e.dropped)), ..*socket }
        };
        Self {
            devices: self.devices.iter().map(device).collect(),
            datapaths: self.datapaths.iter().map(datapath).collect(),
            sockets: Sockets {
                udp_buffer_full: less(now.udp_buffer_full, before.udp_buffer_full),
                udp_no_listener: less(now.udp_no_listener, before.udp_no_listener),
                udp_checksum: less(now.udp_checksum, before.udp_checksum),
                packet: now.packet.as_ref().map(|all| all.iter().map(packet_socket).collect()),
            },
        }
    }
}

impl Difference {
    /// The increments of a device's counters; `None` if the later snapshot does not have the device.
    pub fn device(&self, netns: Inode, ifindex: u32) -> Option<&DeviceCounters> {
        self.namespaces.get(&netns)?.devices.get(&ifindex)
    }

    /// Like [`Self::device`], but `None` if the device replaced another one: the counters of the earlier device were
    /// lost with it, so the increments do not cover the whole time.
    pub fn device_since(&self, netns: Inode, ifindex: u32) -> Option<&DeviceCounters> {
        self.device(netns, ifindex).filter(|device| !device.is_renewed)
    }

    /// The kinds of each device's queueing disciplines, by namespace and index; devices without a queue are omitted.
    pub fn qdiscs(&self) -> impl Iterator<Item = ((Inode, u32), Vec<String>)> + '_ {
        qdiscs(&self.namespaces)
    }

    /// Lost upcalls of all datapaths of a namespace; `None` if the namespace was not read.
    pub fn upcalls_lost(&self, netns: Inode) -> Option<u64> {
        Some(self.namespaces.get(&netns)?.datapaths.iter().map(|datapath| datapath.lost).sum())
    }

    /// Packets dropped in a namespace because the buffer of a UDP or packet socket was full; `None` if the namespace
    /// was not read.
    pub fn sockets_full(&self, netns: Inode) -> Option<u64> {
        let sockets = &self.namespaces.get(&netns)?.sockets;
        let packets: u64 = sockets.packet.iter().flatten().map(|socket| u64::from(socket.dropped)).sum();
        Some(sockets.udp_buffer_full + packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(t_ns: Ns, devices: &[(u32, &str, u64)]) -> Snapshot {
        let device = |(ifindex, name, tx_dropped): &(u32, &str, u64)| {
            let statistics = Statistics { tx_dropped: *tx_dropped, ..Statistics::default() };
            (*ifindex, DeviceCounters { name: (*name).into(), statistics, ..DeviceCounters::default() })
        };
        let space = Namespace { devices: devices.iter().map(device).collect(), ..Namespace::default() };
        let stolen = BTreeMap::from([(0, 70), (1, 10 * t_ns)]);
        Snapshot { t_ns, namespaces: BTreeMap::from([(7, space)]), stolen, ..Snapshot::default() }
    }

    #[test]
    fn devices_that_come_count_from_nought_and_those_that_go_are_named() {
        let (then, now) = (snapshot(10, &[(1, "a", 5), (2, "b", 9)]), snapshot(30, &[(1, "a", 8), (3, "c", 4)]));
        let since = now.since(&then);
        assert_eq!(since.elapsed_ns, 20);
        assert_eq!(since.stolen, BTreeMap::from([(1, 200)]), "of CPUs of which something was taken");
        let dropped = |ifindex| since.device(7, ifindex).map(|device| device.statistics.tx_dropped);
        assert_eq!((dropped(1), dropped(2), dropped(3)), (Some(3), None, Some(4)));
        assert_eq!(since.gone.iter().map(|(_, device)| device.name.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn snapshots_outlive_the_program() {
        let taken = Snapshot::everywhere();
        let text = serde_json::to_string(&taken).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), taken);
    }
}
