//! Filters on a device that set the priority of packets (tc-flower(8), tc-matchall(8) with tc-skbedit(8)).

use crate::{
    netlink::{attributes, find_attribute, u32_at, Socket},
    Netns, Result,
};
use latpath_model::text::of_field;
use nix::sys::socket::SockProtocol;

const WHAT: &str = "list filters (rtnetlink)";
/// include/uapi/linux/rtnetlink.h
const NEW_FILTER: u16 = 44;
const GET_FILTER: u16 = 46;
const TC_MESSAGE: usize = 20;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)` and `…_EGRESS`
const RECEIVED: u32 = 0xffff_fff2;
const SENT: u32 = 0xffff_fff3;
/// include/uapi/linux/rtnetlink.h, pkt_cls.h, tc_act/tc_skbedit.h
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const FLOWER_ACTIONS: u16 = 3;
const FLOWER_VLAN_PRIORITY: u16 = 24;
const MATCHALL_ACTIONS: u16 = 2;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const SKBEDIT_PRIORITY: u16 = 3;

/// The packets to which filters apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterHook {
    /// Packets that the device has received.
    Received,
    /// Packets to be sent, before the queueing discipline.
    Sent,
}

/// A filter that gives packets a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityFilter {
    /// The filter's preference (`pref`): of the filters that match a packet, the one with the lowest value applies.
    pub order: u16,
    /// Required priority in the VLAN tag of packets; `None` if the filter has no such condition. The filter may have
    /// other conditions.
    pub pcp: Option<u8>,
    /// The priority that matching packets get (`skb->priority`).
    pub priority: u32,
}

impl PriorityFilter {
    /// Parses one RTM_NEWTFILTER; `None` for a filter that sets no priority.
    fn read(payload: &[u8]) -> Option<Self> {
        let order = u32_at(payload, 16)?;
        let of = |wanted| find_attribute(payload.get(TC_MESSAGE..).unwrap_or_default(), wanted);
        let (kind, options) = (of_field(of(KIND)?), of(OPTIONS)?);
        let (actions, pcp) = match &*kind {
            "flower" => (FLOWER_ACTIONS, find_attribute(options, FLOWER_VLAN_PRIORITY)),
            "matchall" => (MATCHALL_ACTIONS, None),
            _ => return None,
        };
        let sets = |(_, action): (u16, &[u8])| {
            let is_it = find_attribute(action, ACTION_KIND).is_some_and(|kind| of_field(kind) == "skbedit");
            let options = find_attribute(action, ACTION_OPTIONS).filter(|_| is_it)?;
            u32_at(find_attribute(options, SKBEDIT_PRIORITY)?, 0)
        };
        let priority = attributes(find_attribute(options, actions)?).find_map(sets)?;
        // The filter's preference is the upper half of tcm_info; the lower half is the protocol.
        Some(Self { order: (order >> 16) as u16, pcp: pcp.and_then(|pcp| pcp.first().copied()), priority })
    }
}

/// The filters on a device that give packets a priority, in the order in which the kernel tries them.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel does not list them.
pub fn priority_filters(netns: &Netns, ifindex: u32, hook: FilterHook) -> Result<Vec<PriorityFilter>> {
    let parent = match hook {
        FilterHook::Received => RECEIVED,
        FilterHook::Sent => SENT,
    };
    let socket = Socket::open(netns, SockProtocol::NetlinkRoute, WHAT)?;
    let mut request = [0; TC_MESSAGE];
    request[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    request[12..16].copy_from_slice(&parent.to_ne_bytes());
    let answer = socket.list(GET_FILTER, &request)?;
    let filters = answer.iter().filter(|m| m.kind == NEW_FILTER).filter_map(|m| PriorityFilter::read(&m.payload));
    let mut filters: Vec<_> = filters.collect();
    filters.sort_by_key(|filter| filter.order);
    Ok(filters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{attribute, nested, number, text};
    use proptest::prelude::*;

    fn skbedit(priority: u32) -> Vec<u8> {
        let options = nested(ACTION_OPTIONS, &[number(SKBEDIT_PRIORITY, priority)]);
        nested(1, &[text(ACTION_KIND, "skbedit"), options])
    }

    fn filter(order: u32, kind: &str, options: &[Vec<u8>]) -> Vec<u8> {
        let mut message = vec![0; TC_MESSAGE];
        message[16..20].copy_from_slice(&(order << 16 | 0x0081).to_ne_bytes());
        message.extend(text(KIND, kind));
        message.extend(nested(OPTIONS, options));
        message
    }

    #[test]
    fn filters_that_set_a_priority_are_read() {
        let other = nested(2, &[text(ACTION_KIND, "mirred"), nested(ACTION_OPTIONS, &[number(SKBEDIT_PRIORITY, 9)])]);
        let flower = |actions: &[Vec<u8>]| {
            filter(49_152, "flower", &[nested(FLOWER_ACTIONS, actions), attribute(FLOWER_VLAN_PRIORITY, &[6])])
        };
        let read = PriorityFilter::read(&flower(&[other.clone(), skbedit(3)]));
        assert_eq!(read, Some(PriorityFilter { order: 49_152, pcp: Some(6), priority: 3 }));
        assert_eq!(PriorityFilter::read(&flower(&[other])), None, "another action has no priority");
        let all = filter(1, "matchall", &[nested(MATCHALL_ACTIONS, &[skbedit(7)])]);
        assert_eq!(PriorityFilter::read(&all), Some(PriorityFilter { order: 1, pcp: None, priority: 7 }));
        assert_eq!(PriorityFilter::read(&filter(1, "bpf", &[nested(2, &[skbedit(7)])])), None);
    }

    proptest! {
        #[test]
        fn no_message_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = PriorityFilter::read(&bytes);
        }
    }
}
