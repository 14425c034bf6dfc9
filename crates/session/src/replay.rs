//! Replays a recorded run as `latpath live` would have shown it.

use crate::FigureSource;
use latpath_analysis::{Analysis, SummaryOptions};
use latpath_capture::{CaptureKind, RankedCapture};
use latpath_cause::RunContext;
use latpath_clock::TimeOfDay;
use latpath_journey::Layout;
use latpath_linux::monotonic;
use latpath_model::{Ns, PointInfo};
use latpath_run::{Deficiency, DeficiencyKind, Manifest, Run, Select};
use latpath_stats::{summarise, Counting, Facts, Summary};
use latpath_vms::VmsByMachine;
use std::collections::VecDeque;

/// A run whose journeys are replayed at a multiple of the speed at which they were recorded.
///
/// The route and the segments are those at the end of the recording. The counters of the joiner and the kernel cover
/// the whole run, so only the last summary has them.
pub struct Replay {
    run: Run,
    /// The run's manifest, including the error bounds of all clock samples.
    manifest: Manifest,
    layout: Layout,
    vms: VmsByMachine,
    counting: Counting,
    /// Time of the first journey's first sighting, on the run's timeline; `last` is that of the last journey.
    first: Ns,
    last: Ns,
    /// Captures not returned yet: end of the window (`Ns::MIN` for a baseline) and capture number, ordered by the
    /// former.
    now: Ns,
    /// Start of the replay, `CLOCK_MONOTONIC`.
    started: Ns,
    /// Speed as a multiple of real time; infinite to replay as fast as the run can be read.
    speed: f64,
    /// Captures not returned yet: end of the window and capture number, ordered by the former.
    captures: VecDeque<(Ns, u32)>,
    damaged: Vec<String>,
    /// Parts of the run that could not be read when the replay started.
    unread: Vec<Deficiency>,
}

impl Replay {
    /// Starts the replay; also returns the context for explaining its captures. `speed` is a multiple of real time;
    /// infinite to replay as fast as the run can be read.
    ///
    /// # Errors
    /// If the run lacks the points of one of the user's segments.
    pub fn start(run: Run, options: SummaryOptions, speed: f64) -> Result<(Self, RunContext), String> {
        let analysis = Analysis::open(&run, options)?;
        let context = analysis.context();
        let Analysis { layout, manifest, vms, setup, unread, .. } = analysis;
        let (first, last) = run.times().unwrap_or((0, 0));
        let heads = run.spikes().files.into_iter().map(|file| file.head);
        // Baselines come first, because the explainer needs them before the first spike.
        let at = |kind, to| if kind == CaptureKind::Baseline { Ns::MIN } else { to };
        let mut captures: Vec<(Ns, u32)> = heads.map(|head| (at(head.kind(), head.to), head.number)).collect();
        captures.sort_unstable();
        let counting = match manifest.has_durations_alone() {
            true => Counting::of_durations,
            false => Counting::new,
        };
        let mut replay = Self {
            vms,
            counting: counting(manifest.streams.len(), setup.threshold, first),
            first,
            last,
            now: first,
            started: monotonic(),
            speed,
            captures: captures.into(),
            damaged: Vec::new(),
            unread,
            layout,
            manifest,
            run,
        };
        replay.reset();
        Ok((replay, context))
    }
}

impl FigureSource for Replay {
    /// Counts the journeys up to the current time of the replay.
    fn step(&mut self) {
        let passed = monotonic().saturating_sub(self.started);
        let until = self.first.saturating_add((passed.max(1) as f64 * self.speed) as Ns);
        let until = if until > self.last { Ns::MAX } else { until };
        if until <= self.now {
            return;
        }
        let select = Select { from_ns: self.now, to_ns: until, ..Select::default() }.with_cpus_and_threads();
        let Self { run, counting, .. } = self;
        let damaged = run.for_each(&select, |journey| {
            counting.add(journey);
            true
        });
        for damage in damaged.iter().map(ToString::to_string) {
            if !self.damaged.contains(&damage) {
                self.damaged.push(damage);
            }
        }
        self.now = until;
    }

    fn find_rows_over(&mut self, limits: Vec<Ns>) {
        self.counting.row_limits = limits;
        self.reset();
    }

    fn points(&self) -> &[PointInfo] {
        self.run.points()
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn time_of_day(&self) -> TimeOfDay {
        self.manifest.time_of_day()
    }

    fn is_over(&self) -> bool {
        self.now > self.last
    }

    fn reset(&mut self) {
        self.counting.restart(self.run.points(), &self.layout, self.now);
    }

    fn seen(&self) -> &[u64] {
        &self.counting.seen
    }

    /// The next capture whose window has passed; baselines come first. Captures that cannot be read are reported in the
    /// notes.
    fn next_capture(&mut self) -> Option<RankedCapture> {
        while self.captures.front().is_some_and(|(to, _)| *to <= self.now) {
            let (_, number) = self.captures.pop_front()?;
            match self.run.capture(number) {
                Ok(capture) => return Some(capture),
                Err(error) => self.damaged.push(error.to_string()),
            }
        }
        None
    }

    /// Number of late packets in the run; 0 until the replay has ended.
    fn late(&self) -> u64 {
        let record = self.manifest.spikes.as_ref().filter(|_| self.is_over());
        record.map_or(0, |record| record.late.iter().sum())
    }

    fn summary(&mut self) -> Summary {
        self.counting.flush();
        let is_over = self.is_over();
        let whole = is_over && self.counting.since <= self.first;
        let mut manifest = self.manifest.clone();
        if !whole {
            manifest.joined.clear();
            manifest.kernel = None;
        }
        let until = if is_over { self.last } else { self.now };
        let elapsed = until.saturating_sub(self.counting.since).max(0);
        let (points, route, vms) = (self.run.points(), &self.layout.route, &self.vms);
        let facts = Facts { manifest: &manifest, points, route, before: &[], whole, vms, elapsed };
        let mut summary = summarise(self.counting.figures(), &facts);
        self.counting.fill(&mut summary, &manifest.streams, manifest.start.monotonic_ns, is_over);
        let of_run = self.run.deficiencies().iter().filter(|one| !manifest.deficiencies.contains(one)).cloned();
        let damaged = self.damaged.iter().map(|text| Deficiency::new(DeficiencyKind::Damaged, text));
        let unread = self.unread.iter().cloned();
        summary.deficiencies.splice(0..0, of_run.chain(damaged).chain(unread).collect::<Vec<_>>());
        let unread = self.unread.iter().map(|one| &one.text);
        let notes = self.run.notes().iter().chain(&self.layout.notes).chain(&self.damaged).chain(unread);
        summary.notes.splice(0..0, notes.cloned());
        summary
    }
}
