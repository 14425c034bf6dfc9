//! Checks a guest's samples against the host's record of its vCPUs, as both arrive.

use latpath_model::{Causality, Ns};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of recorded absences per vCPU: a few seconds of a vCPU that exits continually.
const MAX_ABSENCES: usize = 1 << 16;
/// Maximum number of samples of a guest that wait for the host's record of their time.
const MAX_WAITING: usize = 1 << 16;

/// An interval in which a vCPU's thread was not in its guest, in the host's `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The vCPU's thread.
    pub tid: u32,
    /// Time of the exit.
    pub from: Ns,
    /// Time of the next entry; `None` while the vCPU is outside the guest.
    pub until: Option<Ns>,
}

/// Time and CPU of a guest's sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Time in the host's `CLOCK_MONOTONIC`.
    pub t: Ns,
    /// Error bound of that time, ns.
    pub error_bound_ns: Ns,
    /// The guest's CPU.
    pub cpu: u32,
}

#[derive(Debug, Default)]
struct Vcpu {
    absences: VecDeque<(Ns, Ns)>,
    /// Absences that began before this time may be missing.
    known_from: Ns,
    /// Time of the exit, while the vCPU is outside the guest.
    absent_since: Option<Ns>,
}

/// Checks the samples of one guest as they arrive, in bounded memory.
#[derive(Debug, Default)]
pub struct CausalityCheck {
    vcpus: BTreeMap<u32, Vcpu>,
    /// The guest's CPUs, by vCPU thread.
    threads: BTreeMap<u32, u32>,
    waiting: VecDeque<Moment>,
    figures: Causality,
}

impl CausalityCheck {
    /// Creates a check for a guest with these vCPUs (TID and vCPU number), whose absences are known from `from` on.
    pub fn new(vcpus: impl IntoIterator<Item = (u32, u32)>, from: Ns) -> Self {
        let threads: BTreeMap<u32, u32> = vcpus.into_iter().collect();
        let vcpu = |number: &u32| (*number, Vcpu { known_from: from, ..Vcpu::default() });
        Self { vcpus: threads.values().map(vcpu).collect(), threads, ..Self::default() }
    }

    /// Adds absences of its vCPUs, in the order in which they ended; absences of other threads are ignored.
    pub fn absences(&mut self, absences: &[Absence]) {
        self.vcpus.values_mut().for_each(|vcpu| vcpu.absent_since = None);
        for absence in absences {
            let Some(vcpu) = self.threads.get(&absence.tid).and_then(|number| self.vcpus.get_mut(number)) else {
                continue;
            };
            let Some(until) = absence.until else {
                vcpu.absent_since = Some(absence.from);
                continue;
            };
            if vcpu.absences.len() == MAX_ABSENCES {
                vcpu.known_from = vcpu.absences.pop_front().map_or(vcpu.known_from, |(_, until)| until);
            }
            vcpu.absences.push_back((absence.from, until));
        }
    }

    /// Adds the times of the guest's samples; if there are too many at once, the oldest remain unchecked.
    pub fn moments(&mut self, moments: impl IntoIterator<Item = Moment>) {
        for moment in moments {
            if self.waiting.len() == MAX_WAITING {
                self.waiting.pop_front();
            }
            self.waiting.push_back(moment);
        }
    }

    /// Checks the samples before `until`; all absences before it must have been added.
    pub fn check_until(&mut self, until: Ns) {
        let mut later = VecDeque::new();
        for moment in std::mem::take(&mut self.waiting) {
            let Some(vcpu) = self.vcpus.get(&moment.cpu) else { continue };
            let Moment { t, error_bound_ns, .. } = moment;
            if t.saturating_add(error_bound_ns) >= until {
                later.push_back(moment);
            } else if t.saturating_sub(error_bound_ns) >= vcpu.known_from {
                self.figures.check(t, error_bound_ns, vcpu.absence_at(t));
            }
        }
        self.waiting = later;
    }

    /// The result; `None` if no sample could be checked.
    pub fn figures(&self) -> Option<Causality> {
        Some(self.figures).filter(|figures| figures.checked > 0)
    }
}

impl Vcpu {
    /// The latest absence that began at or before `t`.
    fn absence_at(&self, t: Ns) -> Option<(Ns, Ns)> {
        let since = self.absent_since.filter(|since| *since <= t).map(|since| (since, Ns::MAX));
        let after = self.absences.partition_point(|(from, _)| *from <= t);
        since.or_else(|| self.absences.get(after.checked_sub(1)?).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn absence(tid: u32, from: Ns, until: impl Into<Option<Ns>>) -> Absence {
        Absence { tid, from, until: until.into() }
    }

    fn moment(cpu: u32, t: Ns) -> Moment {
        Moment { t, error_bound_ns: 10, cpu }
    }

    fn of(check: &CausalityCheck) -> (u64, u64) {
        check.figures().map_or((0, 0), |figures| (figures.checked, figures.violations))
    }

    #[test]
    fn samples_where_their_vcpu_was_not_in_the_guest_are_counted_beyond_the_bound() {
        let mut check = CausalityCheck::new([(101, 0), (102, 1)], 1000);
        check.absences(&[absence(101, 2000, 2100), absence(102, 2000, 9000), absence(7, 0, 9000)]);
        // In the guest; within the bound at an absence's edges; in its middle; before the first record; a CPU without a
        // vCPU.
        check.moments([
            moment(0, 1500),
            moment(0, 2009),
            moment(0, 2091),
            moment(0, 2050),
            moment(0, 900),
            moment(5, 1500),
        ]);
        check.moments([moment(1, 2050)]);
        check.check_until(10_000);
        assert_eq!(of(&check), (5, 2));
    }

    #[test]
    fn a_vcpu_that_has_not_come_back_yet_is_not_in_its_guest() {
        let mut check = CausalityCheck::new([(101, 0)], 0);
        check.moments([moment(0, 5000), moment(0, 500), moment(0, 7995)]);
        check.absences(&[absence(101, 1000, None)]);
        check.check_until(8000);
        assert_eq!(of(&check), (2, 1), "the last one waits");
        // The vCPU returned before the sample.
        check.absences(&[absence(101, 1000, 7000)]);
        check.check_until(9000);
        assert_eq!(of(&check), (3, 1));
    }

    #[test]
    fn absences_that_are_forgotten_leave_samples_unchecked() {
        let mut check = CausalityCheck::new([(101, 0)], 0);
        let times = 0..2 * MAX_ABSENCES as Ns;
        let absences: Vec<Absence> = times.map(|n| absence(101, n * 1000, n * 1000 + 500)).collect();
        check.absences(&absences);
        let forgotten = MAX_ABSENCES as Ns * 1000;
        check.moments([
            moment(0, 250),
            moment(0, forgotten - 250),
            moment(0, forgotten + 250),
            moment(0, forgotten + 750),
        ]);
        check.check_until(Ns::MAX);
        assert_eq!(of(&check), (3, 1));
        assert_eq!(check.vcpus[&0].absences.len(), MAX_ABSENCES);
        check.moments((0..2 * MAX_WAITING as Ns).map(|n| moment(0, n)));
        assert_eq!(check.waiting.len(), MAX_WAITING);
    }

    proptest! {
        /// A vCPU that alternates between guest and host: samples whose clock is within its error bound are never
        /// violations; samples whose clock is always wrong are.
        #[test]
        fn a_clock_within_its_bound_violates_nothing(
            turns in prop::collection::vec((1i64..500, 1i64..500), 1..40), at in prop::collection::vec((0usize..40, 0i64..500), 1..60),
            error in -20i64..=20,
        ) {
            let (mut now, mut absences, mut inside) = (1000, Vec::new(), Vec::new());
            for (stays, leaves) in &turns {
                inside.push((now, *stays));
                now += stays;
                absences.push(absence(101, now, now + leaves));
                now += leaves;
            }
            let moment = |(turn, into): &(usize, Ns)| {
                let (from, stays) = inside[turn % inside.len()];
                Moment { t: from + into % stays + error, error_bound_ns: 20, cpu: 0 }
            };
            let mut check = CausalityCheck::new([(101, 0)], 0);
            check.absences(&absences);
            check.moments(at.iter().map(moment));
            check.check_until(Ns::MAX);
            prop_assert_eq!(of(&check), (at.len() as u64, 0));
        }
    }
}
