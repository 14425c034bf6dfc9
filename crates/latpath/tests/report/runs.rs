//! Runs with known journeys, written by latpath's own writer.

use latpath_journey::Journey;
use latpath_journey::Totals;
use latpath_model::{Counters, DropNote, Link, Ns, Point, PointInfo, SegmentKind};
use latpath_report::Report;
use latpath_run::{MachineFigures, MachineRecord, Manifest, NamedSegment, Stamp, ToolCost, Writer};
use latpath_stats::{SegmentFigures, Summary};
use latpath_testkit::waits::until;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

/// The points by ID; the third is where the kernel drops packets.
pub const POINTS: [&str; 6] = [
    "host/nic-rx@enp7s0",
    "host/tx@vnet0",
    "host/drop@vnet0",
    "host/vm-read@vnet0",
    "guest0/nic-rx@eth1",
    "guest0/app-read@relay",
];
/// IDs of the points on the route.
const LINE: [usize; 5] = [0, 1, 3, 4, 5];
pub const STREAMS: [&str; 2] = ["svid:MU01", "svid:MU02,vlan=7"];
/// Number of packets of each stream.
pub const PACKETS: u64 = 1000;
/// Begin of the run, host's CLOCK_MONOTONIC, ns.
pub const START: Ns = 1_000_000_000_000;
/// The same instant in UTC, ns: 2026-01-02T03:04:05Z.
pub const START_UTC: Ns = 1_767_323_045_000_000_000;
/// Times of the points after the first sighting, ns. Each packet adds some noise.
const STEPS: [Ns; 6] = [0, 8_000, 9_000, 48_000, 128_000, 188_000];
/// Index of the packet that waits 3 ms for the VM.
pub const LATE: u64 = 500;

/// Sightings of one packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    pub stream: u16,
    pub number: u64,
    pub seen: u64,
    pub t: [Ns; 6],
    pub duplicates: u32,
    pub out_of_order: bool,
    pub drop_note: u16,
}

impl Packet {
    /// Returns the packet `number` of a stream. Per 1000 packets: 10 dropped at the tap, 4 lost in the guest, 5 not
    /// seen at the tap's far side, 20 seen twice, 8 overtaken.
    pub fn of(stream: u16, number: u64) -> Self {
        let begin = START + number as Ns * 250_000 + Ns::from(stream) * 7_000;
        let late = |p: usize| if number == LATE && p >= 3 { 3_000_000 } else { 0 };
        let noise = |p: usize| (number as Ns * 37 * p as Ns) % 1000;
        let t = std::array::from_fn(|p| begin + STEPS[p] + noise(p) + late(p));
        let dropped = number % 100 == 13;
        let seen = match number {
            _ if dropped => 0b00_0111,
            n if n % 250 == 77 => 0b01_1011,
            n if n % 200 == 50 => 0b11_0011,
            _ => 0b11_1011,
        };
        Self {
            stream,
            number,
            seen,
            t,
            duplicates: u32::from(number % 50 == 5),
            out_of_order: number % 125 == 9,
            drop_note: u16::from(dropped),
        }
    }

    pub fn has(&self, p: usize) -> bool {
        self.seen >> p & 1 == 1
    }

    fn push(&self, writer: &mut Writer) {
        let journey = Journey {
            stream: self.stream,
            key: (self.number % 4000) as u32,
            number: self.number,
            seen: self.seen,
            t: &self.t,
            cpu: &[2, 2, 2, 3, 0, 1],
            tid: &[0, 0, 0, 4711, 0, 815],
            duplicates: self.duplicates,
            out_of_order: self.out_of_order,
            drop_note: self.drop_note,
            ..Journey::default()
        };
        writer.push(&journey).unwrap();
    }
}

/// All packets, in order of arrival.
pub fn packets() -> impl Iterator<Item = Packet> {
    (0..PACKETS).flat_map(|number| [Packet::of(0, number), Packet::of(1, number)])
}

/// A manifest that does not depend on the time and machine of the test.
pub fn manifest() -> Manifest {
    let info = |(n, name): (usize, &&str)| PointInfo {
        point: name.parse().unwrap(),
        link: if name.contains("vnet") { Link::Tap } else { Link::Nic },
        netns: 4_026_531_840,
        ifindex: n as u32 + 2,
        peer: 0,
        peer_netns: 0,
        error_bound_ns: 0,
        clock: "CLOCK_MONOTONIC".into(),
    };
    let point = |p: usize| POINTS[p].parse::<Point>().unwrap();
    let segment = |(name, from, to): (&str, usize, usize)| NamedSegment {
        kind: SegmentKind::classic(name).unwrap_or_default(),
        name: name.into(),
        from: point(from),
        to: point(to),
    };
    let machine = |machine: &str, method: &str, error_bound_ns| MachineRecord {
        clock: MachineFigures {
            machine: machine.into(),
            method: method.into(),
            error_bound_ns,
            ..MachineFigures::default()
        },
        ..MachineRecord::default()
    };
    let joined = |never_seen| Totals { never_seen, ..Totals::default() };
    Manifest {
        format: latpath_run::FORMAT,
        latpath: "0.1.0".into(),
        command: ["latpath", "record", "--stream", STREAMS[0], "--stream", STREAMS[1], "-o", "run"]
            .map(Into::into)
            .into(),
        start: Stamp {
            utc: "2026-01-02T03:04:05.000000000Z".into(),
            utc_ns: START_UTC,
            tai_ns: START_UTC + 37_000_000_000,
            monotonic_ns: START,
        },
        threshold_ns: 200_000,
        streams: STREAMS.map(|s| s.parse().unwrap()).into(),
        points: POINTS.iter().enumerate().map(info).collect(),
        route: LINE.map(point).into(),
        segments: [("Thyp", 0, 4), ("Tsub", 4, 5), ("total", 0, 5)].map(segment).into(),
        drop_notes: vec![DropNote { reason: "FULL_RING".into(), function: "tun_net_xmit".into(), at: None }],
        machines: vec![machine("host", "same clock", 0), machine("guest0", "timed exchanges", 1_870)],
        counters: Counters { sightings: 9_928, malformed: 2, ns_per_sighting: 83, ..Counters::default() },
        joined: vec![joined(0), joined(3)],
        tool: ToolCost {
            sightings: 9_928,
            ns_per_sighting: 83,
            cpu_percent: 3.4,
            max_rss_bytes: 31 << 20,
            ..ToolCost::default()
        },
        ..Manifest::default()
    }
}

/// A temporary directory for runs, removed on drop.
pub struct Bench {
    pub dir: TempDir,
}

impl Bench {
    /// Creates an empty directory.
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A finished run with all packets, named `run`.
    pub fn with_run() -> Self {
        let bench = Self::new();
        let mut writer = Writer::create(&bench.run(), manifest()).unwrap();
        packets().for_each(|p| p.push(&mut writer));
        writer.finish().unwrap();
        bench.set_end(250_000_000);
        bench
    }

    /// The writer of an unfinished recording. 100 packets of each stream are on disk, in 4 parts: too few to be merged
    /// before the end.
    pub fn recording(&self) -> Writer {
        let mut writer = Writer::create(&self.run(), manifest()).unwrap();
        for part in packets().take(200).collect::<Vec<_>>().chunks(50) {
            writer.set_part_time(Duration::MAX);
            part.iter().for_each(|p| p.push(&mut writer));
            writer.set_part_time(Duration::ZERO);
            writer.tick().unwrap();
        }
        let on_disk = || {
            writer.tick().unwrap();
            writer.stored() >= 200
        };
        until("200 journeys are on the disk", on_disk).unwrap();
        writer
    }

    /// Path of the run.
    pub fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Changes the run's manifest, which then has no checksum.
    pub fn edit(&self, change: impl FnOnce(&mut Manifest)) {
        let path = self.run().join(latpath_run::MANIFEST);
        let mut manifest = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut manifest);
        std::fs::write(path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    }

    /// Sets the run's end, which otherwise depends on the time of the test.
    fn set_end(&self, after: Ns) {
        self.edit(|manifest| {
            let end = manifest.end.as_mut().unwrap();
            (end.monotonic_ns, end.utc_ns) = (START + after, START_UTC + after);
            manifest.written_ns = START + after;
        });
    }

    /// Paths of the run's parts.
    pub fn parts(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.run().join(latpath_run::JOURNEYS)).unwrap();
        let mut parts: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        parts.sort();
        parts
    }

    /// Runs latpath in the directory.
    pub fn latpath(&self, args: &[&str]) -> Output {
        latpath(self.dir.path()).args(args).output().unwrap()
    }

    /// Output of a successful command with `--json`.
    pub fn json<T: DeserializeOwned>(&self, args: &[&str]) -> T {
        let out = self.latpath(&[args, &["--json"]].concat());
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        parsed(&out)
    }

    /// The report of the run, with further arguments.
    pub fn report(&self, more: &[&str]) -> Report<'static> {
        self.json(&[&["report", "run"], more].concat())
    }

    /// The figures of this report.
    pub fn figures(&self, more: &[&str]) -> Summary {
        self.report(more).summary.into_owned()
    }
}

/// A command of latpath in a directory.
pub fn latpath(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latpath"));
    command.current_dir(directory).env("LC_ALL", "C.UTF-8");
    command
}

pub fn stdout(out: &Output) -> String {
    String::from_utf8(out.stdout.clone()).unwrap()
}

pub fn stderr(out: &Output) -> String {
    String::from_utf8(out.stderr.clone()).unwrap()
}

/// The JSON on standard output.
pub fn parsed<T: DeserializeOwned>(out: &Output) -> T {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(out)))
}

/// A segment of a report.
pub fn segment<'a>(figures: &'a Summary, name: &str) -> &'a SegmentFigures {
    figures.segments.iter().find(|s| s.name == name).unwrap()
}
