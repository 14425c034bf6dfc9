//! Live figures: counts the journeys that `record` would store, as they are finished.

use crate::follow::{sum, Follow, FollowError, JourneySink, LayoutChange, Options};
use latpath_clock::{ClockTie, RealtimeWatch, TimeOfDay};
use latpath_journey::{Journey, Totals};
use latpath_model::{Counters, Ns, PointInfo};
use latpath_run::{Deficiency, DeficiencyKind, Manifest};
use latpath_stats::lost::explain;
use latpath_stats::units::{count, number_of};
use latpath_stats::{summarise, Counting, Facts, Summary};
use latpath_vms::VmsByMachine;

/// Follows streams and counts their packets. Dropping it detaches everything.
pub struct Live {
    /// The source of journeys.
    pub follow: Follow,
    figures: Figures,
    manifest: Manifest,
    realtime: RealtimeWatch,
    vms: VmsByMachine,
    thinning: PacketThinning,
    is_stopped: bool,
}

/// The figures, and the joiner's counts when they were started.
struct Figures {
    counting: Counting,
    before: Vec<Totals>,
    /// Number of packets excluded from all figures because the route changed after them.
    given_up: u64,
    /// Number of packets counted since the figures were started.
    counted: u64,
}

impl Live {
    /// Connects to the machines and attaches the programs.
    ///
    /// # Errors
    /// A machine or the probe cannot be started.
    pub fn start(options: Options) -> Result<Self, FollowError> {
        Ok(Self::of(options.clone(), Follow::start(options)?))
    }

    /// Counts the journeys of `follow`, which was started with `options`.
    pub fn of(options: Options, follow: Follow) -> Self {
        let (streams, threshold) = (options.streams.len(), options.threshold);
        let manifest = Manifest { threshold_ns: threshold, streams: options.streams, ..Manifest::begin() };
        let counting = Counting::new(streams, threshold, follow.begin());
        let figures = Figures { counting, before: vec![Totals::default(); streams], given_up: 0, counted: 0 };
        // Read the virtual machines now, while their threads exist. If this fails, threads just have no names.
        let vms = follow.vms().0;
        let (realtime, thinning) = (manifest.start.watch(), PacketThinning::new());
        Self { realtime, follow, figures, manifest, vms, thinning, is_stopped: false }
    }

    /// Does one round; call it some fifty times per second. Figures restart from zero when the route changes.
    pub fn step(&mut self) {
        self.follow.step(&mut self.figures);
        let step = self.realtime.observe(&ClockTie::read());
        step.into_iter().for_each(|step| self.manifest.add_utc_step(step));
        if self.follow.now() >= self.thinning.due {
            let counters = sum(&self.follow.counters());
            if self.thinning.is_too_fast(self.follow.now(), &counters) && self.follow.sample(self.thinning.one_in * 2) {
                self.thinning.one_in *= 2;
                self.reset();
            }
        }
    }

    /// Restarts all figures from zero.
    pub fn reset(&mut self) {
        let Self { follow, figures, .. } = self;
        figures.counting.restart(follow.points(), follow.layout(), follow.now());
        figures.before = follow.all_totals();
        (figures.given_up, figures.counted) = (0, 0);
    }

    /// Also finds the longest runs of consecutive packets over each of these limits. Figures restart from zero.
    pub fn find_rows_over(&mut self, limits: Vec<Ns>) {
        if limits != self.figures.counting.row_limits {
            self.figures.counting.row_limits = limits;
            self.reset();
        }
    }

    /// The time of day at which the packets were seen.
    pub fn time_of_day(&self) -> TimeOfDay {
        self.manifest.time_of_day()
    }

    /// The virtual machines of all machines at the start.
    pub fn vms(&self) -> &VmsByMachine {
        &self.vms
    }

    /// Number of packets of each stream since the start.
    pub fn seen(&self) -> &[u64] {
        &self.figures.counting.seen
    }

    /// Current figures; after [`Self::stop`], they cover the time from the first packet to the last, as in a report.
    pub fn summary(&mut self) -> Summary {
        let elapsed = match self.is_stopped {
            true => self.figures.counting.span.map_or(0, |(first, last)| last.saturating_sub(first)),
            false => (self.follow.now() - self.figures.counting.since).max(1),
        };
        let Self { follow, figures, manifest, vms, .. } = self;
        figures.counting.flush();
        follow.describe(manifest);
        let (points, route, before) = (follow.points(), &follow.layout().route, &figures.before[..]);
        let facts = Facts { manifest, points, route, before, whole: true, vms, elapsed };
        let mut summary = summarise(figures.counting.figures(), &facts);
        let start = manifest.start.monotonic_ns;
        figures.counting.fill(&mut summary, &manifest.streams, start, self.is_stopped);
        if !summary.lost.is_empty() {
            // Reading the kernel's counters takes time, so they are only read if needed.
            explain(&mut summary, points, Some(&follow.counted()));
        }
        summary.notes.splice(0..0, manifest.notes.iter().cloned());
        if figures.given_up > 0 {
            let text = format!(
                "left out: {} from before; the figures began again when the route changed",
                number_of(figures.given_up, "packet")
            );
            summary.deficiencies.insert(0, Deficiency::new(DeficiencyKind::Missing, text.clone()));
            summary.notes.insert(0, text);
        }
        let thinned = self.thinning.note();
        let deficiency = thinned.iter().map(|text| Deficiency::new(DeficiencyKind::SightingsDropped, text));
        summary.deficiencies.splice(0..0, deficiency);
        summary.notes.splice(0..0, thinned);
        summary
    }

    /// Detaches everything and counts the finished journeys.
    pub fn stop(&mut self) {
        self.follow.stop(&mut self.figures);
        self.is_stopped = true;
    }
}

/// Interval at which the rate is checked, ns.
const CHECK_EVERY: Ns = 1_000_000_000;
/// Number of consecutive checks with dropped sightings after which fewer packets are followed. A single one may be due
/// to a moment in which latpath got no CPU.
const DROPPING: u32 = 3;
const MIN_SAMPLE: u32 = 1024;

/// Decides to follow only a fraction of the packets if the rate is too high for all.
struct PacketThinning {
    one_in: u32,
    due: Ns,
    dropped: u64,
    dropping: u32,
    left_out: u64,
}

impl PacketThinning {
    fn new() -> Self {
        Self { one_in: 1, due: Ns::MIN, dropped: 0, dropping: 0, left_out: 0 }
    }

    /// Whether sightings were dropped in several consecutive checks, so that fewer packets should be followed.
    fn is_too_fast(&mut self, now: Ns, counters: &Counters) -> bool {
        self.due = now.saturating_add(CHECK_EVERY);
        self.left_out = counters.left_out;
        let drops = counters.dropped > self.dropped;
        self.dropped = counters.dropped;
        self.dropping = if drops { self.dropping + 1 } else { 0 };
        let is_too_fast = self.dropping >= DROPPING && self.one_in < MIN_SAMPLE;
        if is_too_fast {
            self.dropping = 0;
        }
        is_too_fast
    }

    fn note(&self) -> Option<String> {
        (self.one_in > 1).then(|| {
            format!(
                "the rate is too high to follow every packet: one in {} is followed, chosen by its key; all counts are of \
                 these; {} sightings were left out",
                self.one_in,
                count(self.left_out)
            )
        })
    }
}

impl JourneySink for Figures {
    fn layout(&mut self, found: LayoutChange) {
        if self.counting.set_layout(found.points, found.layout, found.now) {
            self.before = found.totals.to_vec();
            self.given_up += std::mem::take(&mut self.counted);
        }
    }

    fn journey(&mut self, journey: &Journey, _: &[PointInfo]) {
        self.counted += 1;
        self.counting.add(journey);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_packets_are_followed_after_seconds_of_drops_not_after_a_moment() {
        let mut thinning = PacketThinning::new();
        let mut too_fast = |dropped: u64| thinning.is_too_fast(0, &Counters { dropped, ..Counters::default() });
        assert!([0, 5, 9, 9, 9, 10, 11].into_iter().all(|dropped| !too_fast(dropped)));
        assert!(too_fast(12), "the third second in a row");
        assert!(!too_fast(13) && !too_fast(14) && too_fast(15), "again after three more");
        assert_eq!(thinning.note(), None);
        thinning.one_in = 4;
        assert!(thinning.note().is_some_and(|note| note.contains("one in 4")));
    }
}
