//! Writes a run.

use crate::{
    clocks::Clocks,
    encoder::{Encoder, Stored, Work},
    manifest::{self, Manifest, Stamp, State},
    merger,
    reader::lock,
    rows::Rows,
    settings,
    span::TimeSpan,
    spikes::{Spikes, SpikesRecord},
    sync, vms, ClockSample, Mark, RunError, JOURNEYS,
};
use latpath_capture::{LateCounts, RankedCapture, RetentionPolicy};
use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_journey::{journey::MAX_POINTS, Journey};
use latpath_linux::{special, why_shared};
use latpath_model::{Ns, Point};
use latpath_partstore::{sync_directory, Directory, Names, StoreError, GROUP_ROWS};
use latpath_settings::{Reading, RunSettings};
use latpath_timesync::SyncRecord;
use latpath_vms::VmsByMachine;
use nix::fcntl::Flock;
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{
        atomic::Ordering,
        mpsc::{channel, sync_channel, Receiver, SyncSender},
        Arc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Maximum time between a part's first row and its end.
const PART_TIME: Duration = Duration::from_secs(1);
/// Number of rows at which a part is closed.
const PART_ROWS: usize = 1_000_000 - GROUP_ROWS;
/// Interval at which the manifest is written if only its counters change.
const MANIFEST_TIME: Duration = Duration::from_secs(5);
/// Interval at which `utc` and `tai` are sampled, ns; they are also sampled when the time of day is stepped.
const SAMPLE_TIME: Ns = 60_000_000_000;
/// Number of batches of rows: one is being filled, the others are queued for the encoder. `BATCH_BYTES` is the size of
/// a batch, bytes: the more points, the fewer rows it has.
const BATCHES: usize = 6;
const BATCH_BYTES: usize = 5 << 19;
/// Number of rows between checks of the clock and the batch's size.
const LOOK_EVERY: usize = 256;
/// File that reserves disk space during a recording, so that the last manifest can be written even if the disk is full.
const RESERVE: &str = ".reserve";
const RESERVED: usize = 64 << 10;

/// Writes a run. Rows are collected here, encoded on a second thread and merged on a third.
///
/// Call [`Writer::push`] for each journey, [`Writer::tick`] several times per second even without journeys, and
/// [`Writer::finish`] at the end. A run that is dropped before it is finished is marked as interrupted, or removed
/// ([`Writer::remove_unless_finished`]).
pub struct Writer {
    run: Directory,
    /// The parent directory, and the run's name in it.
    above: (Directory, OsString),
    manifest: Manifest,
    rows: Rows,
    /// Whether CPUs and threads of sightings are known.
    has_details: bool,
    /// Number of rows of the open part that are in full batches.
    part_rows: usize,
    part_began: Option<Instant>,
    manifest_due: bool,
    manifest_written: Instant,
    manifest_changed: bool,
    samples: Vec<ClockSample>,
    time_of_day: RealtimeWatch,
    /// Time of the next sample of `utc` and `tai`, ns.
    sample_due: Ns,
    free: Receiver<Rows>,
    batches_made: usize,
    work: Option<SyncSender<Work>>,
    encoder: Option<JoinHandle<Result<(), RunError>>>,
    merger: Option<JoinHandle<Option<RunError>>>,
    stored: Arc<Stored>,
    spikes: Option<Spikes>,
    /// Number of spikes that were not captured.
    passed_over: u64,
    part_time: Duration,
    settings: RunSettings,
    /// End of the run, if it differs from the time of closing.
    end: Option<Stamp>,
    /// Valid range of the run's times. `impossible`: number of journeys dropped because of a time outside it.
    span: TimeSpan,
    impossible: u64,
    closed: bool,
    /// Whether to remove the run if it is dropped before it is finished.
    is_whole_or_none: bool,
    _lock: Option<Flock<File>>,
}

impl Writer {
    /// Creates a run in a new or empty directory.
    ///
    /// # Errors
    /// The directory exists and is not empty, is not private, or cannot be written.
    pub fn create(path: &Path, mut manifest: Manifest) -> Result<Self, RunError> {
        check_points(&manifest)?;
        // Private, because a run contains thread names, commands and kernel addresses.
        let (run, above) = Self::make_directory(path)?;
        let above = (above, path.file_name().unwrap_or_default().into());
        let lock = lock(&run);
        manifest.state = State::Recording;
        manifest.written_ns = Stamp::now().monotonic_ns;
        let begun = Self::begin(&run, &manifest).inspect_err(|_| {
            // Without a manifest the directory is not a run, and its content would block the next attempt.
            run.clear();
            above.0.remove_directory(&above.1).unwrap_or_default();
        });
        let (clocks, parts) = begun?;

        let (work, items) = sync_channel(64);
        let (free_sender, free) = channel();
        let (merger_sender, finished) = channel();
        let stored = Arc::<Stored>::default();
        // Imported files contain no CPUs and threads.
        let has_details = manifest.imported.is_empty();
        let encoder = Encoder {
            run: run.clone(),
            parts: parts.clone(),
            clocks,
            free: free_sender,
            merger: merger_sender,
            details: has_details,
            stored: Arc::clone(&stored),
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let encoder = thread("latpath-encode").spawn(|| encoder.run(items)).map_err(StoreError::write(path))?;
        let merger =
            thread("latpath-merge").spawn(move || merger::run(&parts, finished)).map_err(StoreError::write(path))?;
        let mut writer = Self {
            run,
            above,
            rows: Rows::default(),
            has_details,
            time_of_day: manifest.start.watch(),
            sample_due: manifest.start.monotonic_ns,
            span: manifest.span(),
            manifest,
            part_rows: 0,
            part_began: None,
            manifest_due: false,
            manifest_written: Instant::now(),
            manifest_changed: false,
            samples: Vec::new(),
            free,
            batches_made: 1,
            work: Some(work),
            encoder: Some(encoder),
            merger: Some(merger),
            stored,
            spikes: None,
            passed_over: 0,
            part_time: PART_TIME,
            settings: RunSettings::default(),
            end: None,
            impossible: 0,
            closed: false,
            is_whole_or_none: false,
            _lock: lock,
        };
        writer.rows = writer.emptied(Rows::default(), writer.manifest.points.len());
        writer.send_points()?;
        Ok(writer)
    }

    /// Creates or opens the run's directory, and opens its parent. From then on the run is accessed only through its
    /// descriptor, because the owner of the parent may rename it and put a link in its place.
    fn make_directory(path: &Path) -> Result<(Directory, Directory), RunError> {
        let failed = || StoreError::write(path);
        let above = path.file_name().and(path.parent()).unwrap_or(path);
        let above = Directory::open(above).map_err(failed())?;
        let run = match above.make_directory(path.file_name().unwrap_or(OsStr::new("."))) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Self::refuse_existing(path)?;
                let run = Directory::open(path).map_err(failed())?;
                // Checked again, because the directory may have been replaced.
                refuse_shared(path, run.why_shared())?;
                match run.names().map_err(failed())?.is_empty() {
                    true => run,
                    false => return Err(RunError::Exists { path: path.into(), what: what_is(path) }),
                }
            }
            made => made.map_err(failed())?,
        };
        sync_directory(&above)?;
        Ok((run, above))
    }

    fn begin(run: &Directory, manifest: &Manifest) -> Result<(Clocks, Names), RunError> {
        let journeys = run.make_directory(JOURNEYS).map_err(StoreError::write(run.join(JOURNEYS)))?;
        let reserved = run.new_file(RESERVE).and_then(|mut file| file.write_all(&[1; RESERVED]));
        reserved.map_err(StoreError::write(run.join(RESERVE)))?;
        let clocks = Clocks::create(run)?;
        manifest::replace(run, &manifest.to_bytes())?;
        Ok((clocks, Names::new(journeys)))
    }

    /// Checks before a recording that a run can be created at this path.
    ///
    /// # Errors
    /// The path exists and is not an empty directory, or others may write there.
    pub fn refuse_existing(path: &Path) -> Result<(), RunError> {
        match std::fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
            Ok(true) => refuse_shared(path, why_shared(path)),
            Err(e) if e.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => Ok(()),
            Err(e) if path.symlink_metadata().is_err() => Err(StoreError::write(path)(e).into()),
            _ => Err(RunError::Exists { path: path.into(), what: what_is(path) }),
        }
    }

    /// Sets that dropping the writer removes the run, unless the run is finished or interrupted.
    pub fn remove_unless_finished(&mut self) {
        self.is_whole_or_none = true;
    }

    /// Adds a mark to the run.
    ///
    /// # Errors
    /// The mark cannot be written.
    pub fn mark(&mut self, mark: &Mark) -> Result<(), RunError> {
        self.manifest.marks_bytes += mark.add_to(&self.run)?;
        self.manifest_changed = true;
        Ok(())
    }

    /// Adds records of the clocks' synchronisation.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn sync_records(&mut self, records: &[SyncRecord]) -> Result<(), RunError> {
        if !records.is_empty() {
            self.manifest.sync_bytes += sync::append(&self.run, records)?;
            self.manifest_changed = true;
        }
        Ok(())
    }

    /// The run's directory, for writing other files into it.
    pub fn directory(&self) -> &Directory {
        &self.run
    }

    /// The path of the run's directory, for messages.
    pub fn path(&self) -> &Path {
        self.run.path()
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Size of the captures and the closed parts (before merging), bytes.
    pub fn bytes(&self) -> u64 {
        let captures = self.manifest.spikes.as_ref().map_or(0, |record| record.bytes);
        self.stored.bytes.load(Ordering::Relaxed) + captures
    }

    /// Number of journeys that are durable on disk.
    pub fn stored(&self) -> u64 {
        self.stored.journeys.load(Ordering::Relaxed)
    }

    /// Sets the maximum duration of parts, 1 s by default: the loss in a crash.
    pub fn set_part_time(&mut self, time: Duration) {
        self.part_time = time;
    }

    /// Changes the manifest. New points may only be appended, and before any journey that has them. The manifest is
    /// written with the next part, or within some seconds if only figures changed.
    ///
    /// # Errors
    /// As for [`Self::push`].
    pub fn update(&mut self, change: impl FnOnce(&mut Manifest)) -> Result<(), RunError> {
        let shape = |m: &Manifest| (m.points.len(), m.drop_notes.len(), m.streams.len(), m.notes.len());
        let (before, segments, routes) =
            (shape(&self.manifest), self.manifest.segments.clone(), self.manifest.routes.clone());
        change(&mut self.manifest);
        check_points(&self.manifest)?;
        self.manifest_changed = true;
        let after = shape(&self.manifest);
        self.manifest_due |= before != after || segments != self.manifest.segments || routes != self.manifest.routes;
        if before.0 != after.0 {
            // All rows of a part must have the same points.
            self.end_part()?;
            let rows = std::mem::take(&mut self.rows);
            self.rows = self.emptied(rows, after.0);
            self.send_points()?;
        }
        Ok(())
    }

    /// Stores the virtual machines of all machines in a separate file: there may be many, and they are written only
    /// once.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_vms(&mut self, vms: &VmsByMachine) -> Result<(), RunError> {
        let sum = vms::keep(&self.run, vms)?;
        self.update(|manifest| manifest.vms_xxh64 = Some(sum))
    }

    /// Stores a machine's settings at the start of the recording, in a separate file, so that they survive if the
    /// recording is killed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin_settings(&mut self, machine: &str, reading: Reading) -> Result<(), RunError> {
        self.settings.begin(machine, reading);
        self.keep_settings()
    }

    /// Stores a machine's settings at the end of the recording, in addition to those at the start.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn end_settings(&mut self, machine: &str, reading: Reading) -> Result<(), RunError> {
        self.settings.end(machine, reading);
        self.keep_settings()
    }

    fn keep_settings(&mut self) -> Result<(), RunError> {
        settings::keep(&self.run, &self.settings)?;
        self.update(|manifest| manifest.has_settings = true)
    }

    /// Prepares for captures; the policy chooses those to keep.
    ///
    /// # Errors
    /// The directory or the thread cannot be created.
    pub fn begin_spikes(&mut self, retention: RetentionPolicy) -> Result<(), RunError> {
        self.spikes = Some(Spikes::begin(&self.run, retention)?);
        self.manifest.spikes = Some(SpikesRecord::default());
        Ok(())
    }

    /// Stores a capture if the retention policy keeps it; discards it if too many captures are waiting to be written.
    /// Another thread writes it; [`Self::tick`] returns that thread's errors.
    pub fn push_capture(&mut self, ranked: RankedCapture) {
        if let Some(spikes) = &self.spikes {
            spikes.push(ranked);
        }
    }

    /// Stores an imported capture: waits for the disk instead of discarding the capture.
    ///
    /// # Errors
    /// An earlier capture could not be written.
    pub fn spike_patiently(&mut self, frozen: RankedCapture) -> Result<(), RunError> {
        let Some(spikes) = &self.spikes else { return Ok(()) };
        spikes.push_patiently(frozen);
        spikes.error().map_or(Ok(()), Err)
    }

    /// Sets the counts of late packets and spikes that were not captured.
    pub fn count_spikes(&mut self, counted: &LateCounts) {
        if let Some(record) = &mut self.manifest.spikes {
            record.late.clone_from(&counted.late);
            self.passed_over = counted.passed_over;
            self.manifest_changed = true;
        }
        self.report_spikes();
    }

    fn report_spikes(&mut self) {
        if let (Some(record), Some(spikes)) = (&mut self.manifest.spikes, &self.spikes) {
            spikes.report(record, self.passed_over);
        }
    }

    /// Adds a sample of a clock.
    pub fn clock_sample(&mut self, sample: ClockSample) {
        self.samples.push(sample);
    }

    /// Sets the end of the run, for runs such as imports that did not end when the writer is closed.
    pub fn end_at(&mut self, end: Stamp) {
        self.end = Some(end);
    }

    /// Adds a journey. Waits if the disk is too slow; the manifest counts such waits.
    ///
    /// If writing fails, the run is closed and marked as interrupted; the journeys written so far can be read.
    ///
    /// # Errors
    /// The run cannot be written, or the journey has a point that the manifest lacks.
    #[inline]
    pub fn push(&mut self, journey: &Journey) -> Result<(), RunError> {
        let points = self.rows.points;
        if points < MAX_POINTS && journey.seen >> points != 0 {
            let point = 63 - journey.seen.leading_zeros();
            return Err(RunError::UnknownPoint { point, known: points });
        }
        let seen = journey.t.iter().enumerate().filter(|(point, _)| journey.seen >> point & 1 == 1);
        if !TimeSpan::holds(seen.fold(0, |excess, (_, t)| excess | self.span.excess(*t))) {
            // If it were written, readers would reject its whole row group.
            self.impossible += 1;
            return Ok(());
        }
        self.rows.push(journey);
        self.manifest.journeys += 1;
        let rows = self.rows.len();
        if rows == 1 || rows.is_multiple_of(LOOK_EVERY) {
            self.write_if_due()?;
        }
        Ok(())
    }

    /// Closes the part when it is due, and detects steps of the time of day. Call it several times per second.
    ///
    /// # Errors
    /// The run cannot be written.
    pub fn tick(&mut self) -> Result<(), RunError> {
        self.observe_time_of_day(&ClockTie::read());
        self.write_if_due()
    }

    fn observe_time_of_day(&mut self, tie: &ClockTie) {
        let step = self.time_of_day.observe(tie);
        if step.is_none() && tie.monotonic_ns < self.sample_due {
            return;
        }
        self.sample_due = tie.monotonic_ns.saturating_add(SAMPLE_TIME);
        for (clock, time) in [("utc", tie.realtime_ns), ("tai", tie.tai_ns)] {
            self.clock_sample(ClockSample {
                clock: clock.into(),
                t_ns: tie.monotonic_ns,
                offset_ns: time.saturating_sub(tie.monotonic_ns),
                error_bound_ns: tie.uncertainty_ns,
            });
        }
        if let Some(step) = step {
            self.manifest.add_utc_step(step);
            self.manifest_due = true;
        }
    }

    fn write_if_due(&mut self) -> Result<(), RunError> {
        if let Some(error) = self.spikes.as_ref().and_then(Spikes::error) {
            let _ = self.end(Some(error.to_string()));
            return Err(error);
        }
        if self.rows.is_empty() && self.part_rows == 0 {
            let idle = self.manifest_changed && self.manifest_written.elapsed() >= MANIFEST_TIME;
            if self.manifest_due || idle || self.samples.len() >= 64 {
                return self.end_part();
            }
            // The thread may have failed on the last part.
            return if self.encoder.as_ref().is_some_and(|e| !e.is_finished()) { Ok(()) } else { Err(self.fail()) };
        }
        let began = *self.part_began.get_or_insert_with(Instant::now);
        if began.elapsed() >= self.part_time {
            self.end_part()
        } else if self.rows.len() >= batch_rows(self.rows.points) {
            self.send_rows()?;
            if self.part_rows >= PART_ROWS {
                self.end_part()?;
            }
            Ok(())
        } else {
            Ok(())
        }
    }

    fn send_points(&mut self) -> Result<(), RunError> {
        let points: Arc<[Point]> = self.manifest.points.iter().map(|p| p.point.clone()).collect();
        self.send(Work::Points(points))
    }

    /// Clears these rows, and resizes them for this number of points.
    fn emptied(&self, mut rows: Rows, points: usize) -> Rows {
        rows.clear(points);
        if !self.has_details {
            rows.leave_out_details();
        }
        rows
    }

    fn send_rows(&mut self) -> Result<(), RunError> {
        let points = self.rows.points;
        let empty = match self.free.try_recv() {
            Ok(rows) => rows,
            Err(_) if self.batches_made < BATCHES => {
                self.batches_made += 1;
                Rows::default()
            }
            Err(_) => {
                self.manifest.writer_waits += 1;
                match self.free.recv() {
                    Ok(rows) => rows,
                    Err(_) => return Err(self.fail()),
                }
            }
        };
        let empty = self.emptied(empty, points);
        let full = std::mem::replace(&mut self.rows, empty);
        self.part_rows += full.len();
        self.send(Work::Rows(full))
    }

    fn end_part(&mut self) -> Result<(), RunError> {
        if !self.rows.is_empty() {
            self.send_rows()?;
        }
        self.part_rows = 0;
        self.part_began = None;
        let due = self.manifest_due || self.manifest_written.elapsed() >= MANIFEST_TIME;
        let manifest = due.then(|| {
            self.manifest_due = false;
            self.manifest_changed = false;
            self.manifest_written = Instant::now();
            self.manifest.written_ns = Stamp::now().monotonic_ns;
            self.manifest.clocks_bytes = self.stored.clocks_bytes.load(Ordering::Relaxed);
            self.manifest.to_bytes()
        });
        let samples = std::mem::take(&mut self.samples);
        self.send(Work::EndPart { manifest, samples })
    }

    fn send(&mut self, item: Work) -> Result<(), RunError> {
        match &self.work {
            Some(work) if work.send(item).is_ok() => Ok(()),
            _ => Err(self.fail()),
        }
    }

    /// Closes the run after the encoder has failed, and returns the encoder's error.
    fn fail(&mut self) -> RunError {
        let error = self.join().err().unwrap_or_else(|| RunError::ThreadGone(self.run.path().into()));
        let _ = self.close(Some(error.to_string()));
        error
    }

    /// Waits for all threads to end.
    fn join(&mut self) -> Result<(), RunError> {
        self.work = None;
        let gone = || RunError::ThreadGone(self.run.path().into());
        let mut encoded = self.encoder.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| Err(gone())));
        if let Some(Ok(Some(error))) = self.merger.take().map(JoinHandle::join) {
            self.manifest.notes.push(format!("small parts were left unmerged: {error}"));
        }
        if let Some(error) = self.spikes.as_mut().and_then(Spikes::end) {
            encoded = encoded.and(Err(error));
        }
        self.report_spikes();
        encoded
    }

    /// Writes the final manifest.
    fn close(&mut self, interrupted_by: Option<String>) -> Result<(), RunError> {
        if self.closed {
            return Ok(());
        }
        self.closed = true;
        // On a full disk, parts and captures compete for the last free space; the reserve is for the manifest. It may
        // have been removed already.
        let _ = self.run.remove(RESERVE);
        let end = self.end.take().unwrap_or_else(Stamp::now);
        self.manifest.state = if interrupted_by.is_some() { State::Interrupted } else { State::Finished };
        self.manifest.interrupted_by = interrupted_by;
        if self.impossible > 0 {
            let n = self.impossible;
            self.manifest.notes.push(format!("{n} packets are left out: a clock is wrong by more than 73 years"));
        }
        self.manifest.written_ns = end.monotonic_ns;
        self.manifest.clocks_bytes = self.stored.clocks_bytes.load(Ordering::Relaxed);
        self.manifest.end = Some(end);
        manifest::replace(&self.run, &self.manifest.to_bytes())
    }

    fn end(&mut self, interrupted_by: Option<String>) -> Result<(), RunError> {
        self.end_part()?;
        if let Err(error) = self.join() {
            let _ = self.close(Some(error.to_string()));
            return Err(error);
        }
        self.close(interrupted_by)
    }

    /// Writes the rest and closes the run.
    ///
    /// # Errors
    /// The run cannot be written.
    pub fn finish(mut self) -> Result<Manifest, RunError> {
        self.end(None)?;
        Ok(self.manifest.clone())
    }

    /// Writes the rest and closes the run as interrupted.
    ///
    /// # Errors
    /// The run cannot be written.
    pub fn interrupt(mut self, why: &str) -> Result<Manifest, RunError> {
        self.end(Some(why.into()))?;
        Ok(self.manifest.clone())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.closed && self.is_whole_or_none {
            self.closed = true;
            let _ = self.join();
            self.run.clear();
            let _ = self.above.0.remove_directory(&self.above.1);
        } else if !self.closed {
            let _ = self.end(Some("latpath gave up before the recording was closed".into()));
        }
    }
}

/// Number of rows in a batch with this many points: a power of two, because vectors grow in powers of two.
fn batch_rows(points: usize) -> usize {
    GROUP_ROWS.min(1 << (BATCH_BYTES / Rows::row_bytes(points)).ilog2())
}

fn check_points(manifest: &Manifest) -> Result<(), RunError> {
    match manifest.points.len() {
        n if n > MAX_POINTS => Err(RunError::TooManyPoints(n)),
        _ => Ok(()),
    }
}

/// Rejects a directory in which others could create links that redirect root's writes.
pub(crate) fn refuse_shared(path: &Path, why: io::Result<Option<&'static str>>) -> Result<(), RunError> {
    match why.map_err(StoreError::read(path))? {
        Some(why) => Err(RunError::NotPrivate { path: path.into(), why }),
        None => Ok(()),
    }
}

/// Describes the content of an existing directory.
fn what_is(path: &Path) -> String {
    match Manifest::load(path) {
        Ok(manifest) => format!("a run of {}", manifest.start.utc.split('.').next().unwrap_or_default()),
        Err(_) if path.is_dir() => "it is not empty".into(),
        Err(_) if path.is_symlink() => "it is a link to nothing".into(),
        Err(_) => match special(path) {
            Some(what) => format!("it is {what}"),
            None => "it is no directory".into(),
        },
    }
}
