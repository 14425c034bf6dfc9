//! The expected cause of each fault.

use latpath_cause::{Actor, Attribution, Cause, CauseShare, Rival};
use latpath_model::{Ns, HOST};

/// The guest's machine name.
pub const GUEST: &str = "guest0";

/// The expected culprit.
#[derive(Clone, Copy, Debug)]
pub struct Blame {
    /// Name of the fault, for messages.
    pub fault: &'static str,
    /// The expected causes; any of them is right.
    pub causes: Causes,
    /// Machine of the expected cause.
    pub machine: &'static str,
    /// Prefixes of the culprit's name; for a cause without a culprit, of the delayed actor's name.
    pub who: &'static [&'static str],
}

/// Causes that a fault may have.
#[derive(Clone, Copy, Debug)]
pub enum Causes {
    These(&'static [Cause]),
    /// All causes that this kind of rival can produce, according to the table of causes.
    Of(Rival),
}

impl Causes {
    /// Whether `cause` is one of these.
    pub fn include(self, cause: Cause) -> bool {
        match self {
            Self::These(causes) => causes.contains(&cause),
            Self::Of(rival) => cause.info().rivals.contains(&rival),
        }
    }
}

const WAITS: Causes = Causes::Of(Rival::Threads);
const INTERRUPTS: Causes = Causes::Of(Rival::Interrupts);
const ANYONE: &[&str] = &[""];

const fn of(fault: &'static str, causes: Causes, machine: &'static str, who: &'static [&'static str]) -> Blame {
    Blame { fault, causes, machine, who }
}

pub const HOG: Blame = of("hog", WAITS, HOST, &["hog"]);
pub const CROWD: Blame = of("crowd", WAITS, HOST, &["crowd"]);
pub const STORM: Blame = of("storm", INTERRUPTS, HOST, &["timer"]);
pub const DEVICE: Blame = of("device's interrupt", INTERRUPTS, HOST, &["irq"]);
pub const FLOOD: Blame = of("flood", INTERRUPTS, HOST, &["softirq NET_RX", "ksoftirqd"]);
pub const SLEEPER: Blame = of("sleeper", Causes::These(&[Cause::PollInterval]), HOST, &["relay"]);
pub const BURST: Blame = of("burst", Causes::These(&[Cause::QueuedBehind]), HOST, &["relay"]);
pub const GATE: Blame = of("gate", Causes::These(&[Cause::QdiscHeld]), HOST, ANYONE);
pub const STOP: Blame = of("stop", Causes::These(&[Cause::Stopped]), HOST, ANYONE);
pub const HALT: Blame = of("halt", Causes::These(&[Cause::VcpuHalted]), HOST, ANYONE);
/// CPU time that the kernel reserves for ordinary threads: it appears as real-time throttling, or as a wait while an
/// ordinary thread runs.
pub const FAIR_SERVER: Blame =
    of("fair server", Causes::These(&[Cause::WaitingForCpu, Cause::VcpuPreempted, Cause::Throttled]), HOST, ANYONE);
pub const THROTTLE: Blame = of("throttle", Causes::These(&[Cause::Throttled]), HOST, ANYONE);
/// The application itself, in any of its activities.
pub const OWN: Blame = of("own work", Causes::These(&[Cause::Work]), HOST, &["relay"]);
pub const FAULTS: Blame = of("page faults", Causes::These(&[Cause::Work]), HOST, &["relay"]);
/// Part of the time is spent waiting, partly for the kernel thread that reclaims memory.
pub const RECLAIM: Blame = of("reclaim", Causes::These(&[Cause::Work, Cause::Blocked]), HOST, ANYONE);
pub const SERVER: Blame = of("server", Causes::These(&[Cause::PollInterval]), HOST, &["server"]);
pub const HOLDER: Blame = of("lock", Causes::These(&[Cause::Work]), HOST, &["holder"]);
pub const IO: Blame = of("block I/O", Causes::These(&[Cause::Blocked]), HOST, ANYONE);
pub const GUEST_HOG: Blame = of("guest hog", WAITS, GUEST, &["hog"]);
pub const GUEST_CROWD: Blame = of("guest crowd", WAITS, GUEST, &["crowd"]);
pub const GUEST_STORM: Blame = of("guest storm", INTERRUPTS, GUEST, &["timer"]);
pub const GUEST_SLEEPER: Blame = of("guest sleeper", Causes::These(&[Cause::PollInterval]), GUEST, &["relay"]);
/// The hog runs on the CPU of the vCPU's thread.
pub const VCPU: Blame = of("vcpu", WAITS, HOST, &["hog"]);
pub const SWITCH_STARVED: Blame = of("switch starved", WAITS, HOST, &["hog"]);
/// Open vSwitch's daemon, any of its threads.
pub const UPCALL: Blame = of("upcall", Causes::These(&[Cause::Upcall]), HOST, ANYONE);
/// The application's CPU, which is otherwise idle.
pub const IDLE: Blame = of("idle", Causes::These(&[Cause::IdleExit]), HOST, &["idle"]);

impl Blame {
    /// Part of a cause's excess due to this culprit, ns.
    fn hop(&self, held: &CauseShare) -> Ns {
        if !self.causes.include(held.cause) || held.machine != self.machine {
            return 0;
        }
        let named = |name: &str| self.who.iter().any(|who| name.starts_with(who));
        // A thread ends its poll interval itself, by its own timer; the actor is then the culprit.
        if held.by.is_empty() || held.cause == Cause::PollInterval {
            let actor = held.actor.as_ref().is_some_and(|a| named(&a.name));
            return if actor { held.excess_ns } else { 0 };
        }
        // A culprit is a process, and the faulty thread in it may have another name.
        let is_named = |actor: &Actor| named(&actor.name) || actor.threads.iter().any(|thread| named(thread));
        let by: Ns = held.by.iter().filter(|(actor, _)| is_named(actor)).map(|(_, ns)| ns).sum();
        (i128::from(held.excess_ns) * i128::from(by) / i128::from(held.time_ns.max(1))) as Ns
    }

    /// Whether the culprit accounts for most of the first cause.
    pub fn is_first(&self, attribution: &Attribution) -> bool {
        attribution.first().is_some_and(|held| self.hop(held) * 2 > held.excess_ns)
    }

    /// The culprit's share of the excess, %.
    pub fn share(&self, attribution: &Attribution) -> Ns {
        attribution.shares.iter().map(|held| self.hop(held)).sum::<Ns>() * 100 / attribution.excess_ns.max(1)
    }
}
