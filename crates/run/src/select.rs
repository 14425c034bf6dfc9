//! Which journeys of a run are read.

use latpath_model::{Ns, StreamId};

/// Which journeys to read.
#[derive(Clone, Debug)]
pub struct Select {
    /// Only these streams; all if none is named.
    pub streams: Option<Vec<StreamId>>,
    /// Only journeys whose first sighting was not before this, host `CLOCK_MONOTONIC`.
    pub from_ns: Ns,
    /// Only journeys whose first sighting was before this.
    pub to_ns: Ns,
    /// Only journeys whose first sighting was at one of these instants, rising; all if there is no list.
    pub at_ns: Option<Vec<Ns>>,
    /// Whether CPUs and threads are read too. Without them reading is twice as fast, and `cpu` and `tid` are empty.
    pub cpus_and_threads: bool,
}

impl Default for Select {
    fn default() -> Self {
        Self { streams: None, from_ns: Ns::MIN, to_ns: Ns::MAX, at_ns: None, cpus_and_threads: false }
    }
}

impl Select {
    /// Of these only those first seen at one of these instants.
    pub fn first_seen_at(mut self, mut times: Vec<Ns>) -> Self {
        times.sort_unstable();
        self.at_ns = Some(times);
        self
    }

    /// With CPUs and threads.
    pub fn with_cpus_and_threads(mut self) -> Self {
        self.cpus_and_threads = true;
        self
    }

    /// Whether a journey of this stream, first seen at this time, is selected.
    pub fn matches(&self, stream: StreamId, t: Ns) -> bool {
        (t >= self.from_ns && self.is_before_end(t))
            && self.streams.as_ref().is_none_or(|s| s.contains(&stream))
            && self.at_ns.as_ref().is_none_or(|at| at.binary_search(&t).is_ok())
    }

    /// `to_ns` is exclusive, but its greatest value leaves nothing out.
    fn is_before_end(&self, t: Ns) -> bool {
        t < self.to_ns || self.to_ns == Ns::MAX
    }

    /// Whether a journey first seen between these two, inclusive, may be selected.
    pub(crate) fn may_match(&self, first: Ns, last: Ns) -> bool {
        let one_of = |at: &Vec<Ns>| at.get(at.partition_point(|t| *t < first)).is_some_and(|t| *t <= last);
        last >= self.from_ns && self.is_before_end(first) && self.at_ns.as_ref().is_none_or(one_of)
    }

    /// Whether all journeys are selected.
    pub fn is_everything(&self) -> bool {
        self.streams.is_none() && self.from_ns == Ns::MIN && self.to_ns == Ns::MAX && self.at_ns.is_none()
    }
}
