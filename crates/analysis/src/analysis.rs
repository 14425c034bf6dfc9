//! A run with the inputs of its figures, derived once and passed to everything that reads the run.

use crate::layout::{add_possible, add_segments, recorded_layout};
use latpath_journey::{Layout, Segment};
use latpath_model::Ns;
use latpath_run::{Deficiency, DeficiencyKind, Manifest, Run, Select, CLOCKS};
use latpath_stats::{units::number_of, Band, Facts, PatternKind, Setup};
use latpath_vms::VmsByMachine;

/// Maximum number of histograms of all workers together; each takes about 20 KiB.
const HISTOGRAMS: usize = 8192;

/// Options of a summary of a run.
#[derive(Clone, Debug, Default)]
pub struct SummaryOptions {
    /// The journeys from which the figures are computed.
    pub select: Select,
    /// Threshold of late packets, ns; `None` for the recording's own.
    pub threshold_ns: Option<Ns>,
    /// Further thresholds, ns: for each, the longest sequence of consecutive late packets is found.
    pub row_limits: Vec<Ns>,
    /// Band of times whose packets are also counted.
    pub band: Option<Band>,
    /// Number of the worst packets to keep.
    pub worst: usize,
    /// The user's segments; see [`layout_of`](crate::layout_of).
    pub segments: Vec<String>,
    /// Segments of a profile. Those with a new name whose points exist in the run are added to `segments`.
    pub possible_segments: Vec<String>,
    /// Kinds of patterns: the figures are also computed without the packets that belong to them.
    pub exclude: Vec<PatternKind>,
    /// Length of the intervals for each of which the figures are also computed, ns.
    pub every: Option<Ns>,
    /// Number of threads that read the run; 0 means one.
    pub workers: usize,
}

/// A run with its layout, the error bounds of its clocks, and the setup of its figures.
pub struct Analysis<'a> {
    /// The run.
    pub run: &'a Run,
    /// Options of the figures; `segments` includes the profile's segments.
    pub options: SummaryOptions,
    /// Route and segments, the user's segments last.
    pub layout: Layout,
    /// The run's manifest, in which each machine has the largest error bound of its clock samples: after a crash, the
    /// samples are newer than the manifest.
    pub manifest: Manifest,
    /// The virtual machines of each machine.
    pub vms: VmsByMachine,
    /// The streams, points, segments and thresholds of the figures.
    pub setup: Setup,
    /// Parts of the run that could not be read.
    pub unread: Vec<Deficiency>,
    /// Number of segments that precede the user's in the layout.
    recorded: usize,
}

impl<'a> Analysis<'a> {
    /// Derives the inputs. Reads the first journeys of the run to find the route.
    ///
    /// # Errors
    /// If the run lacks the points of one of the user's segments.
    pub fn open(run: &'a Run, mut options: SummaryOptions) -> Result<Self, String> {
        let mut layout = recorded_layout(run);
        let recorded = layout.segments.len();
        add_segments(&mut layout, run.points(), &options.segments)?;
        let possible = std::mem::take(&mut options.possible_segments);
        options.segments.extend(add_possible(&mut layout, run.points(), possible)?);
        let (manifest, unread) = with_sampled_bounds(run);
        let setup = setup(run, &options, &layout);
        Ok(Self { run, options, layout, manifest, vms: run.vms(), setup, unread, recorded })
    }

    /// Removes the segments for which `is_kept` returns false.
    pub(crate) fn retain_segments(&mut self, is_kept: impl Fn(&Segment) -> bool) {
        self.recorded = self.layout.segments[..self.recorded].iter().filter(|s| is_kept(s)).count();
        self.layout.segments.retain(is_kept);
        self.setup = setup(self.run, &self.options, &self.layout);
    }

    /// The segments except the user's.
    pub(crate) fn recorded_segments(&self) -> &[Segment] {
        &self.layout.segments[..self.recorded]
    }

    /// Facts of a summary that do not come from counting, for the `whole` run or for a part of `elapsed` ns.
    pub(crate) fn facts(&self, whole: bool, elapsed: Ns) -> Facts<'_> {
        let Self { manifest, layout, vms, .. } = self;
        Facts { manifest, points: self.run.points(), route: &layout.route, before: &[], whole, vms, elapsed }
    }

    /// Start and end of the selected part of the run, limited to the run's own; `None` for an empty run.
    pub(crate) fn span(&self, select: &Select) -> Option<(Ns, Ns)> {
        let (first, last) = self.run.times()?;
        Some((select.from_ns.max(first), select.to_ns.min(last)))
    }

    /// Number of threads that read the run, limited by the memory for their histograms.
    pub(crate) fn workers(&self) -> usize {
        let histograms = (self.setup.streams * self.setup.segments.len()).max(1);
        self.options.workers.clamp(1, (HISTOGRAMS / histograms).max(1))
    }
}

fn setup(run: &Run, options: &SummaryOptions, layout: &Layout) -> Setup {
    let manifest = run.manifest();
    let threshold = options.threshold_ns.unwrap_or(manifest.threshold_ns);
    let setup = Setup::new(manifest.streams.len(), run.points(), layout, threshold, options.worst);
    Setup { row_limits: options.row_limits.clone(), band: options.band, ..setup }
}

/// The manifest with the largest error bounds of the clock samples, and a deficiency if samples could not be read.
fn with_sampled_bounds(run: &Run) -> (Manifest, Vec<Deficiency>) {
    let mut manifest = run.manifest().clone();
    let read = run.for_each_clock_sample(|sample| {
        let machine = manifest.machines.iter_mut().map(|m| &mut m.clock).find(|m| m.machine == sample.clock);
        machine.into_iter().for_each(|m| m.error_bound_ns = m.error_bound_ns.max(sample.error_bound_ns));
    });
    let why = match read {
        Ok(0) => None,
        Ok(n) => {
            let are = if n == 1 { "is" } else { "are" };
            Some(format!("{CLOCKS}: {} {are} damaged; error bounds may be too small", number_of(n, "line")))
        }
        Err(error) => Some(error.to_string()),
    };
    (manifest, why.map(|text| Deficiency::new(DeficiencyKind::Clock, text)).into_iter().collect())
}
