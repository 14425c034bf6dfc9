//! Measurement points, written `machine/kind@device`.

use crate::Ns;
pub use latpath_protocols::redundancy::Lan;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Index of a point in a run's table of points, in order of first appearance.
pub type PointId = u16;

/// Defines `PointKind` from one table; the number of a kind is the index of its row.
macro_rules! kinds {
    ($($kind:ident: $info:expr,)*) => {
        /// Kind of a point: the event that it observes. Each kind is a row of the table in `point.rs`, and of
        /// docs/points.md.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[allow(missing_docs)] // the row's `packet` and `place`
        pub enum PointKind {
            $($kind,)*
        }

        impl PointKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: [Self; [$(stringify!($kind)),*].len()] = [$(Self::$kind),*];
            const TABLE: [KindInfo; Self::ALL.len()] = [$($info),*];
        }
    };
}

/// Properties of a kind of point. Code outside this file depends on these fields instead of on individual kinds, so
/// that a new kind needs only a new row.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo {
    /// The name in the text of a point: `nic-rx`.
    pub name: &'static str,
    /// docs/points.md: "the packet …".
    pub packet: &'static str,
    /// docs/points.md: the place in the kernel.
    pub place: &'static str,
    /// docs/points.md: the text after the `@` of a point.
    pub device: &'static str,
    /// Origin of the name after the `@` of a point of this kind.
    pub named_by: NamedBy,
    /// The role of the kind in a route.
    pub route: RoutePart,
    /// The packet's place in the machine.
    pub passage: Passage,
    /// The path through the host that a sighting here proves.
    pub path: PathMark,
    /// Whether the thread of a sighting reads or writes the packet itself. For other kinds, the kernel handles the
    /// packet in whatever context runs on the CPU.
    pub by_thread: bool,
    /// Whether a packet can wait in a queue of the same machine just before it is seen here.
    pub queue_before: bool,
    /// Whether a packet can wait in a queue of the same machine just after it is seen here.
    pub queue_behind: bool,
    /// Whether the device's driver gets the packet here; for a veth, the other end has it next.
    pub gives_to_driver: bool,
    /// Whether the NIC takes the time, by its own clock.
    pub by_nic: bool,
    /// Position of the frame for the kernel programs.
    pub frame: FrameAt,
    /// Whether `skb->protocol` is always the frame's ethertype. Otherwise the programs read the ethertype from the
    /// frame.
    pub protocol_is_set: bool,
    /// Whether the programs record the senders of packets here, and packets that nearly match a stream.
    pub notes_senders: bool,
}

/// Origin of a point's name after the `@`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The packet's device.
    Device,
    /// The packet's device; a packet without a device has a point, too.
    DeviceIfAny,
    /// The thread of the sighting. Each reader takes one of the run's points, so readers that are not named by the user
    /// require permission.
    Thread,
    /// No name from the kernel: the point is computed.
    Nothing,
}

/// The role of a kind in a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutePart {
    /// All packets of a route pass through this point.
    Step,
    /// Some packets pass through this point, depending on daemons and fast paths; packets that do not are not lost.
    Optional,
    /// A route can end at this point, but not continue from it.
    End,
    /// Packets are seen at this point off their route.
    Beside,
}

/// A packet's place in a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// The packet enters through a device.
    In,
    /// The packet enters from a VM of this host.
    FromVm,
    /// The packet is inside, between the devices.
    Inside,
    /// The packet leaves through a port. If a bridge floods it, only the points of one port are on the route.
    Out,
    /// The device has sent the packet.
    Sent,
    /// An application of this machine sends the packet.
    FromApplication,
    /// A VM of this host takes the packet.
    ToVm,
    /// A VM of this host notifies the host of a packet that the VM has handed over.
    VmKicks,
    /// A VM of this host is notified of the packet.
    VmSignalled,
    /// A vCPU of a VM of this host runs and can see the packet.
    InVm,
    /// An application of this machine takes the packet.
    ToApplication,
    /// The kernel dropped the packet.
    Dropped,
    /// The packet does not exist yet: its sample is taken.
    Sampled,
    /// The packet is not sent yet: this is the time at which its talker should send it.
    Planned,
}

/// The path through the host that a sighting proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMark {
    /// No particular path: packets of all paths pass through this point.
    Any,
    /// Through Open vSwitch's datapath, by a flow.
    Flow,
    /// From Open vSwitch's datapath to the daemon, because no flow matches.
    Upcall,
    /// From Open vSwitch's datapath to the daemon, by a flow's action.
    Slow,
    /// Back from Open vSwitch's daemon.
    Returned,
    /// Redirected by an XDP program.
    Xdp,
}

/// Position of a packet's frame for the kernel programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameAt {
    /// The Ethernet header is at `skb->data`: the packet is outbound.
    Data,
    /// The Ethernet header is at `skb->mac_header`; a device without one has the IP header at `skb->network_header`.
    Mac,
    /// Like `Mac`, but an IP packet may have no Ethernet header on any device: a machine's own multicast returns
    /// without one.
    MacOrIp,
    /// Like `Mac`, but the network header is not set yet: a packet without an Ethernet header begins at `skb->data`.
    Received,
    /// The frame is not in an skb.
    Elsewhere,
}

impl KindInfo {
    /// A kind whose times are not taken by a kernel program; the arguments are its texts for the fields of the same
    /// names. The point is off the route.
    const fn without_program(
        name: &'static str,
        passage: Passage,
        packet: &'static str,
        place: &'static str,
        device: &'static str,
    ) -> Self {
        Self {
            name,
            packet,
            place,
            device,
            named_by: NamedBy::Nothing,
            route: RoutePart::Beside,
            passage,
            path: PathMark::Any,
            by_thread: false,
            queue_before: true,
            queue_behind: true,
            gives_to_driver: false,
            by_nic: false,
            frame: FrameAt::Elsewhere,
            protocol_is_set: true,
            notes_senders: false,
        }
    }
}

// The numbers are part of the agent's protocol and of runs, so new kinds are added at the end.
kinds! {
    Tx: KindInfo {
        name: "tx",
        packet: "is handed to a device's driver: NIC, tap, veth, virtio",
        place: "tracepoint `net:net_dev_start_xmit`; for frames that XDP redirects, functions `tun_xdp_xmit` (to a tap) \
                and `generic_xdp_tx` (fentry)",
        device: "the device that sends",
        named_by: NamedBy::Device,
        route: RoutePart::Step,
        passage: Passage::Out,
        path: PathMark::Any,
        by_thread: false,
        queue_before: false,
        queue_behind: true,
        gives_to_driver: true,
        by_nic: false,
        frame: FrameAt::Data,
        protocol_is_set: false,
        notes_senders: true,
    },
    NicRx: KindInfo {
        name: "nic-rx",
        packet: "enters the network stack",
        place: "tracepoint `net:napi_gro_receive_entry` where the driver uses GRO, else `net:netif_receive_skb`",
        device: "the device that received, also a bridge (`nic-rx@br0` is the bridge's own copy)",
        named_by: NamedBy::Device,
        route: RoutePart::Step,
        passage: Passage::In,
        path: PathMark::Any,
        by_thread: false,
        queue_before: false,
        queue_behind: false,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::Received,
        protocol_is_set: true,
        notes_senders: true,
    },
    VmRead: KindInfo {
        name: "vm-read",
        packet: "is taken off a tap or macvtap by vhost or QEMU",
        place: "tracepoint `skb:skb_copy_datagram_iovec`, on a packet whose device is a tap or macvtap; for frames that \
                XDP redirected, function `tun_do_read` (fentry, with vhost)",
        device: "the tap",
        named_by: NamedBy::Device,
        route: RoutePart::Step,
        passage: Passage::ToVm,
        path: PathMark::Any,
        by_thread: true,
        queue_before: true,
        queue_behind: true,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::MacOrIp,
        protocol_is_set: true,
        notes_senders: false,
    },
    AppRead: KindInfo {
        name: "app-read",
        packet: "is copied to an application that reads from a socket ([which reads count](#which-reads-count))",
        place: "tracepoint `skb:skb_copy_datagram_iovec`, on any other packet than those of `vm-read`; for UDP also \
                function `skb_consume_udp` (fentry)",
        device: "the name of the reading thread (`/proc/PID/comm`, 15 bytes)",
        named_by: NamedBy::Thread,
        route: RoutePart::End,
        passage: Passage::ToApplication,
        path: PathMark::Any,
        by_thread: true,
        queue_before: true,
        queue_behind: true,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::MacOrIp,
        protocol_is_set: true,
        notes_senders: false,
    },
    Drop: KindInfo {
        name: "drop",
        packet: "is dropped by the kernel",
        place: "tracepoint `skb:kfree_skb`, with its reason and the function that dropped it: [drops.md](drops.md) says \
                what they mean",
        device: "the device it was on; `-` if none",
        named_by: NamedBy::DeviceIfAny,
        route: RoutePart::Beside,
        passage: Passage::Dropped,
        path: PathMark::Any,
        by_thread: false,
        queue_before: true,
        queue_behind: true,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::MacOrIp,
        protocol_is_set: false,
        notes_senders: false,
    },
    VmWrite: KindInfo {
        name: "vm-write",
        packet: "comes from a guest and enters the host",
        place: "tracepoint `net:netif_receive_skb` on a tap, `net:net_dev_start_xmit` on a macvtap",
        device: "the tap or macvtap",
        named_by: NamedBy::Device,
        route: RoutePart::Step,
        passage: Passage::FromVm,
        path: PathMark::Any,
        by_thread: true,
        queue_before: true,
        queue_behind: false,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::Elsewhere, // the programs see nic-rx or tx
        protocol_is_set: true,
        notes_senders: false,
    },
    TxDone: KindInfo {
        name: "tx-done",
        packet: "was sent, and the NIC's driver gives it back",
        place: "tracepoint `skb:consume_skb`, attached only while a NIC sends packets of a stream",
        device: "the NIC",
        named_by: NamedBy::Device,
        route: RoutePart::End,
        passage: Passage::Sent,
        path: PathMark::Any,
        by_thread: false,
        queue_before: true,
        queue_behind: true,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::Mac,
        protocol_is_set: true,
        notes_senders: false,
    },
    OvsExec: KindInfo {
        name: "ovs-exec",
        packet: "meets a flow in Open vSwitch's datapath: the fast path",
        place: "tracepoint `openvswitch:ovs_do_execute_action`, at the first action",
        device: "the port it came by",
        named_by: NamedBy::Device,
        route: RoutePart::Optional,
        passage: Passage::Inside,
        path: PathMark::Flow,
        by_thread: false,
        queue_before: false,
        queue_behind: false,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::MacOrIp,
        protocol_is_set: true,
        notes_senders: false,
    },
    OvsUpcall: KindInfo {
        name: "ovs-upcall",
        packet: "meets none, and leaves for ovs-vswitchd",
        place: "tracepoint `openvswitch:ovs_dp_upcall` (OVS_PACKET_CMD_MISS)",
        device: "the port it came by",
        named_by: NamedBy::Device,
        route: RoutePart::Optional,
        passage: Passage::Inside,
        path: PathMark::Upcall,
        by_thread: false,
        queue_before: false,
        queue_behind: true,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::MacOrIp,
        protocol_is_set: true,
        notes_senders: false,
    },
    OvsSlow: KindInfo {
        name: "ovs-slow",
        packet: "is sent to ovs-vswitchd by a flow's action",
        place: "tracepoint `openvswitch:ovs_dp_upcall` (OVS_PACKET_CMD_ACTION)",
        device: "the port it came by",
        named_by: NamedBy::Device,
        route: RoutePart::Optional,
        passage: Passage::Inside,
        path: PathMark::Slow,
        by_thread: false,
        queue_before: false,
        queue_behind: true,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::MacOrIp,
        protocol_is_set: true,
        notes_senders: false,
    },
    OvsReturn: KindInfo {
        name: "ovs-return",
        packet: "comes back from ovs-vswitchd and is forwarded",
        place: "as `ovs-exec`, on a packet that no device received and no socket owns: `ovs_packet_cmd_execute` has \
                built it",
        device: "the port it came by",
        named_by: NamedBy::Device,
        route: RoutePart::Optional,
        passage: Passage::Inside,
        path: PathMark::Returned,
        by_thread: false,
        queue_before: true,
        queue_behind: false,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::MacOrIp,
        protocol_is_set: true,
        notes_senders: false,
    },
    XdpRedirect: KindInfo {
        name: "xdp-redirect",
        packet: "is redirected by an XDP program",
        place: "functions `xdp_do_redirect`, `xdp_do_generic_redirect` (fentry)",
        device: "the device it came by",
        named_by: NamedBy::Device,
        route: RoutePart::Step,
        passage: Passage::In,
        path: PathMark::Xdp,
        by_thread: false,
        queue_before: false,
        queue_behind: false,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::Elsewhere,
        protocol_is_set: true,
        notes_senders: false,
    },
    XskRx: KindInfo {
        name: "xsk-rx",
        packet: "is put into an AF_XDP socket's ring",
        place: "functions `__xsk_map_redirect`, `xsk_generic_rcv` (fentry)",
        device: "the device it came by",
        named_by: NamedBy::Device,
        route: RoutePart::End,
        passage: Passage::ToApplication,
        path: PathMark::Any,
        by_thread: false,
        queue_before: false,
        queue_behind: true,
        gives_to_driver: false,
        by_nic: false,
        frame: FrameAt::Elsewhere,
        protocol_is_set: true,
        notes_senders: false,
    },
    Sampled: KindInfo::without_program(
        "sampled",
        Passage::Sampled,
        "is not made yet: its sample is taken (Sampled Values)",
        "none: the time is computed from smpCnt, see [clocks.md](clocks.md#tmu-the-time-since-the-sample)",
        "`smpCnt`, of the machine `MU`",
    ),
    NicHwRx: KindInfo {
        name: "nic-hw-rx",
        packet: "arrives at the NIC, by the NIC's own clock, with `--stamps nic` ([clocks.md](clocks.md#times-of-nics))",
        place: "as `nic-rx`, of packets that the NIC has stamped (`skb_hwtstamps`)",
        device: "the NIC",
        named_by: NamedBy::Device,
        route: RoutePart::Optional,
        passage: Passage::In,
        path: PathMark::Any,
        by_thread: false,
        queue_before: true,
        queue_behind: true,
        gives_to_driver: false,
        by_nic: true,
        frame: FrameAt::Received,
        protocol_is_set: true,
        notes_senders: false,
    },
    NicHwTx: KindInfo {
        name: "nic-hw-tx",
        packet: "is sent by the NIC, by the NIC's own clock, with `--stamps nic`, if its sender requested this time",
        place: "function `skb_tstamp_tx` (fentry), when the driver reports the time",
        device: "the NIC",
        named_by: NamedBy::Device,
        route: RoutePart::Optional,
        passage: Passage::Sent,
        path: PathMark::Any,
        by_thread: false,
        queue_before: true,
        queue_behind: true,
        gives_to_driver: false,
        by_nic: true,
        frame: FrameAt::Mac,
        protocol_is_set: true,
        notes_senders: false,
    },
    Planned: KindInfo::without_program(
        "planned",
        Passage::Planned,
        "is to be sent, by the send time in it ([tsn.md](tsn.md#recordings))",
        "none: the time is read from the end of the frame at its first sighting",
        "`send-time`, of the machine `talker`",
    ),
    AppSend: KindInfo {
        route: RoutePart::Step,
        by_thread: true,
        queue_before: false,
        queue_behind: false,
        ..KindInfo::without_program(
            "app-send",
            Passage::FromApplication,
            "is handed to the kernel by `latpath ping`",
            "none: latpath reads the time just before it calls the kernel",
            "`ping`",
        )
    },
    Qdisc: KindInfo {
        route: RoutePart::Optional,
        by_thread: true,
        queue_before: false,
        ..KindInfo::without_program(
            "qdisc",
            Passage::FromApplication,
            "of `latpath ping --stamps all` comes to the queueing discipline",
            "none: the kernel's own timestamp (`SOF_TIMESTAMPING_TX_SCHED`)",
            "the device that sends",
        )
    },
    DoorSignal: KindInfo {
        named_by: NamedBy::Device,
        route: RoutePart::Optional,
        by_thread: true,
        queue_before: false,
        queue_behind: false,
        ..KindInfo::without_program(
            "door-signal",
            Passage::VmSignalled,
            "is announced to its guest, with `--door`: KVM gets the interrupt ([door.md](door.md))",
            "function `irqfd_wakeup` (fentry), or tracepoints `kvm:kvm_set_irq`, `kvm:kvm_msi_set_irq`",
            "the tap or macvtap",
        )
    },
    DoorEnter: KindInfo {
        named_by: NamedBy::Device,
        route: RoutePart::Step,
        by_thread: true,
        queue_before: false,
        queue_behind: false,
        ..KindInfo::without_program(
            "door-enter",
            Passage::InVm,
            "is there when a vCPU runs in the guest that has its interrupt, or that polls, with `--door` ([door.md](door.md))",
            "tracepoint `kvm:kvm_entry` after `kvm:kvm_inj_virq`; `kvm:kvm_apicv_accept_irq` for a vCPU in its guest",
            "the tap or macvtap",
        )
    },
    DoorKick: KindInfo {
        named_by: NamedBy::Device,
        route: RoutePart::Optional,
        by_thread: true,
        queue_before: false,
        queue_behind: true,
        ..KindInfo::without_program(
            "door-kick",
            Passage::VmKicks,
            "is announced by its guest, with `--door`: the vCPU leaves the guest with the kick ([door.md](door.md))",
            "tracepoint `kvm:kvm_exit`, before function `eventfd_signal` of the queue's kick (fentry)",
            "the tap",
        )
    },
}

impl PointKind {
    /// The kind's row of the table.
    pub fn info(self) -> &'static KindInfo {
        const TABLE: &[KindInfo] = &PointKind::TABLE;
        &TABLE[usize::from(self.number())]
    }

    /// The name in the text of a point: `nic-rx`.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Whether only some packets pass through here, depending on daemons and fast paths; packets that do not are not
    /// lost.
    pub fn is_optional(self) -> bool {
        self.info().route == RoutePart::Optional
    }

    /// Whether packets pass through here on their route. Drops have no place in the order of points, and computed times
    /// are not sightings.
    pub fn can_be_on_route(self) -> bool {
        self.info().route != RoutePart::Beside
    }

    /// Whether a route can have this point only as its end.
    pub fn ends_route(self) -> bool {
        self.info().route == RoutePart::End
    }

    /// Whether packets for which Open vSwitch has no flow leave its datapath here.
    pub fn misses_flow(self) -> bool {
        self.info().path == PathMark::Upcall
    }

    /// Whether packets leave Open vSwitch's datapath for its daemon here.
    pub fn leaves_datapath(self) -> bool {
        matches!(self.info().path, PathMark::Upcall | PathMark::Slow)
    }

    /// Whether packets return from Open vSwitch's daemon here.
    pub fn is_back_in_datapath(self) -> bool {
        self.info().path == PathMark::Returned
    }

    /// Whether packets leave through a device here, or have left through it. A machine that sees packets only at such
    /// points sends them and does not receive them.
    pub fn is_sending(self) -> bool {
        matches!(self.info().passage, Passage::Out | Passage::Sent)
    }

    /// Whether the packet belongs to the application from here on.
    pub fn is_application(self) -> bool {
        self.info().passage == Passage::ToApplication
    }

    /// Whether this is a point at a guest's door: the packet is announced to or by the guest, or a vCPU runs and can
    /// see it. If events were lost, even packets that arrived may lack such points.
    pub fn is_at_door(self) -> bool {
        matches!(self.info().passage, Passage::VmKicks | Passage::VmSignalled | Passage::InVm)
    }

    /// Whether this is the point at which a vCPU of a VM of this host runs and can see the packet.
    pub fn is_in_vm(self) -> bool {
        self.info().passage == Passage::InVm
    }

    /// Whether packets enter a machine here.
    pub fn is_entry(self) -> bool {
        matches!(self.info().passage, Passage::In | Passage::FromVm)
    }

    /// Whether the NIC takes the times here, by its own clock.
    pub fn is_by_nic(self) -> bool {
        self.info().by_nic
    }

    /// Whether the kernel drops packets here.
    pub fn is_drop(self) -> bool {
        self.info().passage == Passage::Dropped
    }

    /// Whether the times here are computed from the packets themselves: the times of their samples, or their planned
    /// send times.
    pub fn is_computed(self) -> bool {
        matches!(self.info().passage, Passage::Sampled | Passage::Planned)
    }

    /// Whether the point is named by the thread that reads the packet.
    pub fn is_named_by_thread(self) -> bool {
        self.info().named_by == NamedBy::Thread
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
    /// The kind of the point.
    pub kind: PointKind,
    /// Device name, or the thread's name for a reader. `%netns` is appended where a name alone is ambiguous.
    pub device: String,
}

impl Point {
    /// The device's name without its namespace and LAN: `vnet0` for `vnet0%blue`, `eth0` for `eth0:A`.
    pub fn device_name(&self) -> &str {
        let name = self.without_namespace();
        match self.copies() {
            Some(_) => name.rsplit_once(':').map_or(name, |(name, _)| name),
            None => name,
        }
    }

    fn without_namespace(&self) -> &str {
        self.device.split('%').next().unwrap_or_default()
    }

    /// The copies in redundant networks that pass through this point; `None` if the point is not limited to certain
    /// copies.
    pub fn copies(&self) -> Option<Copies> {
        // Device names contain no colon; names of threads and sampling points may.
        if matches!(self.kind.info().named_by, NamedBy::Thread | NamedBy::Nothing) {
            return None;
        }
        let (_, end) = self.without_namespace().rsplit_once(':')?;
        Copies::ALL.into_iter().find(|copies| copies.name() == end)
    }

    /// The computed point of the first or second copies of packets, derived from a point of one LAN.
    #[must_use]
    pub fn of_copies(&self, copies: Copies) -> Self {
        let namespace = self.device.split_once('%').map_or(String::new(), |(_, namespace)| format!("%{namespace}"));
        Self { device: format!("{COPY}:{}{namespace}", copies.name()), ..self.clone() }
    }

    /// Whether only some packets pass through here; packets that do not are not lost.
    pub fn is_optional(&self) -> bool {
        self.kind.is_optional() || matches!(self.copies(), Some(Copies::Lan(_)))
    }

    /// Whether packets pass through here on their route.
    pub fn can_be_on_route(&self) -> bool {
        self.kind.can_be_on_route() && self.copies() != Some(Copies::Second)
    }
}

/// The part before the colon in the device name of a point of first or second copies.
const COPY: &str = "copy";

/// The copies in redundant networks that pass through a point, given by the end of its device name, as in `eth0:A`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// The copies sent over one LAN.
    Lan(Lan),
    /// The first copy of each packet, over either LAN: a computed point, named `copy:first`.
    First,
    /// The copy over the other LAN, which arrives later: a computed point, named `copy:second`.
    Second,
}

impl Copies {
    const ALL: [Self; 4] = [Self::Lan(Lan::A), Self::Lan(Lan::B), Self::First, Self::Second];

    /// The name after the colon.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lan(lan) => lan.name(),
            Self::First => "first",
            Self::Second => "second",
        }
    }
}

/// Why a string is not a valid point.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadPoint {
    /// The text lacks `/` or `@`.
    #[error("{0:?}: not a point; write machine/kind@device, e.g. host/nic-rx@eth0")]
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

fn is_exact(bound: &Ns) -> bool {
    *bound == 0
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
    /// Maximum error of the point's times relative to its machine's clock, ns; 0 if that clock took them.
    #[serde(default, skip_serializing_if = "is_exact")]
    pub error_bound_ns: Ns,
}

impl From<Point> for PointInfo {
    /// A point with unknown properties.
    fn from(point: Point) -> Self {
        Self {
            point,
            link: Link::default(),
            netns: 0,
            ifindex: 0,
            peer: 0,
            peer_netns: 0,
            clock: String::new(),
            error_bound_ns: 0,
        }
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
    fn points_of_redundant_networks_are_known_by_their_names() {
        let copies = |text: &str| text.parse::<Point>().unwrap().copies();
        assert_eq!(copies("host/nic-rx@eth0"), None);
        assert_eq!(copies("host/nic-rx@eth0:A"), Some(Copies::Lan(Lan::A)));
        assert_eq!(copies("host/tx@eth0:B%blue"), Some(Copies::Lan(Lan::B)));
        assert_eq!(copies("host/app-read@worker:A"), None, "the name of a thread");
        let lan: Point = "host/nic-rx@eth0:A%blue".parse().unwrap();
        assert_eq!(lan.device_name(), "eth0");
        let [first, second] = [Copies::First, Copies::Second].map(|copies| lan.of_copies(copies));
        assert_eq!(first.to_string(), "host/nic-rx@copy:first%blue");
        assert_eq!((first.copies(), second.copies()), (Some(Copies::First), Some(Copies::Second)));
        assert_eq!(
            [&lan, &first, &second].map(|p| (p.is_optional(), p.can_be_on_route())),
            [(true, true), (false, true), (false, false)]
        );
    }

    #[test]
    fn invalid_points_are_refused_by_name() {
        assert_eq!("eth0".parse::<Point>(), Err(BadPoint::Form("eth0".into())));
        assert_eq!("host/rx@eth0".parse::<Point>(), Err(BadPoint::Kind("rx".into())));
        assert!("host/tx@".parse::<Point>().is_err());
    }

    #[test]
    fn kinds_keep_their_numbers() {
        for kind in PointKind::ALL {
            assert_eq!(PointKind::from_number(kind.number()), Some(kind));
            assert_eq!(kind.name().parse::<PointKind>().unwrap(), kind);
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name(), "files and points have one name");
        }
        assert_eq!((PointKind::Tx.number(), PointKind::XskRx.number()), (0, 12));
        assert_eq!(PointKind::from_number(200), None);
    }
}
