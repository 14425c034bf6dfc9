//! Why Open vSwitch had no flow for a packet, as text: the conclusion and its evidence.

use crate::Notation;
use latpath_cause::{DaemonVisit, NoFlow, VisitParts};
use latpath_flight::{FlowState, Removal, Upcall};
use latpath_model::Ns;
use std::collections::BTreeMap;

/// The reason and the evidence for it, as sentences.
pub fn why_no_flow(notation: &Notation, visit: &DaemonVisit) -> String {
    let DaemonVisit { reason, upcall, .. } = visit;
    let before = |t: Ns| notation.duration(upcall.t.saturating_sub(t));
    let is_deduced = matches!(upcall.flow, FlowState::Removed(_)) && *reason != NoFlow::Unknown;
    let mut text = format!("{}{}.", reason.clause(), if is_deduced { " (deduced)" } else { "" });
    text += &match &upcall.flow {
        FlowState::Unknown => " This kernel does not report changes of flows.".to_owned(),
        FlowState::NeverThere { since } => {
            format!(
                " The datapath has had none that matches since {} before, when the record of flows begins.",
                before(*since)
            )
        }
        FlowState::Installed { at } => format!(" It was installed {} before.", before(*at)),
        FlowState::Removed(removal) => format!(" {}", of_removal(notation, visit, removal, before(removal.at))),
    };
    text + &format!(" The table had {}.", notation.number_of(upcall.flows.into(), "flow"))
}

fn of_removal(notation: &Notation, visit: &DaemonVisit, removal: &Removal, before: String) -> String {
    let Upcall { missed_before, .. } = visit.upcall;
    let who = format!("{} ({})", notation.clean(&removal.by.name), removal.pid);
    let flows = notation.number_of(removal.flows.into(), "flow");
    let mut text = match removal.all {
        true => format!("{who} removed all {flows} {before} before"),
        false => format!("{who} removed the flow, one of {}, {before} before", notation.count(removal.flows.into())),
    };
    match (removal.packets, removal.idle_ns) {
        (Some(0), Some(idle)) => {
            text += &format!(", {} after its installation and without a packet", notation.duration(idle))
        }
        (Some(packets), Some(idle)) => {
            let packets = notation.number_of(packets, "packet");
            text += &format!(", {} after the last of its {packets}", notation.duration(idle));
        }
        _ if removal.all && removal.installed.is_none() => {
            text += "; whether one of them was for this packet is not recorded";
        }
        _ => {}
    }
    text += &match (visit.reason, visit.limits) {
        (NoFlow::Idle | NoFlow::Revalidated, Some(limits)) => {
            format!(" (max-idle: {})", notation.duration(limits.max_idle_ns))
        }
        (NoFlow::Idle | NoFlow::Revalidated, None) => {
            " (max-idle: 10 s assumed, ovsdb-server does not answer)".to_owned()
        }
        (NoFlow::FlowLimit, Some(limits)) => format!(" (flow-limit: {})", notation.count(limits.flow_limit)),
        (NoFlow::FlowLimit, None) => " (flow-limit: 200000 assumed, ovsdb-server does not answer)".to_owned(),
        _ => String::new(),
    };
    match missed_before {
        0 => text + ".",
        n => text + &format!("; {} found it missing before this one.", notation.number_of(n, "packet")),
    }
}

/// How a packet's time with ovs-vswitchd was spent; `None` if it was not recorded in detail.
pub fn visit_parts(notation: &Notation, visit: &DaemonVisit) -> Option<String> {
    let VisitParts { handler, to_daemon_ns, asleep_ns, ready_ns, running_ns, in_daemon_ns, to_kernel_ns } =
        visit.parts.as_ref()?;
    let unknown = to_daemon_ns - asleep_ns - ready_ns - running_ns;
    let states = [(*asleep_ns, "asleep"), (*ready_ns, "ready"), (*running_ns, "running"), (unknown, "not recorded")];
    let states: Vec<String> = states
        .iter()
        .filter(|(ns, _)| *ns > 0)
        .map(|(ns, state)| format!("{state} {}", notation.duration(*ns)))
        .collect();
    Some(format!(
        "{} until {} had read it ({}), {} until it answered, {} until the kernel went on with the packet.",
        notation.duration(*to_daemon_ns),
        notation.clean(&handler.name),
        states.join(", "),
        notation.duration(*in_daemon_ns),
        notation.duration(*to_kernel_ns),
    ))
}

/// The reasons, with their number of packets, the most frequent first: `idle flow removed 12, no flow before 3`.
pub fn reasons(notation: &Notation, counts: &BTreeMap<NoFlow, u64>) -> String {
    let mut all: Vec<(&NoFlow, &u64)> = counts.iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let all: Vec<String> =
        all.iter().map(|(reason, count)| format!("{} {}", reason.short(), notation.count(**count))).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_cause::Executor;
    use latpath_flight::{Doing, FlowLimits, Thread};
    use latpath_stats::units::CharacterSet;

    const S: Ns = 1_000_000_000;

    fn visit(flow: FlowState, limits: Option<FlowLimits>) -> DaemonVisit {
        let upcall = Upcall { t: 100 * S, cpu: 1, flows: 11, flow, missed_before: 0, read: None, answered: None };
        let reason = NoFlow::of(&upcall, limits.unwrap_or_default());
        DaemonVisit { machine: 0, reason, upcall, limits, parts: None }
    }

    fn removal() -> Removal {
        let by = Thread { name: "revalidator5".into(), tgid: 900 };
        let (packets, idle_ns) = (Some(4021), Some(10_300_000_000));
        Removal { at: 97 * S, pid: 911, by, flows: 12, all: false, installed: None, packets, idle_ns }
    }

    fn said(visit: &DaemonVisit) -> String {
        why_no_flow(&CharacterSet::Ascii.into(), visit)
    }

    #[test]
    fn the_removal_of_an_idle_flow_is_told_with_its_evidence() {
        assert_eq!(
            said(&visit(FlowState::Removed(removal()), Some(FlowLimits::default()))),
            "its flow had been removed as idle (deduced). revalidator5 (911) removed the flow, one of 12, 3.000 s before, \
             10.30 s after the last of its 4021 packets (max-idle: 10.00 s). The table had 11 flows."
        );
        let assumed = said(&visit(FlowState::Removed(removal()), None));
        assert!(assumed.contains("(max-idle: 10 s assumed, ovsdb-server does not answer)"), "{assumed}");
    }

    #[test]
    fn what_is_not_recorded_of_an_emptied_table_is_said() {
        let by = Thread { name: "ovs-dpctl".into(), tgid: 950 };
        let all = Removal { by, all: true, packets: None, idle_ns: None, ..removal() };
        let mut visit = visit(FlowState::Removed(all), None);
        visit.upcall.missed_before = 2;
        assert_eq!(
            said(&visit),
            "all flows had been removed at once (deduced). ovs-dpctl (911) removed all 12 flows 3.000 s before; whether one \
             of them was for this packet is not recorded; 2 packets found it missing before this one. The table had 11 flows."
        );
    }

    #[test]
    fn a_flow_that_was_never_there_has_the_time_since_which_that_is_known() {
        assert_eq!(
            said(&visit(FlowState::NeverThere { since: 88 * S }, None)),
            "no flow had been there for it. The datapath has had none that matches since 12.00 s before, when the record \
             of flows begins. The table had 11 flows."
        );
    }

    #[test]
    fn the_parts_name_the_handler_and_what_it_did_until_it_read_the_packet() {
        let handler = Executor { name: "handler3 (905)".into(), doing: Doing::Unknown, class: None };
        let parts = VisitParts {
            handler,
            to_daemon_ns: 120_000,
            asleep_ns: 20_000,
            ready_ns: 90_000,
            running_ns: 10_000,
            in_daemon_ns: 80_000,
            to_kernel_ns: 9_000,
        };
        let visit = DaemonVisit { parts: Some(parts), ..visit(FlowState::Unknown, None) };
        assert_eq!(
            visit_parts(&CharacterSet::Ascii.into(), &visit).unwrap(),
            "120.0 us until handler3 (905) had read it (asleep 20.00 us, ready 90.00 us, running 10.00 us), 80.00 us until it \
             answered, 9.000 us until the kernel went on with the packet."
        );
    }

    #[test]
    fn reasons_are_listed_by_their_number() {
        let counts = [(NoFlow::NeverThere, 3), (NoFlow::Idle, 12)].into();
        assert_eq!(reasons(&CharacterSet::Ascii.into(), &counts), "idle flow removed 12, no flow before 3");
    }
}
