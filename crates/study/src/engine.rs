//! Runs the trials of a study that are missing from its directory.

use crate::folder::{Folder, Outcome, TrialRecord};
use crate::schedule::{Cell, Trial};
use crate::trial::{Attempt, NotRecorded};
use crate::Plan;
use latpath_model::Ns;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Assumed duration of a trial's overhead (commands, attaching, closing the run) beyond warm-up and recording, until a
/// trial has been completed.
const SET_UP: Duration = Duration::from_secs(5);
/// Maximum number of attempts at a trial.
const ATTEMPTS: u32 = 2;

/// Why a study cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// A file of the study cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// A file of the study is damaged, or was not written by latpath.
    #[error("{}: cannot be used: {why}", path.display())]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// Other users have write access to the directory.
    #[error("{}: {why}, who could put links into it: name another directory with -o", path.display())]
    Shared {
        /// Its path.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// Another process is running trials in the directory.
    #[error("{}: another latpath study runs there; wait for its end, or name another directory with -o", .0.display())]
    InUse(PathBuf),
    /// The directory contains no study.
    #[error("{}: no study; latpath study PLAN.toml -o STUDY makes one", .0.display())]
    NoStudy(PathBuf),
    /// A topology or settings of the plan are already set up, and a trial would undo them.
    #[error("{0}, so that the study can set it up itself and take it down after each trial")]
    SetUpAlready(String),
    /// The directory contains trials of another plan.
    #[error("{}: it has trials of another plan: {what}. Name another directory with -o, or drop these trials with --force", path.display())]
    OtherPlan {
        /// The directory.
        path: PathBuf,
        /// The difference.
        what: String,
    },
}

/// The remaining trials of a study, and their estimated duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Number of trials in the plan.
    pub trials: usize,
    /// Number of remaining trials.
    pub left: usize,
    /// Estimated duration of one trial.
    pub trial: Duration,
    /// Part of that duration beyond warm-up and recording.
    pub set_up: Duration,
}

impl Estimate {
    /// Estimated time until the study is complete.
    pub fn total(&self) -> Duration {
        self.trial.saturating_mul(u32::try_from(self.left).unwrap_or(u32::MAX))
    }
}

/// Phase of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its topology and settings are being set up.
    SettingUp,
    /// The stream and the load are running before the recording.
    WarmingUp,
    /// Packets are being recorded.
    Recording,
    /// Settings and topology are being undone.
    TakingDown,
}

/// Progress report of a study.
#[derive(Clone, Debug)]
pub enum Progress<'p> {
    /// An interrupted trial left its topology or settings in place; they are being undone.
    TakingDown {
        /// The trial.
        trial: &'p str,
    },
    /// The remains of an interrupted trial could not be taken down. The next trial shows whether that matters: after a
    /// reboot, nothing remains.
    NotTakenDown {
        /// The trial.
        trial: &'p str,
        /// The reason.
        reason: &'p str,
    },
    /// A trial entered this phase.
    Trial {
        /// Its position in the order of trials, counted from 1.
        number: usize,
        /// Number of trials in the plan.
        of: usize,
        /// Its name.
        trial: &'p str,
        /// The phase.
        phase: Phase,
        /// Estimated time until the study is complete.
        left: Duration,
    },
    /// A trial failed.
    Failed {
        /// Its name.
        trial: &'p str,
        /// The reason.
        reason: &'p str,
        /// Whether the trial is repeated.
        again: bool,
    },
}

/// How [`Study::run`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// All trials have a record.
    Complete,
    /// The user ended the study; it can be continued with the same plan.
    Stopped {
        /// Number of remaining trials.
        left: usize,
    },
}

/// A study and its directory.
pub struct Study {
    plan: Plan,
    seed: u64,
    folder: Folder,
    /// Directory of the plan; commands run in it.
    current: PathBuf,
    /// Path of latpath's own program, which also runs as publisher and load.
    program: PathBuf,
}

impl Study {
    /// Opens a directory for a plan: a new one, or one with trials of this plan. With `force`, trials of another plan
    /// are removed. `current` is the directory in which the plan's commands run, and `program` the path of latpath.
    ///
    /// # Errors
    /// If the directory cannot be used, is in use, or contains trials of another plan.
    pub fn open(
        plan: Plan,
        folder: &Path,
        force: bool,
        current: PathBuf,
        program: PathBuf,
    ) -> Result<Self, StudyError> {
        let folder = Folder::take(folder)?;
        let stored = folder.stored()?;
        let seed = match &stored {
            None => plan.seed.unwrap_or_else(chosen_seed),
            Some((old, seed)) => match differs(old, &plan, *seed) {
                None => *seed,
                Some(what) if !force => return Err(StudyError::OtherPlan { path: folder.path().into(), what }),
                Some(_) => {
                    // The remains of the old plan's trials are taken down with that plan's commands.
                    let old = Self { plan: old.clone(), seed: *seed, folder, current, program };
                    old.take_down_what_was_left(&mut |_| ())?;
                    old.folder.clear_trials();
                    let seed = plan.seed.unwrap_or_else(chosen_seed);
                    old.folder.store(&plan, seed)?;
                    return Ok(Self { plan, seed, ..old });
                }
            },
        };
        let is_new = stored.is_none_or(|(old, _)| old != plan);
        let study = Self { plan, seed, folder, current, program };
        if is_new {
            study.folder.store(&study.plan, seed)?;
        }
        Ok(study)
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The seed that determines the order of trials.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// All trials, in the order in which they run.
    pub fn trials(&self) -> Vec<Trial> {
        Trial::all(&self.plan, self.seed)
    }

    /// The remaining trials, and their estimated duration.
    ///
    /// # Errors
    /// If records of trials cannot be read.
    pub fn estimate(&self) -> Result<Estimate, StudyError> {
        let trials = self.trials();
        let done = self.folder.done(&self.plan, &trials)?;
        let fixed = self.plan.warm_up + self.plan.duration;
        let took: Vec<Ns> = done.iter().map(|(_, record)| record.took_ns).collect();
        let set_up = match took.len() {
            0 => SET_UP,
            n => Duration::from_nanos((took.iter().sum::<Ns>() / n as Ns).max(0) as u64).saturating_sub(fixed),
        };
        Ok(Estimate { trials: trials.len(), left: trials.len() - done.len(), trial: fixed + set_up, set_up })
    }

    /// Runs the trials that have no record; with `repeat_failed`, also those recorded as failed. A trial that fails is
    /// repeated once, and then recorded as failed.
    ///
    /// # Errors
    /// If the directory cannot be read or written, or a topology or settings of the plan are already set up.
    pub fn run(
        &self,
        stop: &AtomicBool,
        repeat_failed: bool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Finish, StudyError> {
        self.take_down_what_was_left(progress)?;
        match self.plan.set_up_already() {
            Ok(None) => {}
            Ok(Some(what)) | Err(what) => return Err(StudyError::SetUpAlready(what)),
        }
        let trials = self.trials();
        let mut left = Vec::new();
        for (at, trial) in trials.iter().enumerate() {
            let record = self.folder.record(&trial.name(&self.plan))?;
            let is_done = |record: TrialRecord| !repeat_failed || record.outcome == Outcome::Complete;
            if !record.is_some_and(is_done) {
                left.push((at, *trial));
            }
        }
        let mut per_trial = self.estimate()?.trial;
        let began = Instant::now();
        for (made, (at, trial)) in left.iter().enumerate() {
            if made > 0 {
                per_trial = began.elapsed() / made as u32;
            }
            let until = Instant::now() + per_trial.saturating_mul((left.len() - made) as u32);
            let place = (at + 1, trials.len());
            if stop.load(Ordering::Relaxed) || !self.make(*trial, place, until, stop, progress)? {
                return Ok(Finish::Stopped { left: left.len() - made });
            }
        }
        Ok(Finish::Complete)
    }

    /// Runs a trial; returns false if the user ended it.
    fn make(
        &self,
        trial: Trial,
        (number, of): (usize, usize),
        until: Instant,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<bool, StudyError> {
        let name = trial.name(&self.plan);
        let mut last = String::new();
        for attempt in 1..=ATTEMPTS {
            let directory = self.folder.fresh(&name)?;
            self.folder.begin(&name)?;
            let began = Instant::now();
            let (recorded, taken_down) = self.attempt(trial, &directory).make(stop, &mut |phase| {
                let left = until.saturating_duration_since(Instant::now());
                progress(Progress::Trial { number, of, trial: &name, phase, left });
            });
            let took_ns = began.elapsed().as_nanos() as Ns;
            // If the user interrupts a step, it fails, but the trial does not count as failed.
            if recorded.is_err() && stop.load(Ordering::Relaxed) {
                directory.clear();
                match taken_down {
                    // The trial remains marked as under way, so the next start tries to take it down again.
                    Err(reason) => progress(Progress::NotTakenDown { trial: &name, reason: &reason }),
                    Ok(()) => self.folder.is_clear()?,
                }
                return Ok(false);
            }
            let attempted = match (recorded, taken_down) {
                (Ok(recorded), Ok(())) => Ok(recorded),
                (Ok(_), Err(why)) => Err(why),
                (Err(NotRecorded::Failed(why)), Ok(())) => Err(why),
                (Err(NotRecorded::Failed(why)), Err(more)) => Err(format!("{why}; {more}")),
                (Err(NotRecorded::Stopped), _) => return Ok(false),
            };
            match attempted {
                Ok(recorded) => {
                    let mut record = TrialRecord::new(name, Outcome::Complete, attempt);
                    (record.took_ns, record.journeys) = (took_ns, recorded.journeys);
                    (record.load_bits_per_second, record.notes) = (recorded.load_bits_per_second, recorded.notes);
                    if attempt > 1 {
                        record.notes.push(format!("it was tried twice: {last}"));
                    }
                    self.folder.finish(&directory, &record)?;
                    self.folder.is_clear()?;
                    return Ok(true);
                }
                Err(reason) => {
                    let again = attempt < ATTEMPTS;
                    progress(Progress::Failed { trial: &name, reason: &reason, again });
                    last = reason;
                    if !again {
                        let mut record =
                            TrialRecord::new(name.clone(), Outcome::Failed { reason: last.clone() }, attempt);
                        record.took_ns = took_ns;
                        self.folder.finish(&directory, &record)?;
                        self.folder.is_clear()?;
                    }
                }
            }
        }
        Ok(true)
    }

    fn attempt<'a>(&'a self, trial: Trial, directory: &'a latpath_linux::Directory) -> Attempt<'a> {
        let Self { plan, current, program, .. } = self;
        Attempt { plan, trial, directory, current, program }
    }

    /// Undoes the topology and settings of a trial during which latpath ended without undoing them.
    fn take_down_what_was_left(&self, progress: &mut dyn FnMut(Progress<'_>)) -> Result<(), StudyError> {
        let Some(under_way) = self.folder.under_way()? else { return Ok(()) };
        let all = self.trials();
        if let Some(trial) = all.into_iter().find(|trial| trial.name(&self.plan) == under_way.trial) {
            progress(Progress::TakingDown { trial: &under_way.trial });
            // A complete trial keeps its run; only the mark that it was under way remained.
            let is_complete = self.folder.record(&under_way.trial)?.is_some();
            if !is_complete {
                let directory = self.folder.fresh(&under_way.trial)?;
                if let Err(reason) = self.attempt(trial, &directory).take_down() {
                    progress(Progress::NotTakenDown { trial: &under_way.trial, reason: &reason });
                }
                directory.clear();
            }
        }
        self.folder.is_clear()
    }

    /// The cells of the plan.
    pub fn cells(&self) -> Vec<Cell> {
        Cell::all(&self.plan)
    }
}

/// A seed for users who give none: derived from the time, and below 2^32 so that it is easy to copy.
fn chosen_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff_ffff)
}

/// Why trials of a stored plan do not fit a new plan; `None` if they do. More repetitions are allowed.
fn differs(old: &Plan, new: &Plan, seed: u64) -> Option<String> {
    if new.repetitions < old.repetitions {
        return Some(format!("{} repetitions instead of {}", new.repetitions, old.repetitions));
    }
    if let Some(new) = new.seed.filter(|new| *new != seed) {
        return Some(format!("seed {new} instead of {seed}"));
    }
    // Limits, and the band and segment to show, only affect how the same trials are evaluated.
    let comparable = |plan: &Plan| Plan {
        repetitions: 1,
        seed: None,
        limits: Vec::new(),
        band: None,
        segment: None,
        ..plan.clone()
    };
    let (old, new) = (comparable(old), comparable(new));
    let as_json = |plan: &Plan| serde_json::to_value(plan).unwrap_or_default();
    let (old, new) = (as_json(&old), as_json(&new));
    let keys = old.as_object().into_iter().chain(new.as_object()).flat_map(|fields| fields.keys());
    keys.filter(|key| old[key.as_str()] != new[key.as_str()]).map(|key| format!("{key} differs")).next()
}
