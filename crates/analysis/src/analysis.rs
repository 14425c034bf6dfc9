//! A run, and what its figures are computed from: derived once, and passed to whatever reads the run.

use crate::layout::{add_possible, add_segments, recorded_layout};
use latpath_journey::{Layout, Segment};
use latpath_model::Ns;
use latpath_run::{Deficiency, DeficiencyKind, Manifest, Run, Select, CLOCKS};
use latpath_stats::{units::number_of, Band, Facts, PatternKind, Setup};
use latpath_vms::Vm;

/// Maximum number of histograms of all workers together: each takes some 20 KiB.
const HISTOGRAMS: usize = 8192;

/// What to find out about a run.
#[derive(Clone, Debug, Default)]
pub struct SummaryOptions {
    /// Which journeys count.
    pub select: Select,
    /// Times over this are counted; what the recording said where there is none.
    pub threshold_ns: Option<Ns>,
    /// The longest rows of packets that took longer than each of these are found too.
    pub row_limits: Vec<Ns>,
    /// Times in it are counted too.
    pub band: Option<Band>,
    /// So many of the worst packets are shown.
    pub worst: usize,
    /// Further segments; see [`layout_of`](crate::layout_of).
    pub segments: Vec<String>,
    /// Further segments, of a profile: those that the run can have, and does not have by their names, are added to `segments`.
    pub possible_segments: Vec<String>,
    /// The figures are also computed without the packets that patterns of these kinds touch.
    pub exclude: Vec<PatternKind>,
    /// The figures are also computed for each interval of this length.
    pub every: Option<Ns>,
    /// Threads that read; 0 is one.
    pub workers: usize,
}

/// A run with its layout, its clocks' error bounds and what is counted of it.
pub struct Analysis<'a> {
    /// The run.
    pub run: &'a Run,
    /// What to find out about it; `segments` has the possible ones of a profile too.
    pub options: SummaryOptions,
    /// Route and segments, the user's segments last.
    pub layout: Layout,
    /// The run's manifest, with each machine's largest error bound of all clock samples: after a crash the samples are newer.
    pub manifest: Manifest,
    /// Virtual machines of the host.
    pub vms: Vec<Vm>,
    /// What is counted.
    pub setup: Setup,
    /// What could not be read of the run so far.
    pub unread: Vec<Deficiency>,
    /// Number of the layout's segments that are not the user's.
    recorded: usize,
}

impl<'a> Analysis<'a> {
    /// Derives all of it. The first journeys of the run are read for its route.
    ///
    /// # Errors
    /// Fails where the run cannot have one of the user's segments.
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

    /// Leaves out the segments for which `is_kept` is false.
    pub(crate) fn retain_segments(&mut self, is_kept: impl Fn(&Segment) -> bool) {
        self.recorded = self.layout.segments[..self.recorded].iter().filter(|s| is_kept(s)).count();
        self.layout.segments.retain(is_kept);
        self.setup = setup(self.run, &self.options, &self.layout);
    }

    /// The segments that are not the user's.
    pub(crate) fn recorded_segments(&self) -> &[Segment] {
        &self.layout.segments[..self.recorded]
    }

    /// What a summary says beside what was counted: of the `whole` run or of a part that lasts `elapsed`.
    pub(crate) fn facts(&self, whole: bool, elapsed: Ns) -> Facts<'_> {
        let Self { manifest, layout, vms, .. } = self;
        Facts { manifest, points: self.run.points(), route: &layout.route, before: &[], whole, vms, elapsed }
    }

    /// First sightings of the first and the last selected journey; `None` in an empty run.
    pub(crate) fn span(&self, select: &Select) -> Option<(Ns, Ns)> {
        let (first, last) = self.run.times()?;
        Some((select.from_ns.max(first), select.to_ns.min(last)))
    }

    /// The number of threads that may read, by the memory of their histograms.
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

/// The run's manifest with the largest error bounds of its clock samples, and what could not be read of these.
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
