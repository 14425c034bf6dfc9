//! The time that a probe spends at the reflector, measured by each clock that stamps both its arrival and its answer.

use crate::fixed_width::{FixedWidthHistogram, HistogramAxis};
use crate::sequenced::SequencedHistogram;
use crate::transaction::{Source, Stamp};
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Time of one probe at the reflector, between two stamps of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Turnaround {
    /// Sequence number of the probe.
    pub sequence: u64,
    /// The stamp on the probe's arrival.
    pub from: Stamp,
    /// The stamp on the answer.
    pub to: Stamp,
    /// Time between the two stamps, ns.
    pub time_ns: Ns,
}

impl Turnaround {
    /// The clock of both stamps: the NIC's, the kernel's or the application's, of which the last two are the same
    /// clock.
    pub fn clock(&self) -> Source {
        self.from.source()
    }
}

/// The stamps at which the kernel turnaround begins and ends, if the reflector takes the stamps `taken`. Without a
/// kernel stamp on answers, it ends at T3 app, which is of the same clock; `None` without a kernel stamp on arrivals.
pub fn kernel_ends(taken: u16) -> Option<(Stamp, Stamp)> {
    let has = |stamp: &Stamp| taken & stamp.bit() != 0;
    let end = [Stamp::T3Driver, Stamp::T3Sched].into_iter().find(has).unwrap_or(Stamp::T3App);
    has(&Stamp::T2Kernel).then_some((Stamp::T2Kernel, end))
}

/// The clock whose stamps are nearest to the wire at both ends.
pub fn outermost(taken: u16) -> Source {
    let nic = Stamp::T2Nic.bit() | Stamp::T3Nic.bit();
    match kernel_ends(taken) {
        _ if taken & nic == nic => Source::Nic,
        Some(_) => Source::Kernel,
        None => Source::App,
    }
}

/// Times of probes at the reflector.
#[derive(Clone, Debug, Default)]
pub struct Turnarounds {
    /// Time from T2 app to T3 app, `CLOCK_MONOTONIC`, ns.
    pub app: SequencedHistogram,
    /// Time between the stamps of [`kernel_ends`], in the kernel's clock, ns.
    pub kernel: SequencedHistogram,
    /// Time from T2 nic to T3 nic, in the PHC, ns.
    pub nic: SequencedHistogram,
    /// Number of probes whose time exceeded the reflector's threshold.
    pub over: u64,
}

impl Turnarounds {
    /// Adds the time of a probe, measured by one clock.
    #[inline]
    pub fn record(&mut self, source: Source, sequence: u64, time: Ns) {
        let times = match source {
            Source::App => &mut self.app,
            Source::Kernel => &mut self.kernel,
            Source::Nic => &mut self.nic,
        };
        times.record(sequence, time);
    }

    /// Adds the times of another session.
    pub fn merge(&mut self, other: &Self) {
        self.app.merge(&other.app);
        self.kernel.merge(&other.kernel);
        self.nic.merge(&other.nic);
        self.over += other.over;
    }

    /// For each clock: its source, its name in JSON and limits, and its times; the clock nearest to the wire comes
    /// first.
    pub fn all(&self) -> [(Source, &'static str, &SequencedHistogram); 3] {
        [
            (Source::Nic, "nic_turnaround", &self.nic),
            (Source::Kernel, "kernel_turnaround", &self.kernel),
            (Source::App, "turnaround", &self.app),
        ]
    }
}

/// Times of all sessions together, with a histogram if one is requested.
#[derive(Clone, Debug)]
pub struct AllTurnarounds {
    /// The times.
    pub times: Turnarounds,
    /// Stamps that the reflector takes, as a mask ([`Stamp::bit`]).
    pub taken: u16,
    /// Times by the outermost clock, in buckets of equal width.
    pub drawn: Option<FixedWidthHistogram>,
    /// Number of probes received so far, excluding duplicates.
    pub received: u64,
    /// Number of duplicate probes.
    pub duplicates: u64,
    /// Number of probes received after a later one.
    pub reordered: u64,
}

impl AllTurnarounds {
    /// Creates an empty collection.
    pub fn new(taken: u16, axis: Option<HistogramAxis>) -> Self {
        Self {
            times: Turnarounds::default(),
            taken,
            drawn: axis.map(FixedWidthHistogram::new),
            received: 0,
            duplicates: 0,
            reordered: 0,
        }
    }

    /// A copy without the `drawn` histogram, which can be large.
    #[must_use]
    pub fn without_drawn(&self) -> Self {
        Self { times: self.times.clone(), drawn: None, ..*self }
    }

    /// Adds the time of a probe, measured by one clock.
    #[inline]
    pub fn record(&mut self, source: Source, sequence: u64, time: Ns) {
        self.times.record(source, sequence, time);
        if let Some(drawn) = self.drawn.as_mut().filter(|_| source == outermost(self.taken)) {
            drawn.add(sequence, time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_nearest_to_the_wire_at_both_ends_is_the_outermost() {
        let mask = |stamps: &[Stamp]| stamps.iter().fold(0, |mask, stamp| mask | stamp.bit());
        let app = [Stamp::T2App, Stamp::T3App];
        assert_eq!((outermost(mask(&app)), kernel_ends(mask(&app))), (Source::App, None));
        let received = mask(&app) | mask(&[Stamp::T2Kernel, Stamp::T2Nic]);
        assert_eq!(outermost(received), Source::Kernel, "the NIC stamps one end only");
        assert_eq!(kernel_ends(received), Some((Stamp::T2Kernel, Stamp::T3App)));
        let both = received | mask(&[Stamp::T3Sched, Stamp::T3Driver]);
        assert_eq!(kernel_ends(both), Some((Stamp::T2Kernel, Stamp::T3Driver)));
        assert_eq!(outermost(both | Stamp::T3Nic.bit()), Source::Nic);
    }

    #[test]
    fn a_drawn_histogram_has_the_times_of_the_outermost_clock_alone() {
        let axis = HistogramAxis { bucket: 10, end: 100 };
        let mut all = AllTurnarounds::new(Stamp::T2Kernel.bit(), Some(axis));
        all.record(Source::App, 1, 15);
        all.record(Source::Kernel, 1, 25);
        let buckets = all.drawn.as_ref().unwrap().buckets();
        assert_eq!(buckets.iter().map(|b| (b.from_ns, b.count)).collect::<Vec<_>>(), [(20, 1)]);
        assert_eq!((all.times.app.times().count(), all.times.kernel.times().count()), (1, 1));
    }
}
