//! What the queueing disciplines of a namespace's devices dropped.

use crate::{
    netlink::{attributes, u32_at, Socket},
    Netns, Result,
};
use nix::sys::socket::SockProtocol;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

const WHAT: &str = "list queueing disciplines (rtnetlink)";
/// include/uapi/linux/rtnetlink.h, pkt_sched.h, gen_stats.h
const NEW_QDISC: u16 = 36;
const GET_QDISC: u16 = 38;
const TC_MESSAGE: usize = 20;
const ROOT: u32 = 0xffff_ffff;
const INGRESS: u32 = 0xffff_fff1;
const STATISTICS: u16 = 7;
const QUEUE: u16 = 3;

/// What was dropped where packets wait for a device or come from it. The kernel counts in 32 bits, which wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queueing {
    /// By the queueing discipline, with all that are below it.
    pub dropped: u32,
    /// By filters and actions at ingress (and egress, of clsact).
    pub ingress_dropped: u32,
}

impl Queueing {
    /// What was dropped since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            dropped: self.dropped.wrapping_sub(earlier.dropped),
            ingress_dropped: self.ingress_dropped.wrapping_sub(earlier.ingress_dropped),
        }
    }
}

/// By device index. Devices without a queueing discipline are missing.
pub fn queueing(netns: &Netns) -> Result<HashMap<u32, Queueing>> {
    let socket = Socket::open(netns, SockProtocol::NetlinkRoute, WHAT)?;
    let mut found: HashMap<u32, Queueing> = HashMap::new();
    for message in socket.list(GET_QDISC, &[0; TC_MESSAGE])?.iter().filter(|m| m.kind == NEW_QDISC) {
        let Some((ifindex, parent, drops)) = qdisc(&message.payload) else { continue };
        match parent {
            // A root's count has its children's in it.
            ROOT => found.entry(ifindex).or_default().dropped = drops,
            INGRESS => found.entry(ifindex).or_default().ingress_dropped = drops,
            _ => {}
        }
    }
    Ok(found)
}

/// Device, parent, drops.
fn qdisc(payload: &[u8]) -> Option<(u32, u32, u32)> {
    let statistics = attributes(payload.get(TC_MESSAGE..)?).find(|(kind, _)| *kind == STATISTICS)?.1;
    let queue = attributes(statistics).find(|(kind, _)| *kind == QUEUE)?.1;
    Some((u32_at(payload, 4)?, u32_at(payload, 12)?, u32_at(queue, 8)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    #[test]
    fn drops_are_read_from_a_message() {
        let mut bytes: Vec<u8> = [0u32, 7, 0x8001_0000, ROOT, 2].into_iter().flat_map(u32::to_ne_bytes).collect();
        let queue: Vec<u8> = [3u32, 300, 42, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        bytes.extend(attribute(STATISTICS, &attribute(QUEUE, &queue)));
        assert_eq!(qdisc(&bytes), Some((7, ROOT, 42)));
        assert_eq!(qdisc(&bytes[..TC_MESSAGE]), None);
        assert_eq!(qdisc(&bytes[..3]), None);
    }

    #[test]
    fn a_count_that_wrapped_goes_on() {
        let (then, now) =
            (Queueing { dropped: u32::MAX, ..Queueing::default() }, Queueing { dropped: 4, ..Queueing::default() });
        assert_eq!(now.since(&then).dropped, 5);
    }
}
