//! Reaction to a round trip over the threshold: writes a marker into the kernel's trace, takes a snapshot, stops
//! tracing and saves the trace. Optionally keeps everything in place for inspection before undoing it.
//!
//! Without a breach, the measuring thread does nothing for this.

use crate::in_the_way::in_the_way;
use crate::session_number;
use crate::transaction::{Route, Transaction};
use latpath_linux::Directory;
use latpath_model::Ns;
use latpath_tracefs::{Instance, Saved};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, Ordering},
        Mutex, PoisonError,
    },
};

/// Maximum number of breaches reported individually.
const KEPT: usize = 100;
/// Poll interval for Enter and Ctrl-C while everything is kept for inspection, ms.
const LOOK_EVERY_MS: u16 = 100;

/// Options of the trace: instance, events, files.
#[derive(Clone, Debug)]
pub struct BreachOptions {
    /// Name of the tracefs instance: one of the user's own, or one to create and remove.
    pub instance: String,
    /// Events and buffers of the instance.
    pub record: latpath_tracefs::Options,
    /// File for the saved trace.
    pub save: PathBuf,
    /// Maximum size of each file, bytes; older events are left out to stay below it.
    pub most_bytes: u64,
    /// Whether the first breach freezes the trace; otherwise tracing continues to the end, with a marker for each
    /// breach.
    pub freeze: bool,
}

impl BreachOptions {
    /// Default maximum size of a trace file, bytes.
    pub const MAX_BYTES: u64 = 256 << 20;
}

/// Why the trace cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum BreachError {
    /// The tracefs instance cannot be used.
    #[error(transparent)]
    Tracefs(#[from] latpath_tracefs::Error),
    /// The file exists.
    #[error("{}", in_the_way(.0, "name another file for the trace"))]
    Exists(PathBuf),
    /// The file cannot be created.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error returned by the operating system.
        source: io::Error,
    },
}

/// A transaction over the threshold, as known when its answer arrived; the reflector's stamps may still be missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BreachedProbe {
    /// Session number, in hexadecimal.
    #[serde(with = "session_number")]
    #[schemars(with = "String")]
    pub session: u32,
    /// Sequence number of the transaction.
    pub sequence: u64,
    /// Time from T1 app to T4 app, ns; null for a lost probe.
    pub round_trip_ns: Option<Ns>,
    /// Its segments, in the order of the route.
    pub segments: Vec<BreachedSegment>,
    /// Index of the segment that exceeded its median by the most, or null.
    pub longest: Option<usize>,
}

/// A segment of a breached transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BreachedSegment {
    /// Name of the segment in messages.
    pub name: String,
    /// Name of the segment's column in logs.
    pub column: String,
    /// Duration, ns; null if one of its stamps is missing.
    pub time_ns: Option<Ns>,
    /// Median of earlier transactions, ns; null if unknown.
    pub median_ns: Option<Ns>,
}

impl BreachedProbe {
    /// Describes a breach. `medians` are the medians of the route's segments so far.
    pub fn of(session: u32, transaction: &Transaction, route: &Route, medians: &[Ns]) -> Self {
        let segments = route.segments().zip(transaction.segments(route)).enumerate();
        let segments = segments.map(|(at, (segment, time_ns))| BreachedSegment {
            name: segment.name(),
            column: segment.column(),
            time_ns,
            median_ns: medians.get(at).copied(),
        });
        Self {
            session,
            sequence: transaction.sequence,
            round_trip_ns: transaction.round_trip(),
            segments: segments.collect(),
            longest: route.longest(transaction, medians),
        }
    }

    /// One line for the trace, at most about 700 bytes long.
    fn mark(&self) -> String {
        let or_none = |ns: Option<Ns>| ns.map_or("none".into(), |ns| ns.to_string());
        let mut text = format!(
            "latpath breach: session {:08x} sequence {} round_trip_ns {}",
            self.session,
            self.sequence,
            or_none(self.round_trip_ns)
        );
        if let Some(segment) = self.longest.map(|at| &self.segments[at]) {
            let _ = write!(text, "; longest {}, median {}", segment.column, or_none(segment.median_ns));
        }
        for segment in &self.segments {
            let _ = write!(text, "; {} {}", segment.column, or_none(segment.time_ns));
        }
        text
    }
}

/// The start or end of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The next packet is the first one that counts.
    Begin,
    /// The last packet that counts has passed already.
    End,
}

/// The breaches of a run, and their traces.
#[derive(Clone, Debug, Default)]
pub struct BreachReport {
    /// The first breaches.
    pub breached: Vec<BreachedProbe>,
    /// Number of breaches.
    pub breaches: u64,
    /// The saved trace.
    pub saved: Option<Saved>,
    /// Notes for the reader: events that this kernel lacks, missing snapshots, actions that failed.
    pub notes: Vec<String>,
}

/// A prepared trace, shared by all sessions of a run. Dropping it undoes everything.
#[derive(Debug)]
pub struct BreachTrace {
    /// The tracefs instance; `None` after the undo.
    instance: Option<Instance>,
    /// Directory and file name of the saved trace.
    target: (Directory, OsString),
    most_bytes: u64,
    freeze: bool,
    /// Whether a breach has occurred.
    frozen: AtomicBool,
    report: Mutex<BreachReport>,
}

impl BreachTrace {
    /// Creates the instance, or uses the user's, starts tracing, and reserves the file.
    ///
    /// # Errors
    /// If the instance cannot be used, or the file exists or cannot be created.
    pub fn prepare(options: BreachOptions) -> Result<Self, BreachError> {
        let BreachOptions { instance, record, save, most_bytes, freeze } = options;
        let target = reserve(&save, record.snapshot)?;
        let opened = Instance::open_or_make(&instance, &record);
        let instance = opened.inspect_err(|_| {
            let _ = target.0.remove(&target.1);
        })?;
        let report = BreachReport { notes: instance.notes().to_vec(), ..BreachReport::default() };
        let report = Mutex::new(report);
        Ok(Self { instance: Some(instance), target, most_bytes, freeze, frozen: AtomicBool::new(false), report })
    }

    /// Notes for the user before the run.
    pub fn notes(&self) -> Vec<String> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).notes.clone()
    }

    /// Path of the instance while it exists.
    pub fn path(&self) -> Option<&Path> {
        self.instance.as_ref().map(Instance::path)
    }

    /// Marks the start or end of a measurement in the trace, unless a breach has frozen it.
    pub fn mark(&self, edge: Edge, what: &str) {
        let Some(instance) = self.instance.as_ref().filter(|_| !(self.freeze && self.is_frozen())) else { return };
        let edge = match edge {
            Edge::Begin => "begin",
            Edge::End => "end",
        };
        if let Err(error) = instance.mark(&format!("latpath {edge}: {what}")) {
            let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
            if report.notes.len() < KEPT {
                report.notes.push(error.to_string());
            }
        }
    }

    fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    /// Handles a round trip over the threshold; the measuring thread calls this immediately.
    pub fn breach(&self, breached: &BreachedProbe) {
        let Some(instance) = &self.instance else { return };
        let first = !self.frozen.swap(true, Ordering::Relaxed);
        let mut problems = Vec::new();
        // A frozen trace accepts no marker.
        if first || !self.freeze {
            problems.extend(instance.mark(&breached.mark()).err());
        }
        if first && self.freeze {
            problems.extend(instance.snapshot().err());
            problems.extend(instance.stop().err());
        }
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.breaches += 1;
        if report.breached.len() < KEPT {
            report.breached.push(breached.clone());
            report.notes.extend(problems.iter().map(ToString::to_string));
        }
    }

    /// Called after the run: saves the trace if there was a breach. With `hold`, writes the paths to `say` and waits
    /// for Enter on stdin or for the flag, which Ctrl-C sets and which must be unset at the call. Then undoes
    /// everything.
    pub fn end(mut self, hold: Option<&AtomicBool>, say: &mut impl Write) -> BreachReport {
        let mut report = std::mem::take(&mut *self.report.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(instance) = self.instance.take() {
            if report.breaches > 0 {
                self.save(&instance, &mut report);
                if let Some(interrupted) = hold {
                    let _ = say.write_all(held(&instance, &report).as_bytes());
                    let _ = say.flush();
                    wait(io::stdin().as_fd(), interrupted);
                }
            }
            report.notes.extend(instance.close().err().map(|e| e.to_string()));
        }
        report
    }

    fn save(&self, instance: &Instance, report: &mut BreachReport) {
        if !self.freeze {
            report.notes.extend(instance.stop().err().map(|e| e.to_string()));
        }
        match instance.save((&self.target.0, &self.target.1), self.most_bytes) {
            Ok(saved) => {
                report.notes.extend(losses(&saved));
                report.saved = Some(saved);
            }
            Err(error) => report.notes.push(error.to_string()),
        }
    }
}

impl Drop for BreachTrace {
    fn drop(&mut self) {
        // The file was reserved but not used, so remove it.
        let (directory, name) = &self.target;
        if directory.open_file(name).and_then(|file| file.metadata()).is_ok_and(|m| m.len() == 0) {
            let _ = directory.remove(name);
        }
    }
}

/// Creates the file, to check before the run that it is writable. An existing empty file was reserved by a run that was
/// killed, and is reused.
fn reserve(save: &Path, snapshot: bool) -> Result<(Directory, OsString), BreachError> {
    let taken = |path: &Path| fs::symlink_metadata(path).is_ok_and(|m| !m.is_file() || m.len() > 0);
    let beside = latpath_tracefs::snapshot_file(save);
    for path in [Some(save), snapshot.then_some(beside.as_path())].into_iter().flatten() {
        if taken(path) {
            return Err(BreachError::Exists(path.into()));
        }
    }
    let made =
        Directory::of_file(save).and_then(|(directory, name)| directory.append(&name).map(|_| (directory, name)));
    made.map_err(|source| BreachError::File { path: save.into(), source })
}

/// Notes on events that a saved trace lacks.
fn losses(saved: &Saved) -> Vec<String> {
    let mut notes = Vec::new();
    for lost in saved.lost.iter().filter(|l| l.dropped > 0) {
        notes.push(format!("trace: CPU {} dropped {} events because its buffer was full", lost.cpu, lost.dropped));
    }
    for file in &saved.files {
        if file.left_out > 0 {
            let path = file.path.display();
            notes.push(format!("{path}: the oldest events, {} bytes, were left out to keep it small", file.left_out));
        }
    }
    notes
}

fn held(instance: &Instance, report: &BreachReport) -> String {
    let mut text = String::new();
    if let Some(first) = report.breached.first() {
        let _ = writeln!(text, "breach: probe {} of session {:08x}", first.sequence, first.session);
    }
    let _ = writeln!(text, "  tracefs instance, stopped: {}", instance.path().display());
    for file in report.saved.iter().flat_map(|s| &s.files) {
        let events = file.events.map_or(String::new(), |n| format!(", {n} events"));
        let before =
            file.overwritten.filter(|n| *n > 0).map_or(String::new(), |n| format!(" ({n} older ones overwritten)"));
        let _ = writeln!(text, "  saved: {}{events}{before}", file.path.display());
    }
    let gone = if instance.made() { "removed" } else { "put back as it was" };
    let _ = writeln!(text, "Enter or Ctrl-C ends this; the instance is {gone} then, the files stay.");
    text
}

/// Waits for a line or for the flag; once the input has ended, only for the flag.
fn wait(input: BorrowedFd<'_>, interrupted: &AtomicBool) {
    let mut open = true;
    while !interrupted.load(Ordering::Relaxed) {
        if !open {
            std::thread::sleep(std::time::Duration::from_millis(LOOK_EVERY_MS.into()));
            continue;
        }
        let mut fds = [PollFd::new(input, PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(LOOK_EVERY_MS)) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(_) => open = false,
        }
        let mut bytes = [0; 64];
        match nix::unistd::read(input, &mut bytes) {
            Ok(n) if bytes[..n].contains(&b'\n') => return,
            Ok(0) | Err(_) => open = false,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::Stamp;

    fn transaction() -> (Transaction, Route) {
        let mut t = Transaction { sequence: 17, ..Transaction::default() };
        for (at, stamp) in Stamp::ALL.into_iter().enumerate() {
            t.mapped.set(
                stamp,
                [0, 1, 2, 3, 10_000, 10_001, 10_002, 11_000, 11_001, 11_002, 11_003, 25_000, 25_001, 25_002][at],
            );
        }
        t.raw = t.mapped;
        (t, Route::of_seven(u16::MAX))
    }

    #[test]
    fn the_longest_segment_is_the_one_furthest_from_its_median() {
        let (t, route) = transaction();
        let medians: Vec<Ns> = route.segments().map(|s| if s.to == Stamp::T4Nic { 13_990 } else { 5 }).collect();
        let breached = BreachedProbe::of(1, &t, &route, &medians);
        assert_eq!(breached.longest.map(|at| breached.segments[at].name.as_str()), Some("wire there"));
        let breached = BreachedProbe::of(1, &t, &route, &[]);
        assert_eq!(breached.longest.map(|at| breached.segments[at].name.as_str()), Some("wire back"));
    }

    #[test]
    fn a_mark_has_everything_in_one_line_that_the_kernel_takes() {
        let (t, _) = transaction();
        let route = Route::detailed(u16::MAX);
        let mark = BreachedProbe::of(0xabc, &t, &route, &[Ns::MAX; 13]).mark();
        assert!(
            mark.starts_with("latpath breach: session 00000abc sequence 17 round_trip_ns 25002; longest "),
            "{mark}"
        );
        assert!(mark.contains("; t1_nic_to_t2_nic_ns 9997; "), "{mark}");
        assert!(mark.len() < latpath_tracefs::LONGEST_MARK && !mark.contains('\n'), "{}", mark.len());
    }

    #[test]
    fn a_breach_without_an_answers_stamps_names_the_missing_ones() {
        let (mut t, route) = transaction();
        (t.raw, t.mapped) = Default::default();
        t.raw.set(Stamp::T1App, 5);
        let mark = BreachedProbe::of(1, &t, &route, &[]).mark();
        assert!(mark.contains("round_trip_ns none") && !mark.contains("longest"), "{mark}");
    }

    #[test]
    fn enter_or_an_interrupt_ends_the_wait() {
        let (read, write) = nix::unistd::pipe().unwrap();
        nix::unistd::write(&write, b"x\n").unwrap();
        wait(read.as_fd(), &AtomicBool::new(false));
        let mut fds = [PollFd::new(read.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(0), "the line that ended it is taken");
        // Close the input: Enter can no longer be pressed.
        drop(write);
        let interrupted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(read.as_fd(), &interrupted));
            let ended = (0..10).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(u64::from(LOOK_EVERY_MS)));
                waiting.is_finished()
            });
            interrupted.store(true, Ordering::Relaxed);
            waiting.join().unwrap();
            assert!(!ended, "an input that is closed is no Enter");
        });
    }
}
