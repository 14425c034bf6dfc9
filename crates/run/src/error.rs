//! Errors of runs; each message names the next step.

use crate::Manifest;
use latpath_linux::special;
use latpath_partstore::StoreError;
use std::path::{Path, PathBuf};

/// Reason for which a run cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The directory for a new run exists and is not empty.
    #[error("{}: exists already ({what}); name another directory with -o{}", path.display(), or_remove(path))]
    Exists {
        /// The directory.
        path: PathBuf,
        /// Its content, if recognised: `a run of 2026-01-02T03:04:05`.
        what: String,
    },
    /// The run that a new one is to replace is still being recorded.
    #[error("{}: is still being recorded: stop that first, or name another directory with -o", path.display())]
    InUse {
        /// Directory of that run.
        path: PathBuf,
    },
    /// The directory for a new run is not private: other users who may write to it could create links in it.
    #[error("{}: {why}, who could put links into it: name another directory with -o", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// Why it is not private.
        why: &'static str,
    },
    /// A file cannot be written or read, or is damaged.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The path is not a run.
    #[error("{}: not a run: {why} (a run is a directory made by `latpath record -o DIR`)", path.display())]
    NoRun {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The run was written by a newer version of latpath, in a newer format.
    #[error("{}: format {found} is newer than this latpath reads ({supported}); use latpath {by} or later", path.display())]
    Newer {
        /// The run.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// The newest supported format version.
        supported: u32,
        /// The version of latpath that wrote the run.
        by: String,
    },
    /// A journey refers to a point that the manifest lacks: a mistake of the caller.
    #[error("a journey was seen at point {point}, but only {known} points are in the manifest")]
    UnknownPoint {
        /// The highest index of a point in the journey.
        point: u32,
        /// Number of points in the manifest.
        known: usize,
    },
    /// More points than a run can have.
    #[error("{0} points: a run can have 64; name fewer with --points")]
    TooManyPoints(usize),
    /// A background thread ended without reporting an error: a bug in latpath.
    #[error("{}: the thread that writes the run has ended unexpectedly; the run is readable up to there", .0.display())]
    ThreadGone(PathBuf),
}

/// Advises the user to replace a run, or to remove another file or directory; nothing for special files, which must
/// remain.
fn or_remove(path: &Path) -> &'static str {
    match special(path) {
        Some(_) => "",
        None if Manifest::load(path).is_ok() => ", or replace this one with --force",
        None => ", or remove this one first",
    }
}

impl RunError {
    pub(crate) fn damaged(path: &Path, why: impl ToString) -> Self {
        StoreError::Damaged { path: path.into(), why: why.to_string() }.into()
    }
}
