//! The time of day of moments on the `CLOCK_MONOTONIC` timeline, across steps.

use crate::Step;
use latpath_model::Ns;

/// The time of day during a recording: the offset from `CLOCK_MONOTONIC` to UTC, which changes with each step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeOfDay {
    start: Ns,
    offset: Ns,
    /// For each step, in ascending order: the time from which its offset is valid, and that offset.
    later: Vec<(Ns, Ns)>,
}

impl TimeOfDay {
    /// Creates a time of day from `CLOCK_MONOTONIC` and `CLOCK_REALTIME` at the start of the recording, and the steps
    /// since then.
    pub fn new(start: Ns, utc: Ns, steps: &[Step]) -> Self {
        let offset = utc.saturating_sub(start);
        let mut steps = steps.to_vec();
        steps.sort_by_key(|step| step.noticed_at_ns);
        let mut now = offset;
        let later = steps.iter().map(|step| {
            now = now.saturating_add(step.by_ns);
            (step.noticed_at_ns, now)
        });
        Self { later: later.collect(), start, offset }
    }

    /// The time of day at `t`, ns since 1970.
    pub fn utc(&self, t: Ns) -> Ns {
        let steps = self.later.partition_point(|(from, _)| *from <= t);
        t.saturating_add(steps.checked_sub(1).map_or(self.offset, |last| self.later[last].1))
    }

    /// The times of the steps.
    pub fn steps(&self) -> impl Iterator<Item = Ns> + '_ {
        self.later.iter().map(|(from, _)| *from)
    }

    /// Of the intervals in which the time of day is in `from..to` and which overlap the recording (from its start to
    /// `end`), returns the start of the first and the end of the last; both may lie outside the recording. If the clock
    /// was set back, the time of day may be outside `from..to` between them. `None` if there is no such interval.
    pub fn span(&self, from: Ns, to: Ns, end: Ns) -> Option<(Ns, Ns)> {
        let parts = self
            .eras()
            .map(|(begin, end, offset)| (from.saturating_sub(offset).max(begin), to.saturating_sub(offset).min(end)));
        let parts = parts.filter(|(from, to)| from < to && *to > self.start && *from < end);
        parts.reduce(|all, part| (all.0, part.1))
    }

    /// Intervals with one offset each: from, to, offset.
    fn eras(&self) -> impl Iterator<Item = (Ns, Ns, Ns)> + '_ {
        let begins = std::iter::once((Ns::MIN, self.offset)).chain(self.later.iter().copied());
        let ends = self.steps().chain([Ns::MAX]);
        begins.zip(ends).map(|((from, offset), to)| (from, to, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step() -> impl Strategy<Value = Step> {
        (0..1000_i64, -500..500_i64).prop_map(|(noticed_at_ns, by_ns)| Step { noticed_at_ns, by_ns })
    }

    proptest! {
        #[test]
        fn times_of_day_follow_the_steps_and_map_back_to_each_of_their_instants(
            offset in -100..100_i64,
            steps in proptest::collection::vec(step(), 0..5),
            from in -2000..2000_i64,
            length in 1..500_i64,
        ) {
            let (time, to) = (TimeOfDay::new(0, offset, &steps), from + length);
            let is_in = |t: Ns| (from..to).contains(&time.utc(t));
            let span = time.span(from, to, 2000);
            for t in 0..2000_i64 {
                let before = steps.iter().filter(|step| step.noticed_at_ns <= t).map(|step| step.by_ns);
                prop_assert_eq!(time.utc(t), t + offset + before.sum::<i64>());
                prop_assert!(!is_in(t) || span.is_some_and(|(first, end)| (first..end).contains(&t)), "{t}: {span:?}");
            }
            if let Some((first, end)) = span {
                prop_assert!(is_in(first) && is_in(end - 1) && end > 0 && first < 2000, "no wider than it must be: {span:?}");
            }
        }
    }

    #[test]
    fn forged_steps_do_not_overflow() {
        let steps = [(5, Ns::MAX), (Ns::MIN, Ns::MAX), (Ns::MAX, Ns::MIN), (0, Ns::MIN)];
        let steps = steps.map(|(noticed_at_ns, by_ns)| Step { noticed_at_ns, by_ns });
        let time = TimeOfDay::new(Ns::MIN, Ns::MAX, &steps);
        for t in [Ns::MIN, -1, 0, 7, Ns::MAX] {
            time.utc(t);
            time.span(t, Ns::MAX, t);
            time.span(Ns::MIN, t, Ns::MAX);
        }
    }
}
