//! The directory of a study: its plan, its seed, and a directory for each trial.
//!
//! | file | |
//! |---|---|
//! | `study.json` | version, seed, the plan |
//! | `under-way.json` | the trial whose topology and settings may be set up; absent between trials |
//! | `trials/NAME/run/` | the recorded run |
//! | `trials/NAME/trial.json` | written last and atomically: a trial without it is repeated |
//! | `trials/NAME/*.txt` | output of its commands |

use crate::engine::StudyError;
use crate::schedule::Trial;
use crate::Plan;
use latpath_export::write_file_in;
use latpath_linux::{why_shared, Directory};
use latpath_model::Ns;
use nix::fcntl::{Flock, FlockArg};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Version of the files in a study's directory.
const VERSION: u32 = 1;
/// Maximum size of a file that this crate reads, bytes.
const MAX_BYTES: u64 = 4 << 20;
const STUDY: &str = "study.json";
const UNDER_WAY: &str = "under-way.json";
const TRIALS: &str = "trials";
const TRIAL: &str = "trial.json";
const LOCK: &str = "lock";

/// A study's plan and seed, as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stored {
    version: u32,
    seed: u64,
    plan: Plan,
}

/// Outcome of a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Its run is complete.
    Complete,
    /// It failed in all attempts.
    Failed {
        /// Reason of the last failure.
        reason: String,
    },
}

/// Record of a trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrialRecord {
    /// Version of this format.
    pub version: u32,
    /// Name of its directory.
    pub trial: String,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Number of attempts.
    pub attempts: u32,
    /// Duration of its last attempt, ns.
    pub took_ns: Ns,
    /// Number of journeys in its run.
    pub journeys: u64,
    /// Rate that the load reported, bits per second; `None` if it reported none.
    pub load_bits_per_second: Option<f64>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl TrialRecord {
    pub(crate) fn new(trial: String, outcome: Outcome, attempts: u32) -> Self {
        Self {
            version: VERSION,
            trial,
            outcome,
            attempts,
            took_ns: 0,
            journeys: 0,
            load_bits_per_second: None,
            notes: Vec::new(),
        }
    }
}

/// The trial whose topology and settings may be set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UnderWay {
    version: u32,
    /// Name of its directory.
    pub trial: String,
}

/// A study's directory, locked against other processes.
pub(crate) struct Folder {
    directory: Directory,
    trials: Directory,
    /// Lock held until this process ends; `None` for a reader.
    _lock: Option<Flock<File>>,
}

fn file_error(directory: &Directory, name: &str) -> impl FnOnce(io::Error) -> StudyError {
    let path = directory.join(name);
    move |error| StudyError::File { path, error }
}

impl Folder {
    /// Creates the directory, or opens an existing one to which no other user has write access, and locks it.
    pub fn take(path: &Path) -> Result<Self, StudyError> {
        let failed = |error| StudyError::File { path: path.into(), error };
        let directory = match Directory::make(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => open_own(path)?,
            made => made.map_err(failed)?,
        };
        let lock = match directory.open_file(LOCK) {
            Err(error) if error.kind() == ErrorKind::NotFound => directory.create_new(LOCK, 0o600),
            opened => opened,
        };
        let lock = lock.map_err(file_error(&directory, LOCK))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
            nix::errno::Errno::EWOULDBLOCK => StudyError::InUse(path.into()),
            error => file_error(&directory, LOCK)(error.into()),
        })?;
        Self::of(directory, Some(lock))
    }

    /// Opens an existing directory for reading.
    pub fn read(path: &Path) -> Result<Self, StudyError> {
        let directory = Directory::open(path).map_err(|error| StudyError::File { path: path.into(), error })?;
        let trials = directory.open_directory(TRIALS).map_err(|error| match error.kind() {
            ErrorKind::NotFound => StudyError::NoStudy(path.into()),
            _ => file_error(&directory, TRIALS)(error),
        })?;
        Ok(Self { directory, trials, _lock: None })
    }

    fn of(directory: Directory, lock: Option<Flock<File>>) -> Result<Self, StudyError> {
        let trials = match directory.make_directory(TRIALS) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => directory.open_directory(TRIALS),
            made => made,
        };
        let trials = trials.map_err(file_error(&directory, TRIALS))?;
        Ok(Self { directory, trials, _lock: lock })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The stored plan and its seed; `None` in a new directory.
    pub fn stored(&self) -> Result<Option<(Plan, u64)>, StudyError> {
        let stored: Option<Stored> = read(&self.directory, STUDY)?;
        match stored {
            Some(Stored { version: VERSION, seed, plan }) => match plan.check() {
                Ok(()) => Ok(Some((plan, seed))),
                Err(why) => Err(StudyError::Damaged { path: self.directory.join(STUDY), why }),
            },
            Some(Stored { version, .. }) => {
                Err(StudyError::Damaged { path: self.directory.join(STUDY), why: of_version(version) })
            }
            None => Ok(None),
        }
    }

    /// Stores the plan and its seed.
    pub fn store(&self, plan: &Plan, seed: u64) -> Result<(), StudyError> {
        write(&self.directory, STUDY, &Stored { version: VERSION, seed, plan: plan.clone() })
    }

    /// Removes all trials.
    pub fn clear_trials(&self) {
        self.trials.clear();
    }

    /// The trial that was under way when latpath ended; `None` if there was none.
    pub fn under_way(&self) -> Result<Option<UnderWay>, StudyError> {
        read(&self.directory, UNDER_WAY)
    }

    /// Records that a trial is under way, before anything is set up for it.
    pub fn begin(&self, trial: &str) -> Result<(), StudyError> {
        write(&self.directory, UNDER_WAY, &UnderWay { version: VERSION, trial: trial.into() })
    }

    /// Records that nothing is set up any longer.
    pub fn is_clear(&self) -> Result<(), StudyError> {
        match self.directory.remove(UNDER_WAY).and_then(|()| self.directory.sync()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(file_error(&self.directory, UNDER_WAY)(error)),
            _ => Ok(()),
        }
    }

    /// Creates an empty directory for a trial; removes the files of an earlier attempt.
    pub fn fresh(&self, trial: &str) -> Result<Directory, StudyError> {
        let made = match self.trials.make_directory(trial) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.trials.open_directory(trial).inspect(Directory::clear)
            }
            made => made,
        };
        made.map_err(file_error(&self.trials, trial))
    }

    /// Path of a trial's run.
    pub fn run(&self, trial: &str) -> std::path::PathBuf {
        self.trials.join(trial).join("run")
    }

    /// Writes the record of a trial, complete or failed, which ends the trial.
    pub fn finish(&self, directory: &Directory, record: &TrialRecord) -> Result<(), StudyError> {
        write(directory, TRIAL, record)
    }

    /// The record of a trial; `None` if it has none yet.
    pub fn record(&self, trial: &str) -> Result<Option<TrialRecord>, StudyError> {
        match self.trials.open_directory(trial) {
            Ok(directory) => read(&directory, TRIAL),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file_error(&self.trials, trial)(error)),
        }
    }

    /// The trials of the plan that have a record, each with its record.
    pub fn done(&self, plan: &Plan, trials: &[Trial]) -> Result<Vec<(Trial, TrialRecord)>, StudyError> {
        let record = |trial: &Trial| Ok(self.record(&trial.name(plan))?.map(|record| (*trial, record)));
        trials.iter().map(record).filter_map(Result::transpose).collect()
    }
}

fn of_version(version: u32) -> String {
    format!("it is of version {version}; this latpath reads {VERSION}")
}

/// Opens an existing directory to which no other user has write access.
fn open_own(path: &Path) -> Result<Directory, StudyError> {
    let failed = |error| StudyError::File { path: path.into(), error };
    let shared = |why: &str| StudyError::Shared { path: path.into(), why: why.into() };
    if let Some(why) = why_shared(path).map_err(failed)? {
        return Err(shared(why));
    }
    let directory = Directory::open(path).map_err(failed)?;
    // Check again, because the path may refer to another directory by now.
    match directory.why_shared().map_err(failed)? {
        Some(why) => Err(shared(why)),
        None => Ok(directory),
    }
}

fn read<T: DeserializeOwned>(directory: &Directory, name: &str) -> Result<Option<T>, StudyError> {
    let mut text = String::new();
    match directory.open_file(name).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_error(directory, name)(error)),
    }
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|e| StudyError::Damaged { path: directory.join(name), why: e.to_string() })
}

/// Writes a file atomically: it appears only once it is complete and durable.
fn write<T: Serialize>(directory: &Directory, name: &str, value: &T) -> Result<(), StudyError> {
    let written = write_file_in(directory, OsStr::new(name), true, |out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        out.write_all(b"\n")
    });
    written.and_then(|()| directory.sync()).map_err(file_error(directory, name))
}
