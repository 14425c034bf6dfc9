//! Why Open vSwitch had no flow for a packet, and how long each part of the packet's visit to ovs-vswitchd took.

use crate::{machine::Machine, Executor};
use latpath_flight::{FlowLimits, FlowState, Removal, State, Upcall};
use latpath_model::Ns;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum time between a sighting and the record of the same upcall, ns: programs at the same tracepoint take both,
/// but an interrupt may come between them.
const SAME: Ns = 200_000;
/// Tolerance of idle times, ns: Open vSwitch compares times in ms, and the kernel keeps a flow's last use in ticks of
/// at most 10 ms.
const SLACK: Ns = 20_000_000;
/// Idle time, ns, after which flows are removed while a datapath has more than `flow-limit`
/// (ofproto/ofproto-dpif-upcall.c).
const IDLE_OVER_LIMIT: Ns = 100_000_000;

macro_rules! reasons {
    ($($variant:ident $id:literal $short:literal $sentence:literal)*) => {
        /// Why a datapath had no flow for a packet, as deduced from the record. Names are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum NoFlow {
            $(#[doc = $sentence] $variant,)*
        }

        impl NoFlow {
            /// All reasons, in the order of docs/explain.md.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name in JSON.
            pub fn id(self) -> &'static str {
                match self {
                    $(Self::$variant => $id,)*
                }
            }

            /// The reason in a few words, for lists.
            pub fn short(self) -> &'static str {
                match self {
                    $(Self::$variant => $short,)*
                }
            }

            /// The reason as a clause.
            pub fn clause(self) -> &'static str {
                match self {
                    $(Self::$variant => $sentence,)*
                }
            }
        }
    };
}

// Variant, name in JSON, short form, clause
reasons! {
    NeverThere "never-there" "no flow before" "no flow had been there for it"
    Idle "idle" "idle flow removed" "its flow had been removed as idle"
    Revalidated "revalidated" "rules or ports changed" "its flow had been removed while in use, since rules or ports had changed"
    FlowLimit "flow-limit" "too many flows" "its flow had been removed because the datapath had too many"
    Emptied "emptied" "table emptied" "all flows had been removed at once"
    Purged "purged" "removed by ovs-vswitchd" "ovs-vswitchd had removed its flow outside its checks: by a command, or for a port"
    Deleted "deleted" "removed by a program" "another program had removed its flow"
    Installed "installed" "flow being installed" "its flow was just being installed"
    Unknown "unknown" "unknown" "what became of its flow is not known"
}

impl fmt::Display for NoFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl NoFlow {
    /// Deduces the reason from the record of an upcall.
    pub fn of(upcall: &Upcall, limits: FlowLimits) -> Self {
        let removal = match &upcall.flow {
            FlowState::Unknown => return Self::Unknown,
            FlowState::NeverThere { .. } => return Self::NeverThere,
            FlowState::Installed { .. } => return Self::Installed,
            FlowState::Removed(removal) => removal,
        };
        let name = removal.by.name.as_str();
        match () {
            () if removal.all => Self::Emptied,
            () if name.starts_with("revalidator") => Self::of_revalidator(removal, limits),
            () if name.starts_with("ovs-vswitchd") || name.starts_with("handler") => Self::Purged,
            () => Self::Deleted,
        }
    }

    /// The rules of Open vSwitch's revalidators (ofproto/ofproto-dpif-upcall.c): with more flows than twice the limit,
    /// they remove all of them; otherwise, those idle for `max-idle` (or for 100 ms, above the limit), and those whose
    /// actions or masks no longer match the rules.
    fn of_revalidator(removal: &Removal, limits: FlowLimits) -> Self {
        let flows = u64::from(removal.flows);
        let Some(idle) = removal.idle_ns.map(|idle| idle.saturating_add(SLACK)) else { return Self::Unknown };
        match () {
            () if flows > limits.flow_limit.saturating_mul(2) => Self::FlowLimit,
            () if idle >= limits.max_idle_ns => Self::Idle,
            () if flows > limits.flow_limit && idle >= IDLE_OVER_LIMIT => Self::FlowLimit,
            () => Self::Revalidated,
        }
    }
}

/// A packet's visit to ovs-vswitchd. Times are on the host's timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonVisit {
    /// Index of the machine in the capture.
    pub machine: usize,
    /// Why no flow matched.
    pub reason: NoFlow,
    /// The record of the upcall, from which the reason is deduced.
    pub upcall: Upcall,
    /// Open vSwitch's flow limits, if Open vSwitch was queried and replied; otherwise its defaults were assumed.
    pub limits: Option<FlowLimits>,
    /// The parts of the visit's time; `None` if they were not recorded.
    pub parts: Option<VisitParts>,
}

/// The parts of the time from the upcall to the packet's return to the datapath. Their sum is exactly that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisitParts {
    /// The thread of ovs-vswitchd that handled the packet.
    pub handler: Executor,
    /// Time from the upcall until the handler had read it, ns.
    pub to_daemon_ns: Ns,
    /// Part of `to_daemon_ns` in which the handler slept, ns. `ready_ns`: in which it was ready without a CPU;
    /// `running_ns`: in which it ran. The rest was not recorded.
    pub asleep_ns: Ns,
    /// See `asleep_ns`.
    pub ready_ns: Ns,
    /// See `asleep_ns`.
    pub running_ns: Ns,
    /// Time from the read until the handler began to send its reply, ns.
    pub in_daemon_ns: Ns,
    /// Time from the reply until the datapath began to execute the reply's actions on the packet, ns.
    pub to_kernel_ns: Ns,
}

impl Machine {
    /// The record of the upcall that a CPU made at a time.
    pub fn upcall_at(&self, cpu: u32, t: Ns) -> Option<&Upcall> {
        let apart = |upcall: &&Upcall| upcall.t.saturating_sub(t).saturating_abs();
        let here = self.upcalls.iter().filter(|upcall| upcall.cpu == cpu);
        here.min_by_key(apart).filter(|upcall| apart(upcall) <= SAME)
    }

    /// The parts of a visit from `a` to `b`; `None` unless the same thread read the upcall and returned the packet.
    pub fn visit_parts(&self, upcall: &Upcall, a: Ns, b: Ns, returned_by: Option<u32>) -> Option<VisitParts> {
        let (pid, read) = upcall.read.filter(|(pid, _)| returned_by == Some(*pid))?;
        let answered = upcall.answered?;
        if !(a <= read && read <= answered && answered <= b) {
            return None;
        }
        let (mut asleep_ns, mut ready_ns, mut running_ns) = (0, 0, 0);
        for tile in self.row(pid).iter() {
            let ns = tile.to.min(read).saturating_sub(tile.from.max(a)).max(0);
            match tile.state {
                State::Asleep(_) => asleep_ns += ns,
                State::Ready { .. } => ready_ns += ns,
                State::Running { .. } => running_ns += ns,
                State::Unknown => {}
            }
        }
        Some(VisitParts {
            handler: self.thread(pid, read),
            to_daemon_ns: read - a,
            asleep_ns,
            ready_ns,
            running_ns,
            in_daemon_ns: answered - read,
            to_kernel_ns: b - answered,
        })
    }
}

/// Converts an upcall's times with `own`.
pub(crate) fn shifted(upcall: &Upcall, own: impl Fn(Ns) -> Ns) -> Upcall {
    let flow = match upcall.flow.clone() {
        FlowState::Unknown => FlowState::Unknown,
        FlowState::NeverThere { since } => FlowState::NeverThere { since: own(since) },
        FlowState::Installed { at } => FlowState::Installed { at: own(at) },
        FlowState::Removed(removal) => {
            FlowState::Removed(Removal { at: own(removal.at), installed: removal.installed.map(&own), ..removal })
        }
    };
    let read = upcall.read.map(|(pid, t)| (pid, own(t)));
    Upcall { t: own(upcall.t), read, answered: upcall.answered.map(&own), flow, ..*upcall }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_flight::Thread;

    const S: Ns = 1_000_000_000;
    const MS: Ns = 1_000_000;

    fn removed(name: &str, idle: Option<Ns>, flows: u32) -> Removal {
        let by = Thread { name: name.into(), tgid: 900 };
        Removal { at: 0, pid: 911, by, flows, all: false, installed: None, packets: Some(5), idle_ns: idle }
    }

    fn of(flow: FlowState, limits: FlowLimits) -> NoFlow {
        let upcall = Upcall { t: S, cpu: 0, flows: 3, flow, missed_before: 0, read: None, answered: None };
        NoFlow::of(&upcall, limits)
    }

    fn reason(removal: Removal) -> NoFlow {
        of(FlowState::Removed(removal), FlowLimits::default())
    }

    #[test]
    fn a_flow_without_packets_for_max_idle_was_idle_and_one_in_use_was_revalidated() {
        let by_revalidator = |idle, flows| reason(removed("revalidator5", Some(idle), flows));
        assert_eq!(by_revalidator(10 * S + 300 * MS, 12), NoFlow::Idle);
        assert_eq!(by_revalidator(10 * S - 8 * MS, 12), NoFlow::Idle, "the kernel's time is rounded to its tick");
        assert_eq!(by_revalidator(9 * S, 12), NoFlow::Revalidated);
        assert_eq!(by_revalidator(4 * MS, 12), NoFlow::Revalidated);
        let short = FlowLimits { max_idle_ns: 500 * MS, ..FlowLimits::default() };
        let idle = FlowState::Removed(removed("revalidator5", Some(700 * MS), 12));
        assert_eq!(of(idle, short), NoFlow::Idle, "max-idle is Open vSwitch's setting");
    }

    #[test]
    fn beyond_the_limit_flows_are_removed_sooner() {
        let by_revalidator = |idle, flows| reason(removed("revalidator5", Some(idle), flows));
        assert_eq!(by_revalidator(150 * MS, 200_001), NoFlow::FlowLimit);
        assert_eq!(by_revalidator(4 * MS, 200_001), NoFlow::Revalidated, "it was in use");
        assert_eq!(by_revalidator(4 * MS, 400_001), NoFlow::FlowLimit, "all are removed");
        assert_eq!(by_revalidator(11 * S, 200_001), NoFlow::Idle, "it would have been removed anyway");
    }

    #[test]
    fn the_removing_thread_says_whose_doing_it_was() {
        assert_eq!(reason(removed("ovs-vswitchd", Some(MS), 3)), NoFlow::Purged);
        assert_eq!(reason(removed("ovs-dpctl", Some(MS), 3)), NoFlow::Deleted);
        assert_eq!(reason(Removal { all: true, ..removed("ovs-dpctl", None, 3) }), NoFlow::Emptied);
        assert_eq!(reason(removed("revalidator5", None, 3)), NoFlow::Unknown, "its last use is not known");
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let of = |flow| of(flow, FlowLimits::default());
        assert_eq!(of(FlowState::Unknown), NoFlow::Unknown);
        assert_eq!(of(FlowState::NeverThere { since: 0 }), NoFlow::NeverThere);
        assert_eq!(of(FlowState::Installed { at: S }), NoFlow::Installed);
    }

    #[test]
    fn the_page_has_each_reason_with_its_clause() {
        let page = include_str!("../../../docs/explain.md");
        for reason in NoFlow::ALL {
            assert!(page.contains(&format!("| `{reason}` | {} |", reason.clause())), "docs/explain.md lacks {reason}");
        }
    }
}
