//! Describes a pattern in one sentence.

use super::{Pattern, PatternKind};
use crate::units::{count, duration, of_things};

/// E.g. `every 60.00 s a spike of up to 6.012 ms`.
pub fn sentence(pattern: &Pattern) -> String {
    let time = |t: Option<i64>| duration(t.unwrap_or(0));
    let Pattern { from, to, size_ns, period_ns, .. } = pattern;
    let (n, packets) = (pattern.count, things(pattern.packets, "packet"));
    match pattern.kind {
        PatternKind::QueueRelease => {
            let held = time(*size_ns);
            let what = if n == 1 {
                format!("a queue was held for {held}, then released")
            } else {
                format!("{} times a queue was held, for up to {held}, then released", count(n))
            };
            format!("{what}: {packets} that were sent one after the other arrived at {to} at once")
        }
        PatternKind::PeriodicSpikes => format!(
            "a spike comes every {}, {} times, of up to {}; {packets} late",
            time(*period_ns),
            count(n),
            time(*size_ns)
        ),
        PatternKind::ServoSwing => format!(
            "the times swing by {} with a period of about {}, all alike: one machine's clock is steered to and fro against the other's",
            time(*size_ns),
            time(*period_ns)
        ),
        PatternKind::Step => {
            let ([before, after], size) = (pattern.levels_ns.unwrap_or_default(), size_ns.unwrap_or(0));
            let goes = if size < 0 { "falls" } else { "rises" };
            let by = duration(size.saturating_abs());
            let lasts = duration(pattern.to_ns.saturating_sub(pattern.from_ns));
            let levels = format!("from {} to {}", duration(before), duration(after));
            format!("the median {goes} by {by} within a second, {levels}, and stays there for {lasts}")
        }
        PatternKind::LinkFlap => {
            let place = match from.is_empty() {
                true => format!("no packet reached {to}"),
                false => format!("no packet came from {from} to {to}"),
            };
            let times = if n == 1 { String::new() } else { format!(", {} times,", count(n)) };
            let streams = things(pattern.streams.len() as u64, "stream");
            format!("{place}{times} for up to {}, of {streams}: {packets} missing", time(*size_ns))
        }
        PatternKind::PathChange => {
            let [before, after] = pattern.share_percent.unwrap_or_default();
            let path = pattern.path.as_deref().unwrap_or_default();
            format!("{after:.1} % of packets go by {path} from here on, {before:.1} % before")
        }
    }
}

fn things(n: u64, noun: &str) -> String {
    of_things(&count(n), n, noun)
}
