//! Valid range of a run's times. Within it, the difference between two times cannot overflow, nor can the difference
//! between two such differences.

use latpath_model::Ns;

/// Maximum distance of a run's start from 0 on its timeline, ns: 146 years. The start of an imported run is UTC.
const LATEST_START: Ns = 1 << 62;
/// Maximum distance of a time from the run's start, ns: 73 years. Enough for a guest whose clock starts in 1970.
const REACH: Ns = 1 << 61;
/// Reason given for rejecting a file with an impossible time as damaged.
pub(crate) const IMPOSSIBLE: &str = "a time in it is more than 73 years away from the run's start";

/// Valid range of a run's times, given by its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeSpan {
    start: Ns,
}

impl TimeSpan {
    /// The range of a run with this start; `None` if the start is impossible.
    pub fn of_start(start: Ns) -> Option<Self> {
        (start.unsigned_abs() <= LATEST_START.unsigned_abs()).then_some(Self { start })
    }

    /// A value with its high bits set if and only if the time is impossible in this run. The values of many times can
    /// be combined by `|` and tested at once.
    #[inline]
    pub fn excess(self, t: Ns) -> u64 {
        t.wrapping_sub(self.start).wrapping_add(REACH) as u64
    }

    /// Whether all times combined in this value are possible.
    pub fn holds(excess: u64) -> bool {
        excess < 2 * REACH.unsigned_abs()
    }

    pub fn contains(self, t: Ns) -> bool {
        Self::holds(self.excess(t))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_reach_of_a_time_from_the_start_is_defined_for_any_values(start: Ns, t: Ns, others: Vec<Ns>) {
            let Some(span) = TimeSpan::of_start(start) else { return Ok(()) };
            let within = |t: Ns| (-i128::from(REACH)..i128::from(REACH)).contains(&(i128::from(t) - i128::from(start)));
            prop_assert_eq!(span.contains(t), within(t));
            let all = others.iter().fold(0, |all, t| all | span.excess(*t));
            prop_assert_eq!(TimeSpan::holds(all), others.iter().all(|t| within(*t)));
            if others.iter().all(|t| within(*t)) {
                prop_assert!(others.iter().all(|t| others.iter().all(|u| t.checked_sub(*u).is_some())));
            }
        }
    }
}
