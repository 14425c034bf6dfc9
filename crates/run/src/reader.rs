//! Opening a run of a recording that has ended, is still running, or was killed.

use crate::{
    clocks, files, manifest::Manifest, marks, part_reader::JourneyReader, span::TimeSpan, spikes, vms, ClockSample,
    Deficiency, DeficiencyKind, Mark, RunError, SpikeFiles, State, JOURNEYS, MARKS,
};
use latpath_capture::RankedCapture;
use latpath_journey::journey::MAX_POINTS;
use latpath_model::{Ns, Point, PointInfo};
use latpath_partstore::{self as partstore, Directory, Names, PartFile, StoreError};
use latpath_vms::Vm;
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::File,
    path::{Path, PathBuf},
};

/// What became of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It ended as asked.
    Finished,
    /// It is still being recorded: the run has what was written so far.
    Recording,
    /// It ended early, for this reason.
    Interrupted(String),
    /// Its latpath was killed, or the machine went down: the last seconds before that are missing.
    Killed,
}

/// A run, open for reading. Nothing in it is changed.
#[derive(Debug)]
pub struct Run {
    path: PathBuf,
    manifest: Manifest,
    condition: Condition,
    parts: Vec<PartFile>,
    names: Vec<String>,
    journeys: u64,
    times: Option<(Ns, Ns)>,
    vms: Vec<Vm>,
    marks: Vec<Mark>,
    notes: Vec<String>,
    deficiencies: Vec<Deficiency>,
}

impl Run {
    /// Opens the run in a directory. Parts that cannot be read are noted, not an error, as long as there is a manifest.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        // One that is just being made has none: a look at its lock could keep its writer from taking it, and all would call it killed.
        Manifest::load(path)?;
        // Before the manifest, which otherwise might be from before an end that is seen here.
        let locked = is_locked(path);
        let mut manifest = Manifest::load(path)?;
        let condition = match (manifest.state, locked) {
            (State::Finished, _) => Condition::Finished,
            (State::Interrupted, _) => Condition::Interrupted(manifest.interrupted_by.clone().unwrap_or_default()),
            (State::Recording, true) => Condition::Recording,
            (State::Recording, false) => Condition::Killed,
        };
        let (mut journeys, mut times, mut notes) = (0, None::<(Ns, Ns)>, Vec::new());
        let mut deficiencies = Vec::new();
        let mut lack = |kind, text: String| deficiencies.push(Deficiency::new(kind, text));
        let journeys_path = path.join(JOURNEYS);
        let directory = Directory::open(&journeys_path).map_err(StoreError::read(&journeys_path))?;
        let parts = partstore::open(&Names::new(directory), condition == Condition::Recording)?;
        if condition == Condition::Recording {
            // By now it may know points that the latest parts have.
            manifest = Manifest::load(path)?;
        }
        let span = manifest.span();
        let spans: Vec<_> = parts.iter().map(|part| part.span).collect();
        for (first, last) in partstore::gaps(&spans) {
            let text = format!("parts {first} to {last} are missing: somebody removed them");
            lack(DeficiencyKind::Missing, text.clone());
            notes.push(text);
        }
        for part in &parts {
            match JourneyReader::open(part) {
                Err(e) => {
                    lack(DeficiencyKind::Damaged, e.to_string());
                    notes.push(e.to_string());
                }
                Ok(part) => {
                    journeys += part.rows();
                    if let Some((first, last)) = part.times().filter(|(a, b)| span.contains(*a) && span.contains(*b)) {
                        times = Some(times.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
                    }
                    let known = notes.len();
                    add_points(&mut manifest.points, part.points(), &mut notes);
                    notes[known..].iter().for_each(|text| lack(DeficiencyKind::Damaged, text.clone()));
                }
            }
        }
        let names = manifest.points.iter().map(|p| p.point.to_string()).collect();
        match &condition {
            Condition::Finished => {}
            Condition::Recording => {
                let text = "the recording is still running: these are its journeys so far";
                lack(DeficiencyKind::Unfinished, text.into());
                notes.insert(0, text.into());
            }
            Condition::Killed => {
                let counted = manifest.written_ns.saturating_sub(manifest.start.monotonic_ns).max(0) / 1_000_000_000;
                let text = format!(
                    "the recording was killed: the last seconds before that are missing; sightings, malformed frames, never seen \
                     packets, clocks and costs are those of its first {counted} s"
                );
                lack(DeficiencyKind::Unfinished, text.clone());
                notes.insert(0, text);
            }
            Condition::Interrupted(why) => notes.insert(0, format!("the recording ended early: {why}")),
        }
        if condition != Condition::Recording && manifest.journeys > journeys {
            let missing = manifest.journeys - journeys;
            let text =
                format!("{missing} of {} journeys that were recorded are not in the run's parts", manifest.journeys);
            lack(DeficiencyKind::Missing, text.clone());
            notes.push(text);
        } else if condition == Condition::Finished && manifest.journeys < journeys {
            let text = format!("the run's parts hold {journeys} journeys, but {} were recorded", manifest.journeys);
            lack(DeficiencyKind::Damaged, text.clone());
            notes.push(text);
        }
        let mut of_files = files::missing(path, &manifest, &condition);
        let mut lack = |text: String| of_files.push(Deficiency::new(DeficiencyKind::ContextMissing, text));
        let vms = vms::load(path, manifest.vms_xxh64.as_deref()).unwrap_or_else(|damaged| {
            lack(damaged.to_string());
            Vec::new()
        });
        let (marks, damaged) = marks::load(path, manifest.span()).unwrap_or_else(|error| {
            lack(error.to_string());
            (Vec::new(), 0)
        });
        if damaged > 0 {
            let lines = if damaged == 1 { "a line is" } else { &format!("{damaged} lines are") };
            lack(format!("{MARKS}: {lines} damaged; notes in these lines are not shown"));
        }
        notes.extend(of_files.iter().map(|one| one.text.clone()));
        notes.extend(manifest.notes.iter().cloned());
        deficiencies.extend(of_files);
        deficiencies.extend(manifest.deficiencies.iter().cloned());
        let path = path.into();
        Ok(Self { path, manifest, condition, parts, names, journeys, times, vms, marks, notes, deficiencies })
    }

    /// The run's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What became of the recording.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// What somebody noted about moments of it, in the order of their times.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// All points; their ids are their places here.
    pub fn points(&self) -> &[PointInfo] {
        &self.manifest.points
    }

    /// Journeys in all parts that can be opened.
    pub fn journeys(&self) -> u64 {
        self.journeys
    }

    /// Earliest and latest first sighting, host `CLOCK_MONOTONIC`; none in an empty run.
    pub fn times(&self) -> Option<(Ns, Ns)> {
        self.times
    }

    /// The time covered: to the end, or without one to the latest journey.
    pub fn elapsed_ns(&self) -> Ns {
        let written = self.manifest.written_ns.max(self.times.map_or(Ns::MIN, |(_, last)| last));
        let end = self.manifest.end.as_ref().map_or(written, |end| end.monotonic_ns);
        end.saturating_sub(self.manifest.start.monotonic_ns).max(0)
    }

    /// What the reader must know: how the recording ended, what cannot be read, what the recorder noted.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Missing data that the recorder reported, and missing or damaged data that opening the run found.
    pub fn deficiencies(&self) -> &[Deficiency] {
        &self.deficiencies
    }

    /// Files of journeys, and their bytes together.
    pub fn size(&self) -> (usize, u64) {
        (self.parts.len(), self.parts.iter().map(PartFile::bytes).sum())
    }

    /// Passes on all samples of all clocks; returns how many lines are damaged.
    pub fn for_each_clock_sample(&self, visit: impl FnMut(ClockSample)) -> Result<u64, RunError> {
        clocks::for_each(&self.path, self.span(), visit)
    }

    /// The host's virtual machines when the recording began, with their threads; none where the run does not say.
    pub fn vms(&self) -> Vec<Vm> {
        self.vms.clone()
    }

    /// The captures of the time around late packets. While the recording runs, each may be replaced by a worse one at any time.
    pub fn spikes(&self) -> SpikeFiles {
        spikes::list(&self.path, self.span())
    }

    /// A capture, with all that the machines did in it.
    pub fn capture(&self, number: u32) -> Result<RankedCapture, RunError> {
        spikes::load(&self.path, number, self.manifest.points.len(), self.span())
    }

    /// The times that it can have.
    pub(crate) fn span(&self) -> TimeSpan {
        self.manifest.span()
    }

    pub(crate) fn parts(&self) -> &[PartFile] {
        &self.parts
    }

    pub(crate) fn point_names(&self) -> &[String] {
        &self.names
    }
}

/// Points of a part that the manifest lacks (it was lost, or edited): they are still points of the run.
fn add_points<'a>(known: &mut Vec<PointInfo>, names: impl Iterator<Item = &'a str>, notes: &mut Vec<String>) {
    for name in names {
        if known.iter().any(|p| p.point.to_string() == *name) {
            continue;
        }
        match name.parse() {
            Ok(point) if known.len() < MAX_POINTS => {
                notes.push(format!("{name}: a point of a part that the manifest does not name"));
                known.push(Point::into(point));
            }
            _ => notes.push(format!("{name:?}: a column that is no point; passed over")),
        }
    }
}

/// Takes the lock that shows readers that the recording is still running. The kernel releases it when the process ends, in
/// whatever way. `None` where the file system has no locks.
pub(crate) fn lock(run: &Directory) -> Option<Flock<File>> {
    Flock::lock(run.try_clone_file().ok()?, FlockArg::LockExclusiveNonblock).ok()
}

fn is_locked(run: &Path) -> bool {
    let Ok(directory) = File::open(run) else { return false };
    matches!(Flock::lock(directory, FlockArg::LockSharedNonblock), Err((_, nix::errno::Errno::EAGAIN)))
}
