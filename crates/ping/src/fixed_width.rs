//! A histogram of buckets of equal width. Times beyond its end are kept individually.

use latpath_model::Ns;
use latpath_stats::Bucket;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of times beyond the end that are kept individually.
const OVERFLOW_KEPT: usize = 10_000;

/// The axis of a histogram: its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramAxis {
    /// Width of a bucket, ns; above 0.
    pub bucket: Ns,
    /// End of the last bucket, ns.
    pub end: Ns,
}

impl HistogramAxis {
    /// Maximum number of buckets.
    pub const MAX: Ns = 1_000_000;

    /// Number of buckets.
    pub fn buckets(self) -> Ns {
        (self.end.max(0) + self.bucket - 1) / self.bucket.max(1)
    }
}

/// The time of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct SingleTime {
    /// The time, ns.
    pub time_ns: Ns,
    /// Sequence number of the probe in its session.
    pub sequence: u64,
}

/// A histogram that counts times in buckets of equal width.
#[derive(Clone, Debug)]
pub struct FixedWidthHistogram {
    axis: HistogramAxis,
    counts: Vec<u64>,
    overflow: Vec<SingleTime>,
    overflown: u64,
}

impl FixedWidthHistogram {
    /// Creates an empty histogram, with at most [`HistogramAxis::MAX`] buckets.
    pub fn new(axis: HistogramAxis) -> Self {
        let counts = vec![0; axis.buckets().min(HistogramAxis::MAX) as usize];
        Self { axis, counts, overflow: Vec::new(), overflown: 0 }
    }

    /// Adds a time.
    #[inline]
    pub fn add(&mut self, sequence: u64, time: Ns) {
        // Negative times are clock faults, which are also counted elsewhere.
        let bucket = self.counts.get_mut((time.max(0) / self.axis.bucket) as usize);
        if let Some(count) = bucket.filter(|_| time < self.axis.end) {
            *count += 1;
        } else {
            self.overflown += 1;
            if self.overflow.len() < OVERFLOW_KEPT {
                self.overflow.push(SingleTime { time_ns: time, sequence });
            }
        }
    }

    /// The non-empty buckets.
    pub fn buckets(&self) -> Vec<Bucket> {
        let edges = |i: usize| (i as Ns * self.axis.bucket, ((i as Ns + 1) * self.axis.bucket).min(self.axis.end));
        let filled = self.counts.iter().enumerate().filter(|(_, n)| **n > 0);
        filled.map(|(i, n)| Bucket { from_ns: edges(i).0, to_ns: edges(i).1, count: *n }).collect()
    }

    /// End of the last bucket, ns.
    pub fn end(&self) -> Ns {
        self.axis.end
    }

    /// Number of times beyond the end.
    pub fn overflown(&self) -> u64 {
        self.overflown
    }

    /// Times beyond the end, longest first; at most 10,000.
    pub fn overflow(&self) -> Vec<SingleTime> {
        let mut all = self.overflow.clone();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    }
}
