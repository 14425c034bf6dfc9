//! How the class of a VM's frames is carried across its tap. A tap passes bytes only: it loses the priority of a packet
//! (`skb->priority`) but keeps the priority in a VLAN tag (PCP). A filter on the tap, or on the device with the gates,
//! can restore the former from the latter.

use crate::{Schedule, Stream};
use latpath_net::PriorityFilter;
use schemars::JsonSchema;
use serde::Serialize;

/// A device through which frames of VMs enter the host, with what the check needs of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tap {
    /// Name of the device.
    pub device: String,
    /// Whether it already has the qdisc needed for filters (`clsact` or `ingress`); `None` if the device does not exist
    /// here.
    pub has_clsact: Option<bool>,
    /// Its filters that set priorities.
    pub filters: Vec<PriorityFilter>,
}

/// The class of a VM's frames on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Crossing {
    /// The stream.
    pub stream: String,
    /// The tap through which its frames enter the host.
    pub from: String,
    /// Priority in their VLAN tag; null if they have no tag.
    pub pcp: Option<u8>,
    /// Their priority at the gates (`skb->priority`); null if it depends on a tap that does not exist here.
    pub priority: Option<u32>,
    /// The class of that priority; null if it is unknown.
    pub class: Option<String>,
}

/// The classes of the streams that enter through taps. `sent`: the device's egress filters, which packets pass before
/// its gates.
pub(crate) fn crossings(schedule: &Schedule, taps: &[Tap], sent: &[PriorityFilter]) -> Vec<Crossing> {
    let of = |stream: &Stream| {
        let from = stream.from.clone()?;
        let tap = taps.iter().find(|tap| tap.device == from).filter(|tap| tap.has_clsact.is_some());
        let behind_tap = tap.map(|tap| set_by(&tap.filters, stream.pcp).unwrap_or(0));
        let priority = set_by(sent, stream.pcp).or(behind_tap);
        let class = priority.map(|priority| schedule.classes[class_of(schedule, priority)].name.clone());
        Some(Crossing { stream: stream.name.clone(), from, pcp: stream.pcp, priority, class })
    };
    schedule.streams.iter().filter_map(of).collect()
}

/// The priority that filters give to frames with this PCP.
fn set_by(filters: &[PriorityFilter], pcp: Option<u8>) -> Option<u32> {
    let matches = |filter: &&PriorityFilter| filter.pcp.is_none() || filter.pcp == pcp;
    filters.iter().find(matches).map(|filter| filter.priority)
}

/// The class of a priority; only its lowest four bits are used (net/sched).
fn class_of(schedule: &Schedule, priority: u32) -> usize {
    usize::from(schedule.of_priority[priority as usize & 15])
}

/// Why a stream does not keep its class across its tap, with the remedy: a fault, or a warning if the tap is not on
/// this machine.
pub(crate) fn problem(schedule: &Schedule, stream: &Stream, crossing: &Crossing, tap: Option<&Tap>) -> Option<Problem> {
    let (from, class) = (&crossing.from, &schedule.classes[stream.class].name);
    let wanted = (0_u8..16).find(|priority| usize::from(schedule.of_priority[usize::from(*priority)]) == stream.class);
    let Some(wanted) = wanted else {
        return Some(Problem::Fault(format!("no priority belongs to its class {class}; write priorities = [N] there")));
    };
    let reached = crossing.priority.map(|priority| class_of(schedule, priority));
    if reached == Some(stream.class) {
        return None;
    }
    let Some(pcp) = crossing.pcp else {
        return Some(Problem::Fault(format!(
            "its frames enter by {from}, and a tap loses the priority that they have in the VM: without a VLAN tag nothing tells their \
             class; let the talker send --vlan VID --pcp N, and write pcp = N"
        )));
    };
    let has_clsact = tap.and_then(|tap| tap.has_clsact);
    let clsact = if has_clsact == Some(true) { String::new() } else { format!("tc qdisc add dev {from} clsact; ") };
    let command = format!(
        "{clsact}tc filter add dev {from} ingress protocol 802.1Q flower vlan_prio {pcp} action skbedit priority {wanted}"
    );
    Some(match (crossing.priority, &crossing.class) {
        (Some(priority), Some(other)) => Problem::Fault(format!(
            "its frames enter by {from} with PCP {pcp}, and have priority {priority} behind it: they belong to class {other}, not \
             {class}; set it: {command}"
        )),
        _ => Problem::Warning(format!("{from} does not exist here, so its filters were not checked; they need: {command}")),
    })
}

/// A problem with a crossing, as a sentence.
pub(crate) enum Problem {
    Fault(String),
    Warning(String),
}
