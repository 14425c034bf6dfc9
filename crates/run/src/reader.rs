//! Opening a run: of a recording that ended, goes on, or was killed.

use crate::{clocks, manifest::Manifest, names, names::Span, scan::PartReader, ClockSample, RunError, State, JOURNEYS};
use latpath_journey::journey::MAX_POINTS;
use latpath_words::{Link, Ns, PointInfo};
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
    /// It goes on: what was written so far is here.
    Recording,
    /// It ended early, for this reason.
    Interrupted(String),
    /// Its latpath was killed, or the machine went down: up to 2 s before that are missing.
    Killed,
}

/// A run, open for reading. Nothing in it is changed.
#[derive(Debug)]
pub struct Run {
    path: PathBuf,
    manifest: Manifest,
    condition: Condition,
    spans: Vec<Span>,
    names: Vec<String>,
    journeys: u64,
    times: Option<(Ns, Ns)>,
    notes: Vec<String>,
}

impl Run {
    /// Opens the run in a directory. Parts that cannot be read are noted, not an error, as long as there is a manifest.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        // Before the manifest, which otherwise might be from before an end that is seen here.
        let locked = is_locked(path);
        let mut manifest = Manifest::load(path)?;
        let condition = match (manifest.state, locked) {
            (State::Finished, _) => Condition::Finished,
            (State::Interrupted, _) => Condition::Interrupted(manifest.interrupted_by.clone().unwrap_or_default()),
            (State::Recording, true) => Condition::Recording,
            (State::Recording, false) => Condition::Killed,
        };
        let directory = path.join(JOURNEYS);
        let (mut journeys, mut times, mut notes) = (0, None::<(Ns, Ns)>, Vec::new());
        let mut spans = names::live(names::list(&directory)?);
        // A part that vanishes was merged by its recorder into one that was not yet there when the names were listed.
        if condition == Condition::Recording && spans.iter().any(|s| !directory.join(s.file_name()).exists()) {
            spans = names::live(names::list(&directory)?);
        }
        let mut expected = 0;
        for span in &spans {
            if span.first > expected {
                notes.push(format!("parts {expected} to {} are missing: somebody removed them", span.first - 1));
            }
            expected = span.last.saturating_add(1);
            match PartReader::open(&directory.join(span.file_name())) {
                Err(e) => notes.push(e.to_string()),
                Ok(part) => {
                    journeys += part.rows();
                    if let Some((first, last)) = part.times() {
                        times = Some(times.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
                    }
                    add_points(&mut manifest.points, &part.points(), &mut notes);
                }
            }
        }
        let names = manifest.points.iter().map(|p| p.point.to_string()).collect();
        match &condition {
            Condition::Finished => {}
            Condition::Recording => notes.insert(0, "the recording goes on: this is what was written so far".into()),
            Condition::Killed => {
                notes.insert(0, "the recording was killed: up to 2 s before that are missing".into());
            }
            Condition::Interrupted(why) => notes.insert(0, format!("the recording ended early: {why}")),
        }
        if condition != Condition::Recording && manifest.journeys > journeys {
            let missing = manifest.journeys - journeys;
            notes.push(format!("{missing} of {} journeys were not written", manifest.journeys));
        }
        notes.extend(manifest.notes.iter().cloned());
        Ok(Self { path: path.into(), manifest, condition, spans, names, journeys, times, notes })
    }

    /// The run's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What became of the recording.
    pub fn condition(&self) -> &Condition {
        &self.condition
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

    /// What the reader must know: how the recording ended, what cannot be read, what the recorder noted.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Files of journeys, and their bytes together.
    pub fn size(&self) -> (usize, u64) {
        let bytes = |span: &Span| std::fs::metadata(self.part_path(*span)).map_or(0, |m| m.len());
        (self.spans.len(), self.spans.iter().map(bytes).sum())
    }

    /// All samples of all clocks.
    pub fn clock_samples(&self) -> Result<Vec<ClockSample>, RunError> {
        clocks::load(&self.path)
    }

    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub(crate) fn part_path(&self, span: Span) -> PathBuf {
        self.path.join(JOURNEYS).join(span.file_name())
    }

    pub(crate) fn point_names(&self) -> &[String] {
        &self.names
    }
}

/// Points of a part that the manifest lacks (it was lost, or edited): they are still points of the run.
fn add_points(known: &mut Vec<PointInfo>, names: &[String], notes: &mut Vec<String>) {
    for name in names {
        if known.iter().any(|p| p.point.to_string() == *name) {
            continue;
        }
        match name.parse() {
            Ok(point) if known.len() < MAX_POINTS => {
                notes.push(format!("{name}: a point of a part that the manifest does not name"));
                let clock = String::new();
                known.push(PointInfo { point, link: Link::default(), netns: 0, ifindex: 0, clock });
            }
            _ => notes.push(format!("{name:?}: a column that is no point; passed over")),
        }
    }
}

/// Takes the lock that tells readers that the recording goes on. The kernel lets go of it when the process ends, however
/// it ends. `None` where the file system has no locks.
pub(crate) fn lock(run: &Path) -> Option<Flock<File>> {
    Flock::lock(File::open(run).ok()?, FlockArg::LockExclusiveNonblock).ok()
}

fn is_locked(run: &Path) -> bool {
    let Ok(directory) = File::open(run) else { return false };
    matches!(Flock::lock(directory, FlockArg::LockSharedNonblock), Err((_, nix::errno::Errno::EAGAIN)))
}
