//! `spikes/`: captures around late packets, one file each; the worst are kept.

use crate::{
    span::{TimeSpan, IMPOSSIBLE},
    RunError,
};
use latpath_capture::{
    BadCapture, BoundedCaptures, Capture, CaptureKind, Head, RankedCapture, RetentionPolicy, StoredCapture, MAX_ENCODED,
};
use latpath_linux::background::lower_priority;
use latpath_partstore::{open_file, replace_file, Directory, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

/// Name of the directory in a run.
pub const SPIKES: &str = "spikes";
/// Maximum number of captures waiting to be written. Any beyond that are discarded, so that a spike never makes the
/// joining thread wait for the disk.
const UNDER_WAY: usize = 32;
/// Maximum number of files that are read.
const MAX_FILES: usize = 100_000;

/// Counts of late packets and captures: a part of the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SpikesRecord {
    /// Number of late packets per stream.
    pub late: Vec<u64>,
    /// Number of late packets of kept captures, by stream, including those that a full capture omits.
    pub late_kept: Vec<u64>,
    /// Number of kept captures with late packets: files in `spikes`.
    pub captures: u64,
    /// Number of captures with late packets that were discarded because of the limits or because they came too fast.
    pub captures_not_kept: u64,
    /// Number of kept baseline captures.
    pub baselines: u64,
    /// Total size of the files, bytes.
    pub bytes: u64,
}

fn file_name(number: u32) -> String {
    format!("{number:06}.spike")
}

fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".spike")?;
    let number = (digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())??;
    (file_name(number) == name).then_some(number)
}

/// State shared by the writing thread and the writer.
#[derive(Debug, Default)]
struct Shared {
    /// Number of captures discarded because too many were waiting.
    too_fast: u64,
    error: Option<RunError>,
}

/// Writes captures on its own thread.
pub(crate) struct Spikes {
    captures: Option<BoundedCaptures<RankedCapture>>,
    thread: Option<JoinHandle<()>>,
    retention: RetentionPolicy,
    shared: Arc<Mutex<Shared>>,
}

impl Spikes {
    pub fn begin(run: &Directory, retention: RetentionPolicy) -> Result<Self, RunError> {
        let directory = run.make_directory(SPIKES).map_err(StoreError::write(run.join(SPIKES)))?;
        let shared = Arc::<Mutex<Shared>>::default();
        let (captures, come) = BoundedCaptures::new(UNDER_WAY);
        let thread = std::thread::Builder::new().name("latpath-captures".into());
        let of_thread = (retention.clone(), Arc::clone(&shared));
        let thread = thread
            .spawn(move || write_all(&directory, come, &of_thread.0, &of_thread.1))
            .map_err(StoreError::write(run.path()))?;
        Ok(Self { captures: Some(captures), thread: Some(thread), retention, shared })
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, ranked: RankedCapture) {
        let Some(captures) = &self.captures else { return };
        let (is_spike, bytes) = (ranked.capture.kind == CaptureKind::Spike, ranked.capture.record_bytes());
        if !captures.offer(bytes, ranked) {
            self.shared().too_fast += u64::from(is_spike);
        }
    }

    /// Adds a capture, and waits for the disk if necessary.
    pub fn push_patiently(&self, frozen: RankedCapture) {
        let Some(captures) = &self.captures else { return };
        // If the thread has ended, its error is reported by `error`.
        let _ = captures.send(frozen.capture.record_bytes(), frozen);
    }

    /// Takes the thread's error, so that it is returned only once.
    pub fn error(&self) -> Option<RunError> {
        self.shared().error.take()
    }

    /// Sets all counts of the manifest's record except `late`.
    pub fn report(&self, record: &mut SpikesRecord, passed_over: u64) {
        let kept = self.retention.kept();
        let spikes = || kept.iter().filter(|e| e.kind == CaptureKind::Spike);
        record.captures = spikes().count() as u64;
        record.baselines = kept.len() as u64 - record.captures;
        record.bytes = kept.iter().map(|e| e.bytes).sum();
        record.captures_not_kept = self.retention.not_kept() + self.shared().too_fast + passed_over;
        record.late_kept = vec![0; record.late.len()];
        for entry in spikes() {
            record.late_kept.iter_mut().zip(&entry.late).for_each(|(all, n)| *all += n);
        }
    }

    /// Waits until all captures are written.
    pub fn end(&mut self) -> Option<RunError> {
        self.captures = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.error()
    }
}

impl Drop for Spikes {
    fn drop(&mut self) {
        drop(self.end());
    }
}

fn write_all(
    directory: &Directory,
    come: impl Iterator<Item = RankedCapture>,
    retention: &RetentionPolicy,
    shared: &Mutex<Shared>,
) {
    lower_priority();
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    for ranked in come {
        let bytes = ranked.encode();
        let RankedCapture { capture, worst, late } = ranked;
        let entry = StoredCapture {
            number: capture.number,
            kind: capture.kind,
            to: capture.to,
            worst,
            bytes: bytes.len() as u64,
            late,
        };
        if bytes.len() > MAX_ENCODED {
            lock().too_fast += u64::from(capture.kind == CaptureKind::Spike);
            continue;
        }
        let decision = retention.add(entry);
        if !decision.keep {
            continue;
        }
        let written = replace_file(directory, &file_name(capture.number), &bytes);
        if let Err(error) = written {
            retention.forget(capture.number);
            lock().error.get_or_insert(error.into());
            return;
        }
        for number in decision.remove {
            let name = file_name(number);
            if let Err(error) = directory.remove(&name) {
                lock().error.get_or_insert(StoreError::write(directory.join(name))(error).into());
            }
        }
    }
}

/// A capture in a run, described by the head of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpikeFile {
    /// The head.
    pub head: Head,
    /// Size of the file, bytes.
    pub bytes: u64,
}

/// The captures of a run.
#[derive(Clone, Debug, Default)]
pub struct SpikeFiles {
    /// The files, ordered by capture number, which is nearly chronological.
    pub files: Vec<SpikeFile>,
    /// Notes on unreadable files, each with the reason.
    pub notes: Vec<String>,
}

/// Lists a run's captures; empty if it has no such directory.
pub(crate) fn list(run: &Path, span: TimeSpan) -> SpikeFiles {
    let directory = run.join(SPIKES);
    let mut found = SpikeFiles::default();
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return found,
        Err(e) => {
            found.notes.push(StoreError::read(directory)(e).to_string());
            return found;
        }
    };
    let names = entries.flatten().filter_map(|e| number_of(e.file_name().to_str()?));
    let mut numbers: Vec<u32> = names.take(MAX_FILES).collect();
    numbers.sort_unstable();
    for number in numbers {
        match head_of(&directory.join(file_name(number)), number, span) {
            Ok(file) => found.files.push(file),
            // The writer has just removed this file in favour of a worse capture.
            Err(RunError::Store(StoreError::Read { source, .. })) if source.kind() == io::ErrorKind::NotFound => {}
            Err(e) => found.notes.push(e.to_string()),
        }
    }
    found
}

/// Number and total size of a run's files of captures.
pub(crate) fn stored(run: &Path) -> (u64, u64) {
    let entries = std::fs::read_dir(run.join(SPIKES)).into_iter().flatten().flatten().take(MAX_FILES);
    let is_capture = |entry: &std::fs::DirEntry| entry.file_name().to_str().and_then(number_of).is_some();
    let sizes = entries.filter(is_capture).filter_map(|entry| entry.metadata().ok()).map(|found| found.len());
    sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes.saturating_add(size)))
}

fn bad(path: &Path) -> impl FnOnce(BadCapture) -> RunError + '_ {
    move |why| RunError::damaged(path, why)
}

fn open(path: &Path) -> Result<(File, u64), RunError> {
    let file = open_file(path).map_err(StoreError::read(path))?;
    let metadata = file.metadata().map_err(StoreError::read(path))?;
    if !metadata.is_file() {
        return Err(RunError::damaged(path, "no file"));
    }
    Ok((file, metadata.len()))
}

fn head_of(path: &Path, number: u32, span: TimeSpan) -> Result<SpikeFile, RunError> {
    let (file, bytes) = open(path)?;
    let mut begin = Vec::new();
    file.take(Head::MAX_BYTES as u64).read_to_end(&mut begin).map_err(StoreError::read(path))?;
    let head = Head::decode(&begin).map_err(bad(path))?;
    match head.number == number {
        true if span.contains(head.from) && span.contains(head.to) => Ok(SpikeFile { head, bytes }),
        true => Err(RunError::damaged(path, IMPOSSIBLE)),
        false => Err(RunError::damaged(path, format!("it is number {}", head.number))),
    }
}

/// Loads a capture. Sightings at points that the run lacks are dropped.
pub(crate) fn load(run: &Path, number: u32, points: usize, span: TimeSpan) -> Result<RankedCapture, RunError> {
    let path: PathBuf = run.join(SPIKES).join(file_name(number));
    let (file, _) = open(&path)?;
    let mut bytes = Vec::new();
    file.take(MAX_ENCODED as u64 + 1).read_to_end(&mut bytes).map_err(StoreError::read(&path))?;
    let mut ranked = RankedCapture::decode(&bytes).map_err(bad(&path))?;
    let Capture { from, to, packets, .. } = &mut ranked.capture;
    let mut times = packets.iter().flat_map(|packet| packet.sightings.iter().map(|s| s.t)).chain([*from, *to]);
    if !times.all(|t| span.contains(t)) {
        return Err(RunError::damaged(&path, IMPOSSIBLE));
    }
    for packet in packets {
        packet.sightings.retain(|s| usize::from(s.point) < points);
    }
    Ok(ranked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_capture::{MachineSnapshot, RetentionLimits, MAX_WAITING_BYTES};
    use latpath_flight::{CpuRecord, Event, Snapshot, Window};

    fn spike(number: u32, bytes: usize) -> RankedCapture {
        let cpu = CpuRecord { events: Vec::with_capacity(bytes / size_of::<Event>()), ..CpuRecord::default() };
        let window = Window { from: 0, to: 1, cpus: vec![cpu] };
        let record = Ok(Snapshot { window, ..Snapshot::default() });
        let machines = vec![MachineSnapshot { machine: "guest0".into(), offset_ns: 0, error_bound_ns: 0, record }];
        let (kind, packets) = (CaptureKind::Spike, Vec::new());
        let capture = Capture { number, kind, from: 0, to: 1, machines, packets, more_late: 0 };
        RankedCapture { capture, worst: 1, late: vec![1] }
    }

    #[test]
    fn a_capture_that_finds_no_room_on_its_way_to_the_disk_is_counted() {
        let (captures, come) = BoundedCaptures::new(UNDER_WAY);
        let (retention, shared) = (RetentionPolicy::new(RetentionLimits::default()), Arc::<Mutex<Shared>>::default());
        let mut spikes = Spikes { captures: Some(captures), thread: None, retention, shared };
        for (number, bytes) in [(1, 3), (2, 3), (3, 1)] {
            spikes.push(spike(number, bytes * MAX_WAITING_BYTES / 5));
        }
        assert_eq!(spikes.shared().too_fast, 1, "the second is too much beside the first");
        spikes.captures = None;
        let directory = tempfile::tempdir().unwrap();
        write_all(&Directory::open(directory.path()).unwrap(), come, &spikes.retention, &spikes.shared);
        assert_eq!(spikes.retention.kept().iter().map(|kept| kept.number).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_files_name_is_its_captures_number() {
        for number in [1, 999_999, 1_000_000, u32::MAX] {
            assert_eq!(number_of(&file_name(number)), Some(number));
        }
        for no in ["1.spike", "0000001.spike", ".000001.spike.tmp", "00000a.spike", "99999999999.spike", "000001"] {
            assert_eq!(number_of(no), None, "{no}");
        }
    }
}
