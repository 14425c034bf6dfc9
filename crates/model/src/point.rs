//! Measurement points, written `machine/kind@device`.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Index of a point in a run's table of points, in order of first appearance.
pub type PointId = u16;

/// Makes the kinds of one list: each stands at its number.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// What passes at a point; see docs/points.md for the kernel place of each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum PointKind {
            $($(#[$doc])* $kind,)*
        }

        impl PointKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: [Self; [$(stringify!($kind)),*].len()] = [$(Self::$kind),*];

            /// The name as it stands in a point: `nic-rx`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

// The numbers are part of the agent's protocol and of runs: add at the end.
kinds! {
    /// The packet is handed to a device: tap, NIC, virtio (`net:net_dev_start_xmit`).
    Tx = "tx",
    /// The packet enters the stack on a device (`net:napi_gro_receive_entry`, `net:netif_receive_skb`).
    NicRx = "nic-rx",
    /// vhost or QEMU takes the packet off the tap (`skb:skb_copy_datagram_iovec` on a tun/tap device).
    VmRead = "vm-read",
    /// The application receives the packet (`skb:skb_copy_datagram_iovec` on a socket). The device is the thread's
    /// name.
    AppRead = "app-read",
    /// The kernel gave the packet up (`skb:kfree_skb`). The device is the one that the packet was on, `-` if none.
    Drop = "drop",
    /// A guest's packet enters the host: `net:netif_receive_skb` on its tap, `net:net_dev_start_xmit` on its macvtap.
    VmWrite = "vm-write",
    /// The NIC's driver gives a sent packet back (`skb:consume_skb`).
    TxDone = "tx-done",
    /// Open vSwitch's datapath runs a flow's actions on the packet (`openvswitch:ovs_do_execute_action`): the fast
    /// path. As for the other points of Open vSwitch, the device is the port by which the packet came.
    OvsExec = "ovs-exec",
    /// No flow fits: the packet leaves the datapath for ovs-vswitchd (`openvswitch:ovs_dp_upcall`).
    OvsUpcall = "ovs-upcall",
    /// A flow's action sends the packet to ovs-vswitchd (`openvswitch:ovs_dp_upcall`).
    OvsSlow = "ovs-slow",
    /// The datapath runs actions on a packet that ovs-vswitchd handed back (`openvswitch:ovs_do_execute_action`).
    OvsReturn = "ovs-return",
    /// An XDP program redirects the packet; the device is the one it came by (fentry `xdp_do_redirect`).
    XdpRedirect = "xdp-redirect",
    /// The packet is put into an AF_XDP socket's ring (fentry `__xsk_map_redirect`).
    XskRx = "xsk-rx",
    /// The publisher takes the sample that smpCnt counts: a moment that is computed, not seen (docs/points.md).
    Sampled = "sampled",
}

impl PointKind {
    /// Whether only packets that take a certain path come here: what daemons and fast paths do differs from packet to
    /// packet. Lacking such a point is no loss.
    pub fn is_optional(self) -> bool {
        match self {
            Self::OvsExec | Self::OvsUpcall | Self::OvsSlow | Self::OvsReturn => true,
            Self::Tx | Self::NicRx | Self::VmRead | Self::AppRead | Self::Drop | Self::VmWrite | Self::TxDone => false,
            Self::XdpRedirect | Self::XskRx | Self::Sampled => false,
        }
    }

    /// Whether packets leave Open vSwitch's datapath for its daemon here.
    pub fn leaves_datapath(self) -> bool {
        matches!(self, Self::OvsUpcall | Self::OvsSlow)
    }

    /// Whether a packet passes here on its route. The kernel's drops have no place in an order, and samples are no
    /// packets.
    pub fn can_be_on_route(self) -> bool {
        match self {
            Self::Drop | Self::Sampled => false,
            Self::Tx | Self::NicRx | Self::VmRead | Self::AppRead | Self::VmWrite | Self::TxDone => true,
            Self::OvsExec | Self::OvsUpcall | Self::OvsSlow | Self::OvsReturn => true,
            Self::XdpRedirect | Self::XskRx => true,
        }
    }

    /// Whether a machine that sees packets here alone sends them and does not get them.
    pub fn is_sending(self) -> bool {
        matches!(self, Self::Tx | Self::TxDone)
    }

    /// Whether the packet is the application's from here on.
    pub fn is_application(self) -> bool {
        matches!(self, Self::AppRead | Self::XskRx)
    }

    /// Whether packets enter a host here.
    pub fn is_entry(self) -> bool {
        matches!(self, Self::NicRx | Self::XdpRedirect | Self::VmWrite)
    }

    /// The number shared with the kernel programs and the agent's protocol.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The kind with this number, if there is one.
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n)).copied()
    }
}

impl fmt::Display for PointKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PointKind {
    type Err = BadPoint;
    fn from_str(s: &str) -> Result<Self, BadPoint> {
        Self::ALL.into_iter().find(|k| k.name() == s).ok_or_else(|| BadPoint::Kind(s.into()))
    }
}

/// A measurement point: `guest0/nic-rx@eth1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// `host`, or the name that the user gave a machine.
    pub machine: String,
    /// What passes here.
    pub kind: PointKind,
    /// Device name, or the thread's name for `app-read`. `%netns` is appended where a name alone is ambiguous.
    pub device: String,
}

impl Point {
    /// The device's name without its namespace: `vnet0` for `vnet0%blue`.
    pub fn device_name(&self) -> &str {
        self.device.split('%').next().unwrap_or_default()
    }
}

/// Why a text is not a point.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadPoint {
    /// The text lacks `/` or `@`.
    #[error("{0:?}: not a point; write machine/kind@device, as in host/nic-rx@eth0")]
    Form(String),
    /// The middle part names no kind.
    #[error("{0:?}: no such kind of point (there are: {kinds})", kinds = kinds())]
    Kind(String),
}

fn kinds() -> String {
    PointKind::ALL.map(PointKind::name).join(", ")
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}@{}", self.machine, self.kind, self.device))
    }
}

impl FromStr for Point {
    type Err = BadPoint;
    fn from_str(s: &str) -> Result<Self, BadPoint> {
        let form = || BadPoint::Form(s.into());
        let (machine, rest) = s.split_once('/').ok_or_else(form)?;
        let (kind, device) = rest.split_once('@').ok_or_else(form)?;
        if machine.is_empty() || device.is_empty() {
            return Err(form());
        }
        Ok(Self { machine: machine.into(), kind: kind.parse()?, device: device.into() })
    }
}

impl Serialize for Point {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The type of a point's device, as far as the order of points depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// A NIC (physical or virtio), or a device without a kind of its own.
    #[default]
    Nic,
    /// A bridge device: packets received on it are the bridge's local copies, off route.
    Bridge,
    /// A port of Open vSwitch used by the host (`internal`).
    OvsInternal,
    /// A tun or tap device: the host's side of a VM's NIC.
    Tap,
    /// One end of a veth pair.
    Veth,
    /// An application's socket.
    Socket,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A point, with the properties of its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointInfo {
    /// The point's name.
    pub point: Point,
    /// Type of the device.
    pub link: Link,
    /// Inode number of the device's network namespace (`/proc/PID/ns/net`).
    pub netns: u32,
    /// The device's index in that namespace; 0 for none.
    pub ifindex: u32,
    /// Index of a veth's other end, in that end's namespace (`IFLA_LINK`); 0 if there is none or it is unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub peer: u32,
    /// Inode number of the network namespace of a veth's other end; 0 if there is none or it is unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub peer_netns: u32,
    /// The clock of the point's times.
    pub clock: String,
}

impl From<Point> for PointInfo {
    /// A point with unknown properties.
    fn from(point: Point) -> Self {
        Self { point, link: Link::default(), netns: 0, ifindex: 0, peer: 0, peer_netns: 0, clock: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_reads_back_as_written() {
        for text in ["host/nic-rx@enp7s0", "guest0/app-read@relay", "host/tx@vnet0%blue"] {
            assert_eq!(text.parse::<Point>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_device_has_its_name_in_its_namespace_too() {
        let device = |text: &str| text.parse::<Point>().unwrap().device_name().to_string();
        assert_eq!(["host/tx@vnet0", "host/tx@vnet0%blue"].map(device), ["vnet0", "vnet0"]);
    }

    #[test]
    fn what_is_no_point_is_refused_by_name() {
        assert_eq!("eth0".parse::<Point>(), Err(BadPoint::Form("eth0".into())));
        assert_eq!("host/rx@eth0".parse::<Point>(), Err(BadPoint::Kind("rx".into())));
        assert!("host/tx@".parse::<Point>().is_err());
    }

    #[test]
    fn kinds_keep_their_numbers() {
        for kind in PointKind::ALL {
            assert_eq!(PointKind::from_number(kind.number()), Some(kind));
            assert_eq!(kind.name().parse::<PointKind>().unwrap(), kind);
        }
        assert_eq!((PointKind::Tx.number(), PointKind::XskRx.number()), (0, 12));
        assert_eq!(PointKind::from_number(200), None);
    }
}
