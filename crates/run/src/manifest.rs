//! The manifest: streams, machines, options and counts of a run. One JSON file, replaced whole.

use crate::{
    facts::HostFacts,
    seal::Seal,
    span::{TimeSpan, IMPOSSIBLE},
    spikes::SpikesRecord,
    Deficiency, DeficiencyKind, RunError, MANIFEST,
};
use latpath_clock::{ClockTie, RealtimeWatch, Step, TimeOfDay};
use latpath_counters::Difference;
use latpath_flight::Figures;
use latpath_journey::{Layout, Totals};
use latpath_model::{
    stream::MAX_STREAMS, Counters, DropNote, Ns, Point, PointId, PointInfo, SegmentKind, StreamSpec, MAX_COUNT,
};
use latpath_partstore::{open_file, replace_file, Directory, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    io::{ErrorKind, Read},
    path::Path,
    time::{Duration, SystemTime},
};

/// The format that this latpath writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
/// Maximum length of a manifest, bytes: 64 points, 256 streams and their notes take far less.
const MAX_BYTES: u64 = 16 << 20;
/// Checksum of the manifest.
const SEAL: Seal = Seal { before: ",\n  \"xxh64\": \"", end: "\n}" };
/// Maximum number of steps of the time of day that are kept.
const MAX_STEPS: usize = 1000;
/// Maximum time within which the clocks of a stamp are read, on however busy a machine.
const STAMP_BOUND: Ns = 1_000_000;

/// Whether a recording came to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is being recorded, or its latpath was killed ([`crate::Run::condition`] distinguishes the two).
    #[default]
    Recording,
    /// It ended as asked.
    Finished,
    /// It ended early, for the reason in `interrupted_by`.
    Interrupted,
}

/// One instant in the clocks that a run is tied to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stamp {
    /// UTC for people: `2026-01-02T03:04:05.000000006Z`.
    pub utc: String,
    /// `CLOCK_REALTIME`, ns since 1970.
    pub utc_ns: Ns,
    /// `CLOCK_TAI`, ns since 1970; equals `utc_ns` where the kernel does not know the leap seconds.
    pub tai_ns: Ns,
    /// `CLOCK_MONOTONIC` of the host: the timeline of all times in the run.
    pub monotonic_ns: Ns,
}

impl Stamp {
    pub fn now() -> Self {
        let ClockTie { monotonic_ns, realtime_ns: utc_ns, tai_ns, .. } = ClockTie::read();
        let utc = SystemTime::UNIX_EPOCH + Duration::from_nanos(utc_ns.unsigned_abs());
        Self { utc: humantime::format_rfc3339_nanos(utc).to_string(), utc_ns, tai_ns, monotonic_ns }
    }

    /// The instant of this UTC, ns since 1970, on a timeline that is UTC itself: of a run that was made of files.
    pub fn of_utc(utc_ns: Ns) -> Self {
        let utc = SystemTime::UNIX_EPOCH + Duration::from_nanos(utc_ns.max(0).unsigned_abs());
        let utc = humantime::format_rfc3339_nanos(utc).to_string();
        Self { utc, utc_ns, tai_ns: utc_ns, monotonic_ns: utc_ns }
    }

    /// Begins to watch the time of day at this instant, so that no step after it is missed.
    pub fn watch(&self) -> RealtimeWatch {
        let Self { utc_ns: realtime_ns, tai_ns, monotonic_ns, .. } = *self;
        // The first look narrows it.
        RealtimeWatch::new(&ClockTie { monotonic_ns, realtime_ns, tai_ns, uncertainty_ns: STAMP_BOUND })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSegment {
    #[serde(default)]
    pub kind: SegmentKind,
    /// `Tnet`, `total`, or the user's own.
    pub name: String,
    pub from: Point,
    pub to: Point,
}

/// One machine's clock against the host's; every sample of it is in `clocks.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineFigures {
    /// `host`, `guest0`.
    pub machine: String,
    /// How its clock's offset is known: `same clock`, `timed exchanges`, `ptp_kvm`, `tsc-offset`.
    pub method: String,
    /// Its clock minus the host's, the latest.
    pub offset_ns: Ns,
    /// Its drift in parts per billion, rounded.
    pub drift_ppb: i64,
    /// Largest error bound since the start.
    pub error_bound_ns: Ns,
    /// Exchanges that went into it.
    pub exchanges: u64,
    /// Its fault, if it has one (`no answer for 2.1 s`).
    pub fault: Option<String>,
    /// What latpath costs there, in % of one of its CPUs, where its agent reports that; the host's is in [`ToolCost`].
    pub cpu_percent: Option<f64>,
}

impl MachineFigures {
    /// The method of the machine whose clock is the timeline.
    pub const SAME_CLOCK: &'static str = "same clock";

    /// Whether its clock is the timeline, which all others are compared with.
    pub fn is_timeline(&self) -> bool {
        self.method == Self::SAME_CLOCK
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineRecord {
    /// Its clock.
    #[serde(flatten)]
    pub clock: MachineFigures,
    /// Its kernel's release, empty if it did not say.
    pub kernel: String,
    /// What its probe counted.
    pub counters: Counters,
    /// Its flight recorder; none where none was requested.
    pub flight: Option<FlightRecord>,
}

/// A machine's flight recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlightRecord {
    /// Its events and their cost.
    #[serde(flatten)]
    pub figures: Figures,
    /// Why nothing was recorded, if nothing was.
    pub fault: Option<String>,
}

/// One sample of a clock: a line of `clocks.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockSample {
    /// `utc`, `tai`, or a machine's name.
    pub clock: String,
    /// When: the host's `CLOCK_MONOTONIC`.
    pub t_ns: Ns,
    /// That clock minus the host's `CLOCK_MONOTONIC`.
    pub offset_ns: Ns,
    /// How wrong the offset can be.
    pub error_bound_ns: Ns,
}

/// The format of an imported file that has durations alone.
pub const DURATIONS: &str = "svtrace";

/// A file that a run was made of by `latpath import`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImportedFile {
    /// The point whose packets it holds; of durations, both ends: `FROM,TO`.
    pub point: String,
    /// Its path as the user named it.
    pub path: String,
    /// `pcap`, `sv-log` or `svtrace`.
    pub format: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
    /// Packets of the streams that were imported.
    pub packets: u64,
    /// Packets of other streams and protocols, and those that are after the end of another file.
    pub left_out: u64,
    /// Time of the first of its packets that were imported, by its own clock, ns since 1970.
    pub first_utc_ns: Ns,
    /// Time of the last one, likewise.
    pub last_utc_ns: Ns,
    /// Its times are whole multiples of this: 1000 where they are whole microseconds.
    pub resolution_ns: Ns,
    /// The offset that was subtracted from its times.
    pub offset_ns: Ns,
}

/// What tracing itself cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolCost {
    /// Sightings made, on all machines.
    pub sightings: u64,
    /// Sightings lost in full buffers.
    pub sightings_dropped: u64,
    /// Mean time a sighting took in the kernel, sampled.
    pub ns_per_sighting: u64,
    /// CPU used: latpath's own process and the kernel programs, in % of one CPU.
    pub cpu_percent: f64,
    /// Largest resident memory of latpath's process.
    pub max_rss_bytes: u64,
}

/// A run's manifest. Fields that a newer minor version adds are ignored, those that an older one lacks are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of the latpath that wrote it.
    pub latpath: String,
    /// Whether it came to its end.
    pub state: State,
    /// Why it ended early.
    pub interrupted_by: Option<String>,
    pub command: Vec<String>,
    /// When it began.
    pub start: Stamp,
    /// When it ended; none during the recording and after a crash.
    pub end: Option<Stamp>,
    /// How `CLOCK_REALTIME` was set since the start.
    pub utc_steps: Vec<Step>,
    /// When this manifest was last written, `CLOCK_MONOTONIC`.
    pub written_ns: Ns,
    /// Journeys handed to the writer so far.
    pub journeys: u64,
    /// A packet that takes longer is late.
    pub threshold_ns: Ns,
    /// The streams; the column `stream` counts from 0 in this list.
    pub streams: Vec<StreamSpec>,
    /// The points in order of appearance.
    pub points: Vec<PointInfo>,
    /// Points in the order in which packets pass, as far as it is known.
    pub route: Vec<Point>,
    /// Each stream's own route, in the order of `streams`; empty where none of its packets was seen.
    pub routes: Vec<Vec<Point>>,
    pub segments: Vec<NamedSegment>,
    /// Why the kernel gave packets up; the column `drop_note` counts from 0 in this list.
    pub drop_notes: Vec<DropNote>,
    pub host: HostFacts,
    /// All machines, the host first.
    pub machines: Vec<MachineRecord>,
    /// Counters, summed over all machines.
    pub counters: Counters,
    /// What the joiner counted, a record per stream.
    pub joined: Vec<Totals>,
    /// What the kernel itself counted in that time, in the namespaces of this host's points.
    pub kernel: Option<Difference>,
    /// What became of late packets; none where nothing was frozen around them (`--no-flight`).
    pub spikes: Option<SpikesRecord>,
    /// Times at which more journeys came than could be written, and the caller had to wait.
    pub writer_waits: u64,
    /// What recording took.
    pub tool: ToolCost,
    /// The XXH64 of `vms.json`; none where there is no such file.
    pub vms_xxh64: Option<String>,
    /// Bytes of `clocks.jsonl` so far, at least; 0 in runs of earlier versions.
    pub clocks_bytes: u64,
    /// Bytes of the marks that the recorder itself has added to `marks.jsonl`; 0 in runs of earlier versions.
    pub marks_bytes: u64,
    /// The files that it was made of, where it was imported; its timeline is then UTC.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<ImportedFile>,
    /// Points that the user named in full, not by a pattern: a route that ends at one of them ends where the user wants it to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named_points: Vec<Point>,
    /// What the recorder knows to be missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deficiencies: Vec<Deficiency>,
    /// What the reader must know.
    pub notes: Vec<String>,
    /// What could not be seen on the machines, where nothing suggests that packets were affected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub footnotes: Vec<String>,
}

impl Manifest {
    /// A manifest for a recording that begins now on this host.
    pub fn begin() -> Self {
        Self {
            format: FORMAT,
            latpath: env!("CARGO_PKG_VERSION").into(),
            command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
            start: Stamp::now(),
            host: HostFacts::read(),
            ..Self::default()
        }
    }

    /// Whether the run was made of durations alone: times of day and numbers of packets are made, and nothing that needs them is known,
    /// such as losses and pacing.
    pub fn has_durations_alone(&self) -> bool {
        self.imported.iter().any(|file| file.format == DURATIONS)
    }

    /// Takes the route, each stream's own, and the segments; `points` must be known already.
    pub fn set_layout(&mut self, layout: &Layout) {
        let points = &self.points;
        let point = |id: PointId| points[usize::from(id)].point.clone();
        let names = |route: &[PointId]| route.iter().map(|id| point(*id)).collect();
        self.route = names(&layout.route.points);
        self.routes = layout.route.by_stream.iter().map(|route| names(route)).collect();
        let named = layout.segments.iter().map(|s| {
            let [from, to] = [s.from, s.to].map(&point);
            NamedSegment { kind: s.kind, name: s.name.clone(), from, to }
        });
        self.segments = named.collect();
    }

    /// UTC of the run's times.
    pub fn time_of_day(&self) -> TimeOfDay {
        TimeOfDay::new(self.start.monotonic_ns, self.start.utc_ns, &self.utc_steps)
    }

    /// Adds a step of the time of day. Where there are too many, the last one takes it in, so that the newest times are right.
    pub fn add_utc_step(&mut self, step: Step) {
        match self.utc_steps.get_mut(MAX_STEPS - 1) {
            Some(last) => last.by_ns = last.by_ns.saturating_add(step.by_ns),
            None => self.utc_steps.push(step),
        }
    }

    /// Reads a run's manifest. Refuses newer formats and files that are too long.
    pub fn load(run: &Path) -> Result<Self, RunError> {
        let path = run.join(MANIFEST);
        let file = match open_file(&path) {
            Ok(file) => file,
            Err(e) => {
                let why = match e.kind() {
                    ErrorKind::NotFound if run.is_dir() => format!("it has no {MANIFEST}"),
                    ErrorKind::NotFound => "no such directory".into(),
                    ErrorKind::NotADirectory => "it is a file".into(),
                    _ => return Err(StoreError::read(path)(e).into()),
                };
                return Err(RunError::NoRun { path: run.into(), why });
            }
        };
        let damaged = |why: String| RunError::damaged(&path, why);
        let mut text = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(StoreError::read(&path))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(damaged(format!("longer than {MAX_BYTES} bytes")));
        }
        // The format first: what a newer one holds need not fit this one's types.
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Head {
            format: u32,
            latpath: String,
            xxh64: Option<String>,
        }
        let head: Head = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if head.format > FORMAT {
            return Err(RunError::Newer { path, found: head.format, supported: FORMAT, by: head.latpath });
        }
        let mut manifest: Self = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if !SEAL.holds(&text, head.xxh64.as_deref()) {
            let why = damaged("its sum is wrong, so a bit flipped in it, or somebody edited it".into());
            let text = format!("{why}: names, counts and bounds may be wrong");
            manifest.notes.insert(0, text.clone());
            manifest.deficiencies.insert(0, Deficiency::new(DeficiencyKind::Damaged, text));
        }
        // Figures take memory for each stream and point.
        for (what, found, most) in [
            ("points", manifest.points.len(), latpath_journey::journey::MAX_POINTS),
            ("streams", manifest.streams.len(), MAX_STREAMS),
        ] {
            if found > most {
                return Err(damaged(format!("it names {found} {what}, a run has {most} at most")));
            }
        }
        if manifest.has_impossible_time() {
            return Err(damaged(IMPOSSIBLE.into()));
        }
        let machines: Vec<_> = manifest.machines.iter().map(|machine| &machine.counters).collect();
        let counts = serde_json::to_value((&manifest.counters, &manifest.joined, machines, &manifest.spikes));
        match counts.map(|counts| greatest(&counts)) {
            Ok(count) if count > MAX_COUNT => Err(damaged(format!("it counts {count}, which nothing can reach"))),
            _ => Ok(manifest),
        }
    }

    /// The times that the run can have.
    pub(crate) fn span(&self) -> TimeSpan {
        // Of another start it could not be loaded.
        TimeSpan::of_start(self.start.monotonic_ns).unwrap_or_default()
    }

    /// Whether it has a time that no run can have.
    fn has_impossible_time(&self) -> bool {
        let of = |stamp: &Stamp| [stamp.utc_ns, stamp.tai_ns, stamp.monotonic_ns];
        let Some(span) = TimeSpan::of_start(self.start.monotonic_ns) else { return true };
        let end = self.end.iter().map(|end| end.monotonic_ns);
        let steps = self.utc_steps.iter().map(|step| step.noticed_at_ns);
        let times = end.chain(steps).chain([self.written_ns]).all(|t| span.contains(t));
        let of_day = self.end.iter().chain([&self.start]).flat_map(of);
        let apart = self.utc_steps.iter().map(|step| step.by_ns);
        !times || of_day.chain(apart).any(|t| TimeSpan::of_start(t).is_none())
    }

    /// The manifest as it is written.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Only maps with keys that are no strings and failing writers make this fail; here is neither.
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        SEAL.put(&mut bytes);
        bytes
    }
}

/// The greatest number in a tree of counts.
fn greatest(counts: &serde_json::Value) -> u64 {
    match counts {
        serde_json::Value::Array(list) => list.iter().map(greatest).max().unwrap_or(0),
        serde_json::Value::Object(fields) => fields.values().map(greatest).max().unwrap_or(0),
        other => other.as_u64().unwrap_or(0),
    }
}

/// Replaces the run's manifest: after a crash the old or the new one exists, whole.
pub(crate) fn replace(run: &Directory, bytes: &[u8]) -> Result<(), RunError> {
    Ok(replace_file(run, MANIFEST, bytes)?)
}
