//! `marks.jsonl`: notes on moments of a run, added during the recording or later.

use crate::{lines, span::TimeSpan, RunError, MARKS};
use latpath_model::{text::cut, Ns, StreamSpec, SynchChange};
use latpath_partstore::{Directory, StoreError};
use serde::{Deserialize, Serialize};
use std::{io::Write, path::Path};

/// Maximum length of a mark's text, bytes.
const MAX_BYTES: usize = 400;
/// Maximum number of marks that are read.
const MAX: usize = 10_000;

/// A note on a moment of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Time, host's `CLOCK_MONOTONIC`, ns.
    pub t_ns: Ns,
    /// The note.
    pub text: String,
}

impl Mark {
    /// Creates a mark; long texts are truncated.
    pub fn new(t_ns: Ns, text: &str) -> Self {
        Self { t_ns, text: cut(text, MAX_BYTES).into() }
    }

    /// Creates a mark for a change of the clock state that a stream's sender reported (smpSynch).
    pub fn of_synch(stream: &StreamSpec, before: u8, change: &SynchChange) -> Self {
        Self::new(change.t, &format!("{}: smpSynch {before} -> {}", stream.short(), change.synch))
    }

    /// Adds the mark to a run, even during its recording: the line is appended by a single write.
    ///
    /// # Errors
    /// The file cannot be written, or is a link, a pipe, or a file with another name.
    pub fn add(&self, run: &Path) -> Result<(), RunError> {
        self.add_to(&Directory::open(run).map_err(StoreError::write(run.join(MARKS)))?).map(drop)
    }

    /// Appends the mark; returns the number of bytes appended.
    pub(crate) fn add_to(&self, run: &Directory) -> Result<u64, RunError> {
        let line = lines::of(std::slice::from_ref(self));
        let written = run.append(MARKS).and_then(|mut file| {
            file.write_all(&line)?;
            file.sync_data()
        });
        written.map_err(StoreError::write(run.join(MARKS)))?;
        Ok(line.len() as u64)
    }
}

/// Loads a run's marks, in order of time; also returns the number of damaged lines.
pub(crate) fn load(run: &Path, span: TimeSpan) -> Result<(Vec<Mark>, u64), RunError> {
    let mut marks = Vec::new();
    let damaged = lines::for_each(&run.join(MARKS), |mark: Mark| {
        let is_possible = span.contains(mark.t_ns);
        if marks.len() < MAX && is_possible {
            marks.push(Mark::new(mark.t_ns, &mark.text));
        }
        is_possible
    })?;
    marks.sort_by_key(|mark| mark.t_ns);
    Ok((marks, damaged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn marks_are_read_by_time_and_a_damaged_one_is_counted() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(load(run.path(), TimeSpan::default()).unwrap(), (vec![], 0));
        let marks = [Mark::new(7, "iperf off"), Mark::new(5, "iperf \u{1b}[2J \"on\"")];
        marks.iter().for_each(|mark| mark.add(run.path()).unwrap());
        assert_eq!(load(run.path(), TimeSpan::default()).unwrap(), (vec![marks[1].clone(), marks[0].clone()], 0));
        let file = run.path().join(MARKS);
        let text = std::fs::read_to_string(&file).unwrap().replace("off", "Off") + "{\"t_ns\":9,\"te";
        std::fs::write(&file, text).unwrap();
        assert_eq!(load(run.path(), TimeSpan::default()).unwrap(), (vec![marks[1].clone()], 1));
        assert_eq!(Mark::new(0, &"é".repeat(400)).text.len(), 400);
    }

    #[test]
    fn a_mark_is_not_written_through_a_link() {
        let run = tempfile::tempdir().unwrap();
        let other = run.path().join("other");
        std::os::unix::fs::symlink(&other, run.path().join(MARKS)).unwrap();
        assert!(Mark::new(5, "x").add(run.path()).is_err() && !other.exists());
    }

    #[test]
    fn a_pipe_in_place_of_the_marks_is_refused_at_once() {
        let run = tempfile::tempdir().unwrap();
        let pipe = run.path().join(MARKS);
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Mark::new(5, "x").add(run.path()).is_err());
        let reader = std::fs::File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&pipe).unwrap();
        assert!(Mark::new(5, "x").add(run.path()).is_err());
        drop(reader);
    }
}
