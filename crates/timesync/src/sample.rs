//! Samples of the links for a recording: each summarises several seconds.

use crate::events::SyncEvent;
use crate::state::{ClockReport, LinkState};
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Time that a sample covers, ns.
const SPAN: Ns = 10_000_000_000;
/// Maximum number of links sampled at a time.
const MAX_LINKS: usize = 32;

/// Summary of a link over several seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SyncSample {
    /// Start of the sample, `CLOCK_MONOTONIC`, ns.
    pub from_ns: Ns,
    /// End of the sample, ns.
    pub until_ns: Ns,
    /// The clock.
    pub clock: String,
    /// Its reference; empty if it has none.
    pub follows: String,
    /// The daemon that steers it; empty if none does.
    pub by: String,
    /// The last state in the interval.
    pub state: LinkState,
    /// Number of readings with an offset.
    pub readings: u64,
    /// Smallest offset, ns.
    pub min_ns: Ns,
    /// Sum of the offsets, ns.
    pub sum_ns: i64,
    /// Largest offset, ns.
    pub max_ns: Ns,
    /// Largest bound, ns; `None` if it was unknown at any reading.
    pub bound_ns: Option<Ns>,
}

impl SyncSample {
    /// Adds another sample of the same link.
    pub fn add(&mut self, other: &Self) {
        self.from_ns = self.from_ns.min(other.from_ns);
        if other.until_ns >= self.until_ns {
            (self.until_ns, self.state) = (other.until_ns, other.state);
        }
        if other.readings > 0 {
            let is_first = self.readings == 0;
            self.min_ns = if is_first { other.min_ns } else { self.min_ns.min(other.min_ns) };
            self.max_ns = if is_first { other.max_ns } else { self.max_ns.max(other.max_ns) };
            self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
            self.readings = self.readings.saturating_add(other.readings);
        }
        self.bound_ns = self.bound_ns.zip(other.bound_ns).map(|(a, b)| a.max(b));
    }

    /// Mean offset, ns; `None` if no offset was read.
    pub fn mean_ns(&self) -> Option<Ns> {
        (self.readings > 0).then(|| self.sum_ns / i64::try_from(self.readings).unwrap_or(i64::MAX))
    }

    /// Whether both samples are of the same link.
    pub fn is_same_link(&self, other: &Self) -> bool {
        (&self.clock, &self.follows, &self.by) == (&other.clock, &other.follows, &other.by)
    }
}

/// A line of a run's `sync.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum SyncRecord {
    /// Summary of a link over several seconds.
    Sample(SyncSample),
    /// An event that begins or ends.
    Event(SyncEvent),
}

/// Maximum number of links in a history; `MAX_EVENTS` limits its events.
const MAX_HISTORY_LINKS: usize = 64;
const MAX_EVENTS: usize = 10_000;

/// The links and events of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncHistory {
    /// Summary of each link over the whole measurement.
    pub links: Vec<SyncSample>,
    /// The first events, in the order of their discovery.
    pub events: Vec<SyncEvent>,
    /// Number of links and events omitted because of the limits.
    pub left_out: u64,
}

impl SyncHistory {
    /// Adds a record. The report of an event's end replaces that of its beginning.
    pub fn add(&mut self, record: SyncRecord) {
        match record {
            SyncRecord::Sample(sample) => match self.links.iter().position(|link| link.is_same_link(&sample)) {
                Some(at) => self.links[at].add(&sample),
                None if self.links.len() < MAX_HISTORY_LINKS => self.links.push(sample),
                None => self.left_out = self.left_out.saturating_add(1),
            },
            SyncRecord::Event(event) => match self.events.iter().rposition(|one| one.number == event.number) {
                Some(at) => self.events[at] = event,
                None if self.events.len() < MAX_EVENTS => self.events.push(event),
                None => self.left_out = self.left_out.saturating_add(1),
            },
        }
    }

    /// Whether it has neither links nor events.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty() && self.events.is_empty()
    }

    /// Intervals in which an event was open, ascending and disjoint; an unfinished event lasts until `end`.
    pub fn disordered(&self, end: Ns) -> Vec<(Ns, Ns)> {
        let interval = |event: &SyncEvent| (event.from_ns, event.until_ns.unwrap_or(end).max(event.noticed_ns));
        let mut all: Vec<_> = self.events.iter().map(interval).filter(|(from, until)| from <= until).collect();
        all.sort_unstable();
        all.dedup_by(|next, one| {
            let touches = next.0 <= one.1;
            one.1 = if touches { one.1.max(next.1) } else { one.1 };
            touches
        });
        all
    }
}

/// Combines reports into samples.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    open: BTreeMap<(String, String, String), SyncSample>,
    since: Option<Ns>,
}

impl Sampler {
    /// Adds a report; returns the samples that it completes.
    pub fn add(&mut self, report: &ClockReport) -> Vec<SyncSample> {
        let at = report.monotonic_ns;
        let since = *self.since.get_or_insert(at);
        for link in &report.links {
            let key = (link.clock.clone(), link.follows.clone(), link.by.clone());
            let offset = link.offset_ns.unwrap_or(0);
            let one = SyncSample {
                from_ns: at,
                until_ns: at,
                clock: link.clock.clone(),
                follows: link.follows.clone(),
                by: link.by.clone(),
                state: link.state,
                readings: link.offset_ns.is_some().into(),
                min_ns: offset,
                sum_ns: offset,
                max_ns: offset,
                bound_ns: link.bound_ns,
            };
            let has_room = self.open.len() < MAX_LINKS;
            match self.open.get_mut(&key) {
                Some(sample) => sample.add(&one),
                None if has_room => drop(self.open.insert(key, one)),
                None => {}
            }
        }
        match at.saturating_sub(since) >= SPAN {
            true => self.finish(),
            false => Vec::new(),
        }
    }

    /// Ends the current sample of each link, and returns them.
    pub fn finish(&mut self) -> Vec<SyncSample> {
        self.since = None;
        std::mem::take(&mut self.open).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Link;

    #[test]
    fn a_history_merges_links_and_replaces_the_beginning_of_an_event_by_its_end() {
        let mut history = SyncHistory::default();
        let sample = |from_ns, max_ns| SyncSample {
            clock: "a".into(),
            from_ns,
            until_ns: from_ns + 10,
            readings: 1,
            min_ns: max_ns,
            sum_ns: max_ns,
            max_ns,
            bound_ns: Some(max_ns),
            ..SyncSample::default()
        };
        [sample(0, 5), sample(10, 7)].into_iter().for_each(|s| history.add(SyncRecord::Sample(s)));
        assert_eq!((history.links.len(), history.links[0].mean_ns(), history.links[0].until_ns), (1, Some(6), 20));
        let event = |number, from_ns, noticed_ns, until_ns| {
            SyncRecord::Event(SyncEvent { number, from_ns, noticed_ns, until_ns, ..SyncEvent::default() })
        };
        history.add(event(1, 5, 6, None));
        history.add(event(2, 100, 101, None));
        assert_eq!(history.disordered(150), [(5, 150)], "both go on");
        history.add(event(1, 5, 6, Some(50)));
        history.add(event(3, 40, 45, Some(60)));
        assert_eq!(history.disordered(150), [(5, 60), (100, 150)]);
        assert_eq!((history.events.len(), history.left_out), (3, 0));
    }

    #[test]
    fn a_sample_keeps_the_extremes_and_the_mean_of_its_seconds() {
        let mut sampler = Sampler::default();
        let report = |second: Ns, offset_ns: Option<Ns>, bound_ns| ClockReport {
            monotonic_ns: second * 1_000_000_000,
            links: vec![Link { clock: "a".into(), offset_ns, bound_ns, ..Link::default() }],
            ..ClockReport::default()
        };
        assert_eq!(sampler.add(&report(0, None, Some(3))), []);
        for second in 1..10 {
            assert_eq!(sampler.add(&report(second, Some(second * 10 - 20), Some(second))), []);
        }
        let samples = sampler.add(&report(10, Some(-90), Some(4)));
        let [sample] = &samples[..] else { panic!("{samples:?}") };
        assert_eq!((sample.readings, sample.min_ns, sample.max_ns, sample.mean_ns()), (10, -90, 70, Some(18)));
        assert_eq!((sample.bound_ns, sample.from_ns, sample.until_ns), (Some(9), 0, 10_000_000_000));
        sampler.add(&report(11, None, None));
        let last = sampler.finish();
        assert_eq!((last[0].mean_ns(), last[0].bound_ns), (None, None));
        assert_eq!(sampler.finish(), []);
    }
}
