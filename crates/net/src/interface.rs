//! The devices of a namespace, as listed by rtnetlink: their kinds, topology and counters.

use crate::{
    netlink::{attribute, attributes, u32_at, u64_at, Socket},
    Inode, Netns, Result,
};
use latpath_model::text::of_field;
use nix::sys::socket::SockProtocol;
use serde::{Deserialize, Serialize};
use std::os::fd::AsRawFd;

const WHAT: &str = "list devices (rtnetlink)";
/// include/uapi/linux/rtnetlink.h, if_link.h
pub(crate) const NEW_LINK: u16 = 16;
pub(crate) const GET_LINK: u16 = 18;
const INFO_MESSAGE: usize = 16;
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const LOWER: u16 = 5;
const MASTER: u16 = 10;
const QUEUE_LENGTH: u16 = 13;
const LINK_INFO: u16 = 18;
const STATISTICS: u16 = 23;
const LINK_NETNSID: u16 = 37;
const LINK_DOWNS: u16 = 48;
/// include/uapi/linux/net_namespace.h
const GET_NSID: u16 = 90;
const NSID: u16 = 1;
const NSID_FD: u16 = 3;
const INFO_KIND: u16 = 1;
const INFO_PORT_KIND: u16 = 4;

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The device's index in its namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Link kind of a virtual device: `tun`, `macvtap`, `veth`, `bridge`, `openvswitch`.
    pub kind: Option<String>,
    /// Its flags (`IFF_UP` …).
    #[serde(skip)]
    pub flags: u32,
    /// The device's link-layer address.
    pub address: Vec<u8>,
    /// Index of the bridge, bond or Open vSwitch datapath (`ovs-system`) of which the device is a port.
    pub master: Option<u32>,
    /// Kind of port: `bridge`, `openvswitch`.
    pub port_kind: Option<String>,
    /// Index of the device below it (macvtap, VLAN) or of its peer (veth), which may be in another namespace.
    pub lower: Option<u32>,
    /// The namespace of `lower`, as its ID (nsid) in this namespace; `None` for this namespace.
    #[serde(skip)]
    pub lower_netnsid: Option<i32>,
    /// Maximum transmission unit, bytes: the largest frame without its Ethernet header.
    #[serde(skip)]
    pub mtu: u32,
    /// Maximum number of packets in its queue (`txqueuelen`); for a tap, packets that the guest has not read.
    pub tx_queue_len: u32,
    /// Number of times its link went down since the device was created.
    pub link_downs: u32,
    /// The device's counters since its creation.
    pub statistics: Statistics,
}

impl Interface {
    /// Whether the device is up (`IFF_UP`).
    pub fn is_up(&self) -> bool {
        self.flags & nix::libc::IFF_UP as u32 != 0
    }

    /// Whether the device is the loopback device.
    pub fn is_loopback(&self) -> bool {
        self.flags & nix::libc::IFF_LOOPBACK as u32 != 0
    }
}

/// A device's counters (struct rtnl_link_stats64), in packets unless named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received with an error.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets received but dropped for lack of a buffer or a receiver.
    pub rx_dropped: u64,
    /// Packets dropped before sending, including those dropped by a tap's full queue.
    pub tx_dropped: u64,
    /// Packets that the NIC missed for lack of free descriptors.
    pub rx_missed: u64,
    /// Packets received on a device without a receive handler: an inactive port.
    pub rx_no_handler: u64,
}

impl Statistics {
    /// Counters of lost packets, with their names in `ip -s -s -j link`.
    pub fn losses(&self) -> [(&'static str, u64); 6] {
        [
            ("rx_dropped", self.rx_dropped),
            ("tx_dropped", self.tx_dropped),
            ("rx_errors", self.rx_errors),
            ("tx_errors", self.tx_errors),
            ("rx_missed_errors", self.rx_missed),
            ("rx_nohandler", self.rx_no_handler),
        ]
    }

    /// Each counter, with its index in struct rtnl_link_stats64.
    fn counters(&mut self) -> [(usize, &mut u64); 10] {
        [
            (0, &mut self.rx_packets),
            (1, &mut self.tx_packets),
            (2, &mut self.rx_bytes),
            (3, &mut self.tx_bytes),
            (4, &mut self.rx_errors),
            (5, &mut self.tx_errors),
            (6, &mut self.rx_dropped),
            (7, &mut self.tx_dropped),
            (15, &mut self.rx_missed),
            (23, &mut self.rx_no_handler),
        ]
    }

    /// Increments since `earlier`. A counter that decreased, because the device was recreated, is taken to have started
    /// at 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (mut since, mut earlier) = (*self, *earlier);
        for ((_, now), (_, then)) in since.counters().into_iter().zip(earlier.counters()) {
            *now = now.checked_sub(*then).unwrap_or(*now);
        }
        since
    }

    /// Parses the counters; those that an older kernel does not send are 0.
    fn read(bytes: &[u8]) -> Self {
        let mut read = Self::default();
        read.counters().into_iter().for_each(|(place, count)| *count = u64_at(bytes, 8 * place).unwrap_or(0));
        read
    }
}

/// The devices of a namespace, in the kernel's order.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel does not list them.
pub fn interfaces(netns: &Netns) -> Result<Vec<Interface>> {
    let socket = Socket::open(netns, SockProtocol::NetlinkRoute, WHAT)?;
    let answer = socket.list(GET_LINK, &[0; INFO_MESSAGE])?;
    Ok(answer.iter().filter(|m| m.kind == NEW_LINK).filter_map(|m| interface(&m.payload)).collect())
}

/// Finds the namespace that has this ID (nsid) in another one: see [`Interface::lower_netnsid`].
pub fn netns_by_id(netns: &Netns, id: i32) -> Option<Inode> {
    let socket = Socket::open(netns, SockProtocol::NetlinkRoute, "ask for a namespace's number (rtnetlink)").ok()?;
    let is_it = |other: &Netns| {
        // The file must stay open during the request.
        let file = other.open().ok()?;
        let payload = [&[0; 4][..], &attribute(NSID_FD, &file.as_raw_fd().to_ne_bytes())].concat();
        let answer = socket.get(GET_NSID, &payload).ok()?;
        let mut all = attributes(answer.payload.get(4..)?);
        all.find(|(kind, _)| *kind == NSID).and_then(|(_, value)| u32_at(value, 0)).map(|n| n as i32 == id)
    };
    Netns::all().into_values().find(|other| is_it(other) == Some(true)).map(|other| other.inode())
}

/// Parses one RTM_NEWLINK.
pub(crate) fn interface(payload: &[u8]) -> Option<Interface> {
    let mut found = Interface { ifindex: u32_at(payload, 4)?, flags: u32_at(payload, 8)?, ..Interface::default() };
    for (kind, value) in attributes(payload.get(INFO_MESSAGE..)?) {
        let number = || u32_at(value, 0);
        match kind {
            ADDRESS => found.address = value.to_vec(),
            NAME => found.name = of_field(value).into(),
            MTU => found.mtu = number().unwrap_or(0),
            LOWER => found.lower = number().filter(|n| *n != 0),
            LINK_NETNSID => found.lower_netnsid = number().map(|n| n as i32),
            MASTER => found.master = number().filter(|n| *n != 0),
            QUEUE_LENGTH => found.tx_queue_len = number().unwrap_or(0),
            LINK_DOWNS => found.link_downs = number().unwrap_or(0),
            STATISTICS => found.statistics = Statistics::read(value),
            LINK_INFO => {
                for (kind, value) in attributes(value) {
                    match kind {
                        INFO_KIND => found.kind = Some(of_field(value).into()),
                        INFO_PORT_KIND => found.port_kind = Some(of_field(value).into()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_read_from_its_message() {
        let mut bytes = vec![0; 4];
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(attribute(NAME, b"vnet0\0"));
        bytes.extend(attribute(ADDRESS, &[0xfe, 0x54, 0, 1, 2, 3]));
        bytes.extend(attribute(MTU, &1500u32.to_ne_bytes()));
        bytes.extend(attribute(MASTER, &3u32.to_ne_bytes()));
        bytes.extend(attribute(QUEUE_LENGTH, &1000u32.to_ne_bytes()));
        bytes.extend(attribute(LINK_DOWNS, &5u32.to_ne_bytes()));
        let mut info = attribute(INFO_KIND, b"tun\0");
        info.extend(attribute(INFO_PORT_KIND, b"bridge\0"));
        bytes.extend(attribute(LINK_INFO, &info));
        let statistics: Vec<u8> = (0u64..24).flat_map(u64::to_ne_bytes).collect();
        bytes.extend(attribute(STATISTICS, &statistics));
        let read = interface(&bytes).unwrap();
        assert_eq!((read.ifindex, read.name.as_str(), read.master, read.tx_queue_len), (7, "vnet0", Some(3), 1000));
        assert_eq!((read.link_downs, read.mtu), (5, 1500));
        assert_eq!((read.kind.as_deref(), read.port_kind.as_deref()), (Some("tun"), Some("bridge")));
        assert_eq!((read.statistics.tx_dropped, read.statistics.rx_missed, read.statistics.rx_no_handler), (7, 15, 23));
        assert_eq!(interface(&bytes[..7]), None);
    }

    #[test]
    fn our_own_devices_are_listed() {
        let all = interfaces(&Netns::own().unwrap()).unwrap();
        assert!(all.iter().any(|i| i.name == "lo" && i.ifindex == 1 && i.is_loopback()), "{all:?}");
    }

    #[test]
    fn a_counter_that_went_back_counts_from_nought() {
        let earlier = Statistics { tx_packets: 10, rx_packets: 5, ..Statistics::default() };
        let later = Statistics { tx_packets: 4, rx_packets: 9, ..Statistics::default() };
        let since = later.since(&earlier);
        assert_eq!((since.tx_packets, since.rx_packets), (4, 4));
    }
}
