//! Observation of traffic while settings change.

use crate::plan::Planned;
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Observes traffic while settings change.
pub trait Watch {
    /// Measures the traffic before the first change.
    ///
    /// # Errors
    /// The reason why the traffic cannot be watched.
    fn begin(&mut self) -> Result<(), String>;

    /// Waits until a step has taken effect, and measures the effect. `None` if no traffic is watched.
    ///
    /// # Errors
    /// The reason why the effect is unknown; the change is then reverted.
    fn settle(&mut self, step: &Planned) -> Result<Option<Effect>, String>;
}

/// The effect of a step on the traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// Time from the change to the end of the observation, ns.
    pub watched_ns: Ns,
    /// Packets that arrived in that time.
    pub packets: u64,
    /// Packets that were lost in that time.
    pub lost: u64,
    /// Packets that were late in that time.
    pub late: u64,
    /// Latencies before the first change.
    pub before: Figures,
    /// Latencies in that time.
    pub after: Figures,
    /// Why the step is judged to have disturbed the traffic; null if it did not.
    pub disturbed: Option<String>,
}

/// Latencies of packets, ns; null if there were no packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// Median.
    pub p50: Option<Ns>,
    /// 99th percentile.
    pub p99: Option<Ns>,
    /// Maximum.
    pub max: Option<Ns>,
}

/// Watches no traffic: for a machine without any.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWatch;

impl Watch for NoWatch {
    fn begin(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn settle(&mut self, _: &Planned) -> Result<Option<Effect>, String> {
        Ok(None)
    }
}

/// Observation of the traffic over an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Duration, ns.
    pub elapsed_ns: Ns,
    /// Number of packets.
    pub packets: u64,
    /// Number of packets lost or never seen.
    pub lost: u64,
    /// Latencies: from and to, ns, and the number of packets, of each range, ascending.
    pub latencies: Vec<(Ns, Ns, u64)>,
    /// Percentiles that are more exact than the ranges, if known.
    pub exact: Option<Exact>,
}

/// Percentiles of latencies, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exact {
    /// Median.
    pub p50: Ns,
    /// 99th percentile.
    pub p99: Ns,
    /// 99.9th percentile.
    pub p99_9: Ns,
    /// Maximum.
    pub max: Ns,
}

/// The traffic before the first change, and the threshold of late packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    observed: Observed,
    /// Latency above which a packet is late, ns.
    pub threshold_ns: Ns,
    late: u64,
}

/// Without a user's threshold, a packet is late if it takes longer than this many times the baseline's p99.9 …
const TIMES_P99_9: Ns = 3;
/// … and longer than this many times the baseline's maximum latency.
const TIMES_MAX: Ns = 2;
/// Probability below which a number of lost or late packets is not attributed to chance.
const ACCIDENT: f64 = 0.01;

impl Observed {
    fn count(&self) -> u64 {
        self.latencies.iter().map(|(.., count)| count).sum()
    }

    /// The upper end, ns, of the range that contains this percentile, which is given in thousandths.
    fn percentile(&self, thousandths: u64) -> Option<Ns> {
        let rank = (self.count() * thousandths).div_ceil(1000).max(1);
        let mut seen = 0;
        let found = self.latencies.iter().find(|(.., count)| {
            seen += count;
            seen >= rank
        });
        found.map(|(_, to, _)| *to)
    }

    fn figures(&self) -> Figures {
        if let Some(Exact { p50, p99, max, .. }) = self.exact {
            return Figures { p50: Some(p50), p99: Some(p99), max: Some(max) };
        }
        let max = self.latencies.iter().rfind(|(.., count)| *count > 0).map(|(_, to, _)| *to);
        Figures { p50: self.percentile(500), p99: self.percentile(990), max }
    }

    fn over(&self, threshold: Ns) -> u64 {
        self.latencies.iter().filter(|(from, ..)| *from > threshold).map(|(.., count)| count).sum()
    }
}

impl Baseline {
    /// Derives a baseline from an observation; `threshold_ns` is the user's threshold, if any.
    ///
    /// # Errors
    /// There were no packets.
    pub fn of(observed: Observed, threshold_ns: Option<Ns>) -> Result<Self, String> {
        if observed.packets == 0 {
            return Err("no packet of the stream came while the traffic before the change was measured".into());
        }
        let p99_9 = observed.exact.map(|exact| exact.p99_9).or(observed.percentile(999)).unwrap_or(0);
        let derived = p99_9.saturating_mul(TIMES_P99_9);
        let longest = observed.figures().max.unwrap_or(0).saturating_mul(TIMES_MAX);
        let threshold_ns = threshold_ns.unwrap_or(derived.max(longest));
        let late = observed.over(threshold_ns);
        Ok(Self { observed, threshold_ns, late })
    }

    /// Judges the effect of a change from an observation that began before it.
    pub fn judge(&self, after: &Observed) -> Effect {
        let late = after.over(self.threshold_ns);
        let share = after.elapsed_ns as f64 / self.observed.elapsed_ns.max(1) as f64;
        let is_more = |now: u64, before: u64| now > 0 && chance(now, before as f64 * share) < ACCIDENT;
        let s = |n: u64| if n == 1 { "packet was" } else { "packets were" };
        let disturbed = match () {
            () if after.packets == 0 => Some("no packet came any more".to_owned()),
            () if is_more(after.lost, self.observed.lost) => Some(format!(
                "{} {} lost (before: {} in {:.1} s)",
                after.lost,
                s(after.lost),
                self.observed.lost,
                self.seconds()
            )),
            () if is_more(late, self.late) => Some(format!(
                "{late} {} late, over {} us (before: {} in {:.1} s)",
                s(late),
                self.threshold_ns / 1000,
                self.late,
                self.seconds()
            )),
            () => None,
        };
        Effect {
            watched_ns: after.elapsed_ns,
            packets: after.packets,
            lost: after.lost,
            late,
            before: self.observed.figures(),
            after: after.figures(),
            disturbed,
        }
    }

    fn seconds(&self) -> f64 {
        self.observed.elapsed_ns as f64 / 1e9
    }
}

/// Probability of `n` or more events if `expected` are expected (Poisson).
fn chance(n: u64, expected: f64) -> f64 {
    if expected <= 0.0 {
        return if n == 0 { 1.0 } else { 0.0 };
    }
    let mut term = (-expected).exp();
    let mut below = 0.0;
    for k in 0..n.min(1 << 20) {
        below += term;
        term *= expected / (k + 1) as f64;
    }
    // With many expected events, the first term underflows; then only clearly more events than expected are
    // significant.
    match below == 0.0 {
        true => {
            if n as f64 > expected * 1.5 {
                0.0
            } else {
                1.0
            }
        }
        false => (1.0 - below).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(lost: u64, latencies: &[(Ns, Ns, u64)]) -> Observed {
        let packets = latencies.iter().map(|(.., count)| count).sum();
        Observed { elapsed_ns: 5_000_000_000, packets, lost, latencies: latencies.to_vec(), exact: None }
    }

    const QUIET: &[(Ns, Ns, u64)] = &[(30_000, 31_000, 19_000), (40_000, 41_000, 1_000)];

    #[test]
    fn a_lost_or_late_packet_disturbs_and_what_also_came_before_does_not() {
        let base = Baseline::of(observed(0, QUIET), None).unwrap();
        assert_eq!(base.threshold_ns, 123_000, "three times p99.9");
        let effect = base.judge(&observed(0, &[(30_000, 31_000, 20_000), (120_000, 121_000, 1)]));
        assert_eq!((effect.disturbed, effect.after.max, effect.before.p50), (None, Some(121_000), Some(31_000)));
        let lost = base.judge(&observed(1, QUIET)).disturbed.unwrap();
        assert_eq!(lost, "1 packet was lost (before: 0 in 5.0 s)");
        let late = base.judge(&observed(0, &[(30_000, 31_000, 20_000), (124_000, 125_000, 2)]));
        assert_eq!(
            (late.late, late.disturbed.unwrap().as_str()),
            (2, "2 packets were late, over 123 us (before: 0 in 5.0 s)")
        );
        assert_eq!(base.judge(&observed(0, &[])).disturbed.unwrap(), "no packet came any more");

        let noisy = Baseline::of(observed(10, QUIET), Some(35_000)).unwrap();
        assert_eq!(
            noisy.judge(&observed(12, QUIET)).disturbed,
            None,
            "12 instead of 10 and 1000 again are an accident"
        );
        assert!(noisy.judge(&observed(30, QUIET)).disturbed.unwrap().contains("30 packets were lost"));
        assert!(Baseline::of(observed(0, &[]), None).is_err());
    }

    #[test]
    fn the_chance_of_a_number_of_events_is_that_of_poisson() {
        assert!((chance(1, 1.0) - 0.632_120).abs() < 1e-5);
        assert!((chance(5, 2.0) - 0.052_653).abs() < 1e-5);
        assert_eq!((chance(0, 0.0), chance(1, 0.0)), (1.0, 0.0));
        assert!(chance(3_000, 1_000.0) < ACCIDENT && chance(1_001, 1_000.0) > ACCIDENT);
    }
}
