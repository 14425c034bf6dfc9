//! Imports files into a run: joins the packets of all files and stores the journeys.

mod notes;

use crate::{
    chosen::{StreamSelection, Streams},
    clock::{merging_unit, Clocks, Offset},
    estimate::estimate,
    file,
    joined::Joined,
    merge::Feed,
    options::Options,
    packets::FileEnd,
    source::Source,
    trace::{self, PlacedTrace},
    whole_seconds, ImportError,
};
use latpath_journey::{copies, Joiner};
use latpath_model::{Ns, PointId, PointInfo, StreamId};
use latpath_protocols::UnreadFrames;
use latpath_run::{facts::HostFacts, ImportedFile, Manifest, Stamp, Writer};
use std::{
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        Arc,
    },
};

/// Progress of an import.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Number of bytes read so far.
    pub read: u64,
    /// Total size of the files, bytes.
    pub bytes: u64,
    /// Number of journeys so far.
    pub journeys: u64,
}

/// Maximum number of sightings per round, and (`ROUND_TIME`) the maximum time that a round covers, ns.
const ROUND: u64 = 1 << 14;
const ROUND_TIME: Ns = 50_000_000;

/// Imports files into a new run at `path`. `progress` is called periodically; setting `stop` ends the run at that
/// point.
///
/// # Errors
/// See [`ImportError`]. No run is left.
pub fn import(
    options: &Options,
    path: &Path,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Manifest, ImportError> {
    let mut points = points(&options.sources)?;
    copies::add_points(&mut points, |_| None);
    Writer::refuse_existing(path)?;
    let estimated = options.estimates.iter().map(|request| estimate(options, request));
    let offsets = options.offsets.iter().cloned().map(Ok).chain(estimated).collect::<Result<Vec<Offset>, _>>()?;
    let clocks = Clocks::new(&points, &offsets)?;
    let placed = trace::placed(&options.traces, &options.trace_offsets, &points, |machine| clocks.with_bound(machine))?;
    let chosen = StreamSelection(options.streams.clone());
    let (read, bytes) = (Arc::new(AtomicU64::new(0)), bytes_of(&options.sources)?);
    std::thread::scope(|scope| {
        let mut feeds = Vec::new();
        for (id, source) in options.sources.iter().enumerate() {
            let from = file::begin(scope, source, (options, &chosen), Arc::clone(&read));
            feeds.push(Feed::new(id as PointId, clocks.offset(&source.point.machine), from));
        }
        let mut import = Import::begin(options, &points, feeds, path)?;
        while import.step()? && !stop.load(Ordering::Relaxed) {
            progress(Progress { read: read.load(Ordering::Relaxed), bytes, journeys: import.joined.journeys });
        }
        import.finish(&clocks, &placed, stop)
    })
}

/// The points of the files, in the order of the files.
fn points(sources: &[Source]) -> Result<Vec<PointInfo>, ImportError> {
    let mut points: Vec<PointInfo> = Vec::new();
    for Source { point, path, .. } in sources {
        if points.iter().any(|known| known.point == *point) {
            return Err(ImportError::SamePoint(point.clone()));
        }
        points.push(PointInfo { clock: format!("that of {}", path.display()), ..PointInfo::from(point.clone()) });
    }
    Ok(points)
}

/// For each file, the index of the first file with the same place.
fn places(points: &[PointInfo], files: usize) -> Vec<usize> {
    let copies = copies::of_points(points);
    let place = |file: usize| {
        copies.iter().find(|at| at.all() >> file & 1 == 1).map_or(file, |at| at.all().trailing_zeros() as usize)
    };
    (0..files).map(place).collect()
}

fn bytes_of(sources: &[Source]) -> Result<u64, ImportError> {
    let size = |path: &PathBuf| path.metadata().map(|m| m.len());
    let sizes = sources
        .iter()
        .map(|Source { path, .. }| size(path).map_err(|cause| ImportError::Io { path: path.clone(), cause }));
    sizes.sum()
}

/// The record of a file before it is read.
fn file_of(source: &Source) -> ImportedFile {
    let (point, path) = (source.point.to_string(), source.path.display().to_string());
    ImportedFile { point, path, ..ImportedFile::default() }
}

/// An import in progress.
struct Import<'a> {
    options: &'a Options,
    feeds: Vec<Feed>,
    /// For each file, the time up to which all its packets have been handed over.
    next: Vec<Ns>,
    /// For each file, the index of the first file with the same place: files of both LANs of redundant networks share a
    /// place.
    places: Vec<usize>,
    streams: Streams,
    /// For each stream, the start of the interval covered by all files that contain it.
    since: Vec<Ns>,
    joiner: Joiner,
    joined: Joined,
    /// Start of the interval covered by all files.
    begin: Ns,
    /// Time after which no packet that is counted can arrive.
    until: Ns,
    /// Time up to which the sightings at all points except the first are known.
    known: Ns,
}

impl<'a> Import<'a> {
    /// Waits for the first packets of all files, and creates the run.
    fn begin(
        options: &'a Options,
        points: &[PointInfo],
        mut feeds: Vec<Feed>,
        path: &Path,
    ) -> Result<Self, ImportError> {
        let mut streams = Streams::default();
        let next = feeds.iter_mut().map(|feed| feed.next(&mut streams)).collect::<Result<Vec<Ns>, _>>()?;
        let places = places(points, feeds.len());
        // A place is covered from the first packet that either LAN delivered.
        let covered =
            |place: usize| places.iter().zip(&next).filter(|(of, _)| **of == place).map(|(_, next)| *next).min();
        let begin = places.iter().filter_map(|place| covered(*place)).max().unwrap_or_default();
        let first = next.iter().copied().min().unwrap_or_default();
        let manifest = Manifest {
            start: Stamp::of_utc(first.max(begin.saturating_sub(options.window))),
            imported: options.sources.iter().map(file_of).collect(),
            host: HostFacts::default(),
            threshold_ns: options.threshold,
            points: points.to_vec(),
            ..Manifest::begin()
        };
        let joining =
            latpath_journey::Options { window: options.window, late: options.threshold, ..Default::default() };
        let mut joiner = Joiner::new([], joining);
        joiner.set_points(points);
        let joined = Joined::begin(options, begin, manifest, path)?;
        let (since, until, known) = (Vec::new(), Ns::MAX, Ns::MAX);
        let mut import = Self { options, feeds, next, places, streams, since, joiner, joined, begin, until, known };
        import.add_streams()?;
        Ok(import)
    }

    /// Joins the packets of one round. Returns false at the end.
    fn step(&mut self) -> Result<bool, ImportError> {
        let earliest = self.next.iter().copied().min().unwrap_or(Ns::MAX);
        let (before, upto) = (self.joined.sightings, earliest.saturating_add(ROUND_TIME).min(self.until));
        while self.joined.sightings - before < ROUND {
            let (mut next, mut second, mut which) = (Ns::MAX, Ns::MAX, 0);
            for (at, t) in self.next.iter().copied().enumerate() {
                if t < next {
                    (second, next, which) = (next, t, at);
                } else {
                    second = second.min(t);
                }
            }
            if next > self.until || next == Ns::MAX {
                self.hand_out(next)?;
                return Ok(false);
            }
            if next > upto {
                break;
            }
            let Self { feeds, joiner, joined, .. } = self;
            let drained = feeds[which].drain(second.min(upto), &mut |sighting, synch| {
                joined.see(sighting, synch);
                joiner.push(sighting, &mut |journey| joined.take(journey));
            });
            match drained {
                Some(t) => self.next[which] = t,
                None => self.refill(which)?,
            }
        }
        self.hand_out(self.next.iter().copied().min().unwrap_or(Ns::MAX))?;
        Ok(true)
    }

    /// Waits for more packets of a file, or records its end.
    fn refill(&mut self, which: usize) -> Result<(), ImportError> {
        let feed = &mut self.feeds[which];
        self.next[which] = feed.next(&mut self.streams)?;
        if let Some(last) = self.end_of_place(self.places[which]) {
            self.joined.span.end = self.joined.span.end.min(last.saturating_add(1));
            self.until = self.until.min(last.saturating_add(self.options.window));
            if self.places[which] > 0 {
                self.known = self.known.min(last);
            }
        }
        self.add_streams()
    }

    /// Latest timestamp in the files of a place; `None` until all of them have been read.
    fn end_of_place(&self, place: usize) -> Option<Ns> {
        let files = (0..self.feeds.len()).filter(|file| self.places[*file] == place);
        let ended = |file: usize| (self.next[file] == Ns::MAX).then(|| self.feeds[file].newest());
        files.map(ended).try_fold(Ns::MIN, |last, end| Some(last.max(end?)))
    }

    /// Adds the newly named streams to the joiner and the run.
    fn add_streams(&mut self) -> Result<(), ImportError> {
        let known = self.since.len();
        if self.streams.all.len() == known {
            return Ok(());
        }
        let now = self.next.iter().copied().min().unwrap_or_default().max(self.begin);
        let all = self.all_points();
        for stream in &self.streams.all[known..] {
            self.joiner.add_stream(stream.key);
            self.since.push(now);
            self.joined.seen.push(0);
            self.joined.expected.push(all);
        }
        if self.joined.late.is_some() {
            self.joined.lay_out();
        }
        for id in known..self.streams.all.len() {
            self.joiner.set_route(id as StreamId, &self.joined.route_of(all));
        }
        let streams = self.streams.all.clone();
        Ok(self.joined.writer.update(|manifest| manifest.streams = streams)?)
    }

    fn all_points(&self) -> u64 {
        self.joined.layout.route.points.iter().fold(0, |mask, point| mask | 1 << point)
    }

    /// Hands over the journeys that are complete or overdue, given that all files were read up to `now`.
    fn hand_out(&mut self, now: Ns) -> Result<(), ImportError> {
        let now = now.min(self.known).min(self.until);
        let mut is_news = false;
        // A stream need not reach all points. Which points it reaches is only known after the maximum delay of a
        // packet.
        for (id, since) in self.since.iter().enumerate() {
            if now.saturating_sub(*since) > self.options.window {
                is_news |= self.joined.expected[id] != self.joined.seen[id];
                self.joined.expected[id] = self.joined.seen[id];
                self.joiner.set_route(id as StreamId, &self.joined.route_of(self.joined.seen[id]));
            }
        }
        let Self { joiner, joined, .. } = self;
        joined.sampling.learn(joiner);
        joiner.advance(now, &mut |journey| joined.take(journey));
        if is_news && joined.late.is_some() {
            joined.lay_out();
        }
        joined.advance_late(now, now.saturating_sub(self.options.window));
        Ok(self.joined.check()?)
    }

    /// Hands over the remaining journeys and closes the run.
    fn finish(mut self, clocks: &Clocks, placed: &[PlacedTrace], stop: &AtomicBool) -> Result<Manifest, ImportError> {
        let stopped = stop.load(Ordering::Relaxed);
        let ends = self.next.iter().copied().min().unwrap_or(Ns::MAX).min(self.until);
        let Self { joiner, joined, known, .. } = &mut self;
        joiner.finish(ends.min(*known), &mut |journey| joined.take(journey));
        self.joined.check()?;
        let mut skipped = Vec::new();
        for feed in self.feeds.iter_mut().filter(|_| !stopped) {
            skipped.push(feed.skip()?);
        }
        if let Some(error) = self.whole_seconds_apart(clocks) {
            return Err(error);
        }
        let nothing = if self.feeds.len() == 1 { self.joined.sampled == 0 } else { self.joined.in_two == 0 };
        if nothing && !stopped {
            return Err(self.why_nothing());
        }
        let end = self.joined.span.end.min(ends);
        let explained = self.joined.explain(placed, end, stop)?;
        self.describe(clocks, &skipped, explained)?;
        let mut writer = self.joined.writer;
        writer.end_at(Stamp::of_utc(end));
        Ok(if stopped { writer.interrupt("the user ended the import")? } else { writer.finish()? })
    }

    /// The error to report if no packets were joined.
    fn why_nothing(&self) -> ImportError {
        let early = self.feeds.iter().position(|feed| feed.newest() < self.begin);
        let path = |at: usize| self.options.sources[at].path.clone();
        let late = self.feeds.iter().position(|feed| feed.first() == self.begin);
        let window = self.options.window;
        match (early, late) {
            _ if self.feeds.len() == 1 => {
                ImportError::OneFile { path: path(0), is_by_utc: self.joined.sampling.point().is_some() }
            }
            (Some(early), Some(late)) => {
                let by = self.begin.saturating_sub(self.feeds[early].newest());
                ImportError::Apart { early: path(early), late: path(late), by }
            }
            _ => ImportError::NothingInCommon { window },
        }
    }

    /// The error for a file whose clock is whole seconds apart from the first file's, e.g. TAI and UTC; `None` if there
    /// is none.
    fn whole_seconds_apart(&self, clocks: &Clocks) -> Option<ImportError> {
        let (source, first) = (&self.options.sources[0], self.feeds.first()?.end.as_ref()?);
        for (other, feed) in self.options.sources.iter().zip(&self.feeds).skip(1) {
            let machine = &other.point.machine;
            let offset = clocks.offset(machine) - clocks.offset(&source.point.machine);
            let by = feed.end.as_ref().and_then(|end| whole_seconds::whole_seconds(first, end, offset));
            if let Some(by) = by.filter(|_| !clocks.is_given(machine)) {
                let (path, first, machine) = (other.path.clone(), source.path.clone(), machine.clone());
                let is_firsts = machine == source.point.machine;
                return Some(ImportError::WholeSeconds { path, first, machine, by, is_firsts });
            }
        }
        None
    }

    /// Updates the manifest: route, clocks, files, counts, notes.
    fn describe(&mut self, clocks: &Clocks, skipped: &[u64], more: Vec<String>) -> Result<(), ImportError> {
        self.joined.expected.clone_from(&self.joined.seen);
        self.joined.lay_out();
        let notes = [self.notes(clocks), more].concat();
        let mut files = Vec::new();
        let mut unread = UnreadFrames::default();
        for (at, feed) in self.feeds.iter_mut().enumerate() {
            let Some(end) = feed.end.take() else { continue };
            let late = skipped.get(at).copied().unwrap_or(0) + feed.beyond;
            let source = &self.options.sources[at];
            let mut file = ImportedFile { point: source.point.to_string(), ..end.file };
            file.packets = file.packets.saturating_sub(late);
            file.left_out += late;
            file.offset_ns = clocks.offset(&source.point.machine);
            unread.add(&end.unread);
            files.push(file);
        }
        let is_sampled = self.joined.sampling.point().is_some();
        let sampled = self.options.clock_error.filter(|_| is_sampled).map(merging_unit);
        let machines = clocks.records().into_iter().chain(sampled).collect();
        let totals = (0..self.streams.all.len()).map(|id| self.joiner.totals(id as StreamId)).collect();
        let Joined { writer, layout, sightings, .. } = &mut self.joined;
        writer.update(|manifest| {
            manifest.set_layout(layout);
            manifest.machines = machines;
            manifest.joined = totals;
            manifest.counters.sightings = *sightings;
            manifest.counters.packets_seen = files.iter().map(|file| file.packets + file.left_out).sum();
            manifest.counters.malformed = unread.total();
            manifest.tool.sightings = *sightings;
            manifest.imported = files;
            manifest.notes = notes;
        })?;
        Ok(())
    }

    /// The sources whose files were read completely, with the facts known at their ends.
    fn ends(&self) -> impl Iterator<Item = (&Source, &FileEnd)> {
        let ends = self.options.sources.iter().zip(&self.feeds);
        ends.filter_map(|(source, feed)| Some((source, feed.end.as_deref()?)))
    }
}
