//! What must be blamed for each fault.

use latpath_cause::{Actor, Attribution, Cause, CauseShare, Rival};
use latpath_model::{Ns, HOST};

/// The guest's name as a machine.
pub const GUEST: &str = "guest0";

/// The culprit.
#[derive(Clone, Copy, Debug)]
pub struct Blame {
    /// The fault, for those who read what was found.
    pub fault: &'static str,
    /// One of these causes …
    pub causes: Causes,
    /// … on this machine …
    pub machine: &'static str,
    /// … by one whose name begins so. Of a cause that nobody brings about, who had to act is named so.
    pub who: &'static [&'static str],
}

/// The causes that a fault may have.
#[derive(Clone, Copy, Debug)]
pub enum Causes {
    These(&'static [Cause]),
    /// All that such a rival can bring about, by the table of causes.
    Of(Rival),
}

impl Causes {
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
/// What the kernel keeps for ordinary threads: a limit, or a wait behind one of them.
pub const FAIR_SERVER: Blame =
    of("fair server", Causes::These(&[Cause::WaitingForCpu, Cause::VcpuPreempted, Cause::Throttled]), HOST, ANYONE);
pub const THROTTLE: Blame = of("throttle", Causes::These(&[Cause::Throttled]), HOST, ANYONE);
/// The application itself, whatever it does.
pub const OWN: Blame = of("own work", Causes::These(&[Cause::Work]), HOST, &["relay"]);
pub const FAULTS: Blame = of("page faults", Causes::These(&[Cause::Work]), HOST, &["relay"]);
/// Some of it is a wait, for the kernel's thread that frees memory too.
pub const RECLAIM: Blame = of("reclaim", Causes::These(&[Cause::Work, Cause::Blocked]), HOST, ANYONE);
pub const SERVER: Blame = of("server", Causes::These(&[Cause::PollInterval]), HOST, &["server"]);
pub const HOLDER: Blame = of("lock", Causes::These(&[Cause::Work]), HOST, &["holder"]);
pub const IO: Blame = of("block I/O", Causes::These(&[Cause::Blocked]), HOST, ANYONE);
pub const GUEST_HOG: Blame = of("guest hog", WAITS, GUEST, &["hog"]);
pub const GUEST_CROWD: Blame = of("guest crowd", WAITS, GUEST, &["crowd"]);
pub const GUEST_STORM: Blame = of("guest storm", INTERRUPTS, GUEST, &["timer"]);
pub const GUEST_SLEEPER: Blame = of("guest sleeper", Causes::These(&[Cause::PollInterval]), GUEST, &["relay"]);
/// The hog has the CPU that the vCPU's thread is to run on.
pub const VCPU: Blame = of("vcpu", WAITS, HOST, &["hog"]);
pub const SWITCH_STARVED: Blame = of("switch starved", WAITS, HOST, &["hog"]);
/// Open vSwitch's daemon, whichever of its threads.
pub const UPCALL: Blame = of("upcall", Causes::These(&[Cause::Upcall]), HOST, ANYONE);
/// The CPU that the application is on, which is idle but for it.
pub const IDLE: Blame = of("idle", Causes::These(&[Cause::IdleExit]), HOST, &["idle"]);

impl Blame {
    /// How much of a cause's excess it is.
    fn hop(&self, held: &CauseShare) -> Ns {
        if !self.causes.include(held.cause) || held.machine != self.machine {
            return 0;
        }
        let named = |name: &str| self.who.iter().any(|who| name.starts_with(who));
        // What ended a wait of its own choice is its own timer.
        if held.by.is_empty() || held.cause == Cause::PollInterval {
            let actor = held.actor.as_ref().is_some_and(|a| named(&a.name));
            return if actor { held.excess_ns } else { 0 };
        }
        // A culprit is a process: the fault may be a thread of another name in it.
        let is_named = |actor: &Actor| named(&actor.name) || actor.threads.iter().any(|thread| named(thread));
        let by: Ns = held.by.iter().filter(|(actor, _)| is_named(actor)).map(|(_, ns)| ns).sum();
        (i128::from(held.excess_ns) * i128::from(by) / i128::from(held.time_ns.max(1))) as Ns
    }

    /// Whether it is the first cause.
    pub fn is_first(&self, attribution: &Attribution) -> bool {
        attribution.first().is_some_and(|held| self.hop(held) * 2 > held.excess_ns)
    }

    /// Its hundredths of the excess.
    pub fn share(&self, attribution: &Attribution) -> Ns {
        attribution.shares.iter().map(|held| self.hop(held)).sum::<Ns>() * 100 / attribution.excess_ns.max(1)
    }
}
