//! Changes between summaries: whether packets arrive, and when something last went wrong.
//!
//! Times are those since the screen started, so that a stopped stream is noticed even if the figures stop too.

use latpath_model::{Ns, SegmentKind};
use latpath_stats::figures::{never_seen, packets};
use latpath_stats::{SegmentFigures, Summary};
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

/// Minimum time without packets before a stream counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// Number of summaries over which the rate is averaged.
const RATE_OVER: usize = 4;

/// Whether packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flowing {
    /// No packet has arrived yet, for this long.
    Waiting(Duration),
    Yes,
    /// No packet has arrived for this long.
    Silent(Duration),
}

#[derive(Clone, Debug, Default)]
pub struct Flow {
    begun: Duration,
    changed: Duration,
    samples: VecDeque<(Ns, u64)>,
}

impl Flow {
    fn new(now: Duration) -> Self {
        Self { begun: now, changed: now, samples: VecDeque::new() }
    }

    fn feed(&mut self, journeys: u64, elapsed: Ns, now: Duration) {
        if self.samples.back().map_or(0, |(_, j)| *j) != journeys {
            self.changed = now;
        }
        if self.samples.len() == RATE_OVER {
            self.samples.pop_front();
        }
        self.samples.push_back((elapsed, journeys));
    }

    /// Packets per second over the last few summaries, or since the start with only one.
    pub fn rate_hz(&self) -> f64 {
        let Some(last) = self.samples.back() else { return 0.0 };
        let first = if self.samples.len() > 1 { self.samples[0] } else { (0, 0) };
        let ns = last.0.saturating_sub(first.0);
        if ns <= 0 {
            return 0.0;
        }
        last.1.saturating_sub(first.1) as f64 * 1e9 / ns as f64
    }

    /// Whether packets arrive. A slow stream counts as silent only after five times its mean interval.
    pub fn flowing(&self, now: Duration) -> Flowing {
        let Some(&(elapsed, journeys)) = self.samples.back() else {
            return Flowing::Waiting(now.saturating_sub(self.begun));
        };
        if journeys == 0 {
            return Flowing::Waiting(now.saturating_sub(self.begun));
        }
        let interval = Duration::from_nanos(elapsed.max(0).unsigned_abs() / journeys);
        let silent = now.saturating_sub(self.changed);
        if silent > SILENT_AFTER.max(interval.saturating_mul(5)) {
            Flowing::Silent(silent)
        } else {
            Flowing::Yes
        }
    }
}

/// A count that should be zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub count: u64,
    /// Time and amount of the last increase.
    pub last: Option<(Duration, u64)>,
}

impl Tally {
    fn feed(&mut self, count: u64, now: Duration) {
        if count > self.count {
            self.last = Some((now, count - self.count));
        }
        self.count = count;
    }
}

#[derive(Debug, Default)]
pub struct Watch {
    pub fed: Duration,
    pub all: Flow,
    pub streams: HashMap<String, Flow>,
    pub lost: Tally,
    pub dropped: Tally,
    /// Negative times in the segment with the most of them.
    pub negative: Tally,
    pub never_seen: Tally,
    pub malformed: Tally,
    pub over: Tally,
    elapsed: Ns,
    journeys: u64,
}

impl Watch {
    pub fn new(now: Duration) -> Self {
        Self { fed: now, all: Flow::new(now), ..Self::default() }
    }

    /// Adds a summary; returns whether counting started from zero (the first summary, or after a reset).
    pub fn feed(&mut self, summary: &Summary, now: Duration) -> bool {
        let from_zero = summary.elapsed_ns < self.elapsed || summary.journeys < self.journeys;
        let first = self.all.samples.is_empty();
        if from_zero {
            *self = Self::new(now);
        }
        (self.fed, self.elapsed, self.journeys) = (now, summary.elapsed_ns, summary.journeys);
        self.all.feed(summary.journeys, summary.elapsed_ns, now);
        self.streams.retain(|name, _| summary.streams.iter().any(|s| s.stream == *name));
        for stream in &summary.streams {
            let flow = self.streams.entry(stream.stream.clone()).or_insert_with(|| Flow::new(now));
            flow.feed(stream.journeys, summary.elapsed_ns, now);
        }
        self.lost.feed(packets(&summary.lost), now);
        self.dropped.feed(summary.tool.sightings_dropped, now);
        self.negative.feed(worst_negative(&summary.segments).map_or(0, |s| s.times.negative), now);
        self.never_seen.feed(never_seen(summary), now);
        self.malformed.feed(summary.malformed, now);
        self.over.feed(over_threshold(&summary.segments), now);
        from_zero || first
    }
}

/// The segment with the most negative times, if any.
pub fn worst_negative(segments: &[SegmentFigures]) -> Option<&SegmentFigures> {
    segments.iter().filter(|s| s.times.negative > 0).max_by_key(|s| s.times.negative)
}

/// Number of journeys over the threshold: in the segment `total`, or else in the segment with the most.
fn over_threshold(segments: &[SegmentFigures]) -> u64 {
    let total = segments.iter().find(|s| s.kind == SegmentKind::Total).map(|s| s.over_threshold);
    total.or_else(|| segments.iter().map(|s| s.over_threshold).max()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn summary(elapsed_s: i64, journeys: u64) -> Summary {
        Summary { elapsed_ns: elapsed_s * 1_000_000_000, journeys, ..Summary::default() }
    }

    #[test]
    fn a_stream_waits_then_flows_then_is_silent() {
        let mut w = Watch::new(at(0));
        w.feed(&summary(3, 0), at(3));
        assert_eq!(w.all.flowing(at(3)), Flowing::Waiting(at(3)));
        w.feed(&summary(4, 4000), at(4));
        assert_eq!(w.all.flowing(at(5)), Flowing::Yes);
        w.feed(&summary(10, 4000), at(10));
        assert_eq!(w.all.flowing(at(10)), Flowing::Silent(at(6)));
    }

    #[test]
    fn a_slow_stream_is_not_called_silent_between_two_packets() {
        let mut w = Watch::new(at(0));
        w.feed(&summary(20, 4), at(20));
        w.feed(&summary(30, 4), at(30));
        assert_eq!(w.all.flowing(at(30)), Flowing::Yes);
    }

    #[test]
    fn silence_is_seen_even_when_no_summary_comes() {
        let mut w = Watch::new(at(0));
        w.feed(&summary(1, 4000), at(1));
        assert_eq!(w.all.flowing(at(9)), Flowing::Silent(at(8)));
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds_not_of_the_whole_time() {
        let mut w = Watch::new(at(0));
        for (s, journeys) in [(1, 4000), (2, 8000), (3, 8100), (4, 8200), (5, 8300), (6, 8400)] {
            w.feed(&summary(s, journeys), at(s.unsigned_abs()));
        }
        assert_eq!(w.all.rate_hz(), 100.0);
    }

    #[test]
    fn a_tally_remembers_when_it_last_grew() {
        let mut w = Watch::new(at(0));
        let mut s = summary(1, 10);
        s.tool.sightings_dropped = 5;
        assert!(w.feed(&s, at(1)));
        s.tool.sightings_dropped = 7;
        assert!(!w.feed(&s, at(2)));
        assert!(!w.feed(&s, at(3)));
        assert_eq!(w.dropped.last, Some((at(2), 2)));
    }

    #[test]
    fn a_reset_counts_from_zero() {
        let mut w = Watch::new(at(0));
        w.feed(&summary(10, 1000), at(10));
        assert!(w.feed(&summary(1, 4), at(11)));
        assert_eq!(w.all.rate_hz(), 4.0);
    }
}
