//! Which captures are kept: the worst first, in bounded number and bytes.

use crate::CaptureKind;
use latpath_model::Ns;

const MINUTE: Ns = 60_000_000_000;
/// Captures in which all packets are on time have this part of the room at most.
const BASELINE_PART: usize = 4;

/// Room for captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Captures.
    pub captures: usize,
    /// Their bytes together.
    pub bytes: u64,
    /// Captures with late packets of one minute, where only the worst of each minute are wanted.
    pub per_minute: Option<usize>,
}

impl Default for RetentionLimits {
    /// 200 captures, 256 MiB.
    fn default() -> Self {
        Self { captures: 200, bytes: 256 << 20, per_minute: None }
    }
}

/// A capture, as far as it matters for its being kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCapture {
    /// The capture's.
    pub number: u32,
    /// The capture's.
    pub kind: CaptureKind,
    /// When it ends.
    pub to: Ns,
    /// What its latest packet took.
    pub worst: Ns,
    /// How much it takes.
    pub bytes: u64,
    /// Late packets in it, of each stream.
    pub late: Vec<u64>,
}

/// What is kept, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    bounds: RetentionLimits,
    kept: Vec<StoredCapture>,
    not_kept: u64,
}

/// What is to be done with a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// It is kept.
    pub keep: bool,
    /// These are not kept any more, for they are less bad.
    pub remove: Vec<u32>,
}

impl RetentionPolicy {
    /// Nothing kept yet.
    pub fn new(bounds: RetentionLimits) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Decides on one more.
    pub fn add(&mut self, entry: StoredCapture) -> Decision {
        let may = entry.kind == CaptureKind::Spike || self.has_room_for_on_time(&entry);
        let room = may.then(|| self.make_room(&entry)).flatten();
        let decision = Decision { keep: room.is_some(), remove: room.unwrap_or_default() };
        self.kept.retain(|e| !decision.remove.contains(&e.number));
        self.not_kept += decision.remove.len() as u64;
        match decision.keep {
            true => self.kept.push(entry),
            // Who loses a usual time has lost nothing.
            false => self.not_kept += u64::from(entry.kind == CaptureKind::Spike),
        }
        decision
    }

    fn has_room_for_on_time(&self, entry: &StoredCapture) -> bool {
        let all = || self.kept.iter().filter(|e| e.kind == CaptureKind::Baseline);
        let bytes = all().map(|e| e.bytes).sum::<u64>() + entry.bytes;
        // One is worth more than a part of little.
        let captures = (self.bounds.captures / BASELINE_PART).max(usize::from(self.bounds.captures > 0));
        all().count() < captures && bytes <= self.bounds.bytes / BASELINE_PART as u64
    }

    /// Those that must go for a capture; nothing if it is itself the least bad.
    fn make_room(&self, entry: &StoredCapture) -> Option<Vec<u32>> {
        let mut remove = Vec::new();
        // What is usual must be known, or no spike can be explained.
        let is_worse = |e: &StoredCapture| e.worst < entry.worst || entry.kind == CaptureKind::Baseline;
        if let Some(most) = self.bounds.per_minute.filter(|_| entry.kind == CaptureKind::Spike) {
            let same = |e: &&StoredCapture| {
                e.kind == CaptureKind::Spike && e.to.div_euclid(MINUTE) == entry.to.div_euclid(MINUTE)
            };
            if self.kept.iter().filter(same).count() >= most {
                let least = self.kept.iter().filter(same).min_by_key(|e| e.worst).filter(|e| is_worse(e))?;
                remove.push(least.number);
            }
        }
        let left = self.kept.iter().filter(|e| !remove.contains(&e.number));
        let (mut captures, mut bytes) = left.clone().fold((1, entry.bytes), |(n, b), e| (n + 1, b + e.bytes));
        // Of two that are equally bad the earlier one stays: it was before whatever it set off.
        let mut less: Vec<&StoredCapture> = left.filter(|e| e.kind == CaptureKind::Spike && is_worse(e)).collect();
        less.sort_by_key(|e| (e.worst, std::cmp::Reverse(e.number)));
        let mut less = less.into_iter();
        while captures > self.bounds.captures || bytes > self.bounds.bytes {
            let least = less.next()?;
            remove.push(least.number);
            (captures, bytes) = (captures - 1, bytes - least.bytes);
        }
        Some(remove)
    }

    /// Captures that are no worse than this would not be kept, as far as that can be told without knowing their bytes.
    pub fn keep_threshold(&self) -> Ns {
        let is_full = self.kept.len() >= self.bounds.captures;
        let least = || self.kept.iter().filter(|e| e.kind == CaptureKind::Spike).map(|e| e.worst).min();
        if is_full {
            least().unwrap_or(Ns::MAX)
        } else {
            0
        }
    }

    /// What is kept.
    pub fn kept(&self) -> &[StoredCapture] {
        &self.kept
    }

    /// Captures with late packets that were not kept.
    pub fn not_kept(&self) -> u64 {
        self.not_kept
    }

    /// A capture that could not be stored after all.
    pub fn forget(&mut self, number: u32) {
        self.kept.retain(|e| e.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spike(number: u32, worst: Ns, bytes: u64) -> StoredCapture {
        StoredCapture { number, kind: CaptureKind::Spike, to: Ns::from(number), worst, bytes, late: vec![1] }
    }

    fn numbers(policy: &RetentionPolicy) -> Vec<u32> {
        policy.kept().iter().map(|e| e.number).collect()
    }

    proptest! {
        #[test]
        fn the_worst_are_kept_and_all_are_counted(worst in prop::collection::vec(1..1000_i64, 0..100), captures in 1..20_usize) {
            let mut policy = RetentionPolicy::new(RetentionLimits { captures, ..RetentionLimits::default() });
            for (n, worst) in worst.iter().enumerate() {
                policy.add(spike(n as u32 + 1, *worst, 10));
            }
            let mut kept: Vec<Ns> = policy.kept().iter().map(|e| e.worst).collect();
            kept.sort_unstable_by(|a, b| b.cmp(a));
            let mut all = worst.clone();
            all.sort_unstable_by(|a, b| b.cmp(a));
            all.truncate(captures);
            prop_assert_eq!(kept, all);
            prop_assert_eq!(policy.kept().len() as u64 + policy.not_kept(), worst.len() as u64);
        }

        #[test]
        fn bounds_hold_whatever_comes(
            captures in prop::collection::vec((any::<bool>(), 1..1000_i64, 0..500_u64), 0..100),
            bytes in 0..2000_u64,
        ) {
            let mut policy = RetentionPolicy::new(RetentionLimits { captures: 10, bytes, per_minute: None });
            for (n, (baseline, worst, bytes)) in captures.into_iter().enumerate() {
                let kind = if baseline { CaptureKind::Baseline } else { CaptureKind::Spike };
                policy.add(StoredCapture { kind, ..spike(n as u32, worst, bytes) });
            }
            prop_assert!(policy.kept().len() <= 10);
            prop_assert!(policy.kept().iter().map(|e| e.bytes).sum::<u64>() <= bytes);
        }
    }

    #[test]
    fn one_that_is_too_big_throws_nothing_out() {
        let mut policy = RetentionPolicy::new(RetentionLimits { captures: 10, bytes: 100, per_minute: None });
        policy.add(spike(1, 5, 60));
        assert_eq!(policy.add(spike(2, 9, 101)), Decision { keep: false, remove: vec![] });
        assert_eq!(policy.add(spike(3, 9, 90)), Decision { keep: true, remove: vec![1] });
        assert_eq!((numbers(&policy), policy.not_kept()), (vec![3], 2));
    }

    #[test]
    fn what_is_no_worse_than_the_threshold_is_not_kept() {
        let mut policy = RetentionPolicy::new(RetentionLimits { captures: 2, ..RetentionLimits::default() });
        policy.add(spike(1, 5, 1));
        assert_eq!(policy.keep_threshold(), 0);
        policy.add(spike(2, 7, 1));
        assert_eq!(policy.keep_threshold(), 5);
        assert!(!policy.add(spike(3, 5, 1)).keep && policy.add(spike(4, 6, 1)).keep);
    }

    #[test]
    fn usual_times_take_a_part_of_the_room_and_are_never_thrown_out() {
        let mut policy = RetentionPolicy::new(RetentionLimits { captures: 8, ..RetentionLimits::default() });
        for number in 1..=5 {
            policy.add(StoredCapture { kind: CaptureKind::Baseline, ..spike(number, 1, 1) });
        }
        (6..=20).for_each(|number| drop(policy.add(spike(number, 100, 1))));
        assert_eq!(numbers(&policy), [1, 2, 6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn of_a_minute_so_many_are_kept_as_are_wanted() {
        let mut policy = RetentionPolicy::new(RetentionLimits { per_minute: Some(2), ..RetentionLimits::default() });
        for (number, worst) in [(1, 5), (2, 3), (3, 4), (4, 2)] {
            policy.add(spike(number, worst, 1));
        }
        let mut next = spike(5, 1, 1);
        next.to += MINUTE;
        policy.add(next);
        assert_eq!((numbers(&policy), policy.not_kept()), (vec![1, 3, 5], 2));
    }
}
