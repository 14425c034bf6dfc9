//! The queueing disciplines of a namespace's devices: what kinds they are, and what they dropped.

use crate::{
    netlink::{attributes, u32_at, Socket},
    Netns, Result,
};
use latpath_model::text::of_field;
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
const KIND: u16 = 1;
const STATISTICS: u16 = 7;
const QUEUE: u16 = 3;

/// Where packets wait for a device or come from it: what kinds of queueing disciplines there are, and what was dropped. The kernel counts
/// in 32 bits, which wrap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queueing {
    /// The kind of the device's queueing discipline, then those below it, each once: `mq`, `fq_codel`. Of some time, those that the device
    /// had during it.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// By the queueing discipline, with all that are below it.
    pub dropped: u32,
    /// By filters and actions at ingress (and egress, of clsact).
    pub ingress_dropped: u32,
}

impl Queueing {
    /// What was dropped since `earlier`, and the kinds at both times.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut kinds = self.kinds.clone();
        earlier.kinds.iter().for_each(|kind| add_kind(&mut kinds, kind));
        Self {
            kinds,
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
        let Some(qdisc) = Qdisc::read(&message.payload) else { continue };
        let of_device = found.entry(qdisc.ifindex).or_default();
        match (qdisc.parent, qdisc.dropped) {
            // A root's count has its children's in it.
            (ROOT, dropped) => {
                of_device.dropped = dropped.unwrap_or(0);
                let below = std::mem::take(&mut of_device.kinds);
                [qdisc.kind].iter().chain(&below).for_each(|kind| add_kind(&mut of_device.kinds, kind));
            }
            (INGRESS, dropped) => of_device.ingress_dropped = dropped.unwrap_or(0),
            _ => add_kind(&mut of_device.kinds, &qdisc.kind),
        }
    }
    Ok(found)
}

fn add_kind(kinds: &mut Vec<String>, kind: &str) {
    if !kind.is_empty() && !kinds.iter().any(|known| known == kind) {
        kinds.push(kind.into());
    }
}

/// One queueing discipline of a device.
#[derive(Debug, PartialEq, Eq)]
struct Qdisc {
    ifindex: u32,
    parent: u32,
    kind: String,
    /// `None` where it counts nothing.
    dropped: Option<u32>,
}

impl Qdisc {
    /// Reads one RTM_NEWQDISC.
    fn read(payload: &[u8]) -> Option<Self> {
        let all = || attributes(payload.get(TC_MESSAGE..).unwrap_or_default());
        let of = |wanted: u16| all().find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
        let queue = of(STATISTICS).and_then(|statistics| attributes(statistics).find(|(kind, _)| *kind == QUEUE));
        Some(Self {
            ifindex: u32_at(payload, 4)?,
            parent: u32_at(payload, 12)?,
            kind: of(KIND).map_or(String::new(), |kind| of_field(kind).into()),
            dropped: queue.and_then(|(_, queue)| u32_at(queue, 8)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    #[test]
    fn kind_and_drops_are_read_from_a_message() {
        let mut bytes: Vec<u8> = [0u32, 7, 0x8001_0000, ROOT, 2].into_iter().flat_map(u32::to_ne_bytes).collect();
        let queue: Vec<u8> = [3u32, 300, 42, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        bytes.extend(attribute(KIND, b"tbf\0"));
        bytes.extend(attribute(STATISTICS, &attribute(QUEUE, &queue)));
        let read = |kind: &str, dropped| Some(Qdisc { ifindex: 7, parent: ROOT, kind: kind.into(), dropped });
        assert_eq!(Qdisc::read(&bytes), read("tbf", Some(42)));
        assert_eq!(Qdisc::read(&bytes[..TC_MESSAGE]), read("", None));
        assert_eq!(Qdisc::read(&bytes[..3]), None);
    }

    #[test]
    fn the_kinds_of_some_time_are_those_at_its_end_and_those_that_were_taken_off() {
        let of =
            |kinds: &[&str]| Queueing { kinds: kinds.iter().map(ToString::to_string).collect(), ..Queueing::default() };
        assert_eq!(of(&["mq", "fq_codel"]).since(&of(&["tbf", "fq_codel"])), of(&["mq", "fq_codel", "tbf"]));
    }

    #[test]
    fn a_count_that_wrapped_goes_on() {
        let (then, now) =
            (Queueing { dropped: u32::MAX, ..Queueing::default() }, Queueing { dropped: 4, ..Queueing::default() });
        assert_eq!(now.since(&then).dropped, 5);
    }
}
