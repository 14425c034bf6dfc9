//! The manifest: streams, machines, options and counts of a run. One JSON file that is always replaced as a whole.

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
use latpath_journey::{Layout, ReactionCounts, Segment, Totals};
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

/// Version of the format that is written; also the newest version that can be read.
pub const FORMAT: u32 = 1;
/// Maximum length of a manifest, bytes: 64 points, 256 streams and their notes take far less.
const MAX_BYTES: u64 = 16 << 20;
/// Checksum of the manifest.
const SEAL: Seal = Seal { before: ",\n  \"xxh64\": \"", end: "\n}" };
/// Maximum number of stored steps of the time of day.
const MAX_STEPS: usize = 1000;
/// Maximum time between the readings of a stamp's clocks, ns, on any machine.
const STAMP_BOUND: Ns = 1_000_000;

/// How a recording ended, if it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In progress, or killed ([`crate::Run::condition`] distinguishes the two).
    #[default]
    Recording,
    /// Ended as requested.
    Finished,
    /// Ended early, for the reason in `interrupted_by`.
    Interrupted,
}

/// One moment, as shown by the clocks to which a run is tied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stamp {
    /// UTC, for people: `2026-01-02T03:04:05.000000006Z`.
    pub utc: String,
    /// `CLOCK_REALTIME`, ns since 1970.
    pub utc_ns: Ns,
    /// `CLOCK_TAI`, ns since 1970; equals `utc_ns` if the kernel has no TAI offset.
    pub tai_ns: Ns,
    /// The host's `CLOCK_MONOTONIC`, ns: the timeline of all times in the run.
    pub monotonic_ns: Ns,
}

impl Stamp {
    /// Reads the clocks now.
    pub fn now() -> Self {
        let ClockTie { monotonic_ns, realtime_ns: utc_ns, tai_ns, .. } = ClockTie::read();
        let utc = SystemTime::UNIX_EPOCH + Duration::from_nanos(utc_ns.unsigned_abs());
        Self { utc: humantime::format_rfc3339_nanos(utc).to_string(), utc_ns, tai_ns, monotonic_ns }
    }

    /// The stamp of a UTC time, ns since 1970, on a timeline that is UTC itself, as in imported runs.
    pub fn of_utc(utc_ns: Ns) -> Self {
        let utc = SystemTime::UNIX_EPOCH + Duration::from_nanos(utc_ns.max(0).unsigned_abs());
        let utc = humantime::format_rfc3339_nanos(utc).to_string();
        Self { utc, utc_ns, tai_ns: utc_ns, monotonic_ns: utc_ns }
    }

    /// Starts to watch for steps of the time of day at this moment, so that no later step is missed.
    pub fn watch(&self) -> RealtimeWatch {
        let Self { utc_ns: realtime_ns, tai_ns, monotonic_ns, .. } = *self;
        // The watch's first reading reduces the uncertainty.
        RealtimeWatch::new(&ClockTie { monotonic_ns, realtime_ns, tai_ns, uncertainty_ns: STAMP_BOUND })
    }
}

/// A segment with its ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamedSegment {
    /// Its kind.
    #[serde(default)]
    pub kind: SegmentKind,
    /// Name: `Tnet`, `total`, or user-defined.
    pub name: String,
    /// The first point.
    #[schemars(with = "String")]
    pub from: Point,
    /// The last point.
    #[schemars(with = "String")]
    pub to: Point,
}

impl NamedSegment {
    /// Names a segment between two of these points.
    pub fn of(segment: &Segment, points: &[PointInfo]) -> Self {
        let [from, to] = [segment.from, segment.to].map(|id| points[usize::from(id)].point.clone());
        Self { kind: segment.kind, name: segment.name.clone(), from, to }
    }
}

/// A machine's clock relative to the host's; all samples are in `clocks.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineFigures {
    /// Name of the machine: `host`, `guest0`.
    pub machine: String,
    /// The machine of the run that hosts this one, if the user named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// Source of its clock's offset: `same clock`, `timed exchanges`, `ptp_kvm`, `ptp_kvm through MACHINE`,
    /// `tsc-offset`, `PTP`.
    pub method: String,
    /// Its clock minus the host's, latest value, ns.
    pub offset_ns: Ns,
    /// Drift of its clock against the host's, ppb, rounded.
    pub drift_ppb: i64,
    /// Largest error bound since the start, ns.
    pub error_bound_ns: Ns,
    /// Number of exchanges used.
    pub exchanges: u64,
    /// Number of times, measured by PTP or through another machine, that the exchanges disproved.
    #[serde(skip_serializing_if = "is_zero")]
    pub causality_violations: u64,
    /// Its fault, if any, e.g. `no answer for 2.1 s`.
    pub fault: Option<String>,
    /// CPU use of latpath on that machine, % of one CPU, if its agent reports it; the host's is in [`ToolCost`].
    pub cpu_percent: Option<f64>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl MachineFigures {
    /// The method of the machine whose clock is the timeline of the run.
    pub const SAME_CLOCK: &'static str = "same clock";

    /// Whether its clock is the timeline of the run.
    pub fn is_timeline(&self) -> bool {
        self.method == Self::SAME_CLOCK
    }
}

/// The record of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineRecord {
    /// Its clock.
    #[serde(flatten)]
    pub clock: MachineFigures,
    /// Its kernel's release; empty if unknown.
    pub kernel: String,
    /// Counters of its probe.
    pub counters: Counters,
    /// Its flight recorder; `None` if not requested.
    pub flight: Option<FlightRecord>,
}

/// The reactions of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReactionRecord {
    /// The rule, as the text of the stream of its reactions.
    pub rule: String,
    /// The counts.
    #[serde(flatten)]
    pub counts: ReactionCounts,
}

/// A machine's flight recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlightRecord {
    /// Counts and cost of its events.
    #[serde(flatten)]
    pub figures: Figures,
    /// Why nothing was recorded, if that is the case.
    pub fault: Option<String>,
}

/// A sample of a clock: a line of `clocks.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockSample {
    /// `utc`, `tai`, or a machine's name.
    pub clock: String,
    /// Time of the sample, host's `CLOCK_MONOTONIC`, ns.
    pub t_ns: Ns,
    /// That clock minus the host's `CLOCK_MONOTONIC`, ns.
    pub offset_ns: Ns,
    /// Maximum error of the offset, ns.
    pub error_bound_ns: Ns,
}

/// The format of an imported file with durations.
pub const DURATIONS: &str = "svtrace";

/// The format of an imported log of round trips.
pub const ROUND_TRIPS: &str = "ping";

/// A file imported by `latpath import`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImportedFile {
    /// The point at which its packets were recorded; for durations, both ends: `FROM,TO`.
    pub point: String,
    /// Its path as given by the user.
    pub path: String,
    /// `pcap`, `sv-log`, `svtrace` or `ping`.
    pub format: String,
    /// Its size, bytes.
    pub bytes: u64,
    /// Its SHA-256, hexadecimal.
    pub sha256: String,
    /// Number of packets of the imported streams.
    pub packets: u64,
    /// Number of packets of other streams and protocols, and of packets after the end of another imported file.
    pub left_out: u64,
    /// Time of its first imported packet, by its own clock, ns since 1970.
    pub first_utc_ns: Ns,
    /// Time of its last imported packet, by its own clock, ns since 1970.
    pub last_utc_ns: Ns,
    /// Resolution of its times, ns, e.g. 1000 for whole microseconds.
    pub resolution_ns: Ns,
    /// Offset that was subtracted from its times, ns.
    pub offset_ns: Ns,
}

/// The cost of tracing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolCost {
    /// Number of sightings on all machines.
    pub sightings: u64,
    /// Number of sightings lost in full buffers.
    pub sightings_dropped: u64,
    /// Mean time that a sighting takes in the kernel, measured on a sample, ns.
    pub ns_per_sighting: u64,
    /// CPU use of latpath's process and the kernel programs, % of one CPU.
    pub cpu_percent: f64,
    /// Maximum resident memory of latpath's process, bytes.
    pub max_rss_bytes: u64,
}

/// A run's manifest. Unknown fields written by newer minor versions are ignored; fields that older versions did not
/// write are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Format version, [`FORMAT`].
    pub format: u32,
    /// Version of latpath that wrote it.
    pub latpath: String,
    /// How the recording ended.
    pub state: State,
    /// Why it ended early, if it did.
    pub interrupted_by: Option<String>,
    /// The command line.
    pub command: Vec<String>,
    /// Start of the run.
    pub start: Stamp,
    /// End of the run; `None` during the recording and after a crash.
    pub end: Option<Stamp>,
    /// Steps of `CLOCK_REALTIME` since the start.
    pub utc_steps: Vec<Step>,
    /// Time of the last write of this manifest, `CLOCK_MONOTONIC`, ns.
    pub written_ns: Ns,
    /// Number of journeys passed to the writer.
    pub journeys: u64,
    /// Time above which a packet is late, ns.
    pub threshold_ns: Ns,
    /// The streams; the column `stream` is an index into this list.
    pub streams: Vec<StreamSpec>,
    /// The points, in order of appearance.
    pub points: Vec<PointInfo>,
    /// Points in the order in which packets pass, as far as known.
    pub route: Vec<Point>,
    /// Each stream's route, in the order of `streams`; empty if none of its packets was seen.
    pub routes: Vec<Vec<Point>>,
    /// The segments.
    pub segments: Vec<NamedSegment>,
    /// Reasons for drops; the column `drop_note` is an index into this list.
    pub drop_notes: Vec<DropNote>,
    /// Properties of the host.
    pub host: HostFacts,
    /// All machines, the host first.
    pub machines: Vec<MachineRecord>,
    /// Counters, summed over all machines.
    pub counters: Counters,
    /// Counts of the joiner, one record per stream.
    pub joined: Vec<Totals>,
    /// The reactions, one record per rule of `--react`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reactions: Vec<ReactionRecord>,
    /// The kernel's own counters over the time of the recording, in the network namespaces of this host's points.
    pub kernel: Option<Difference>,
    /// Number of late packets and captures; `None` without captures (`--no-flight`).
    pub spikes: Option<SpikesRecord>,
    /// Number of times that the caller had to wait because journeys arrived faster than they could be written.
    pub writer_waits: u64,
    /// The cost of recording.
    pub tool: ToolCost,
    /// The XXH64 of `vms.json`; `None` if there is no such file.
    pub vms_xxh64: Option<String>,
    /// Whether the run has a `settings.json`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_settings: bool,
    /// Minimum size of `clocks.jsonl`, bytes; 0 in runs of earlier versions.
    pub clocks_bytes: u64,
    /// Size of the recorder's own marks in `marks.jsonl`, bytes; 0 in runs of earlier versions.
    pub marks_bytes: u64,
    /// Size of `sync.jsonl`, bytes; 0 in runs of earlier versions.
    pub sync_bytes: u64,
    /// The imported files, if any; if there are any, the run's timeline is UTC.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<ImportedFile>,
    /// Points that the user named in full rather than by a pattern: a route that ends at one of them ends as intended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named_points: Vec<Point>,
    /// Deficiencies known to the recorder.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deficiencies: Vec<Deficiency>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Limits of observation for which there is no evidence that packets were affected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub footnotes: Vec<String>,
}

impl Manifest {
    /// Creates the manifest of a recording that starts now on this host.
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

    /// Whether the run was imported from durations: times of day and packet numbers are invented, and everything that
    /// depends on them, such as losses and pacing, is unknown.
    pub fn has_durations_alone(&self) -> bool {
        self.imported.iter().any(|file| file.format == DURATIONS)
    }

    /// Whether its journeys are the round trips of `latpath ping`: duplicate answers and their order are unknown.
    pub fn has_round_trips(&self) -> bool {
        self.imported.iter().any(|file| file.format == ROUND_TRIPS)
    }

    /// Sets the route, each stream's route, and the segments; `points` must be set already.
    pub fn set_layout(&mut self, layout: &Layout) {
        let points = &self.points;
        let point = |id: PointId| points[usize::from(id)].point.clone();
        let names = |route: &[PointId]| route.iter().map(|id| point(*id)).collect();
        self.route = names(&layout.route.points);
        self.routes = layout.route.by_stream.iter().map(|route| names(route)).collect();
        self.segments = layout.segments.iter().map(|segment| NamedSegment::of(segment, points)).collect();
    }

    /// The time of day during the run.
    pub fn time_of_day(&self) -> TimeOfDay {
        TimeOfDay::new(self.start.monotonic_ns, self.start.utc_ns, &self.utc_steps)
    }

    /// Adds a step of the time of day. Beyond the limit, the step is merged into the last one, so that the newest times
    /// remain correct.
    pub fn add_utc_step(&mut self, step: Step) {
        match self.utc_steps.get_mut(MAX_STEPS - 1) {
            Some(last) => last.by_ns = last.by_ns.saturating_add(step.by_ns),
            None => self.utc_steps.push(step),
        }
    }

    /// Loads a run's manifest.
    ///
    /// # Errors
    /// There is no manifest, its format is newer, or it is damaged or too long.
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
        // Read first to check the format version: a newer format need not match the types.
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
        // Limits the memory for figures, which grows with the numbers of streams and points.
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

    /// Valid range of the run's times.
    pub(crate) fn span(&self) -> TimeSpan {
        // A manifest with an invalid start cannot be loaded.
        TimeSpan::of_start(self.start.monotonic_ns).unwrap_or_default()
    }

    /// Whether the manifest contains an impossible time.
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

    /// Encodes the manifest.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Serialisation fails only for maps with keys other than strings and for failing writers, and there are none
        // here.
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

/// Atomically replaces the run's manifest: after a crash, either the complete old one or the complete new one exists.
pub(crate) fn replace(run: &Directory, bytes: &[u8]) -> Result<(), RunError> {
    Ok(replace_file(run, MANIFEST, bytes)?)
}
