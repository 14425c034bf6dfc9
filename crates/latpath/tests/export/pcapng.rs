//! `latpath export pcapng`: each sighting of a run becomes a packet, which tshark reads with the run's values.

use latpath_journey::Journey;
use latpath_model::{DropNote, Ns, Point, PointInfo};
use latpath_run::{Manifest, Stamp, Writer};
use latpath_testkit::{equal, latpath, need_tool, trial, Failed, Lack, Trial};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const POINTS: [&str; 4] = ["host/nic-rx@enp7s0", "host/drop@vnet0", "relay/app-read@relay", "MU/sampled@smpCnt"];
const START: Ns = 1_000_000_000_000;
const START_UTC: Ns = 1_767_323_045_000_000_000;
const NONE: &[Lack] = &[];

pub fn trials() -> Vec<Trial> {
    vec![
        trial("tshark_reads_each_sighting_at_its_point_and_time", &[need_tool("tshark")], by_tshark),
        trial("streams_whose_frames_cannot_be_rebuilt_are_left_out_or_refused", NONE, refused),
        trial("the_same_run_is_the_same_pcapng", NONE, same),
    ]
}

/// Packet `n` of a stream: its key, the points that saw it, and their times.
struct Packet {
    stream: u16,
    n: u64,
    seen: u64,
    t: [Ns; 4],
}

impl Packet {
    fn all(streams: u16) -> impl Iterator<Item = Self> {
        let one = |stream: u16, n: u64| {
            let t = START + n as Ns * 250_007 + Ns::from(stream);
            // Some packets are dropped; some Sampled Values have a sample time; the other machine's clock is behind for
            // some.
            let seen = if n % 10 == 3 { 0b0011 } else { 0b0101 } | if stream == 0 && n >= 50 { 0b1000 } else { 0 };
            Self {
                stream,
                n,
                seen,
                t: [t, t + 500, t + if n.is_multiple_of(7) { -300 } else { 60_001 }, t - 1_234_567],
            }
        };
        (0..100).flat_map(move |n| (0..streams).map(move |stream| one(stream, n)))
    }

    fn key(&self) -> u32 {
        match self.stream {
            1 => 5 << 16 | self.n as u32,
            _ => self.n as u32 % 4000,
        }
    }

    /// tshark's expected output: a line for each sighting.
    fn lines(&self) -> Vec<String> {
        let (key, n) = (self.key(), self.n);
        let fields = match self.stream {
            0 => format!("7\tMU01\t{key}\t\t\t\t\t"),
            1 => format!("\t\t\tIED1/LLN0.gcb01\t5\t{n}\t\t"),
            _ => format!("\t\t\t\t\t\t{key}\t3"),
        };
        let named = match self.stream {
            0 => format!("journey {n} of MU01, smpCnt {key}"),
            1 => format!("journey {n} of IED1/LLN0.gcb01, stNum:sqNum 5:{n}"),
            _ => format!("journey {n} of ptp:sync,domain=3, sequenceId {key}"),
        };
        let id = u64::from(self.stream) << 48 | n;
        let line = |point: usize, more: &str| {
            let utc = self.t[point] - START + START_UTC;
            let (s, ns, at) = (utc / 1_000_000_000, utc % 1_000_000_000, POINTS[point]);
            format!("{s}.{ns:09}\t{at}\t{id}\t{fields}\t{at}, {named}{more}")
        };
        let has_sample = self.seen >> 3 == 1;
        let first = line(0, if has_sample { ", 1234567 ns after its sample was taken" } else { "" });
        let second = match self.seen >> 1 & 1 {
            1 => line(1, ", 500 ns after host/nic-rx@enp7s0, dropped: FULL_RING in tun_net_xmit"),
            _ => line(2, &format!(", {} ns after host/nic-rx@enp7s0", self.t[2] - self.t[0])),
        };
        vec![first, second]
    }
}

/// A run with packets of these streams.
fn run_of(streams: &[&str], folder: &TempDir) -> Result<PathBuf, Failed> {
    let path = folder.path().join("run");
    let point = |name: &&str| name.parse::<Point>().map(PointInfo::from).map_err(|e| e.to_string());
    let manifest = Manifest {
        start: Stamp { utc_ns: START_UTC, monotonic_ns: START, ..Stamp::of_utc(START_UTC) },
        streams: streams.iter().map(|s| s.parse()).collect::<Result<_, _>>()?,
        points: POINTS.iter().map(point).collect::<Result<_, _>>()?,
        route: vec![POINTS[0].parse()?, POINTS[2].parse()?],
        drop_notes: vec![DropNote { reason: "FULL_RING".into(), function: "tun_net_xmit".into(), at: None }],
        ..Manifest::begin()
    };
    let mut writer = Writer::create(&path, manifest)?;
    for packet in Packet::all(streams.len() as u16) {
        let (stream, number, seen) = (packet.stream, packet.n, packet.seen);
        let drop_note = (seen >> 1 & 1) as u16;
        let (key, samples) = (packet.key(), seen & 0b1000);
        let (cpu, tid) = ([0; 4], [0; 4]);
        let (t, cpu, tid) = (&packet.t[..], &cpu[..], &tid[..]);
        writer.push(&Journey { stream, key, number, seen, samples, t, cpu, tid, drop_note, ..Journey::default() })?;
    }
    writer.finish()?;
    Ok(path)
}

fn export(run: &Path, to: &Path) -> Result<Output, Failed> {
    Ok(latpath(&format!("export pcapng {} -o {}", run.display(), to.display())).output()?)
}

fn by_tshark() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let run = run_of(&["svid:MU01,vlan=7", "goose:IED1/LLN0.gcb01", "ptp:sync,domain=3"], &folder)?;
    let file = folder.path().join("out.pcapng");
    equal("exit code", export(&run, &file)?.status.code(), Some(0))?;
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-T", "fields"]);
    let fields = "frame.time_epoch frame.interface_name frame.packet_id vlan.id sv.svID sv.smpCnt goose.goID goose.stNum goose.sqNum \
                  ptp.v2.sequenceid ptp.v2.domainnumber frame.comment";
    fields.split_whitespace().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let output = tshark.output()?;
    equal("tshark's exit code", output.status.code(), Some(0))?;
    let mut found: Vec<String> = String::from_utf8(output.stdout)?.lines().map(Into::into).collect();
    let mut expected: Vec<String> = Packet::all(3).flat_map(|packet| packet.lines()).collect();
    // A packet's sightings are adjacent.
    let follows = |two: &[String]| two[0].split('\t').nth(2) == two[1].split('\t').nth(2);
    equal("packets stay together", found.chunks(2).all(follows), true)?;
    found.sort();
    expected.sort();
    for (found, expected) in found.iter().zip(&expected) {
        equal("packet", found, expected)?;
    }
    equal("packets", found.len(), expected.len())?;
    let faults = "_ws.malformed || _ws.expert.severity >= 0x600000";
    let bad = Command::new("tshark").arg("-r").arg(&file).args(["-Y", faults]).output()?;
    equal("packets that tshark finds fault with", String::from_utf8(bad.stdout)?, String::new())?;
    let about = Command::new("capinfos").arg("-k").arg(&file).output()?;
    let says = String::from_utf8_lossy(&about.stdout).into_owned();
    equal(&says, says.contains("were never captured") && says.contains("made up"), true)
}

fn refused() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let run = run_of(&["svid:MU01", "udp::5000"], &folder)?;
    let file = folder.path().join("out.pcapng");
    let output = export(&run, &file)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    equal("exit code", output.status.code(), Some(0))?;
    let says = "udp::5000,hash=0:32: its 100 journeys are left out: its key is computed from payload bytes";
    equal(&said, said.contains(says) && said.contains("200 sightings as packets"), true)?;

    let folder = tempfile::tempdir()?;
    let (run, file) = (run_of(&["udp::5000"], &folder)?, folder.path().join("out.pcapng"));
    let output = export(&run, &file)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    equal("exit code", output.status.code(), Some(1))?;
    equal(&said, said.contains("no frame of udp::5000,hash=0:32 can be rebuilt") && said.contains("parquet"), true)?;
    equal("no file", file.exists(), false)
}

fn same() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let run = run_of(&["svid:MU01"], &folder)?;
    let files = ["a", "b"].map(|name| folder.path().join(name));
    for file in &files {
        equal("exit code", export(&run, file)?.status.code(), Some(0))?;
    }
    let [a, b] = files.map(std::fs::read);
    equal("bytes", a?, b?)
}
