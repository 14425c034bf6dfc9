//! Which captures are kept: the worst, limited in number and size.

use crate::CaptureKind;
use latpath_model::Ns;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MINUTE: Ns = 60_000_000_000;
/// Divisor of the limits: the result is the share available for baselines.
const BASELINE_PART: usize = 4;

/// Limits on the captures kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Maximum number of captures.
    pub captures: usize,
    /// Maximum total size, bytes.
    pub bytes: u64,
    /// Maximum number of spikes kept per minute (the worst ones); `None` for no such limit.
    pub per_minute: Option<usize>,
}

impl Default for RetentionLimits {
    /// 200 captures, 256 MiB.
    fn default() -> Self {
        Self { captures: 200, bytes: 256 << 20, per_minute: None }
    }
}

/// The policy's record of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCapture {
    /// Number of the capture.
    pub number: u32,
    /// Spike or baseline.
    pub kind: CaptureKind,
    /// End of its interval, ns.
    pub to: Ns,
    /// Time of its slowest packet, ns.
    pub worst: Ns,
    /// Size in the store, bytes.
    pub bytes: u64,
    /// Number of late packets per stream.
    pub late: Vec<u64>,
}

/// Decides which captures are kept. All clones share one state: the detector uses it to avoid requesting captures that
/// would be discarded, and the store to find out which captures to write and delete.
#[derive(Clone, Debug, Default)]
pub struct RetentionPolicy(Arc<Mutex<Retained>>);

#[derive(Debug, Default)]
struct Retained {
    limits: RetentionLimits,
    kept: Vec<StoredCapture>,
    not_kept: u64,
}

/// The decision about a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether to keep it.
    pub keep: bool,
    /// Numbers of less severe captures to delete.
    pub remove: Vec<u32>,
}

impl RetentionPolicy {
    /// A policy without captures.
    pub fn new(limits: RetentionLimits) -> Self {
        Self(Arc::new(Mutex::new(Retained { limits, ..Retained::default() })))
    }

    fn retained(&self) -> MutexGuard<'_, Retained> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides whether to keep a new capture, and which others to delete.
    pub fn add(&self, capture: StoredCapture) -> Decision {
        let mut retained = self.retained();
        let may = capture.kind == CaptureKind::Spike || retained.has_room_for_baseline(&capture);
        let room = may.then(|| retained.make_room(&capture)).flatten();
        let decision = Decision { keep: room.is_some(), remove: room.unwrap_or_default() };
        retained.kept.retain(|c| !decision.remove.contains(&c.number));
        retained.not_kept += decision.remove.len() as u64;
        match decision.keep {
            true => retained.kept.push(capture),
            // Discarded baselines are not counted.
            false => retained.not_kept += u64::from(capture.kind == CaptureKind::Spike),
        }
        decision
    }

    /// Spikes whose slowest packet took no longer than this, ns, are discarded. Others may still be discarded because
    /// of their size.
    pub fn keep_threshold(&self) -> Ns {
        let retained = self.retained();
        match retained.kept.len() >= retained.limits.captures {
            true => retained.spikes().map(|c| c.worst).min().unwrap_or(Ns::MAX),
            false => 0,
        }
    }

    /// The kept captures.
    pub fn kept(&self) -> Vec<StoredCapture> {
        self.retained().kept.clone()
    }

    /// Number of spikes whose captures were discarded.
    pub fn not_kept(&self) -> u64 {
        self.retained().not_kept
    }

    /// Removes a capture that could not be stored.
    pub fn forget(&self, number: u32) {
        self.retained().kept.retain(|c| c.number != number);
    }
}

impl Retained {
    fn spikes(&self) -> impl Iterator<Item = &StoredCapture> {
        self.kept.iter().filter(|c| c.kind == CaptureKind::Spike)
    }

    fn has_room_for_baseline(&self, capture: &StoredCapture) -> bool {
        let all = || self.kept.iter().filter(|c| c.kind == CaptureKind::Baseline);
        let bytes = all().map(|c| c.bytes).sum::<u64>() + capture.bytes;
        // At least one baseline is always allowed.
        let captures = (self.limits.captures / BASELINE_PART).max(usize::from(self.limits.captures > 0));
        all().count() < captures && bytes <= self.limits.bytes / BASELINE_PART as u64
    }

    /// The captures to delete for a new one; `None` if too few are less severe than the new one.
    fn make_room(&self, new: &StoredCapture) -> Option<Vec<u32>> {
        let mut remove = Vec::new();
        // A baseline takes precedence over any spike, because no spike can be explained without one.
        let is_worse = |c: &StoredCapture| c.worst < new.worst || new.kind == CaptureKind::Baseline;
        if let Some(most) = self.limits.per_minute.filter(|_| new.kind == CaptureKind::Spike) {
            let same = |c: &&StoredCapture| c.to.div_euclid(MINUTE) == new.to.div_euclid(MINUTE);
            if self.spikes().filter(same).count() >= most {
                let least = self.spikes().filter(same).min_by_key(|c| c.worst).filter(|c| is_worse(c))?;
                remove.push(least.number);
            }
        }
        let left = self.kept.iter().filter(|c| !remove.contains(&c.number));
        let (mut captures, mut bytes) = left.clone().fold((1, new.bytes), |(n, b), c| (n + 1, b + c.bytes));
        // Of two equally severe captures, the earlier one is kept: its spike may have caused the later one.
        let mut less: Vec<&StoredCapture> = left.filter(|c| c.kind == CaptureKind::Spike && is_worse(c)).collect();
        less.sort_by_key(|c| (c.worst, std::cmp::Reverse(c.number)));
        let mut less = less.into_iter();
        while captures > self.limits.captures || bytes > self.limits.bytes {
            let least = less.next()?;
            remove.push(least.number);
            (captures, bytes) = (captures - 1, bytes - least.bytes);
        }
        Some(remove)
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
            let policy = RetentionPolicy::new(RetentionLimits { captures, ..RetentionLimits::default() });
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
        fn bounds_hold_for_any_input(
            captures in prop::collection::vec((any::<bool>(), 1..1000_i64, 0..500_u64), 0..100),
            bytes in 0..2000_u64,
        ) {
            let policy = RetentionPolicy::new(RetentionLimits { captures: 10, bytes, per_minute: None });
            for (n, (baseline, worst, bytes)) in captures.into_iter().enumerate() {
                let kind = if baseline { CaptureKind::Baseline } else { CaptureKind::Spike };
                policy.add(StoredCapture { kind, ..spike(n as u32, worst, bytes) });
            }
            prop_assert!(policy.kept().len() <= 10);
            prop_assert!(policy.kept().iter().map(|e| e.bytes).sum::<u64>() <= bytes);
        }
    }

    #[test]
    fn a_capture_that_is_too_big_displaces_none() {
        let policy = RetentionPolicy::new(RetentionLimits { captures: 10, bytes: 100, per_minute: None });
        policy.add(spike(1, 5, 60));
        assert_eq!(policy.add(spike(2, 9, 101)), Decision { keep: false, remove: vec![] });
        assert_eq!(policy.add(spike(3, 9, 90)), Decision { keep: true, remove: vec![1] });
        assert_eq!((numbers(&policy), policy.not_kept()), (vec![3], 2));
    }

    #[test]
    fn spikes_below_the_threshold_are_not_kept() {
        let policy = RetentionPolicy::new(RetentionLimits { captures: 2, ..RetentionLimits::default() });
        policy.add(spike(1, 5, 1));
        assert_eq!(policy.keep_threshold(), 0);
        policy.add(spike(2, 7, 1));
        assert_eq!(policy.keep_threshold(), 5);
        assert!(!policy.add(spike(3, 5, 1)).keep && policy.add(spike(4, 6, 1)).keep);
    }

    #[test]
    fn baselines_use_a_part_of_the_limits_and_are_never_discarded() {
        let policy = RetentionPolicy::new(RetentionLimits { captures: 8, ..RetentionLimits::default() });
        for number in 1..=5 {
            policy.add(StoredCapture { kind: CaptureKind::Baseline, ..spike(number, 1, 1) });
        }
        (6..=20).for_each(|number| drop(policy.add(spike(number, 100, 1))));
        assert_eq!(numbers(&policy), [1, 2, 6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn the_worst_of_each_minute_are_kept() {
        let policy = RetentionPolicy::new(RetentionLimits { per_minute: Some(2), ..RetentionLimits::default() });
        for (number, worst) in [(1, 5), (2, 3), (3, 4), (4, 2)] {
            policy.add(spike(number, worst, 1));
        }
        let mut next = spike(5, 1, 1);
        next.to += MINUTE;
        policy.add(next);
        assert_eq!((numbers(&policy), policy.not_kept()), (vec![1, 3, 5], 2));
    }
}
