//! latpath's points on each way, and the parts of the way that no point shows.

use crate::file::{Topology, Way, XdpMode};
use schemars::JsonSchema;
use serde::Serialize;

/// Direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the wire to the guest.
    ToGuest,
    /// From the guest to the wire.
    FromGuest,
}

/// A point on a way, listed in the order of the route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PointOnWay {
    /// The guest.
    pub guest: String,
    /// Direction of the packets.
    pub direction: Direction,
    /// The point, as `host/kind@device`.
    pub point: String,
    /// Kernel feature that the point needs; null if every kernel has it.
    pub needs: Option<&'static str>,
}

/// A part of a way that no point on the host shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Gap {
    /// Direction of the packets.
    pub direction: Direction,
    /// The part.
    pub what: String,
    /// The reason.
    pub why: &'static str,
    /// The nearest points that bridge the gap.
    pub bridged_by: String,
}

/// Needs a kernel that can attach programs to functions (fentry).
const FENTRY: &str = "fentry";
/// Needs a kernel with fentry, and a guest served by vhost.
const FENTRY_AND_VHOST: &str = "fentry, and vhost for the guest's NIC";

/// Kind of a point on a way, whether it is at the uplink or at the guest's tap, and what it needs.
type Place = (&'static str, At, Option<&'static str>);

#[derive(Clone, Copy)]
enum At {
    Uplink,
    Tap,
}

/// The points on a topology's way; `modes` is where its XDP programs run.
pub(crate) fn points(topology: &Topology, taps: &[(String, String)], modes: Modes) -> Vec<PointOnWay> {
    let both = [(Direction::ToGuest, to_guest(topology, modes)), (Direction::FromGuest, from_guest(topology, modes))];
    let mut all = Vec::new();
    for (guest, tap) in taps {
        for (direction, places) in &both {
            all.extend(places.iter().map(|(kind, at, needs)| {
                let device = match at {
                    At::Uplink => &topology.uplink.device,
                    At::Tap => tap,
                };
                PointOnWay {
                    guest: guest.clone(),
                    direction: *direction,
                    point: format!("host/{kind}@{device}"),
                    needs: *needs,
                }
            }));
        }
    }
    all
}

/// Where the XDP programs of a topology run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Modes {
    pub(crate) uplink: XdpMode,
    pub(crate) tap: XdpMode,
}

fn to_guest(topology: &Topology, modes: Modes) -> Vec<Place> {
    match topology.way {
        Way::Bridge => vec![("nic-rx", At::Uplink, None), ("tx", At::Tap, None), ("vm-read", At::Tap, None)],
        // Only multicast frames are received again on the macvtap; the kernel puts unicast frames into its queue
        // directly.
        Way::Macvtap => {
            vec![("nic-rx", At::Uplink, None), ("nic-rx", At::Tap, None), ("vm-read", At::Tap, None)]
        }
        Way::Ovs => vec![
            ("nic-rx", At::Uplink, None),
            ("ovs-exec", At::Uplink, None),
            ("tx", At::Tap, None),
            ("vm-read", At::Tap, None),
        ],
        // In the stack, the XDP program runs after the tracepoint of received packets, so nic-rx sees the frames.
        Way::Xdp if modes.uplink == XdpMode::Generic => vec![
            ("nic-rx", At::Uplink, None),
            ("xdp-redirect", At::Uplink, Some(FENTRY)),
            ("tx", At::Tap, Some(FENTRY)),
            ("vm-read", At::Tap, None),
        ],
        Way::Xdp => vec![
            ("xdp-redirect", At::Uplink, Some(FENTRY)),
            ("tx", At::Tap, Some(FENTRY)),
            ("vm-read", At::Tap, Some(FENTRY_AND_VHOST)),
        ],
        // Open vSwitch's own program redirects frames to its socket.
        Way::OvsAfxdp => {
            let mut all = vec![("xdp-redirect", At::Uplink, Some(FENTRY)), ("xsk-rx", At::Uplink, Some(FENTRY))];
            if !topology.has_vhost_user() {
                all.extend([("tx", At::Tap, None), ("vm-read", At::Tap, None)]);
            }
            all
        }
    }
}

fn from_guest(topology: &Topology, modes: Modes) -> Vec<Place> {
    match topology.way {
        Way::Bridge | Way::Macvtap => vec![("vm-write", At::Tap, None), ("tx", At::Uplink, None)],
        Way::Ovs => vec![("vm-write", At::Tap, None), ("ovs-exec", At::Tap, None), ("tx", At::Uplink, None)],
        Way::Xdp if modes.tap == XdpMode::Generic => {
            vec![("vm-write", At::Tap, None), ("tx", At::Uplink, Some(FENTRY))]
        }
        // The guest's write is observed in the function that redirects its frame.
        Way::Xdp => vec![("vm-write", At::Tap, Some(FENTRY))],
        Way::OvsAfxdp if topology.has_vhost_user() => Vec::new(),
        Way::OvsAfxdp => vec![("vm-write", At::Tap, None)],
    }
}

/// The parts of a topology's way that no point on the host shows.
pub(crate) fn gaps(topology: &Topology, modes: Modes) -> Vec<Gap> {
    let gap = |direction, what: &str, why, bridged_by: &str| Gap {
        direction,
        what: what.into(),
        why,
        bridged_by: bridged_by.into(),
    };
    let (inward, outward) = (Direction::ToGuest, Direction::FromGuest);
    let uplink = &topology.uplink.device;
    match topology.way {
        Way::Bridge | Way::Macvtap | Way::Ovs => Vec::new(),
        Way::Xdp => {
            let mut all = Vec::new();
            if modes.uplink != XdpMode::Generic {
                all.push(gap(
                    inward,
                    &format!("frames before the XDP program of {uplink} (nic-rx)"),
                    "the driver runs the program before the kernel makes a packet of the frame",
                    "xdp-redirect of the uplink",
                ));
                all.push(gap(
                    inward,
                    "the read from the tap by QEMU, without vhost (vm-read)",
                    "no function's entry shows a frame that XDP has put into the tap",
                    "tx of the tap, then nic-rx of the guest",
                ));
                all.push(gap(
                    inward,
                    "frames that a full tap drops",
                    "XDP frees them without the tracepoint of drops; `xdp:xdp_devmap_xmit` counts them",
                    "losses show between tx of the tap and nic-rx of the guest",
                ));
            }
            if modes.tap != XdpMode::Generic {
                all.push(gap(
                    outward,
                    &format!("the sending by {uplink} (tx)"),
                    "each driver has a function of its own for frames that XDP redirects",
                    "vm-write of the tap, then the receiver's nic-rx",
                ));
            }
            all
        }
        Way::OvsAfxdp => {
            let mut all = vec![
                gap(
                    inward,
                    "Open vSwitch's own work",
                    "its datapath is a loop in user space: the kernel never sees the packet there",
                    "xsk-rx of the uplink, then the next point",
                ),
                gap(
                    outward,
                    &format!("the sending by {uplink} (tx)"),
                    "an AF_XDP socket sends without the stack's functions",
                    "the last point before, then the receiver's nic-rx",
                ),
            ];
            if topology.has_vhost_user() {
                let why = "Open vSwitch copies packets into and out of the guest's memory itself (vhost-user)";
                all.push(gap(
                    inward,
                    "the hand-over to the guest",
                    why,
                    "xsk-rx of the uplink, then nic-rx of the guest",
                ));
                all.push(gap(outward, "all of the host", why, "tx of the guest, then the receiver's nic-rx"));
            }
            all
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_model::PointKind;

    #[test]
    fn each_kind_of_point_exists() {
        for way in Way::ALL {
            let topology = Topology::parse("x.toml".as_ref(), &crate::example(way)).unwrap();
            for mode in [XdpMode::Native, XdpMode::Generic] {
                let modes = Modes { uplink: mode, tap: mode };
                let all = points(&topology, &[("relay".into(), "vnet0".into())], modes);
                for point in all {
                    let (kind, _) = point.point.strip_prefix("host/").unwrap().split_once('@').unwrap();
                    assert!(PointKind::ALL.iter().any(|known| known.name() == kind), "{kind}");
                }
            }
        }
    }
}
