//! Intervals of softirqs and interrupts from start to end, including those that interrupt each other.

use latpath_flight::{CpuRecord, Doing, EventKind};
use latpath_model::Ns;
use std::collections::HashSet;

/// Maximum number of open intervals per CPU. There may be several softirqs, because with PREEMPT_RT another thread's
/// softirq can preempt one.
const DEEPEST: usize = 32;

/// An execution of a softirq or interrupt, from start to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IrqInterval {
    pub doing: Doing,
    pub from: Ns,
    /// Whether its start is in the record.
    pub begun: bool,
    pub to: Ns,
    /// ID of the thread that it interrupted, or that ran it.
    pub pid: u32,
}

/// Softirqs and interrupts of one CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct IrqIntervals {
    softirqs: Vec<IrqInterval>,
    interrupts: Vec<IrqInterval>,
    /// Vector and time of each raised softirq, in order of time.
    raises: Vec<(u32, Ns)>,
}

impl IrqIntervals {
    pub fn of(record: &CpuRecord) -> Self {
        let mut found = Self::default();
        let mut open: Vec<IrqInterval> = Vec::new();
        let mut done: Vec<IrqInterval> = Vec::new();
        let mut seen = HashSet::new();
        let mut last = record.since;
        for event in &record.events {
            last = last.max(event.t);
            if let EventKind::SoftirqRaise(vector) = event.what {
                found.raises.push((vector, event.t));
            }
            let edge = event.what.edge().filter(|(_, doing)| !matches!(doing, Doing::Timer(_)));
            let Some((begins, doing)) = edge else { continue };
            let irq = IrqInterval { doing, from: event.t, begun: true, to: Ns::MAX, pid: event.pid };
            let same = |s: &IrqInterval| s.doing == doing && s.pid == event.pid;
            let first = seen.insert(doing);
            if begins {
                // Another start without an end in between: the end was lost.
                if let Some(at) = open.iter().rposition(same) {
                    done.push(IrqInterval { to: event.t, ..open.remove(at) });
                }
                if open.len() < DEEPEST {
                    open.push(irq);
                }
            } else if let Some(at) = open.iter().rposition(same) {
                done.push(IrqInterval { to: event.t, ..open.remove(at) });
            } else if first && record.since <= event.t {
                done.push(IrqInterval { from: record.since, begun: false, to: event.t, ..irq });
            }
        }
        // Intervals that are still open extend to the end of the record.
        done.extend(open.into_iter().map(|irq| IrqInterval { to: last.max(irq.from), ..irq }));
        done.sort_by_key(|irq| (irq.from, std::cmp::Reverse(irq.to)));
        (found.softirqs, found.interrupts) = done.into_iter().partition(|s| matches!(s.doing, Doing::Softirq(_)));
        found
    }

    fn innermost(irq_intervals: &[IrqInterval], t: Ns, is: impl Fn(&IrqInterval) -> bool) -> Option<&IrqInterval> {
        let end = irq_intervals.partition_point(|irq| irq.from <= t);
        irq_intervals[..end].iter().rev().take(2 * DEEPEST).find(|irq| irq.to >= t && is(irq))
    }

    /// The softirq with this vector that was running at a time.
    pub fn softirq(&self, vector: u32, t: Ns) -> Option<&IrqInterval> {
        Self::innermost(&self.softirqs, t, |irq| irq.doing == Doing::Softirq(vector))
    }

    /// Any softirq that was running at a time.
    pub fn any_softirq(&self, t: Ns) -> Option<&IrqInterval> {
        Self::innermost(&self.softirqs, t, |_| true)
    }

    /// The interrupt that was running at a time.
    pub fn interrupt(&self, t: Ns) -> Option<&IrqInterval> {
        Self::innermost(&self.interrupts, t, |_| true)
    }

    /// Time at which the softirq that began at `began` was first raised after the start of its previous execution.
    pub fn raised(&self, vector: u32, began: Ns) -> Option<Ns> {
        let of_vector = |irq: &&IrqInterval| irq.doing == Doing::Softirq(vector) && irq.begun;
        let end = self.softirqs.partition_point(|irq| irq.from < began);
        let before = self.softirqs[..end].iter().rev().find(of_vector).map_or(Ns::MIN, |irq| irq.from);
        let raises = &self.raises[..self.raises.partition_point(|(_, t)| *t <= began)];
        let since = raises.partition_point(|(_, t)| *t <= before);
        raises[since..].iter().find(|(v, _)| *v == vector).map(|(_, t)| *t)
    }
}
