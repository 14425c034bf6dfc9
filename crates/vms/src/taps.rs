//! The network devices behind a guest's descriptors: namespace, bridge, queue length.

use crate::{
    command_line::{CommandLine, Netdev},
    descriptors::{Descriptors, Opened},
    libvirt::Domain,
    text::plain,
    vm::{Bridge, Tap, TapKind},
};
use latpath_net::{Inode, Interface};
use std::collections::{BTreeMap, HashMap};

/// The devices of all namespaces, each read once on demand.
pub struct Devices<'a> {
    ask: &'a dyn Fn(Inode) -> Option<Vec<Interface>>,
    /// All namespaces, starting with this process's own.
    all: &'a dyn Fn() -> Vec<Inode>,
    known: HashMap<Inode, Vec<Interface>>,
    /// Looks up the Open vSwitch bridge of a port in its database.
    ovs_bridge: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Devices<'a> {
    pub fn new(
        ask: &'a dyn Fn(Inode) -> Option<Vec<Interface>>,
        all: &'a dyn Fn() -> Vec<Inode>,
        ovs_bridge: &'a dyn Fn(&str) -> Option<String>,
    ) -> Self {
        Self { ask, all, known: HashMap::new(), ovs_bridge }
    }

    fn of(&mut self, netns: Inode) -> &[Interface] {
        self.known.entry(netns).or_insert_with(|| (self.ask)(netns).unwrap_or_default())
    }

    /// Finds a device in the namespace of the guest's process, in this process's own, or in any other. A tap's
    /// descriptor works across namespaces and does not identify the namespace.
    fn find(&mut self, process: Option<Inode>, requested: impl Fn(&Interface) -> bool) -> Option<(Inode, Interface)> {
        let first = process.into_iter().find_map(|netns| self.find_in(netns, &requested));
        first.or_else(|| (self.all)().into_iter().find_map(|netns| self.find_in(netns, &requested)))
    }

    fn find_in(&mut self, netns: Inode, requested: impl Fn(&Interface) -> bool) -> Option<(Inode, Interface)> {
        self.of(netns).iter().find(|i| requested(i)).map(|i| (netns, i.clone()))
    }

    fn by_index(&mut self, netns: Inode, ifindex: u32) -> Option<&Interface> {
        self.of(netns).iter().find(|i| i.ifindex == ifindex)
    }

    fn bridge(&mut self, netns: Inode, port: &Interface) -> Option<Bridge> {
        let master = self.by_index(netns, port.master?)?;
        let kind = port.port_kind.clone().or(master.kind.clone()).unwrap_or_default();
        let datapath = master.name.clone();
        let name = if kind == "openvswitch" { (self.ovs_bridge)(&port.name) } else { None };
        Some(Bridge { name: plain(&name.unwrap_or(datapath)), kind: plain(&kind) })
    }
}

/// The host sides of a guest's NICs, each with its known vhost descriptors.
pub fn taps(
    descriptors: &Descriptors,
    line: &CommandLine,
    domain: Option<&Domain>,
    process: Option<Inode>,
    devices: &mut Devices,
) -> Vec<(Tap, Vec<u32>)> {
    let tap = |((opened, fds), netdev): ((&Opened, &Vec<u32>), Option<&Netdev>)| {
        // Kinds of devices that have a /dev/tapN (drivers/net/macvlan.c, ipvlan).
        let is_macvtap = |i: &Interface| matches!(i.kind.as_deref(), Some("macvtap" | "ipvtap"));
        let found = devices.find(process, |i| match opened {
            Opened::Tap(name) => i.name == *name && i.kind.as_deref() == Some("tun"),
            Opened::Macvtap(index) => i.ifindex == *index && is_macvtap(i),
        });
        let (netns, interface) = found.unzip();
        let (kind, name, index) = match opened {
            Opened::Tap(name) => (TapKind::Tap, Some(name.clone()), None),
            Opened::Macvtap(index) => (TapKind::Macvtap, None, Some(*index)),
        };
        let name = interface.as_ref().map(|i| i.name.clone()).or(name);
        let (bridge, lower) = match (netns, &interface) {
            (Some(netns), Some(i)) => {
                let lower = i.lower.and_then(|lower| devices.by_index(netns, lower)).map(|l| plain(&l.name));
                (devices.bridge(netns, i), lower.filter(|_| kind == TapKind::Macvtap))
            }
            _ => (None, None),
        };
        let by_libvirt = || domain?.macs.get(name.as_deref()?).cloned();
        let tap = Tap {
            guest_mac: netdev.and_then(|netdev| line.mac_behind(netdev)).or_else(by_libvirt),
            device: name.map_or_else(|| format!("ifindex {}", index.unwrap_or(0)), |name| plain(&name)),
            ifindex: interface.as_ref().map(|i| i.ifindex).or(index),
            netns,
            kind,
            bridge,
            lower,
            queues: u32::try_from(fds.len()).unwrap_or(u32::MAX),
            vhost: netdev.map(|netdev| netdev.vhost),
            tx_queue_len: interface.as_ref().map(|i| i.tx_queue_len),
            dropped: interface.as_ref().map(|i| match kind {
                TapKind::Tap => i.statistics.tx_dropped,
                // drivers/net/macvtap.c, macvtap_count_rx_dropped
                TapKind::Macvtap => i.statistics.rx_dropped,
            }),
        };
        (tap, netdev.map(|netdev| netdev.vhost_fds.clone()).unwrap_or_default())
    };
    descriptors.taps.iter().zip(matched(&descriptors.taps, line)).map(tap).collect()
}

/// The netdev of each open device: the one that names the device or its descriptor. If one device and one netdev
/// remain, they are matched.
fn matched<'a>(opened: &BTreeMap<Opened, Vec<u32>>, line: &'a CommandLine) -> Vec<Option<&'a Netdev>> {
    let mut left: Vec<&Netdev> = line.netdevs.iter().filter(|n| matches!(n.kind.as_str(), "tap" | "bridge")).collect();
    let fits = |(opened, fds): (&Opened, &Vec<u32>), netdev: &Netdev| {
        let named = matches!(opened, Opened::Tap(name) if netdev.device.as_ref() == Some(name));
        named || netdev.fds.iter().any(|fd| fds.contains(fd))
    };
    let mut matched: Vec<Option<&Netdev>> = Vec::with_capacity(opened.len());
    for opened in opened {
        let place = left.iter().position(|netdev| fits(opened, netdev));
        matched.push(place.map(|place| left.swap_remove(place)));
    }
    let alone = matched.iter().filter(|m| m.is_none()).count() == 1;
    if let (true, [netdev]) = (alone, left.as_slice()) {
        // A netdev that names a different device or descriptor cannot match.
        let free = netdev.device.is_none() && netdev.fds.is_empty();
        if let (true, Some(slot)) = (free, matched.iter_mut().find(|m| m.is_none())) {
            *slot = Some(netdev);
        }
    }
    matched
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(ifindex: u32, name: &str, kind: &str) -> Interface {
        Interface { ifindex, name: name.into(), kind: Some(kind.into()), ..Interface::default() }
    }

    fn find_taps(descriptors: &Descriptors, line: &str, ask: &dyn Fn(Inode) -> Option<Vec<Interface>>) -> Vec<Tap> {
        let line = CommandLine::parse(&line.split(' ').map(|w| format!("{w}\0")).collect::<String>());
        let all = || vec![1, 2];
        let ovs = |port: &str| (port == "vnet1").then(|| "br-process".to_string());
        let found = taps(descriptors, &line, None, Some(2), &mut Devices::new(ask, &all, &ovs));
        found.into_iter().map(|(tap, _)| tap).collect()
    }

    #[test]
    fn queues_of_one_tap_are_one_tap_on_its_bridge() {
        let descriptors =
            Descriptors { taps: [(Opened::Tap("vnet0".into()), vec![30, 31])].into(), ..Descriptors::default() };
        let ask = |netns| {
            let port = Interface {
                master: Some(3),
                port_kind: Some("bridge".into()),
                tx_queue_len: 1000,
                ..interface(7, "vnet0", "tun")
            };
            (netns == 2).then(|| vec![interface(3, "br0", "bridge"), port])
        };
        let line = "qemu -netdev tap,fds=30:31,vhost=on,id=a -device virtio-net-pci,netdev=a,mac=52:54:00:00:00:01";
        let [tap] = &find_taps(&descriptors, line, &ask)[..] else { panic!("one tap") };
        assert_eq!((tap.device.as_str(), tap.queues, tap.netns, tap.ifindex), ("vnet0", 2, Some(2), Some(7)));
        assert_eq!(tap.bridge, Some(Bridge { name: "br0".into(), kind: "bridge".into() }));
        assert_eq!((tap.guest_mac.as_deref(), tap.vhost), (Some("52:54:00:00:00:01"), Some(true)));
    }

    #[test]
    fn a_tap_in_another_namespace_and_its_bridge_of_open_vswitch_are_found() {
        let descriptors =
            Descriptors { taps: [(Opened::Tap("vnet1".into()), vec![9])].into(), ..Descriptors::default() };
        let ask = |netns| {
            let port =
                Interface { master: Some(3), port_kind: Some("openvswitch".into()), ..interface(8, "vnet1", "tun") };
            (netns == 1).then(|| vec![interface(3, "ovs-system", "openvswitch"), port])
        };
        let [tap] = &find_taps(&descriptors, "qemu -netdev tap,id=a", &ask)[..] else { panic!("one tap") };
        assert_eq!(tap.netns, Some(1));
        assert_eq!(tap.bridge, Some(Bridge { name: "br-process".into(), kind: "openvswitch".into() }));
    }

    #[test]
    fn a_macvtap_is_named_by_its_index() {
        let descriptors = Descriptors { taps: [(Opened::Macvtap(6), vec![25])].into(), ..Descriptors::default() };
        let ask = |netns| {
            let own = Interface { lower: Some(5), ..interface(6, "macvtap0", "macvtap") };
            (netns == 2).then(|| vec![interface(5, "eno1", ""), own])
        };
        let [tap] = &find_taps(&descriptors, "qemu", &ask)[..] else { panic!("one macvtap") };
        assert_eq!((tap.device.as_str(), tap.lower.as_deref(), tap.vhost), ("macvtap0", Some("eno1"), None));
        let [lost] = &find_taps(&descriptors, "qemu", &|_| None)[..] else { panic!("one macvtap") };
        assert_eq!((lost.device.as_str(), lost.netns, lost.ifindex), ("ifindex 6", None, Some(6)));
    }

    #[test]
    fn a_netdev_of_another_device_lends_no_address() {
        let descriptors =
            Descriptors { taps: [(Opened::Tap("hot0".into()), vec![9])].into(), ..Descriptors::default() };
        let line = "qemu -netdev tap,ifname=vnet0,id=a -device virtio-net-pci,netdev=a,mac=52:54:00:00:00:01";
        assert_eq!(find_taps(&descriptors, line, &|_| None)[0].guest_mac, None);
    }
}
