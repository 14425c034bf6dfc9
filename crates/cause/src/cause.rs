//! The table of causes: one entry per cause, with all its texts. The rules in crate::wakeup_chain find the causes.

use crate::advice::{Advice, Advisor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Description of a cause.
pub struct CauseInfo {
    /// Its name in files, JSON and options.
    pub id: &'static str,
    /// Short phrase for the packet or its reader: `waiting for its CPU`.
    pub phrase: &'static str,
    /// Meaning in one sentence, as in docs/causes.md.
    pub meaning: &'static str,
    /// First words of the sentence.
    pub subject: Subject,
    /// What happened, as a sentence without a full stop; its subject is omitted if that is the actor. Placeholders:
    /// `{actor}` the actor; `{was}` `was ` after a waiter (`relay waited for server, which`), otherwise nothing;
    /// `{for}` the duration (` for 14.2 ms`); `{by}` the culprits, preceded by the link's words; `{detail}` the detail.
    pub sentence: &'static str,
    /// Relation between culprit and actor.
    pub link: Link,
    /// Further detail in the sentence.
    pub detail: Detail,
    /// State of the actor during this time.
    pub state: ActorState,
    /// Who counts as the culprit in totals and advice.
    pub culprit: Culprit,
    /// What is reported if the actor waits for a kernel lock whose holder has this cause.
    pub of_holder: OfHolder,
    /// External events that can produce this cause; the lab checks its injected faults against them. A cause that takes
    /// over time from another cause has that cause's rivals.
    pub rivals: &'static [Rival],
    /// Whether latpath knows a fix, i.e. the entry names a method other than `none`.
    pub has_advice: bool,
    /// Fixes, best first.
    pub(crate) advice: fn(&Advisor) -> Vec<Advice>,
}

/// First words of a cause's sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The actor, preceded by its waiter if there is one.
    Actor,
    /// No actor: the sentence has its own subject.
    None,
}

/// How a culprit kept the actor from acting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No culprit is named.
    Nobody,
    /// The culprit occupied the CPU on which the actor was waiting to run.
    Behind,
    /// The culprit took the CPU from the actor.
    By,
    /// The actor waited for the culprit.
    WokenBy,
    /// The actor waited for a point in time.
    Until,
}

impl Link {
    /// Words before the culprit's name.
    pub fn words(self) -> &'static str {
        match self {
            Self::Nobody => "",
            Self::Behind => "behind",
            Self::By => "by",
            Self::WokenBy => "until woken by",
            Self::Until => "until",
        }
    }

    /// Whether the culprit ran while the actor did not.
    pub fn culprit_ran(self) -> bool {
        matches!(self, Self::Behind | Self::By)
    }
}

/// Detail of a cause, in addition to actor and culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// No detail.
    None,
    /// The note of the interval.
    Note,
    /// The idle state that the CPU left; the interval's number is its index.
    IdleState,
    /// The VM exit reason, which is the interval's number.
    ExitReason,
    /// The packets ahead in the queue; the interval's number is their count.
    PacketsAhead,
}

/// State of an actor, for charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActorState {
    /// It runs on a CPU.
    Works,
    /// An interrupt or the hypervisor runs on its CPU.
    Interrupted,
    /// It is ready, or its work is pending, but it does not run.
    Waits,
    /// It waits for an event or a time.
    Sleeps,
    /// Unknown.
    Unknown,
}

/// Who counts as the culprit of a cause in totals and advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// The thread or interrupt that kept the actor from acting; the actor itself if none was found.
    Found,
    /// The actor itself, which chose to wait.
    Actor,
    /// The idle CPU on which the actor was waiting to run.
    IdleCpu,
    /// No culprit.
    Nobody,
}

/// What is reported while the actor waits for a kernel lock that another thread holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfHolder {
    /// The holder's cause: something kept the holder from acting.
    Its,
    /// The interval's own cause if the interval is the holder's; blocked by the holder if it is the actor's own.
    ItsOfAnother,
    /// Blocked by the holder.
    Blocked,
}

/// Kinds of disturbances from outside the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Other threads on the CPU.
    Threads,
    /// Interrupts and softirqs.
    Interrupts,
}

macro_rules! has_advice {
    (none) => {
        false
    };
    ($method:ident) => {
        true
    };
}

macro_rules! causes {
    ($($variant:ident $id:literal $phrase:literal $meaning:literal {
        $subject:ident $sentence:literal, $link:ident, $detail:ident, $state:ident,
        $culprit:ident, $of_holder:ident, [$($rival:ident),*], $advice:ident
    })*) => {
        /// A cause of delay. Names and meanings are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Cause {
            $(#[doc = $meaning] $variant,)*
        }

        impl Default for Cause {
            fn default() -> Self {
                Self::Unexplained
            }
        }

        impl Cause {
            /// All causes, in the order of docs/causes.md.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Texts and properties of the cause.
            pub fn info(self) -> &'static CauseInfo {
                match self {
                    $(Self::$variant => &CauseInfo {
                        id: $id,
                        phrase: $phrase,
                        meaning: $meaning,
                        subject: Subject::$subject,
                        sentence: $sentence,
                        link: Link::$link,
                        detail: Detail::$detail,
                        state: ActorState::$state,
                        culprit: Culprit::$culprit,
                        of_holder: OfHolder::$of_holder,
                        rivals: &[$(Rival::$rival),*],
                        has_advice: has_advice!($advice),
                        advice: |advisor| advisor.$advice(),
                    },)*
                }
            }
        }
    };
}

// Variant, name, phrase, meaning { subject and sentence, link, detail, state of the actor,
//     culprit, treatment of a lock's holder, rivals, advice }
causes! {
    Work "work" "at work" "The actor ran, and did what is to be done for the packet." {
        Actor "worked{for}{detail}", Nobody, Note, Works,
        Found, Blocked, [], of_work
    }
    Interrupted "interrupted" "interrupted" "An interrupt, a softirq or an NMI took the CPU from the actor." {
        Actor "{was}interrupted{for}{by}", By, None, Interrupted,
        Found, Its, [Interrupts], of_interrupts
    }
    WaitingForCpu "waiting-for-cpu" "waiting for its CPU" "A thread was ready, and its CPU ran others." {
        Actor "{was}ready but not running{for}{by}", Behind, None, Waits,
        Found, Its, [Threads, Interrupts], of_waiting
    }
    IdleExit "idle-exit" "waiting for an idle CPU to wake" "A thread was ready, or a CPU was called, and that CPU came out of an idle state." {
        Actor "waited{for} until its CPU had left its idle state{detail}", Nobody, IdleState, Waits,
        IdleCpu, Its, [], of_idle
    }
    Throttled "throttled" "throttled" "A thread, or its control group, had used up its CPU time." {
        Actor "{was}throttled{for}: it, or its control group, had used up its CPU time", Nobody, None, Waits,
        Found, Its, [], of_throttling
    }
    Stopped "stopped" "stopped" "A thread was stopped by a signal, a debugger or the freezer." {
        Actor "{was}stopped{for}{detail}", Nobody, Note, Sleeps,
        Found, Its, [], of_stopping
    }
    Blocked "blocked" "blocked in the kernel" "A thread waited uninterruptibly: for a lock, a page or a device." {
        Actor "{was}blocked{for}{by}{detail}", WokenBy, Note, Sleeps,
        Found, ItsOfAnother, [], of_blocking
    }
    SoftirqWait "softirq-wait" "waiting for a softirq to start" "A softirq was raised and had not begun." {
        Actor "raised but not started{for}{by}", Behind, None, Waits,
        Found, Blocked, [Interrupts], of_interrupts
    }
    IrqWait "irq-wait" "waiting for an interrupt to be served" "An interrupt was raised and its handler had not begun." {
        Actor "raised but not served{for}{by}", Behind, None, Waits,
        Found, Blocked, [Interrupts], of_interrupts
    }
    QueuedBehind "queued-behind" "queued behind earlier packets" "Packets that came earlier were served first." {
        None "queued{for} behind {detail} that {actor} served first", Nobody, PacketsAhead, Waits,
        Found, Blocked, [], of_queues
    }
    PollInterval "poll-interval" "asleep by its own timer" "The reader slept for a time of its own choice." {
        Actor "slept{for} by its own timer", Until, None, Sleeps,
        Actor, Blocked, [], of_polling
    }
    LateTimer "late-timer" "asleep beyond its send time" "A talker's send time had passed, and its timer had not woken it yet." {
        Actor "slept{for} beyond its send time", Until, None, Sleeps,
        Actor, Blocked, [Interrupts], of_late_timers
    }
    Upcall "upcall" "in ovs-vswitchd" "ovs-vswitchd worked on the packet, since no flow in the kernel matched it." {
        Actor "handled it{for}, since no flow in the kernel matched{detail}", Nobody, Note, Works,
        Found, Blocked, [], of_upcalls
    }
    QdiscHeld "qdisc-held" "held by a queueing discipline" "A queueing discipline held the packet until a time." {
        None "held{for} by a queueing discipline{by}", Until, None, Sleeps,
        Nobody, Blocked, [], of_qdiscs
    }
    VmExit "vm-exit" "vCPU out of its guest" "The vCPU had left its guest." {
        Actor "{was}out of its guest{for}{detail}", Nobody, ExitReason, Interrupted,
        Found, Blocked, [], none
    }
    VcpuPreempted "vcpu-preempted" "vCPU waiting for its CPU" "The vCPU was ready, and its CPU ran others." {
        Actor "{was}off its CPU{for}{by}", Behind, None, Waits,
        Found, Its, [Threads], of_waiting
    }
    VcpuHalted "vcpu-halted" "vCPU halted" "The vCPU had halted, until something woke it." {
        Actor "{was}halted{for}{by}", WokenBy, None, Sleeps,
        Found, Blocked, [], of_halting
    }
    IrqInjection "irq-injection" "waiting for an interrupt to reach the guest" "An interrupt for the guest was pending, and the guest had not taken it." {
        None "an interrupt for {actor} pending{for} and not taken", Behind, None, Waits,
        Found, Blocked, [Interrupts], of_injection
    }
    Device "device" "on a device or a wire" "A device or a wire had the packet, and no CPU that is recorded." {
        None "on a device or a wire{for}{detail}", Nobody, Note, Sleeps,
        Found, Blocked, [], none
    }
    Unexplained "unexplained" "not explained" "No rule covers it, or the record lacks what a rule needs." {
        None "not explained{for}{detail}", Nobody, Note, Unknown,
        Nobody, Blocked, [], none
    }
}

impl Cause {
    /// Name in files and options.
    pub fn id(self) -> &'static str {
        self.info().id
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_list_has_each_cause_with_its_meaning() {
        let page = include_str!("../../../docs/causes.md");
        let rows = |line: &&str| line.starts_with("| `") && line.matches(" | ").count() == 2;
        let list = page.split("## The list").nth(1).and_then(|rest| rest.split("## ").next()).unwrap();
        let listed: Vec<&str> = list.lines().filter(rows).collect();
        assert_eq!(listed.len(), Cause::ALL.len());
        for (cause, row) in Cause::ALL.iter().zip(listed) {
            let start = format!("| `{cause}` | {} | ", cause.info().meaning);
            assert!(row.starts_with(&start), "docs/causes.md: {row:?} must begin with {start:?}");
        }
    }

    #[test]
    fn each_cause_is_expected_by_a_test_of_the_rule_that_finds_it() {
        let tests = [
            include_str!("../tests/threads.rs"),
            include_str!("../tests/softirqs.rs"),
            include_str!("../tests/guests.rs"),
        ]
        .concat();
        // Only whole words in string literals count, not words in comments or parts of longer names.
        let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
        let code = tests.lines().map(|line| line.split("//").next().unwrap_or_default());
        let texts: Vec<&str> = code.flat_map(|line| line.split('"').skip(1).step_by(2)).collect();
        let expects =
            |cause: &Cause| texts.iter().any(|text| text.split(|c| !is_part(c)).any(|word| word == cause.id()));
        let missing: Vec<&Cause> = Cause::ALL.iter().filter(|cause| !expects(cause)).collect();
        assert!(missing.is_empty(), "no test of crates/cause/tests finds {missing:?}");
    }

    #[test]
    fn the_documents_fixes_name_each_cause_that_has_advice_and_no_other() {
        let page = include_str!("../../../docs/causes.md");
        let fixes = page.split("\n## Fixes").nth(1).expect("the section");
        let rows =
            fixes.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|l| l.starts_with('|'));
        let firsts: Vec<&str> = rows.filter_map(|row| row.split('|').nth(1)).collect();
        let named: Vec<&str> = firsts.iter().flat_map(|first| first.split('`').skip(1).step_by(2)).collect();
        assert!(named.len() > 10, "{named:?}");
        for cause in Cause::ALL {
            let is_named = named.contains(&cause.id());
            let advice = format!(
                "docs/causes.md, Fixes: `{cause}` is in the first column where its entry has a method of advice"
            );
            assert_eq!(is_named, cause.info().has_advice, "{advice}, and only there");
        }
        let unknown: Vec<_> = named.iter().filter(|id| Cause::ALL.iter().all(|cause| cause.id() != **id)).collect();
        assert!(unknown.is_empty(), "docs/causes.md, Fixes: no cause is called {unknown:?}");
    }

    #[test]
    fn sentences_have_known_placeholders_only() {
        for cause in Cause::ALL {
            let CauseInfo { sentence, link, detail, .. } = cause.info();
            let places: Vec<&str> = sentence.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
            assert!(places.iter().all(|place| ["actor", "was", "for", "by", "detail"].contains(place)), "{sentence}");
            assert!(!places.contains(&"by") || *link != Link::Nobody, "{cause}: by whom?");
            assert_eq!(places.contains(&"detail"), *detail != Detail::None, "{cause}");
        }
    }
}
