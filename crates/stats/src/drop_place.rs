//! Classifies drops: derives the place of the loss, in plain words, from the kernel's function and reason.
//!
//! Reasons exist since Linux 5.17, and later versions added more. Without a reason, the function alone decides. The
//! rules are derived from Linux 5.15, 6.1, 6.12 and 6.18, from the files named at each rule.

use latpath_counters::{Difference, Inode};

macro_rules! places {
    ($($(#[$doc:meta])* $place:ident = $name:literal,)*) => {
        /// Place, and thus cause, of a drop. docs/drops.md has a section on each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum DropPlace {
            $($(#[$doc])* $place,)*
        }

        impl DropPlace {
            /// All places with their names.
            pub const NAMES: &'static [(Self, &'static str)] = &[$((Self::$place, $name)),*];
        }
    };
}

places! {
    /// The tap's queue was full: QEMU or vhost did not read fast enough, or the guest supplied no buffers.
    TapQueueFull = "tap queue full",
    /// The tap has no reader, or is down.
    TapNoReader = "tap without reader",
    /// A filter on the tap rejected the packet.
    TapFilter = "filter on the tap",
    /// The macvtap's queue was full: QEMU or vhost did not read fast enough.
    MacvtapQueueFull = "macvtap queue full",
    /// The packet was in a queue when the queue was purged: its reader closed it, or the device went down.
    QueuePurged = "unread in a queue that was closed",
    /// Open vSwitch's upcall failed: no listener, or out of memory.
    OvsUpcallFailed = "Open vSwitch upcall failed",
    /// The upcall's netlink socket was full: ovs-vswitchd did not read fast enough.
    OvsUpcallQueueFull = "Open vSwitch upcall queue full",
    /// A flow of Open vSwitch has the action `drop`, or no action.
    OvsDropped = "dropped by an Open vSwitch flow",
    /// A meter of Open vSwitch dropped the packet.
    OvsMeter = "Open vSwitch meter",
    /// An action of Open vSwitch failed.
    OvsActionFailed = "Open vSwitch action failed",
    /// The packet's output port in Open vSwitch is down. Usually the dropped packet is a flooded frame's copy for the
    /// bridge's own device.
    OvsPortDown = "Open vSwitch port down",
    /// A socket's receive buffer was full: the application did not read fast enough.
    SocketBufferFull = "socket buffer full",
    /// A filter that the application attached to its socket rejected the packet.
    SocketFilter = "socket filter",
    /// A queueing discipline of a device: its queue was full, or its rule dropped the packet.
    QueueingDiscipline = "queueing discipline",
    /// A CPU's input queue was full (`netdev_max_backlog`).
    Backlog = "CPU backlog full",
    /// No handler exists for this protocol at this device. At a bridge, the dropped packet is the bridge's local copy,
    /// at a NIC the host's copy; the packet is only lost if there was no other copy.
    NoListener = "nobody listens",
    /// No UDP or TCP socket is bound to the port.
    NoSocket = "no socket at the port",
    /// The destination MAC address belongs to another host.
    NotOurs = "MAC address of another host",
    /// The bridge has no port to forward the packet to: because of VLANs, spanning tree, or because no port is flooded.
    BridgeNoPort = "no bridge port for it",
    /// netfilter (iptables, nftables) dropped the packet.
    Netfilter = "netfilter rule",
    /// An XDP program in the generic path dropped the packet. Native XDP drops packets before latpath can see them.
    Xdp = "XDP program",
    /// A tc filter or action dropped the packet at ingress.
    TcIngress = "tc at ingress",
    /// A tc filter or action dropped the packet at egress.
    TcEgress = "tc at egress",
    /// The IP, UDP, TCP or ICMP checksum is wrong.
    Checksum = "wrong checksum",
    /// The device is not ready: down, or without carrier or peer.
    DeviceNotReady = "device not ready",
    /// The kernel ran out of memory.
    NoMemory = "no memory",
    /// The packet's headers are invalid, or it is too big.
    Malformed = "malformed packet",
    /// There is no route, or reverse path filtering rejected the packet.
    NoRoute = "no route",
    /// The place is unknown, or is none of the above.
    Unknown = "unknown",
}

/// The place of a drop. `function`: the kernel function that freed the packet. `reason`: the kernel's reason without
/// its prefix (`FULL_RING`); `unknown` or `NOT_SPECIFIED` if there is none; `subsystem N reason M` for a subsystem's
/// reason.
pub fn place_of_drop(function: &str, reason: &str) -> DropPlace {
    // Remove the compiler's suffix, as in `__netif_receive_skb_core.constprop.0`, and the module, as in
    // `do_execute_actions [openvswitch]`.
    let function = function.split(['.', ' ']).next().unwrap_or_default();
    match by_reason(function, reason) {
        DropPlace::Unknown => by_function(function),
        place => place,
    }
}

/// The place of a drop by its reason: enum skb_drop_reason (include/net/dropreason-core.h), enum ovs_drop_reason
/// (net/openvswitch/drop.h).
fn by_reason(function: &str, reason: &str) -> DropPlace {
    if let Some(place) = open_vswitch(function, reason) {
        return place;
    }
    match reason {
        // drivers/net/tun.c, tun_net_xmit; drivers/net/tap.c, tap_handle_frame; drivers/net/veth.c
        "FULL_RING" if function.starts_with("tap_") => DropPlace::MacvtapQueueFull,
        "FULL_RING" if function.starts_with("tun_") => DropPlace::TapQueueFull,
        "DEV_READY" if function.starts_with("tun_") => DropPlace::TapNoReader,
        // net/openvswitch/actions.c, do_output
        "DEV_READY" if is_open_vswitch(function) => DropPlace::OvsPortDown,
        "TAP_FILTER" | "TAP_TXFILTER" => DropPlace::TapFilter,
        "SOCKET_FILTER" if function.starts_with("tun_") || function.starts_with("tap_") => DropPlace::TapFilter,
        "SOCKET_FILTER" => DropPlace::SocketFilter,
        "QUEUE_PURGE" | "SOCKET_CLOSE" => DropPlace::QueuePurged,
        // net/core/sock.c, sock_queue_rcv_skb_reason; net/ipv4/udp.c; net/packet/af_packet.c from 6.4 on
        "SOCKET_RCVBUFF" | "SOCKET_BACKLOG" | "PACKET_SOCK_ERROR" | "PROTO_MEM" => DropPlace::SocketBufferFull,
        // net/core/dev.c, __dev_xmit_skb; net/sched/sch_*.c
        "QDISC_DROP" | "QDISC_OVERLIMIT" | "QDISC_CONGESTED" | "CAKE_FLOOD" | "FQ_BAND_LIMIT" | "FQ_HORIZON_LIMIT"
        | "FQ_FLOW_LIMIT" | "DUALPI2_STEP_DROP" => DropPlace::QueueingDiscipline,
        // net/core/dev.c, enqueue_to_backlog
        "CPU_BACKLOG" => DropPlace::Backlog,
        // net/core/dev.c, __netif_receive_skb_core
        "UNHANDLED_PROTO" => DropPlace::NoListener,
        "NO_SOCKET" | "IP_NOPROTO" => DropPlace::NoSocket,
        // net/ipv4/ip_input.c, ip_rcv_core
        "OTHERHOST" => DropPlace::NotOurs,
        "BRIDGE_INGRESS_STP_STATE" | "NO_TX_TARGET" | "LOCAL_MAC" | "MAC_IEEE_MAC_CONTROL" => DropPlace::BridgeNoPort,
        // net/netfilter/core.c, nf_hook_slow
        "NETFILTER_DROP" => DropPlace::Netfilter,
        // net/core/dev.c, do_xdp_generic, sch_handle_ingress, sch_handle_egress
        "XDP" => DropPlace::Xdp,
        "TC_INGRESS" => DropPlace::TcIngress,
        "TC_EGRESS" => DropPlace::TcEgress,
        "TC_COOKIE_ERROR" | "TC_CHAIN_NOTFOUND" | "TC_RECLASSIFY_LOOP" => DropPlace::TcIngress,
        "TCP_CSUM" | "UDP_CSUM" | "IP_CSUM" | "SKB_CSUM" | "ICMP_CSUM" => DropPlace::Checksum,
        "DEV_READY" => DropPlace::DeviceNotReady,
        "NOMEM" | "PFMEMALLOC" => DropPlace::NoMemory,
        "PKT_TOO_SMALL"
        | "PKT_TOO_BIG"
        | "DEV_HDR"
        | "HDR_TRUNC"
        | "IP_INHDR"
        | "INVALID_PROTO"
        | "SKB_GSO_SEG"
        | "UNICAST_IN_L2_MULTICAST"
        | "MAC_INVALID_SOURCE" => DropPlace::Malformed,
        "IP_OUTNOROUTES" | "IP_INNOROUTES" | "IP_INADDRERRORS" | "IP_RPFILTER" | "NEIGH_FAILED" | "NEIGH_QUEUEFULL"
        | "NEIGH_CREATEFAIL" | "NEIGH_DEAD" => DropPlace::NoRoute,
        _ => DropPlace::Unknown,
    }
}

/// The place of a drop by Open vSwitch's own reasons, which exist since Linux 6.6: given by name, or by subsystem and
/// number. The subsystem was 3, and is 2 on kernels from which another subsystem was removed (enum
/// skb_drop_reason_subsys); in that case the function must belong to Open vSwitch.
fn open_vswitch(function: &str, reason: &str) -> Option<DropPlace> {
    const NAMES: [&str; 11] = [
        "OVS_DROP_LAST_ACTION",
        "OVS_DROP_ACTION_ERROR",
        "OVS_DROP_EXPLICIT",
        "OVS_DROP_EXPLICIT_WITH_ERROR",
        "OVS_DROP_METER",
        "OVS_DROP_RECURSION_LIMIT",
        "OVS_DROP_DEFERRED_LIMIT",
        "OVS_DROP_FRAG_L2_TOO_LONG",
        "OVS_DROP_FRAG_INVALID_PROTO",
        "OVS_DROP_CONNTRACK",
        "OVS_DROP_IP_TTL",
    ];
    let by_number = || {
        let (subsystem, number) = reason.strip_prefix("subsystem ")?.split_once(" reason ")?;
        let ours = subsystem == "3" || (subsystem == "2" && is_open_vswitch(function));
        ours.then(|| NAMES.get(number.parse::<usize>().ok()?.checked_sub(1)?).copied())?
    };
    let name = NAMES.into_iter().find(|name| *name == reason).or_else(by_number)?;
    Some(match name {
        // OVS_DROP_LAST_ACTION is reported after the last action, also for a flow without actions.
        "OVS_DROP_LAST_ACTION" | "OVS_DROP_EXPLICIT" | "OVS_DROP_EXPLICIT_WITH_ERROR" => DropPlace::OvsDropped,
        "OVS_DROP_METER" => DropPlace::OvsMeter,
        _ => DropPlace::OvsActionFailed,
    })
}

/// Whether the function belongs to the module net/openvswitch.
fn is_open_vswitch(function: &str) -> bool {
    const OTHERS: [&str; 5] =
        ["do_execute_actions", "clone_execute", "do_output", "queue_userspace_packet", "netdev_port_receive"];
    function.starts_with("ovs_") || OTHERS.contains(&function)
}

/// The place of a drop without a reason, or with an unspecific one.
fn by_function(function: &str) -> DropPlace {
    match function {
        // Kernels before 5.17 report no reason; nearly always the queue was full.
        "tun_net_xmit" => DropPlace::TapQueueFull,
        "tap_handle_frame" => DropPlace::MacvtapQueueFull,
        "tun_queue_purge"
        | "tun_detach_all"
        | "__tun_detach"
        | "tap_put_user"
        | "skb_queue_purge"
        | "skb_queue_purge_reason"
        | "__skb_queue_purge"
        | "packet_release" => DropPlace::QueuePurged,
        // net/openvswitch/datapath.c: packets whose upcall finds the queue full are freed as consumed, so packets
        // dropped here failed for another reason. netlink drops the copy for the daemon.
        "ovs_dp_process_packet" => DropPlace::OvsUpcallFailed,
        "netlink_attachskb" | "netlink_unicast" => DropPlace::OvsUpcallQueueFull,
        // No reason before 6.6. `do_execute_actions` includes the inlined `do_output`.
        "do_execute_actions" | "do_output" => DropPlace::OvsPortDown,
        "ovs_execute_actions"
        | "clone_execute"
        | "ovs_vport_send"
        | "ovs_vport_receive"
        | "netdev_port_receive"
        | "ovs_ct_execute" => DropPlace::OvsActionFailed,
        "packet_rcv"
        | "tpacket_rcv"
        | "sock_queue_rcv_skb"
        | "sock_queue_rcv_skb_reason"
        | "__sock_queue_rcv_skb"
        | "udp_queue_rcv_one_skb"
        | "udpv6_queue_rcv_one_skb"
        | "__udp_queue_rcv_skb"
        | "raw_rcv"
        | "sk_add_backlog" => DropPlace::SocketBufferFull,
        // Packets rejected by a queueing discipline are freed as a list (net/core/dev.c, __dev_xmit_skb).
        "kfree_skb_list" | "kfree_skb_list_reason" => DropPlace::QueueingDiscipline,
        "enqueue_to_backlog" | "netif_rx_internal" => DropPlace::Backlog,
        "__netif_receive_skb_core" => DropPlace::NoListener,
        "__udp4_lib_rcv" | "__udp6_lib_rcv" | "tcp_v4_rcv" | "tcp_v6_rcv" => DropPlace::NoSocket,
        "nf_hook_slow" => DropPlace::Netfilter,
        "do_xdp_generic" | "netif_receive_generic_xdp" => DropPlace::Xdp,
        "sch_handle_ingress" => DropPlace::TcIngress,
        "sch_handle_egress" => DropPlace::TcEgress,
        "validate_xmit_skb" | "veth_xmit" | "__dev_forward_skb" | "____dev_forward_skb" | "dev_forward_skb" => {
            DropPlace::DeviceNotReady
        }
        // net/bridge: packets that may not be forwarded to any port.
        _ if function.starts_with("br_") || function.starts_with("__br_") => DropPlace::BridgeNoPort,
        _ => DropPlace::Unknown,
    }
}

impl DropPlace {
    /// The name in plain words.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// The kernel's own count of drops at this place, of any packets: at least latpath's count, unless the counter has
    /// another meaning. `device` is the drop note's device. `None` if the kernel has no such counter, the counter was
    /// not read, or the device has been replaced by another one.
    pub fn counted(self, difference: &Difference, netns: Inode, device: u32) -> Option<u64> {
        let statistics = || difference.device_since(netns, device).map(|counters| counters.statistics);
        let queueing = || difference.device_since(netns, device).and_then(|counters| counters.queueing.as_ref());
        match self {
            Self::TapQueueFull | Self::TapNoReader | Self::TapFilter => statistics().map(|s| s.tx_dropped),
            // drivers/net/macvlan.c counts these drops both as errors and as dropped.
            Self::MacvtapQueueFull => statistics().map(|s| s.rx_dropped),
            Self::OvsUpcallFailed | Self::OvsUpcallQueueFull => difference.upcalls_lost(netns),
            Self::SocketBufferFull => difference.sockets_full(netns),
            Self::QueueingDiscipline => queueing().map(|q| q.dropped.into()),
            Self::TcIngress | Self::TcEgress => queueing().map(|q| q.ingress_dropped.into()),
            Self::Backlog => Some(difference.softnet.dropped()),
            Self::NoListener => statistics().map(|s| s.rx_dropped + s.rx_no_handler),
            Self::NoSocket => difference.namespaces.get(&netns).map(|space| space.sockets.udp_no_listener),
            _ => None,
        }
    }
}

impl std::fmt::Display for DropPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_seen_on_real_kernels_have_their_places() {
        for (function, reason, place) in [
            ("tun_net_xmit", "FULL_RING", DropPlace::TapQueueFull),
            ("tun_net_xmit", "unknown", DropPlace::TapQueueFull),
            ("tun_net_xmit", "DEV_READY", DropPlace::TapNoReader),
            ("tun_net_xmit", "SOCKET_FILTER", DropPlace::TapFilter),
            ("tap_handle_frame", "FULL_RING", DropPlace::MacvtapQueueFull),
            ("ovs_dp_process_packet", "NOT_SPECIFIED", DropPlace::OvsUpcallFailed),
            ("do_execute_actions", "subsystem 3 reason 1", DropPlace::OvsDropped),
            ("do_execute_actions", "subsystem 2 reason 3", DropPlace::OvsDropped),
            ("do_execute_actions", "subsystem 3 reason 5", DropPlace::OvsMeter),
            ("do_execute_actions [openvswitch]", "DEV_READY", DropPlace::OvsPortDown),
            ("do_execute_actions", "NOT_SPECIFIED", DropPlace::OvsPortDown),
            ("ovs_execute_actions", "OVS_DROP_RECURSION_LIMIT", DropPlace::OvsActionFailed),
            ("packet_rcv", "NOT_SPECIFIED", DropPlace::SocketBufferFull),
            ("tpacket_rcv", "PACKET_SOCK_ERROR", DropPlace::SocketBufferFull),
            ("udp_queue_rcv_one_skb", "SOCKET_RCVBUFF", DropPlace::SocketBufferFull),
            ("__dev_queue_xmit", "QDISC_DROP", DropPlace::QueueingDiscipline),
            ("kfree_skb_list_reason", "QDISC_DROP", DropPlace::QueueingDiscipline),
            ("__netif_receive_skb_core.constprop.0", "UNHANDLED_PROTO", DropPlace::NoListener),
            ("enqueue_to_backlog", "CPU_BACKLOG", DropPlace::Backlog),
            ("nf_hook_slow", "NETFILTER_DROP", DropPlace::Netfilter),
            ("ip_rcv_core", "OTHERHOST", DropPlace::NotOurs),
            ("br_flood", "NOT_SPECIFIED", DropPlace::BridgeNoPort),
            ("frobnicate", "NOT_SPECIFIED", DropPlace::Unknown),
            ("ieee80211_rx", "subsystem 2 reason 1", DropPlace::Unknown),
        ] {
            assert_eq!(place_of_drop(function, reason), place, "{function} {reason}");
        }
    }

    #[test]
    fn each_place_is_listed_once_with_a_name_of_its_own() {
        let names: std::collections::HashSet<_> = DropPlace::NAMES.iter().map(|(_, name)| name).collect();
        assert_eq!(names.len(), DropPlace::NAMES.len());
        for (at, (place, name)) in DropPlace::NAMES.iter().enumerate() {
            assert_eq!((*place as usize, place.name()), (at, *name));
        }
    }

    #[test]
    fn each_place_has_a_section_in_the_documentation() {
        let text = include_str!("../../../docs/drops.md");
        for (_, name) in DropPlace::NAMES {
            assert!(text.contains(&format!("| {name} |")), "docs/drops.md has no row {name:?}");
        }
    }
}
