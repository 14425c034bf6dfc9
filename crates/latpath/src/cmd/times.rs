//! Figures of times as text.

use latpath_histogram::Histogram;
use latpath_stats::units::duration;

/// Percentiles and maximum of these times as text; `None` without times.
pub(super) fn times_text(times: &Histogram) -> Option<String> {
    let [p50, p99, p99_9] = times.percentiles([500_000, 990_000, 999_000]).map(duration);
    (times.count() > 0).then(|| format!("p50 {p50}, p99 {p99}, p99.9 {p99_9}, max {}", duration(times.max())))
}
