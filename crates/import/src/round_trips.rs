//! Logs of round trips (of `latpath ping emit --log`, or converted by `--format rant`): each stamp is a sighting, each
//! round trip a journey from the emitter's application to the reflector's and back.
//!
//! A log contains the stamps as shown by their own clocks, and the parts of each round trip by the emitter's clock. The
//! parts are used to convert stamps of other clocks to the emitter's `CLOCK_MONOTONIC`, so that the segments of a
//! journey are exactly the parts. docs/ping-log.md describes the columns.

mod captures;
mod file;
mod rant;

pub use rant::import_rant;

use captures::Late;
use file::{LogFile, LogPart, Row};
use latpath_journey::{Journey, Totals};
use latpath_model::round_trip::{Segment, Source, Stamp, Stamps, EMITTER};
use latpath_model::{Ns, PointInfo, SegmentKind};
use latpath_run::{
    facts::HostFacts, Deficiency, DeficiencyKind, ImportedFile, JourneySource, MachineFigures, MachineRecord, Manifest,
    NamedSegment, Rows, Run, RunError, SourceFacts, Stamp as RunStamp, State, ROUND_TRIPS,
};
use latpath_stats::units::{count, number_of};
use std::path::Path;

/// The stream of the probes. Its key is the lower 32 bits of the sequence number.
const STREAM: &str = "udp::6185,seq=12:4";
/// Threshold above which round trips are late, ns.
const THRESHOLD: Ns = 200_000;
/// Maximum number of rows passed on at once.
const BATCH: usize = 16_384;
/// Latest time on the timeline, ns: 73 years.
const LATEST: u64 = 1 << 61;
/// Segments measured by a single NIC's clock: name, first and last stamp.
const OF_NICS: [(&str, Stamp, Stamp); 2] =
    [("nic_round_trip", Stamp::T1Nic, Stamp::T4Nic), ("nic_turnaround", Stamp::T2Nic, Stamp::T3Nic)];

/// Whether the path is a log of round trips rather than a run. Decided by its name, because a killed `latpath ping`
/// leaves a log in parts, without a file of that name.
pub fn is_round_trips(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "parquet" || e == "csv") && !path.is_dir()
}

/// Opens a run, or a log of round trips as a run.
///
/// # Errors
/// It is neither, or cannot be read.
pub fn open_recording(path: &Path) -> Result<Run, RunError> {
    if is_round_trips(path) {
        open_round_trips(path)
    } else {
        Run::open(path)
    }
}

/// Opens a log of round trips as a run. Reads the whole log.
///
/// # Errors
/// The file is not a log, or cannot be read.
pub fn open_round_trips(path: &Path) -> Result<Run, RunError> {
    let log = LogFile::open(path)?;
    let mut source = RoundTrips { shares: log.shares()?, columns: Columns::of(&log), stamps: Vec::new(), log };
    let mut found = LogProperties::default();
    let mut deficiencies = Vec::new();
    for share in &source.shares {
        let read = source.log.rows(share, &source.columns.names, &mut |row| found.mask(&row));
        if let Err(e) = read {
            deficiencies.push(Deficiency::new(DeficiencyKind::Damaged, e.to_string()));
        }
    }
    source.columns.is_by_nic = found.mask & Stamp::T1App.bit() == 0 && found.mask & Stamp::T1Nic.bit() != 0;
    if found.mask == 0 {
        found.mask = Stamp::T1App.bit() | Stamp::T4App.bit();
    }
    source.stamps = Stamp::ALL.into_iter().filter(|stamp| stamp.bit() & found.mask != 0).collect();
    for part in 0..source.parts() {
        // Damaged row groups have already been reported above.
        let _ = source.read(part, &mut |rows| {
            rows.for_each(|journey| found.journey(journey));
            true
        });
    }
    let (captures, spikes) = std::mem::take(&mut found.late).captures();
    deficiencies.extend(found.deficiencies());
    let manifest = Manifest { spikes: Some(spikes), ..source.manifest(&found) };
    let (journeys, times, bytes) = (found.journeys, found.first, source.log.bytes());
    let facts = SourceFacts { journeys, times, bytes, deficiencies, captures };
    Ok(Run::of_source(path, manifest, facts, Box::new(source)))
}

/// Properties of a log, found while reading it.
#[derive(Default)]
struct LogProperties {
    /// Bits of the stamps that occur in any row.
    mask: u16,
    rows: u64,
    /// Smallest and largest sequence number of a row.
    numbers: Option<(u64, u64)>,
    unreadable: u64,
    is_cut: bool,
    journeys: u64,
    sightings: u64,
    /// Earliest and latest first sighting, and (`last`) the latest sighting of all.
    first: Option<(Ns, Ns)>,
    last: Ns,
    late: Late,
}

impl LogProperties {
    fn mask(&mut self, row: &Row) -> bool {
        match row {
            Row::Values(number, values) => {
                self.number(*number);
                self.mask |= Columns::raw(values).mask();
            }
            Row::Unreadable => self.unreadable += 1,
            Row::Cut => self.is_cut = true,
        }
        true
    }

    /// Counts a row with this sequence number.
    fn number(&mut self, number: u64) {
        self.rows += 1;
        let (least, greatest) = self.numbers.unwrap_or((number, number));
        self.numbers = Some((least.min(number), greatest.max(number)));
    }

    fn journey(&mut self, journey: &Journey) {
        self.journeys += 1;
        self.sightings += u64::from(journey.seen.count_ones());
        let first = journey.first().unwrap_or_default();
        self.first = Some(self.first.map_or((first, first), |(a, b)| (a.min(first), b.max(first))));
        let seen = journey.t.iter().enumerate().filter(|(point, _)| journey.seen >> point & 1 == 1);
        self.last = seen.fold(self.last, |last, (_, t)| last.max(*t));
        self.late.add(journey);
    }

    /// Number of transactions between the first and the last whose rows are missing.
    fn missing(&self) -> u64 {
        self.numbers.map_or(0, |(first, last)| (last - first).saturating_add(1).saturating_sub(self.rows))
    }

    fn deficiencies(&self) -> Vec<Deficiency> {
        let mut all = Vec::new();
        // A few transactions may be missing because the log had no free buffer for them.
        if self.missing() > self.rows / 1000 {
            let sent = count(self.rows.saturating_add(self.missing()));
            let text =
                format!("it holds {} of {sent} transactions (--log-keep all keeps all of them)", count(self.rows));
            all.push(Deficiency::new(DeficiencyKind::Missing, text));
        }
        let left_out = self.unreadable + self.rows.saturating_sub(self.journeys);
        if left_out > 0 {
            let text = format!("{} cannot be read, or have no stamp of the emitter", number_of(left_out, "row"));
            all.push(Deficiency::new(DeficiencyKind::Damaged, text));
        }
        all
    }
}

/// The columns of a log that are read.
#[derive(Debug)]
struct Columns {
    /// Names of the stamps' columns, in the order of [`Stamp::ALL`], then those of the parts.
    names: Vec<String>,
    /// The parts of a round trip.
    parts: Vec<Segment>,
    /// Whether the log has stamps of the NICs only: the timeline is then the clock of the emitter's NIC.
    is_by_nic: bool,
}

impl Columns {
    fn of(log: &LogFile) -> Self {
        let stamps = Stamp::ALL.map(Stamp::column);
        let parts: Vec<Segment> = Segment::all().filter(|part| log.columns.contains(&part.column())).collect();
        let names = stamps.into_iter().chain(parts.iter().map(|part| part.column())).collect();
        Self { names, parts, is_by_nic: false }
    }

    /// The stamps of a row by their own clocks. A NIC's clock may show any time.
    fn raw(values: &[Option<Ns>]) -> Stamps {
        let mut raw = Stamps::default();
        for (stamp, time) in Stamp::ALL.into_iter().zip(values) {
            raw.set_if(stamp, *time);
        }
        raw
    }

    /// Converts the stamps of a row to the emitter's timeline. `ahead` is the reflector's clock minus the emitter's in
    /// the latest row that revealed it; it is used if no part connects the reflector's stamps to the emitter's. Returns
    /// `None` if the emitter has no stamp, or a time is impossible.
    fn placed(&self, values: &[Option<Ns>], ahead: &mut Option<Ns>) -> Option<Stamps> {
        use Stamp::*;
        let raw = Self::raw(values);
        let is_timeline = |stamp: &Stamp| !stamp.is_reflectors() && (stamp.source() != Source::Nic || self.is_by_nic);
        let mut placed = Stamps::default();
        Stamp::ALL.into_iter().filter(is_timeline).for_each(|stamp| placed.set_if(stamp, raw.get(stamp)));
        if placed.mask() == 0 {
            return None;
        }
        let parts = values.get(Stamp::ALL.len()..).unwrap_or_default();
        self.connect(parts, &mut placed);
        let of_reflector = [T2Kernel, T2App, T3App, T3Sched, T3Driver];
        let apart = |stamp: &Stamp| Some(raw.get(*stamp)?.saturating_sub(placed.get(*stamp)?));
        *ahead = of_reflector.iter().find_map(apart).or(*ahead);
        if let Some(ahead) = *ahead {
            fill(&raw, &mut placed, &of_reflector, ahead);
        }
        self.connect(parts, &mut placed);
        // If only one of a NIC's two stamps could be converted, it determines the other one, since the same clock took
        // both.
        for pair in [[T1Nic, T4Nic], [T2Nic, T3Nic]] {
            let ahead = pair.iter().find_map(|stamp| Some(raw.get(*stamp)?.saturating_sub(placed.get(*stamp)?)));
            if let Some(ahead) = ahead {
                fill(&raw, &mut placed, &pair, ahead);
            }
        }
        let is_possible = |stamp: Stamp| placed.get(stamp).is_none_or(|t| t.unsigned_abs() < LATEST);
        Stamp::ALL.into_iter().all(is_possible).then_some(placed)
    }

    /// Converts the stamps that parts connect to converted ones.
    fn connect(&self, times: &[Option<Ns>], placed: &mut Stamps) {
        let all = || self.parts.iter().zip(times).filter_map(|(part, time)| Some((part, (*time)?)));
        for (part, time) in all() {
            if let (Some(from), None) = (placed.get(part.from), placed.get(part.to)) {
                placed.set(part.to, from.saturating_add(time));
            }
        }
        for (part, time) in all().collect::<Vec<_>>().into_iter().rev() {
            if let (None, Some(to)) = (placed.get(part.from), placed.get(part.to)) {
                placed.set(part.from, to.saturating_sub(time));
            }
        }
    }
}

/// Converts those among `stamps` that have not been converted yet, given how far their clock is ahead of the timeline.
fn fill(raw: &Stamps, placed: &mut Stamps, stamps: &[Stamp], ahead: Ns) {
    for stamp in stamps.iter().filter(|stamp| placed.get(**stamp).is_none()).copied().collect::<Vec<_>>() {
        placed.set_if(stamp, raw.get(stamp).map(|time| time.saturating_sub(ahead)));
    }
}

/// A log whose round trips are read as journeys.
#[derive(Debug)]
struct RoundTrips {
    log: LogFile,
    shares: Vec<LogPart>,
    columns: Columns,
    /// The stamp of each point.
    stamps: Vec<Stamp>,
}

impl JourneySource for RoundTrips {
    fn parts(&self) -> usize {
        self.shares.len()
    }

    fn read(&self, part: usize, pass: &mut dyn FnMut(&mut Rows) -> bool) -> Result<(), RunError> {
        let Some(share) = self.shares.get(part) else { return Ok(()) };
        let empty = || {
            let mut rows = Rows::new(self.stamps.len());
            rows.leave_out_details();
            rows
        };
        let (mut rows, mut ahead, mut t) = (empty(), None, vec![0; self.stamps.len()]);
        let mut goes_on = true;
        let read = self.log.rows(share, &self.columns.names, &mut |row| {
            let Row::Values(number, values) = row else { return true };
            let Some(placed) = self.columns.placed(values, &mut ahead) else { return true };
            let mut seen = 0;
            for (point, stamp) in self.stamps.iter().enumerate() {
                if let Some(time) = placed.get(*stamp) {
                    (seen, t[point]) = (seen | 1 << point, time);
                }
            }
            rows.push(&Journey { key: number as u32, number, seen, t: &t, ..Journey::default() });
            if rows.len() == BATCH {
                goes_on = pass(&mut rows);
                rows = empty();
            }
            goes_on
        });
        if goes_on && !rows.is_empty() {
            pass(&mut rows);
        }
        read
    }
}

impl RoundTrips {
    fn manifest(&self, found: &LogProperties) -> Manifest {
        let parts = &self.columns.parts;
        let on_route = |stamp: &Stamp| parts.iter().any(|part| part.from == *stamp || part.to == *stamp);
        let route: Vec<Stamp> = match parts.is_empty() {
            true => self.stamps.clone(),
            false => self.stamps.iter().copied().filter(on_route).collect(),
        };
        let path = self.log.path.display().to_string();
        let manifest = manifest((path, self.log.bytes()), &route, &self.stamps, found);
        Manifest { command: Vec::new(), notes: notes(found), ..manifest }
    }
}

/// The manifest for round trips through `stamps`, of which those in `route` form the route, in order. `path` and
/// `bytes` are those of the file.
fn manifest((path, bytes): (String, u64), route: &[Stamp], stamps: &[Stamp], found: &LogProperties) -> Manifest {
    let clock = |stamp: Stamp| match (stamp.source(), stamp.is_reflectors()) {
        (Source::Nic, false) => "the emitter's NIC",
        (Source::Nic, true) => "the reflector's NIC",
        (_, false) => "the emitter's CLOCK_MONOTONIC",
        (_, true) => "the reflector's CLOCK_MONOTONIC",
    };
    let info = |stamp: &Stamp| PointInfo { clock: clock(*stamp).into(), ..PointInfo::from(stamp.point()) };
    let points: Vec<_> = route.iter().map(|stamp| stamp.point()).collect();
    let (start, end) = (found.first.map_or(0, |(first, _)| first), found.last);
    let machine =
        MachineFigures { machine: EMITTER.into(), method: MachineFigures::SAME_CLOCK.into(), ..Default::default() };
    let mut manifest = Manifest {
        state: State::Finished,
        start: RunStamp::of_utc(start),
        end: Some(RunStamp::of_utc(end)),
        written_ns: end,
        journeys: found.journeys,
        host: HostFacts::default(),
        threshold_ns: THRESHOLD,
        points: stamps.iter().map(info).collect(),
        streams: STREAM.parse().into_iter().collect(),
        route: points.clone(),
        routes: vec![points],
        segments: segments(route, stamps),
        machines: vec![MachineRecord { clock: machine, ..MachineRecord::default() }],
        joined: vec![Totals { sightings: found.sightings, journeys: found.journeys, ..Totals::default() }],
        imported: vec![ImportedFile {
            point: "round trips".into(),
            path,
            format: ROUND_TRIPS.into(),
            bytes,
            packets: found.journeys,
            left_out: found.rows.saturating_sub(found.journeys).saturating_add(found.unreadable),
            ..ImportedFile::default()
        }],
        ..Manifest::begin()
    };
    (manifest.counters.sightings, manifest.tool.sightings) = (found.sightings, found.sightings);
    manifest.counters.packets_seen = found.journeys;
    manifest
}

/// The segments: the parts of the round trip, the whole of it, and those measured by the NICs alone.
fn segments(route: &[Stamp], stamps: &[Stamp]) -> Vec<NamedSegment> {
    let segment =
        |kind, name: String, from: Stamp, to: Stamp| NamedSegment { kind, name, from: from.point(), to: to.point() };
    let steps = route.windows(2).filter(|_| route.len() > 2).map(|two| {
        let part = Segment { from: two[0], to: two[1] };
        segment(SegmentKind::Step, part.name(), part.from, part.to)
    });
    let whole = route.first().zip(route.last()).filter(|_| route.len() > 1);
    let whole = whole.map(|(from, to)| segment(SegmentKind::Total, "total".into(), *from, *to));
    let ends = whole.as_ref().map(|whole| (whole.from.clone(), whole.to.clone()));
    let of_nics = OF_NICS.into_iter().filter(|(_, from, to)| {
        let is_whole = ends.as_ref().is_some_and(|(a, b)| *a == from.point() && *b == to.point());
        stamps.contains(from) && stamps.contains(to) && !is_whole
    });
    let of_nics = of_nics.map(|(name, from, to)| segment(SegmentKind::Named, name.into(), from, to));
    steps.chain(whole.clone()).chain(of_nics).collect()
}

fn notes(found: &LogProperties) -> Vec<String> {
    let mut notes = vec![
        "a log of round trips: times of day count from the emitter's boot; answers that came twice or out of order are \
         not in it"
            .to_owned(),
    ];
    if (1..=found.rows / 1000).contains(&found.missing()) {
        notes.push(format!("it lacks {} between its first and its last", number_of(found.missing(), "transaction")));
    }
    if found.is_cut {
        notes.push("its last line is cut, as a kill leaves it, and left out".into());
    }
    notes
}
