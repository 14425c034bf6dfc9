//! Decodes the programs' events.

use crate::layout::{RawEvent, UNKNOWN};
use crate::transfer::Transfer;
use latpath_model::Ns;
use std::fmt;

/// An event on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// `CLOCK_MONOTONIC`, ns.
    pub t: Ns,
    /// The running thread, 0 when idle; for a switch, the thread that leaves the CPU.
    pub pid: u32,
    /// The kind of event.
    pub what: EventKind,
}

/// The kind of an event, with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The CPU switched to another thread.
    Switch {
        /// The next thread.
        next: u32,
        /// How the previous thread left.
        left: Left,
        /// Scheduling class of the previous thread.
        prev: Class,
        /// Scheduling class of the next thread.
        next_class: Class,
    },
    /// The running context begins to wake a thread; `cpu` is the CPU that the thread last ran on.
    Waking {
        /// The woken thread.
        pid: u32,
        /// Its last CPU.
        cpu: u32,
        /// Its scheduling class.
        class: Class,
    },
    /// A thread has become ready on a CPU.
    Wakeup {
        /// The thread.
        pid: u32,
        /// The CPU on which it is queued.
        cpu: u32,
        /// Its scheduling class.
        class: Class,
        /// Whether its control group had exhausted its quota.
        throttled: bool,
    },
    /// A thread that is not running moves to another CPU.
    Migrate {
        /// The thread.
        pid: u32,
        /// Its old CPU.
        from: u32,
        /// Its new CPU.
        to: u32,
    },
    /// A device's interrupt, identified by its number, begins.
    IrqEntry(u32),
    /// A device's interrupt, identified by its number, ends.
    IrqExit(u32),
    /// A softirq, identified by its number, is raised.
    SoftirqRaise(u32),
    /// A softirq, identified by its number, begins.
    SoftirqEntry(u32),
    /// A softirq, identified by its number, ends.
    SoftirqExit(u32),
    /// An interrupt that belongs to no device begins.
    VectorEntry(Vector),
    /// An interrupt that belongs to no device ends.
    VectorExit(Vector),
    /// An NMI's handler ends.
    Nmi {
        /// Duration of the handler, ns.
        took: Ns,
    },
    /// A device was polled; the result follows as [`Self::NapiWork`] at the same time.
    NapiPoll {
        /// Name of the device.
        name: [u8; 16],
    },
    /// Result of a poll: of the device in a preceding [`Self::NapiPoll`], otherwise of the CPU's own backlog.
    NapiWork {
        /// Number of packets processed.
        work: u32,
        /// Maximum number of packets.
        budget: u32,
        /// Index of the device; 0 for the backlog.
        ifindex: u32,
    },
    /// The CPU enters an idle state, or leaves it (`None`).
    Idle(Option<u32>),
    /// A timer's function, identified by its address, begins.
    TimerEntry(u64),
    /// A timer's function ends.
    TimerExit,
    /// A high-resolution timer's function, identified by its address, begins.
    HrtimerEntry(u64),
    /// A high-resolution timer's function ends.
    HrtimerExit,
    /// A vCPU enters its guest.
    KvmEntry {
        /// The vCPU, if known.
        vcpu: Option<u32>,
    },
    /// A vCPU exits its guest.
    KvmExit {
        /// The vCPU, if known.
        vcpu: Option<u32>,
        /// The exit reason, if known.
        reason: Option<u32>,
        /// Encoding of the reason: 1 VMX, 2 SVM, 3 ARM.
        isa: u32,
    },
    /// KVM changes the maximum duration of halt polling.
    KvmHaltPoll {
        /// The vCPU.
        vcpu: u32,
        /// The new maximum, ns.
        ns: u32,
        /// The previous maximum, ns.
        before: u32,
    },
    /// A halted vCPU wakes up.
    KvmVcpuWakeup {
        /// Time halted, ns.
        ns: Ns,
        /// Whether the thread slept; otherwise KVM polled throughout.
        waited: bool,
        /// Whether the wakeup had a cause.
        valid: bool,
    },
    /// KVM injects an interrupt with this vector into a guest.
    KvmInjVirq(u32),
    /// A kworker begins a work item, identified by its function's address.
    WorkStart(u64),
    /// A kworker ends a work item.
    WorkEnd,
    /// Open vSwitch's datapath sends an upcall to ovs-vswitchd.
    OvsUpcall {
        /// `OVS_PACKET_CMD_*`.
        command: u32,
    },
    /// The thread begins to reclaim memory before it can allocate some.
    ReclaimBegin,
    /// The thread has finished reclaiming memory.
    ReclaimEnd,
    /// Number of page faults of the thread since it was switched in; the switch away from it follows.
    PageFaults(u64),
    /// Kernel addresses at which the thread blocks, callee first, 0 for none; the switch away from it follows.
    BlockedAt([u64; 2]),
    /// A step of a transfer between a guest and its host.
    Transfer(Transfer),
    /// An event from a newer recorder, or a corrupt one.
    Other(u16),
}

/// Scheduling class of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// The kernel's priority, lower is more urgent: below 100 for real time (99 − the priority of SCHED_FIFO), 120 for
    /// nice 0.
    pub prio: i16,
    /// Policy (SCHED_*); 0 is SCHED_OTHER.
    pub policy: u8,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Records may come from elsewhere, so any number must be accepted.
        let prio = i32::from(self.prio);
        let nice = prio - 120;
        match (self.policy, prio) {
            // The owner of a lock inherits the priority of its waiters.
            (0 | 3 | 5, ..=99) => write!(f, "boosted to {}", 99 - prio),
            (0, _) if nice == 0 => f.write_str("SCHED_OTHER"),
            (0, _) => write!(f, "SCHED_OTHER, nice {nice}"),
            (1, prio) => write!(f, "FIFO {}", 99 - prio),
            (2, prio) => write!(f, "RR {}", 99 - prio),
            (3, _) => f.write_str("SCHED_BATCH"),
            (5, _) => f.write_str("SCHED_IDLE"),
            (6, _) => f.write_str("SCHED_DEADLINE"),
            (7, _) => f.write_str("SCHED_EXT"),
            (other, _) => write!(f, "policy {other}"),
        }
    }
}

/// How a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Still ready to run.
    Ready {
        /// Whether a more urgent thread took the CPU, or the time slice was over; otherwise the thread yielded.
        preempted: bool,
        /// Whether its control group had exhausted its quota.
        throttled: bool,
    },
    /// Asleep.
    Asleep(Sleep),
}

/// Kind of sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sleep {
    /// Interruptible by signals: S.
    Interruptible,
    /// Uninterruptible: D.
    Blocked,
    /// A kernel thread without work: I.
    Idle,
    /// Stopped by a signal: T.
    Stopped,
    /// Stopped by a debugger: t.
    Traced,
    /// Parked: P.
    Parked,
    /// Frozen by the kernel.
    Frozen,
    /// Ended: X, Z.
    Ended,
    /// Asleep in an unknown way.
    Unknown,
}

impl Sleep {
    /// Decodes the kernel's `__state` (include/linux/sched.h).
    fn of(state: u32) -> Self {
        const IDLE: u32 = 0x402;
        match state {
            s if s & 0x8000 != 0 => Self::Frozen,
            s if s & (0x80 | 0x30) != 0 => Self::Ended,
            s if s & 0x4 != 0 => Self::Stopped,
            s if s & 0x8 != 0 => Self::Traced,
            s if s & 0x40 != 0 => Self::Parked,
            s if s & IDLE == IDLE => Self::Idle,
            // Includes sleeping on locks of PREEMPT_RT (0x1000).
            s if s & 0x1002 != 0 => Self::Blocked,
            s if s & 0x1 != 0 => Self::Interruptible,
            _ => Self::Unknown,
        }
    }

    /// A `__state` that decodes to this kind.
    fn state(self) -> u32 {
        match self {
            Self::Interruptible => 0x1,
            Self::Blocked => 0x2,
            Self::Idle => 0x402,
            Self::Stopped => 0x4,
            Self::Traced => 0x8,
            Self::Parked => 0x40,
            Self::Frozen => 0x8000,
            Self::Ended => 0x80,
            // TASK_WAKING, which is no state of a sleeping thread.
            Self::Unknown => 0x200,
        }
    }
}

impl fmt::Display for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interruptible | Self::Idle => "asleep",
            Self::Blocked => "blocked",
            Self::Stopped => "stopped",
            Self::Traced => "stopped by a debugger",
            Self::Parked => "parked",
            Self::Frozen => "frozen",
            Self::Ended => "ended",
            Self::Unknown => "asleep or blocked",
        })
    }
}

/// Interrupts that belong to no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vector {
    /// Local APIC timer.
    LocalTimer,
    /// Request to reschedule.
    Reschedule,
    /// Function call on several CPUs.
    CallFunction,
    /// Function call on one CPU.
    CallFunctionSingle,
    /// Deferred work in interrupt context.
    IrqWork,
    /// Platform-specific.
    PlatformIpi,
    /// Thermal interrupt.
    Thermal,
    /// An interrupt from another CPU, of unknown purpose.
    Ipi,
    /// Unknown, by number.
    Other(u32),
}

/// In the order of their numbers, which start at 1.
const VECTORS: [(Vector, &str); 8] = [
    (Vector::LocalTimer, "timer interrupt"),
    (Vector::Reschedule, "reschedule interrupt"),
    (Vector::CallFunction, "function call interrupt"),
    (Vector::CallFunctionSingle, "function call interrupt"),
    (Vector::IrqWork, "irq-work interrupt"),
    (Vector::PlatformIpi, "platform interrupt"),
    (Vector::Thermal, "thermal interrupt"),
    (Vector::Ipi, "interrupt from another CPU"),
];

impl Vector {
    fn of(number: u32) -> Self {
        let known = VECTORS.get((number as usize).wrapping_sub(1));
        known.map_or(Self::Other(number), |(vector, _)| *vector)
    }

    fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            known => VECTORS.iter().position(|(vector, _)| *vector == known).map_or(0, |at| at as u32 + 1),
        }
    }
}

impl fmt::Display for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match VECTORS.iter().find(|(vector, _)| vector == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "interrupt of kind {}", self.number()),
        }
    }
}

/// Name of a softirq (include/linux/interrupt.h).
pub fn softirq_name(vector: u32) -> Option<&'static str> {
    const NAMES: [&str; 10] =
        ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];
    NAMES.get(vector as usize).copied()
}

const PREEMPTED: u64 = 1;
const THROTTLED: u64 = 2;

/// Returns a number, or `None` if it encodes "unknown".
fn known(value: u64) -> Option<u32> {
    Some(value as u32).filter(|v| *v != UNKNOWN)
}

impl RawEvent {
    /// Decodes the event; any bytes are valid.
    pub(crate) fn decode(&self) -> Event {
        let (b, c) = (self.b, self.c);
        let (low, high) = (b as u32, (b >> 32) as u32);
        let flags = c >> 48;
        let class = Class { prio: c as i16, policy: (c >> 32) as u8 };
        let what = match self.kind {
            1 => EventKind::Switch {
                next: low,
                // A preempted thread that was about to sleep is not asleep yet.
                left: if flags & PREEMPTED != 0 || high == 0 {
                    Left::Ready { preempted: flags & PREEMPTED != 0, throttled: flags & THROTTLED != 0 }
                } else {
                    Left::Asleep(Sleep::of(high))
                },
                prev: class,
                next_class: Class { prio: (c >> 16) as i16, policy: (c >> 40) as u8 },
            },
            2 => EventKind::Waking { pid: low, cpu: high, class },
            3 => EventKind::Wakeup { pid: low, cpu: high, class, throttled: flags & THROTTLED != 0 },
            4 => EventKind::Migrate { pid: low, to: high, from: c as u32 },
            5 => EventKind::IrqEntry(low),
            6 => EventKind::IrqExit(low),
            7 => EventKind::SoftirqRaise(low),
            8 => EventKind::SoftirqEntry(low),
            9 => EventKind::SoftirqExit(low),
            10 => EventKind::VectorEntry(Vector::of(low)),
            11 => EventKind::VectorExit(Vector::of(low)),
            12 => EventKind::Nmi { took: b as Ns },
            13 => {
                let mut name = [0; 16];
                name[..8].copy_from_slice(&b.to_ne_bytes());
                name[8..].copy_from_slice(&c.to_ne_bytes());
                EventKind::NapiPoll { name }
            }
            14 => EventKind::NapiWork { work: low, budget: high, ifindex: c as u32 },
            15 => EventKind::Idle(known(b)),
            16 => EventKind::TimerEntry(b),
            17 => EventKind::TimerExit,
            18 => EventKind::HrtimerEntry(b),
            19 => EventKind::HrtimerExit,
            20 => EventKind::KvmEntry { vcpu: known(b) },
            21 => EventKind::KvmExit { vcpu: known(b), reason: known(b >> 32), isa: c as u32 },
            22 => EventKind::KvmHaltPoll { vcpu: low, ns: high, before: c as u32 },
            23 => EventKind::KvmVcpuWakeup { ns: b as Ns, waited: c & 1 != 0, valid: c & 2 != 0 },
            24 => EventKind::KvmInjVirq(low),
            25 => EventKind::WorkStart(b),
            26 => EventKind::WorkEnd,
            27 => EventKind::OvsUpcall { command: low },
            28 => EventKind::ReclaimBegin,
            29 => EventKind::ReclaimEnd,
            30 => EventKind::PageFaults(b),
            31 => EventKind::BlockedAt([b, c]),
            other => Transfer::decode(other, b, c).map_or(EventKind::Other(other), EventKind::Transfer),
        };
        Event { t: i64::try_from(self.time).unwrap_or(Ns::MAX), pid: self.pid, what }
    }

    /// Encodes an event; the inverse of [`Self::decode`]. `generation` stays 0.
    pub(crate) fn encode(event: &Event) -> Self {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let unknown = |number: Option<u32>| number.unwrap_or(UNKNOWN);
        let class = |class: Class| u64::from(class.prio as u16) | u64::from(class.policy) << 32;
        let (kind, b, c) = match event.what {
            EventKind::Switch { next, left, prev, next_class } => {
                let (state, flags) = match left {
                    Left::Asleep(sleep) => (sleep.state(), 0),
                    Left::Ready { preempted, throttled } => {
                        (0, flag(preempted, PREEMPTED) | flag(throttled, THROTTLED))
                    }
                };
                let next_class = u64::from(next_class.prio as u16) << 16 | u64::from(next_class.policy) << 40;
                (1, two(next, state), class(prev) | next_class | flags << 48)
            }
            EventKind::Waking { pid, cpu, class: woken } => (2, two(pid, cpu), class(woken)),
            EventKind::Wakeup { pid, cpu, class: woken, throttled } => {
                (3, two(pid, cpu), class(woken) | flag(throttled, THROTTLED) << 48)
            }
            EventKind::Migrate { pid, from, to } => (4, two(pid, to), from.into()),
            EventKind::IrqEntry(number) => (5, number.into(), 0),
            EventKind::IrqExit(number) => (6, number.into(), 0),
            EventKind::SoftirqRaise(vector) => (7, vector.into(), 0),
            EventKind::SoftirqEntry(vector) => (8, vector.into(), 0),
            EventKind::SoftirqExit(vector) => (9, vector.into(), 0),
            EventKind::VectorEntry(vector) => (10, vector.number().into(), 0),
            EventKind::VectorExit(vector) => (11, vector.number().into(), 0),
            EventKind::Nmi { took } => (12, took as u64, 0),
            EventKind::NapiPoll { name } => {
                let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| name[at + i]));
                (13, half(0), half(8))
            }
            EventKind::NapiWork { work, budget, ifindex } => (14, two(work, budget), ifindex.into()),
            EventKind::Idle(state) => (15, unknown(state).into(), 0),
            EventKind::TimerEntry(function) => (16, function, 0),
            EventKind::TimerExit => (17, 0, 0),
            EventKind::HrtimerEntry(function) => (18, function, 0),
            EventKind::HrtimerExit => (19, 0, 0),
            EventKind::KvmEntry { vcpu } => (20, unknown(vcpu).into(), 0),
            EventKind::KvmExit { vcpu, reason, isa } => (21, two(unknown(vcpu), unknown(reason)), isa.into()),
            EventKind::KvmHaltPoll { vcpu, ns, before } => (22, two(vcpu, ns), before.into()),
            EventKind::KvmVcpuWakeup { ns, waited, valid } => {
                (23, ns as u64, u64::from(waited) | u64::from(valid) << 1)
            }
            EventKind::KvmInjVirq(vector) => (24, vector.into(), 0),
            EventKind::WorkStart(function) => (25, function, 0),
            EventKind::WorkEnd => (26, 0, 0),
            EventKind::OvsUpcall { command } => (27, command.into(), 0),
            EventKind::ReclaimBegin => (28, 0, 0),
            EventKind::ReclaimEnd => (29, 0, 0),
            EventKind::PageFaults(count) => (30, count, 0),
            EventKind::BlockedAt([inner, outer]) => (31, inner, outer),
            EventKind::Transfer(transfer) => transfer.encode(),
            EventKind::Other(kind) => (kind, 0, 0),
        };
        Self { time: event.t as u64, pid: event.pid, kind, generation: 0, b, c }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(kind: u16, b: u64, c: u64) -> RawEvent {
        RawEvent { time: 7, pid: 3, kind, generation: 1, b, c }
    }

    #[test]
    fn a_switch_has_both_threads_and_the_previous_ones_state() {
        let c = 120 | (99 - 80) << 16 | 1 << 40;
        let event = raw(1, 42 | 1 << 32, c).decode();
        let EventKind::Switch { next, left, prev, next_class } = event.what else { panic!("{event:?}") };
        assert_eq!((event.t, event.pid, next, left), (7, 3, 42, Left::Asleep(Sleep::Interruptible)));
        assert_eq!((prev.to_string(), next_class.to_string()), ("SCHED_OTHER".into(), "FIFO 80".into()));
        let preempted = raw(1, 42 | 1 << 32, PREEMPTED << 48).decode();
        let EventKind::Switch { left, .. } = preempted.what else { panic!("{preempted:?}") };
        assert_eq!(left, Left::Ready { preempted: true, throttled: false }, "it was not asleep yet");
    }

    #[test]
    fn negative_priorities_are_deadlines() {
        let event = raw(2, 5, 0xffff | 6 << 32).decode();
        let EventKind::Waking { class, .. } = event.what else { panic!("{event:?}") };
        assert_eq!((class.prio, class.to_string()), (-1, "SCHED_DEADLINE".into()));
    }

    #[test]
    fn states_are_those_of_the_kernel() {
        let of = |s: u32| Sleep::of(s);
        assert_eq!(
            (of(1), of(2), of(0x402), of(0x102)),
            (Sleep::Interruptible, Sleep::Blocked, Sleep::Idle, Sleep::Blocked)
        );
        assert_eq!((of(4 | 0x100), of(0x80), of(0x2001)), (Sleep::Stopped, Sleep::Ended, Sleep::Interruptible));
    }

    #[test]
    fn out_of_idle_is_no_state() {
        assert_eq!(raw(15, u64::from(u32::MAX), 0).decode().what, EventKind::Idle(None));
        assert_eq!(raw(15, 2, 0).decode().what, EventKind::Idle(Some(2)));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_decode_to_an_event(time: u64, pid: u32, kind: u16, b: u64, c: u64) {
            let event = RawEvent { time, pid, kind: kind % 40, generation: 0, b, c }.decode();
            proptest::prop_assert!(event.t >= 0);
        }

        #[test]
        fn events_of_any_bytes_survive_a_round_trip_through_bytes(
            time: u64, pid: u32, kind: u16, b: u64, c: u64, small: bool,
        ) {
            let (b, c) = if small { (b & 0xf_0000_000f, c & 0x3_0001_0000_0003) } else { (b, c) };
            let event = RawEvent { time, pid, kind: kind % 30, generation: 0, b, c }.decode();
            proptest::prop_assert_eq!(RawEvent::encode(&event).decode(), event);
        }
    }
}
