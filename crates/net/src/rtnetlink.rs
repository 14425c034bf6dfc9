//! Changes of a namespace's devices, addresses, neighbours and queueing disciplines.

use crate::{
    interface::{interface, GET_LINK, NEW_LINK},
    netlink::{
        attribute, attributes, find_attribute, nested, number, text, u16_at, u32_at, Socket, CREATE_NEW,
        CREATE_OR_REPLACE,
    },
    qdisc::place,
    Error, Interface, Netns, Result, Shaping, INGRESS, ROOT,
};
use nix::sys::socket::SockProtocol;
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
};

const WHAT: &str = "change the network (rtnetlink)";
/// include/uapi/linux/rtnetlink.h
const DELETE_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;
const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
/// include/uapi/linux/if_link.h
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const LOWER: u16 = 5;
const MASTER: u16 = 10;
const QUEUE_LENGTH: u16 = 13;
const LINK_INFO: u16 = 18;
const NETNS_FD: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const VLAN_ID: u16 = 1;
const MACVLAN_MODE: u16 = 1;
const TX_QUEUES: u16 = 31;
const RX_QUEUES: u16 = 32;
const BRIDGE_STP: u16 = 5;
const BRIDGE_SNOOPING: u16 = 23;
/// include/uapi/linux/if_addr.h, neighbour.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
/// include/uapi/linux/rtnetlink.h, RT_SCOPE_LINK
const SCOPE_LINK: u8 = 253;
const NO_DAD: u8 = 2;
const NEIGHBOUR_ADDRESS: u16 = 1;
const NEIGHBOUR_MAC: u16 = 2;
const PERMANENT: u16 = 0x80;

/// A device to create.
#[derive(Clone, Copy, Debug)]
pub enum NewDevice<'a> {
    /// A pair of devices connected by a virtual cable.
    Veth {
        /// Name of the peer device.
        peer: &'a str,
        /// Namespace of the peer device; `None` for the same one.
        netns: Option<&'a Netns>,
    },
    /// A bridge.
    Bridge {
        /// Whether it sends multicast only to ports that have joined the group.
        multicast_snooping: bool,
        /// Whether it runs the spanning tree protocol: a new port then forwards nothing for up to 30 s.
        spanning_tree: bool,
    },
    /// A VLAN of another device.
    Vlan {
        /// Name of the other device.
        lower: &'a str,
        /// VLAN ID, 0 to 4094.
        id: u16,
    },
    /// A tap on top of another device.
    Macvtap {
        /// Name of the other device.
        lower: &'a str,
        /// Which frames it exchanges with other macvtaps on the same device.
        mode: MacvtapMode,
        /// Number of queues.
        queues: u32,
    },
    /// A persistent tap, which exists even if no program holds it open.
    Tap,
    /// A persistent tap with several queues: each program must open it with IFF_MULTI_QUEUE.
    MultiQueueTap,
}

/// Which frames a macvtap exchanges with other macvtaps on the same device (enum macvlan_mode).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MacvtapMode {
    /// No frames.
    Private,
    /// Frames that an external switch sends back.
    Vepa,
    /// All frames, directly.
    #[default]
    Bridge,
    /// The macvtap is the only one on the device, takes over its address and receives all frames.
    Passthru,
}

impl MacvtapMode {
    fn number(self) -> u32 {
        match self {
            Self::Private => 1,
            Self::Vepa => 2,
            Self::Bridge => 4,
            Self::Passthru => 8,
        }
    }
}

/// A change of a device.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Brings the device up or down.
    Up(bool),
    /// Makes the device a port of this bridge; `None` removes it from its bridge.
    Master(Option<&'a str>),
    /// Sets the MTU, bytes.
    Mtu(u32),
    /// Sets the device's MAC address.
    Mac([u8; 6]),
    /// Sets the maximum number of packets in its queue.
    QueueLength(u32),
    /// Switches a flag of the device on or off.
    Flag(Flag, bool),
    /// Moves the device to another namespace.
    Netns(&'a Netns),
}

/// A flag of a device (netdevice(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// It sends and receives multicast (`IFF_MULTICAST`).
    Multicast,
    /// It resolves addresses by ARP (not `IFF_NOARP`). Switching it off deletes the device's neighbours.
    Arp,
    /// It receives all multicast frames (`IFF_ALLMULTI`).
    AllMulticast,
    /// It receives all frames (`IFF_PROMISC`).
    Promiscuous,
}

impl Flag {
    /// The flag's bit, and whether the bit is set when the flag is on: `IFF_NOARP` is inverted.
    fn bit(self) -> (u32, bool) {
        let (bit, is_set) = match self {
            Self::Multicast => (nix::libc::IFF_MULTICAST, true),
            Self::Arp => (nix::libc::IFF_NOARP, false),
            Self::AllMulticast => (nix::libc::IFF_ALLMULTI, true),
            Self::Promiscuous => (nix::libc::IFF_PROMISC, true),
        };
        (bit as u32, is_set)
    }

    /// Whether the flag is on in a device's flags ([`Interface::flags`]).
    pub fn is_on(self, flags: u32) -> bool {
        let (bit, is_set) = self.bit();
        (flags & bit != 0) == is_set
    }
}

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of the device.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of the network prefix, bits.
    pub prefix: u8,
    /// The broadcast address (IPv4).
    pub broadcast: Option<IpAddr>,
    /// Whether the address is valid beyond the link: not e.g. 169.254.0.1 or fe80::1.
    pub is_beyond_link: bool,
}

/// A permanent neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Neighbour {
    /// Index of the device.
    pub ifindex: u32,
    /// The neighbour's address.
    pub address: IpAddr,
    /// Its link-layer address.
    pub mac: [u8; 6],
}

/// A socket that changes the network of a namespace.
pub struct Rtnetlink {
    socket: Socket,
    netns: Netns,
}

impl Rtnetlink {
    /// Opens a socket in a namespace.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn open(netns: &Netns) -> Result<Self> {
        Ok(Self { socket: Socket::open(netns, SockProtocol::NetlinkRoute, WHAT)?, netns: netns.clone() })
    }

    /// Finds a device by name.
    ///
    /// # Errors
    /// If no device has this name.
    pub fn device(&self, name: &str) -> Result<Interface> {
        let refused = |source| Error::Refused { doing: format!("find device {name}"), source, reason: None };
        let answer = self.socket.get(GET_LINK, &[link(0, 0, 0), text(NAME, name)].concat()).map_err(|e| match e {
            Error::Ask { source, .. } => refused(source),
            other => other,
        })?;
        let device = (answer.kind == NEW_LINK).then(|| interface(&answer.payload)).flatten();
        device.ok_or_else(|| refused(io::ErrorKind::NotFound.into()))
    }

    fn index(&self, name: &str) -> Result<u32> {
        self.device(name).map(|device| device.ifindex)
    }

    /// Creates a device. It is down at first.
    ///
    /// # Errors
    /// If a device already has the name, or the kernel does not support the kind.
    pub fn add_device(&self, name: &str, new: NewDevice) -> Result<()> {
        let doing = |kind: &str| format!("make {kind} {name}");
        let (kind, lower, data) = match new {
            NewDevice::Veth { peer, netns } => {
                // The file must stay open until the kernel answers.
                let there = netns.map(Netns::open).transpose()?;
                let there = there.iter().map(|file| attribute(NETNS_FD, &file.as_raw_fd().to_ne_bytes()));
                let peer = [vec![link(0, 0, 0), text(NAME, peer)], there.collect()].concat();
                let data = nested(VETH_PEER, &peer);
                return self.make(name, "veth", None, &[data], &doing("veth"));
            }
            NewDevice::Bridge { multicast_snooping, spanning_tree } => {
                let snooping = attribute(BRIDGE_SNOOPING, &[multicast_snooping.into()]);
                ("bridge", None, [snooping, number(BRIDGE_STP, spanning_tree.into())].concat())
            }
            NewDevice::Vlan { lower, id } => ("vlan", Some(lower), attribute(VLAN_ID, &id.to_ne_bytes())),
            NewDevice::Macvtap { lower, mode, queues } => {
                let data = number(MACVLAN_MODE, mode.number());
                return self.make_with_queues(name, "macvtap", Some(lower), queues, &[data], &doing("macvtap"));
            }
            NewDevice::Tap | NewDevice::MultiQueueTap => {
                let queues = if matches!(new, NewDevice::Tap) { 0 } else { nix::libc::IFF_MULTI_QUEUE };
                let made = self.netns.inside(|| latpath_linux::net::add_tap(name, queues))?;
                return made.map_err(|source| Error::Refused { doing: doing("tap"), source, reason: None });
            }
        };
        self.make(name, kind, lower, &[data], &doing(kind))
    }

    fn make(&self, name: &str, kind: &str, lower: Option<&str>, data: &[Vec<u8>], doing: &str) -> Result<()> {
        self.make_with_queues(name, kind, lower, 1, data, doing)
    }

    fn make_with_queues(
        &self,
        name: &str,
        kind: &str,
        lower: Option<&str>,
        queues: u32,
        data: &[Vec<u8>],
        doing: &str,
    ) -> Result<()> {
        let mut payload = [link(0, 0, 0), text(NAME, name)].concat();
        if queues > 1 {
            payload.extend([number(TX_QUEUES, queues), number(RX_QUEUES, queues)].concat());
        }
        if let Some(lower) = lower {
            payload.extend(number(LOWER, self.index(lower)?));
        }
        payload.extend(nested(LINK_INFO, &[text(INFO_KIND, kind), nested(INFO_DATA, data)]));
        self.socket.change(NEW_LINK, CREATE_NEW, &payload, doing)
    }

    /// Deletes a device.
    ///
    /// # Errors
    /// If no device has this name, or the device is not a virtual one.
    pub fn delete_device(&self, name: &str) -> Result<()> {
        self.socket.change(DELETE_LINK, 0, &link(self.index(name)?, 0, 0), &format!("delete device {name}"))
    }

    /// Applies all these changes to a device in one request.
    ///
    /// # Errors
    /// If no device has this name, or the kernel rejects a change.
    pub fn set(&self, name: &str, changes: &[Change]) -> Result<()> {
        let (mut flags, mut mask, mut attributes) = (0, 0, Vec::new());
        let mut files: Vec<OwnedFd> = Vec::new();
        for change in changes {
            match *change {
                Change::Up(up) => {
                    mask |= nix::libc::IFF_UP as u32;
                    flags |= if up { nix::libc::IFF_UP as u32 } else { 0 };
                }
                Change::Master(bridge) => {
                    let bridge = bridge.map_or(Ok(0), |bridge| self.index(bridge))?;
                    attributes.push(number(MASTER, bridge));
                }
                Change::Mtu(bytes) => attributes.push(number(MTU, bytes)),
                Change::Mac(mac) => attributes.push(attribute(ADDRESS, &mac)),
                Change::QueueLength(packets) => attributes.push(number(QUEUE_LENGTH, packets)),
                Change::Flag(flag, on) => {
                    let (bit, is_set) = flag.bit();
                    mask |= bit;
                    flags |= if on == is_set { bit } else { 0 };
                }
                Change::Netns(netns) => {
                    let file = OwnedFd::from(netns.open()?);
                    attributes.push(attribute(NETNS_FD, &file.as_raw_fd().to_ne_bytes()));
                    files.push(file);
                }
            }
        }
        let payload = [link(self.index(name)?, flags, mask), attributes.concat()].concat();
        self.socket.change(NEW_LINK, 0, &payload, &format!("change device {name}"))
    }

    /// Adds an address to a device; the address is usable at once.
    ///
    /// # Errors
    /// If the device does not exist, or already has the address.
    pub fn add_address(&self, device: &str, address: IpAddr, prefix: u8) -> Result<()> {
        self.add_broadcast_address(device, address, prefix, None)
    }

    /// Like [`Rtnetlink::add_address`], but also sets the broadcast address, if one is given.
    ///
    /// # Errors
    /// Like [`Rtnetlink::add_address`].
    pub fn add_broadcast_address(
        &self,
        device: &str,
        address: IpAddr,
        prefix: u8,
        broadcast: Option<IpAddr>,
    ) -> Result<()> {
        let mut payload = self.address(device, address, prefix)?;
        payload.extend(broadcast.map(|broadcast| attribute(IFA_BROADCAST, &family(broadcast).1)).unwrap_or_default());
        self.socket.change(NEW_ADDRESS, CREATE_NEW, &payload, &format!("give {device} address {address}/{prefix}"))
    }

    /// Removes an address from a device.
    ///
    /// # Errors
    /// If the device or the address does not exist.
    pub fn delete_address(&self, device: &str, address: IpAddr, prefix: u8) -> Result<()> {
        let payload = self.address(device, address, prefix)?;
        self.socket.change(DELETE_ADDRESS, 0, &payload, &format!("take address {address}/{prefix} from {device}"))
    }

    fn address(&self, device: &str, address: IpAddr, prefix: u8) -> Result<Vec<u8>> {
        let (family, bytes) = family(address);
        let ifindex = self.index(device)?;
        let header = [&[family, prefix, NO_DAD, 0][..], &ifindex.to_ne_bytes()].concat();
        Ok([header, attribute(IFA_LOCAL, &bytes), attribute(IFA_ADDRESS, &bytes)].concat())
    }

    /// The addresses of all devices.
    ///
    /// # Errors
    /// If the kernel does not list them.
    pub fn addresses(&self) -> Result<Vec<Address>> {
        let answer = self.socket.list(GET_ADDRESS, &[0; 8])?;
        Ok(answer.iter().filter(|m| m.kind == NEW_ADDRESS).filter_map(|m| read_address(&m.payload)).collect())
    }

    /// Adds a permanent neighbour entry, so that no ARP request is sent.
    ///
    /// # Errors
    /// If the device does not exist, or the neighbour is already known.
    pub fn add_neighbour(&self, device: &str, address: IpAddr, mac: [u8; 6]) -> Result<()> {
        self.neighbour(CREATE_NEW, device, address, mac)
    }

    /// Adds a permanent neighbour entry, or replaces the existing one for this address.
    ///
    /// # Errors
    /// If the device does not exist, or the kernel rejects the entry.
    pub fn replace_neighbour(&self, device: &str, address: IpAddr, mac: [u8; 6]) -> Result<()> {
        self.neighbour(CREATE_OR_REPLACE, device, address, mac)
    }

    fn neighbour(&self, flags: u16, device: &str, address: IpAddr, mac: [u8; 6]) -> Result<()> {
        let (family, bytes) = family(address);
        let header = [
            &[family, 0, 0, 0][..],
            &self.index(device)?.to_ne_bytes(),
            &PERMANENT.to_ne_bytes(),
            &[0, 0], // flags, type
        ];
        let payload = [header.concat(), attribute(NEIGHBOUR_ADDRESS, &bytes), attribute(NEIGHBOUR_MAC, &mac)].concat();
        self.socket.change(NEW_NEIGHBOUR, flags, &payload, &format!("add neighbour {address} of {device}"))
    }

    /// Deletes a neighbour entry.
    ///
    /// # Errors
    /// If the device or the entry does not exist.
    pub fn delete_neighbour(&self, device: &str, address: IpAddr) -> Result<()> {
        let (family, bytes) = family(address);
        let header = [&[family, 0, 0, 0][..], &self.index(device)?.to_ne_bytes(), &[0; 4]].concat();
        let payload = [header, attribute(NEIGHBOUR_ADDRESS, &bytes)].concat();
        self.socket.change(DELETE_NEIGHBOUR, 0, &payload, &format!("delete neighbour {address} of {device}"))
    }

    /// The permanent neighbour entries of all devices.
    ///
    /// # Errors
    /// If the kernel does not list them.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>> {
        // struct ndmsg
        let answer = self.socket.list(GET_NEIGHBOUR, &[0; 12])?;
        Ok(answer.iter().filter(|m| m.kind == NEW_NEIGHBOUR).filter_map(|m| read_neighbour(&m.payload)).collect())
    }

    /// Replaces the queueing discipline of a device, or of one of its classes (`parent`).
    ///
    /// # Errors
    /// If the device or class does not exist, or the kernel rejects the kind or its parameters.
    pub fn set_qdisc(&self, device: &str, parent: u32, shaping: &Shaping) -> Result<()> {
        let doing = format!("give {device} queueing discipline {}", shaping.name());
        self.socket.change(NEW_QDISC, CREATE_OR_REPLACE, &shaping.message(self.index(device)?, parent), &doing)
    }

    /// Adds a queueing discipline to a device or class that has only the kernel's default.
    ///
    /// # Errors
    /// Like [`Rtnetlink::set_qdisc`], and if the device or class already has another one.
    pub fn add_qdisc(&self, device: &str, parent: u32, shaping: &Shaping) -> Result<()> {
        let doing = format!("add queueing discipline {} to {device}", shaping.name());
        self.socket.change(NEW_QDISC, CREATE_NEW, &shaping.message(self.index(device)?, parent), &doing)
    }

    /// Deletes a queueing discipline; the kernel's default replaces it.
    ///
    /// # Errors
    /// If the device does not exist, or has only the default.
    pub fn delete_qdisc(&self, device: &str, parent: u32) -> Result<()> {
        let at = match parent {
            ROOT => "root".to_owned(),
            INGRESS => "ingress".to_owned(),
            class => format!("class {:x}:{:x}", class >> 16, class & 0xffff),
        };
        let doing = format!("delete the queueing discipline of {device} ({at})");
        self.socket.change(DELETE_QDISC, 0, &place(self.index(device)?, parent), &doing)
    }
}

/// Encodes struct ifinfomsg.
fn link(ifindex: u32, flags: u32, mask: u32) -> Vec<u8> {
    [0, ifindex, flags, mask].into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn family(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(four) => (nix::libc::AF_INET as u8, four.octets().to_vec()),
        IpAddr::V6(six) => (nix::libc::AF_INET6 as u8, six.octets().to_vec()),
    }
}

/// Parses an address of 4 or 16 bytes.
fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

/// Parses struct ndmsg and its attributes; `None` if the entry is not permanent.
fn read_neighbour(payload: &[u8]) -> Option<Neighbour> {
    let (ifindex, state) = (u32_at(payload, 4)?, u16_at(payload, 8)?);
    let of = |wanted| find_attribute(payload.get(12..).unwrap_or_default(), wanted);
    let mac = of(NEIGHBOUR_MAC)?.first_chunk::<6>()?;
    let address = ip(of(NEIGHBOUR_ADDRESS)?)?;
    (state & PERMANENT != 0).then_some(Neighbour { ifindex, address, mac: *mac })
}

/// Parses struct ifaddrmsg and its attributes. For a point-to-point link, the address is the local end's, not the
/// peer's.
fn read_address(payload: &[u8]) -> Option<Address> {
    let (prefix, ifindex) = (*payload.get(1)?, u32_at(payload, 4)?);
    let all: Vec<_> = attributes(payload.get(8..)?).collect();
    let of = |wanted| all.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value);
    let address = ip(of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS))?)?;
    let broadcast = of(IFA_BROADCAST).and_then(ip);
    Some(Address { ifindex, address, prefix, broadcast, is_beyond_link: *payload.get(3)? < SCOPE_LINK })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_from_its_message() {
        let mut bytes = vec![2, 24, 0, 0];
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(attribute(IFA_ADDRESS, &[192, 0, 2, 2]));
        let read = |text: &str| {
            let address = text.parse().unwrap();
            Some(Address { ifindex: 7, address, prefix: 24, broadcast: None, is_beyond_link: true })
        };
        assert_eq!(read_address(&bytes), read("192.0.2.2"));
        bytes.extend(attribute(IFA_LOCAL, &[192, 0, 2, 1]));
        assert_eq!(read_address(&bytes), read("192.0.2.1"));
        assert_eq!(read_address(&bytes[..9]), None);
    }
}
