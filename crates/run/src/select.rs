//! Selects the journeys of a run to read.

use latpath_model::{Ns, StreamId};
use std::collections::HashMap;

/// Selection of journeys by stream and by the time of their first sighting.
#[derive(Clone, Debug)]
pub struct Select {
    /// The selected streams; `None` for all.
    pub streams: Option<Vec<StreamId>>,
    /// Start of the selected interval (inclusive), host's `CLOCK_MONOTONIC`, ns.
    pub from_ns: Ns,
    /// End of the selected interval (exclusive), host's `CLOCK_MONOTONIC`, ns.
    pub to_ns: Ns,
    /// Times of first sighting to select, ascending, ns; `None` for all.
    pub at_ns: Option<Vec<Ns>>,
    /// Spans whose journeys are excluded.
    pub except: Spans,
    /// Spans outside which journeys are excluded; `None` for all.
    pub only: Option<Spans>,
    /// Whether to read CPUs and thread IDs. If not, `cpu` and `tid` are empty, and reading takes half the time.
    pub cpus_and_threads: bool,
}

impl Default for Select {
    fn default() -> Self {
        Self {
            streams: None,
            from_ns: Ns::MIN,
            to_ns: Ns::MAX,
            at_ns: None,
            except: Spans::default(),
            only: None,
            cpus_and_threads: false,
        }
    }
}

impl Select {
    /// Restricts the selection to journeys first seen at one of these times.
    pub fn first_seen_at(mut self, mut times: Vec<Ns>) -> Self {
        times.sort_unstable();
        self.at_ns = Some(times);
        self
    }

    /// Also reads CPUs and threads.
    pub fn with_cpus_and_threads(mut self) -> Self {
        self.cpus_and_threads = true;
        self
    }

    /// Whether a journey of this stream, first seen at `t`, is selected.
    pub fn matches(&self, stream: StreamId, t: Ns) -> bool {
        (t >= self.from_ns && self.is_before_end(t))
            && self.streams.as_ref().is_none_or(|s| s.contains(&stream))
            && self.at_ns.as_ref().is_none_or(|at| at.binary_search(&t).is_ok())
            && !self.except.contain(stream, t)
            && self.only.as_ref().is_none_or(|only| only.contain(stream, t))
    }

    /// Whether a time is before `to_ns`. If that is the maximum, no time is excluded.
    fn is_before_end(&self, t: Ns) -> bool {
        t < self.to_ns || self.to_ns == Ns::MAX
    }

    /// Whether a journey first seen in `first..=last` may be selected.
    pub(crate) fn may_match(&self, first: Ns, last: Ns) -> bool {
        let one_of = |at: &Vec<Ns>| at.get(at.partition_point(|t| *t < first)).is_some_and(|t| *t <= last);
        last >= self.from_ns && self.is_before_end(first) && self.at_ns.as_ref().is_none_or(one_of)
    }

    /// Whether all journeys are selected.
    pub fn is_everything(&self) -> bool {
        self.streams.is_none()
            && self.from_ns == Ns::MIN
            && self.to_ns == Ns::MAX
            && self.at_ns.is_none()
            && self.except.is_empty()
            && self.only.is_none()
    }
}

/// Spans of time, per stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(HashMap<StreamId, Vec<(Ns, Ns)>>);

impl Spans {
    /// Spans of these streams, both ends inclusive.
    pub fn of(spans: impl IntoIterator<Item = (StreamId, Ns, Ns)>) -> Self {
        let mut all: HashMap<StreamId, Vec<(Ns, Ns)>> = HashMap::new();
        spans.into_iter().for_each(|(stream, from, to)| all.entry(stream).or_default().push((from, to)));
        for spans in all.values_mut() {
            spans.sort_unstable();
            spans.dedup_by(|next, one| {
                let same = next.0 <= one.1;
                one.1 = if same { one.1.max(next.1) } else { one.1 };
                same
            });
        }
        Self(all)
    }

    /// Whether there is no span.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an instant is in one of the stream's spans.
    pub fn contain(&self, stream: StreamId, t: Ns) -> bool {
        let Some(spans) = self.0.get(&stream) else { return false };
        let begun = spans.partition_point(|(from, _)| *from <= t);
        begun > 0 && t <= spans[begun - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_instant_is_in_spans_if_it_is_in_one_of_them(
            spans in prop::collection::vec((0..2_u16, 0..60_i64, 0..9_i64), 0..12),
            stream in 0..3_u16,
            t in -2..70_i64,
        ) {
            let all = Spans::of(spans.iter().map(|(stream, from, long)| (*stream, *from, from + long)));
            let expected = spans.iter().any(|(s, from, long)| *s == stream && (*from..=from + long).contains(&t));
            prop_assert_eq!(all.contain(stream, t), expected);
        }
    }
}
