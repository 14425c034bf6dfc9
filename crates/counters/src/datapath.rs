//! Open vSwitch's datapaths in the kernel, read via generic netlink: no Open vSwitch program is needed.

use latpath_model::text::of_field;
use latpath_net::{
    list_of_family,
    netlink::{attributes, u64_at},
    Netns, Result, GENERIC_HEADER,
};
use serde::{Deserialize, Serialize};

const WHAT: &str = "list datapaths of Open vSwitch (generic netlink)";
/// include/uapi/linux/openvswitch.h
const FAMILY: &[u8] = b"ovs_datapath\0";
const GET_DATAPATH: u8 = 3;
const OVS_HEADER: usize = 4;
const NAME: u16 = 1;
const STATISTICS: u16 = 3;

/// Counters of a datapath since its creation (struct ovs_dp_stats).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datapath {
    /// The datapath's own device: `ovs-system`.
    pub name: String,
    /// Number of packets that matched a flow.
    pub hit: u64,
    /// Number of packets without a matching flow: each causes an upcall.
    pub missed: u64,
    /// Number of upcalls, including those caused by a flow's action, that did not reach ovs-vswitchd because its queue
    /// was full or no process was listening. Their packets are lost.
    pub lost: u64,
    /// Number of flows in the kernel's table.
    pub flows: u64,
}

/// Lists the datapaths of a namespace; empty if the kernel has no Open vSwitch.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel does not list its datapaths.
pub fn datapaths(netns: &Netns) -> Result<Vec<Datapath>> {
    let answer = list_of_family(netns, WHAT, FAMILY, (GET_DATAPATH, 2), &[0; OVS_HEADER])?;
    Ok(answer.iter().filter_map(|message| datapath(&message.payload)).collect())
}

fn datapath(payload: &[u8]) -> Option<Datapath> {
    let mut found = Datapath::default();
    for (kind, value) in attributes(payload.get(GENERIC_HEADER + OVS_HEADER..)?) {
        match kind {
            NAME => found.name = of_field(value).into(),
            STATISTICS => {
                let number = |place: usize| u64_at(value, 8 * place).unwrap_or(0);
                (found.hit, found.missed, found.lost, found.flows) = (number(0), number(1), number(2), number(3));
            }
            _ => {}
        }
    }
    (!found.name.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_net::netlink::attribute;

    #[test]
    fn a_datapath_is_read_from_its_message() {
        let mut bytes = vec![0; GENERIC_HEADER + OVS_HEADER];
        bytes.extend(attribute(NAME, b"ovs-system\0"));
        bytes.extend(attribute(
            STATISTICS,
            &[15u64, 2, 1, 4].into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<_>>(),
        ));
        let requested = Datapath { name: "ovs-system".into(), hit: 15, missed: 2, lost: 1, flows: 4 };
        assert_eq!(datapath(&bytes), Some(requested));
        assert_eq!(datapath(&bytes[..7]), None);
    }

    #[test]
    fn a_namespace_without_open_vswitch_has_no_datapath() {
        // This machine may have datapaths, which then have names.
        assert!(datapaths(&Netns::own().unwrap()).unwrap().iter().all(|d| !d.name.is_empty()));
    }
}
