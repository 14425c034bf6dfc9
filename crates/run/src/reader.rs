//! Opens a run whose recording has ended, is in progress, or was killed.

use crate::{
    clocks, files, manifest::Manifest, marks, part_reader::JourneyReader, settings, source::OpenSource, span::TimeSpan,
    spikes, sync, vms, ClockSample, Deficiency, DeficiencyKind, Mark, RunError, SpikeFiles, State, JOURNEYS, MARKS,
    SYNC,
};
use latpath_capture::RankedCapture;
use latpath_journey::journey::MAX_POINTS;
use latpath_model::{Ns, Point, PointInfo};
use latpath_partstore::{self as partstore, Directory, Names, PartFile, StoreError};
use latpath_settings::RunSettings;
use latpath_timesync::SyncHistory;
use latpath_vms::VmsByMachine;
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::File,
    path::{Path, PathBuf},
};

/// State of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Ended as requested.
    Finished,
    /// In progress: the run contains the journeys written so far.
    Recording,
    /// Ended early, for this reason.
    Interrupted(String),
    /// latpath was killed, or the machine crashed: the last seconds are missing.
    Killed,
}

/// Location of a run's journeys.
#[derive(Debug)]
pub(crate) enum Parts {
    /// In the parts of its directory.
    Files(Vec<PartFile>),
    /// In a file of another format.
    Source(OpenSource),
}

impl Parts {
    /// Number of parts.
    pub fn len(&self) -> usize {
        match self {
            Self::Files(parts) => parts.len(),
            Self::Source(open) => open.source.parts(),
        }
    }
}

/// A run that is open for reading; reading does not change it.
#[derive(Debug)]
pub struct Run {
    pub(crate) path: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) condition: Condition,
    pub(crate) parts: Parts,
    pub(crate) names: Vec<String>,
    pub(crate) journeys: u64,
    pub(crate) times: Option<(Ns, Ns)>,
    pub(crate) vms: VmsByMachine,
    pub(crate) settings: RunSettings,
    pub(crate) marks: Vec<Mark>,
    pub(crate) sync: SyncHistory,
    pub(crate) notes: Vec<String>,
    pub(crate) deficiencies: Vec<Deficiency>,
}

impl Run {
    /// Opens a run. If there is a valid manifest, unreadable parts only cause notes.
    ///
    /// # Errors
    /// There is no valid manifest, or it cannot be read.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        // A run that is being created has no manifest yet. Testing the lock could keep the run's writer from acquiring
        // it, which would make the run look killed.
        Manifest::load(path)?;
        // Tested before the manifest is loaded: otherwise the recording could end in between, and the older manifest
        // would make the run look killed.
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
            // Meanwhile the manifest may have been replaced by one with the points of the latest parts.
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
            VmsByMachine::default()
        });
        let settings = settings::load(path).unwrap_or_else(|damaged| {
            lack(damaged.to_string());
            RunSettings::default()
        });
        let (marks, damaged) = marks::load(path, manifest.span()).unwrap_or_else(|error| {
            lack(error.to_string());
            (Vec::new(), 0)
        });
        if damaged > 0 {
            let lines = if damaged == 1 { "a line is" } else { &format!("{damaged} lines are") };
            lack(format!("{MARKS}: {lines} damaged; notes in these lines are not shown"));
        }
        let (sync, damaged) = sync::load(path, manifest.span()).unwrap_or_else(|error| {
            lack(error.to_string());
            (SyncHistory::default(), 0)
        });
        if damaged > 0 {
            lack(format!("{SYNC}: {damaged} lines are damaged; events of the clocks in them are not shown"));
        }
        notes.extend(of_files.iter().map(|one| one.text.clone()));
        notes.extend(manifest.notes.iter().cloned());
        deficiencies.extend(of_files);
        deficiencies.extend(manifest.deficiencies.iter().cloned());
        let path = path.into();
        Ok(Self {
            path,
            manifest,
            condition,
            parts: Parts::Files(parts),
            names,
            journeys,
            times,
            vms,
            settings,
            marks,
            sync,
            notes,
            deficiencies,
        })
    }

    /// The run's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// State of the recording.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Notes on moments of the run, in order of time.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The programs that synchronised the host's clocks, and events of the clocks; empty in runs of earlier versions.
    pub fn sync(&self) -> &SyncHistory {
        &self.sync
    }

    /// All points; the ID of a point is its index.
    pub fn points(&self) -> &[PointInfo] {
        &self.manifest.points
    }

    /// Number of journeys in all readable parts.
    pub fn journeys(&self) -> u64 {
        self.journeys
    }

    /// Earliest and latest first sighting, host's `CLOCK_MONOTONIC`, ns; `None` for an empty run.
    pub fn times(&self) -> Option<(Ns, Ns)> {
        self.times
    }

    /// Duration of the run up to its end, or up to the last write or journey if it has no end, ns.
    pub fn elapsed_ns(&self) -> Ns {
        let written = self.manifest.written_ns.max(self.times.map_or(Ns::MIN, |(_, last)| last));
        let end = self.manifest.end.as_ref().map_or(written, |end| end.monotonic_ns);
        end.saturating_sub(self.manifest.start.monotonic_ns).max(0)
    }

    /// Notes for the reader: how the recording ended, what cannot be read, the recorder's notes.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Deficiencies reported by the recorder, and missing or damaged data found on opening.
    pub fn deficiencies(&self) -> &[Deficiency] {
        &self.deficiencies
    }

    /// Number of parts, and their total size in bytes.
    pub fn size(&self) -> (usize, u64) {
        match &self.parts {
            Parts::Files(parts) => (parts.len(), parts.iter().map(PartFile::bytes).sum()),
            Parts::Source(open) => (1, open.bytes),
        }
    }

    /// Passes all samples of all clocks to `visit`; returns the number of damaged lines.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn for_each_clock_sample(&self, visit: impl FnMut(ClockSample)) -> Result<u64, RunError> {
        match &self.parts {
            Parts::Files(_) => clocks::for_each(&self.path, self.span(), visit),
            Parts::Source(..) => Ok(0),
        }
    }

    /// The machines' virtual machines at the start of the recording, with their threads; empty if the run has none.
    pub fn vms(&self) -> VmsByMachine {
        self.vms.clone()
    }

    /// The machines' settings when the recording began and when it ended; empty in runs of earlier versions.
    pub fn settings(&self) -> &RunSettings {
        &self.settings
    }

    /// The captures. During the recording, each may be replaced by a worse one at any time.
    pub fn spikes(&self) -> SpikeFiles {
        match &self.parts {
            Parts::Files(_) => spikes::list(&self.path, self.span()),
            Parts::Source(open) => open.spikes(),
        }
    }

    /// Loads a capture with all its records.
    ///
    /// # Errors
    /// The capture does not exist, or is damaged.
    pub fn capture(&self, number: u32) -> Result<RankedCapture, RunError> {
        match &self.parts {
            Parts::Files(_) => spikes::load(&self.path, number, self.manifest.points.len(), self.span()),
            Parts::Source(open) => {
                open.capture(number).ok_or_else(|| RunError::damaged(&self.path, format!("it has no capture {number}")))
            }
        }
    }

    /// Valid range of the run's times.
    pub(crate) fn span(&self) -> TimeSpan {
        self.manifest.span()
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    pub(crate) fn point_names(&self) -> &[String] {
        &self.names
    }
}

/// Adds points of a part that are missing from the manifest (because it was lost or edited).
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

/// Takes the lock that marks the recording as in progress. The kernel releases it when the process ends for any reason.
/// `None` if the lock cannot be taken, e.g. because the file system has no locks.
pub(crate) fn lock(run: &Directory) -> Option<Flock<File>> {
    Flock::lock(run.try_clone_file().ok()?, FlockArg::LockExclusiveNonblock).ok()
}

pub(crate) fn is_locked(run: &Path) -> bool {
    let Ok(directory) = File::open(run) else { return false };
    matches!(Flock::lock(directory, FlockArg::LockSharedNonblock), Err((_, nix::errno::Errno::EAGAIN)))
}
