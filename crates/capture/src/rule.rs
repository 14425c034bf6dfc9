//! Rules that decide which packets are late.

use latpath_histogram::Histogram;
use latpath_model::Ns;

const MINUTE: Ns = 60_000_000_000;
/// Length of a slice, ns. At most one packet per slice counts among the worst of its minute, because a stall delays
/// many packets at once.
const SLICE: Ns = 200_000_000;
/// Number of packets between updates of the threshold of [`LatenessRule::OneOf`].
const UPDATE_INTERVAL: u64 = 1000;

/// Which packets are late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatenessRule {
    /// Packets that take longer than this, ns.
    Over(Ns),
    /// The N slowest packets of each minute.
    WorstPerMinute(usize),
    /// The slowest of every N packets; N = 10,000 selects the slowest 0.01 %.
    OneOf(u64),
}

/// Applies a rule to packets in order of arrival.
#[derive(Debug)]
pub(crate) enum LatenessClassifier {
    Over(Ns),
    Worst(Worst),
    Top(Top),
}

/// Classification of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lateness {
    OnTime,
    /// Late. Every packet that takes at least this time, ns, is late too.
    Late(Ns),
    /// Decided at the end of the slice.
    Undecided,
}

impl LatenessClassifier {
    pub fn new(rule: LatenessRule) -> Self {
        match rule {
            LatenessRule::Over(threshold) => Self::Over(threshold),
            LatenessRule::WorstPerMinute(n) => Self::Worst(Worst::new(n)),
            LatenessRule::OneOf(n) => Self::Top(Top::new(n)),
        }
    }

    /// Classifies a packet first seen at `t`; `time` is its longest time over any segment, ns.
    pub fn classify(&mut self, t: Ns, time: Ns) -> Lateness {
        match self {
            Self::Over(threshold) if time > *threshold => Lateness::Late(*threshold + 1),
            Self::Over(_) => Lateness::OnTime,
            Self::Worst(worst) => worst.classify(t, time),
            Self::Top(top) => top.classify(time),
        }
    }

    /// Maximum time of packets that are on time, ns; `None` while unknown.
    pub fn on_time(&self) -> Option<Ns> {
        match self {
            Self::Over(threshold) => Some(*threshold),
            Self::Worst(worst) => worst.on_time,
            Self::Top(top) => top.threshold.map(|threshold| threshold - 1),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Worst {
    n: usize,
    minute: Option<Ns>,
    /// Times of the current minute's late packets, ascending, ns.
    times: Vec<Ns>,
    /// End of the current slice. `worst`: the time of its slowest packet, ns.
    slice: Ns,
    worst: Option<Ns>,
    /// Time of the slowest recent packet that was not selected, ns.
    on_time: Option<Ns>,
}

impl Worst {
    fn new(n: usize) -> Self {
        Self { n, minute: None, times: Vec::new(), slice: Ns::MIN, worst: None, on_time: None }
    }

    fn classify(&mut self, t: Ns, time: Ns) -> Lateness {
        if self.slice == Ns::MIN {
            self.slice = t.saturating_add(SLICE);
        }
        self.turn(t);
        if self.worst.is_some_and(|worst| worst >= time) || !self.is_among(time) {
            return Lateness::OnTime;
        }
        self.worst = Some(time);
        Lateness::Undecided
    }

    /// Resets the selection when a new minute begins.
    fn turn(&mut self, t: Ns) {
        let minute = t.div_euclid(MINUTE);
        if self.minute.is_none_or(|m| m < minute) {
            self.minute = Some(minute);
            self.times.clear();
        }
    }

    fn is_among(&self, time: Ns) -> bool {
        self.n > 0 && (self.times.len() < self.n || time > self.times[0])
    }

    /// Ends a slice once its time is over. Returns the time from which its packets are late, ns; `None` if none is.
    pub fn slice(&mut self, now: Ns) -> Option<Ns> {
        if self.slice == Ns::MIN || now < self.slice {
            return None;
        }
        self.slice = now.saturating_add(SLICE);
        self.turn(now);
        let worst = self.worst.take()?;
        if !self.is_among(worst) {
            self.on_time = Some(worst);
            return None;
        }
        if self.times.len() == self.n {
            self.on_time = Some(self.times.remove(0));
        }
        let at = self.times.partition_point(|t| *t < worst);
        self.times.insert(at, worst);
        Some(worst)
    }
}

/// Selects the slowest fraction of all packets.
#[derive(Debug)]
pub(crate) struct Top {
    one_of: u64,
    times: Histogram,
    threshold: Option<Ns>,
}

impl Top {
    fn new(one_of: u64) -> Self {
        Self { one_of: one_of.max(1), times: Histogram::new(), threshold: None }
    }

    fn classify(&mut self, time: Ns) -> Lateness {
        let lateness = match self.threshold {
            Some(threshold) if time >= threshold => Lateness::Late(threshold),
            _ => Lateness::OnTime,
        };
        self.times.record(time.max(0));
        let all = self.times.count();
        if all >= self.one_of && (all.is_multiple_of(UPDATE_INTERVAL) || all == self.one_of) {
            self.threshold = Some(self.times.exceeded_by(all / self.one_of).max(1));
        }
        lateness
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_top_part_is_not_much_more_than_requested(times in prop::collection::vec(0..10_000_000_i64, 3000..6000)) {
            let mut classifier = LatenessClassifier::new(LatenessRule::OneOf(100));
            let late = times.iter().filter(|t| classifier.classify(0, **t) != Lateness::OnTime).count();
            // More than 1 % may be late, because the threshold is derived from earlier packets and changes in steps of
            // 0.4 %.
            prop_assert!(late <= times.len() * 4 / 100, "{} of {}", late, times.len());
            prop_assert!(matches!(classifier.classify(0, 20_000_000), Lateness::Late(_)));
        }
    }

    #[test]
    fn a_time_over_the_threshold_is_late_and_at_it_is_not() {
        let mut classifier = LatenessClassifier::new(LatenessRule::Over(100));
        assert_eq!((classifier.classify(0, 100), classifier.classify(0, 101)), (Lateness::OnTime, Lateness::Late(101)));
    }

    #[test]
    fn the_worst_of_each_slice_of_a_minute_is_late() {
        let LatenessClassifier::Worst(mut worst) = LatenessClassifier::new(LatenessRule::WorstPerMinute(2)) else {
            unreachable!()
        };
        let mut late = Vec::new();
        for (second, time) in [(0, 5), (1, 9), (2, 7), (3, 3), (4, 20), (61, 1)] {
            let t = second * 1_000_000_000;
            worst.slice = Ns::MIN;
            worst.classify(t, time - 1);
            worst.classify(t, time);
            late.extend(worst.slice(t + SLICE));
        }
        assert_eq!(late, [5, 9, 7, 20, 1]);
    }
}
