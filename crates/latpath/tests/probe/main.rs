//! The kernel programs with frames sent over a bridge: which streams they recognise, how they read keys, and their
//! counts.

mod agent;
mod changes;
mod guest;
mod hostile;
mod ip;
mod live;
mod many;
mod points;
mod readers;
mod recognise;
mod taps;

use latpath_lab::{Namespace, PUBLISHER};
use latpath_model::{Counters, Point, PointInfo, Sighting, Source, StreamSpec};
use latpath_probe::{Options as ProbeOptions, Probe};
use latpath_protocols::{
    sv::{AsduSpec, FrameSpec},
    Tag,
};
use latpath_testkit::names::own;
use latpath_testkit::waits::{until, LIMIT};
use latpath_testkit::{need_btf, need_guest, need_lab, need_root, Bench};
use latpath_testkit::{Failed, Trial};
use latpath_wire::{Listen, PacketSocket};
use std::collections::BTreeMap;
use std::fs;
use std::io::IoSlice;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let needs = [need_root(), need_btf(), need_lab()];
    let mut tests = recognise::trials(&needs);
    tests.extend(live::trials(&needs));
    tests.extend(points::trials(&needs));
    tests.extend(taps::trials(&needs));
    tests.extend(readers::trials(&needs));
    tests.extend(changes::trials(&needs));
    tests.extend(ip::trials(&needs));
    tests.extend(agent::trials(&needs));
    let mut tests: Vec<Trial> = tests.into_iter().map(Trial::side_by_side).collect();
    tests.extend(many::trials(&needs));
    tests.extend(hostile::trials(&needs));
    tests.extend(live::alone(&needs));
    tests.extend(points::alone(&needs));
    tests.extend(guest::trials(&[need_root(), need_guest()]).into_iter().map(Trial::in_lab));
    latpath_testkit::main(tests)
}

/// The results of a probe.
struct Seen {
    sightings: Vec<Sighting>,
    points: Vec<PointInfo>,
    counters: Counters,
}

impl Seen {
    /// The (stream, key) pairs seen at each point, in order. Names omit the namespace: device names are unique within a
    /// bench, but latpath appends the namespace if this machine has a similar device in another one.
    fn keys(&self) -> BTreeMap<String, Vec<(u16, u32)>> {
        let mut keys = BTreeMap::<_, Vec<_>>::new();
        for s in &self.sightings {
            let point = &self.points[usize::from(s.point)].point;
            let name = format!("{}/{}@{}", point.machine, point.kind, point.device_name());
            keys.entry(name).or_default().push((s.stream, s.key));
        }
        keys
    }

    /// The pairs at one point; empty if it was never seen.
    fn at(&self, point: &str) -> Vec<(u16, u32)> {
        self.keys().remove(point).unwrap_or_default()
    }
}

fn streams(texts: &[&str]) -> Vec<StreamSpec> {
    texts.iter().map(|t| t.parse().unwrap_or_else(|e| panic!("{t}: {e}"))).collect()
}

/// Sends frames from the publisher's namespace.
fn send(bench: &Bench, frames: &[Vec<u8>]) -> Result<(), Failed> {
    bench.path.publisher.inside(|| -> Result<(), String> {
        let mut socket = PacketSocket::open(PUBLISHER, Listen::No).map_err(|e| e.to_string())?;
        for frame in frames {
            let sent = socket.send(&[IoSlice::new(frame)]).map_err(|e| e.to_string())?;
            if sent.taken != 1 {
                return Err("a frame was refused".into());
            }
        }
        Ok(())
    })??;
    Ok(())
}

/// Records the probe's sightings of `frames`, until all that were sent have reached the end of the route.
fn record(bench: &Bench, streams: Vec<StreamSpec>, frames: &[Vec<u8>]) -> Result<Seen, Failed> {
    let probe = Probe::attach(ProbeOptions::new("host", streams))?;
    send(bench, frames)?;
    // Each test checks for sightings that are still missing then.
    seen(bench, probe, |seen| seen.at(LINE[3]).len() >= seen.at(LINE[0]).len())
}

/// Returns the probe's results in the bench's namespaces, once `enough` accepts them or the time limit has passed.
fn seen(bench: &Bench, mut probe: Probe, enough: impl Fn(&Seen) -> bool) -> Result<Seen, Failed> {
    let spaces = spaces(bench)?;
    let mut seen = Seen { sightings: Vec::new(), points: Vec::new(), counters: Counters::default() };
    let limit = Instant::now() + LIMIT;
    let take = |probe: &mut Probe, seen: &mut Seen| -> Result<(), Failed> {
        let mut fresh = Vec::new();
        probe.drain(&mut fresh);
        seen.points = probe.points();
        // Other tests on this machine may send frames with the same name.
        fresh.retain(|s| spaces.contains(&seen.points[usize::from(s.point)].netns));
        seen.sightings.append(&mut fresh);
        Ok(())
    };
    loop {
        take(&mut probe, &mut seen)?;
        if enough(&seen) || Instant::now() > limit {
            break;
        }
        latpath_testkit::waits::pace(Duration::from_millis(5));
    }
    probe.detach();
    take(&mut probe, &mut seen)?;
    seen.counters = probe.counters();
    Ok(seen)
}

/// The namespaces of a bench, by inode.
fn spaces(bench: &Bench) -> Result<Vec<u32>, Failed> {
    let all = [&bench.path.publisher, &bench.path.hypervisor, bench.application()];
    let inode = |space: &Namespace| Ok(fs::metadata(format!("/run/netns/{}", space.name()))?.ino() as u32);
    all.into_iter().map(inode).collect()
}

/// A frame with one ASDU.
fn frame(svid: &str, smp_cnt: u16) -> FrameSpec {
    let asdu =
        AsduSpec { svid: svid.into(), smp_cnt, conf_rev: 1, smp_synch: 2, data: vec![7; 64], ..Default::default() };
    FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }
}

fn tagged(mut spec: FrameSpec, vlan: u16) -> FrameSpec {
    spec.link.tags.push(Tag::new(vlan, 4));
    spec
}

fn bytes(spec: &FrameSpec) -> Vec<u8> {
    spec.build().expect("a frame that can be built")
}

/// Points that every packet of the bench passes through.
const LINE: [&str; 4] = ["host/tx@lp-pub", "host/nic-rx@nic0", "host/tx@veth0", "host/nic-rx@lp-app"];

/// Fails unless every point of the route saw exactly these pairs, and no other point saw a pair too often.
fn expect_everywhere(seen: &Seen, want: &[(u16, u32)]) -> Result<(), Failed> {
    for point in LINE {
        let got = seen.at(point);
        if got != want {
            let at = got.iter().zip(want).position(|(g, w)| g != w).unwrap_or(got.len().min(want.len()));
            return Err(format!(
                "{point}: {} sightings for {} frames, first difference at {at}: {:?} for {:?}",
                got.len(),
                want.len(),
                got.get(at),
                want.get(at)
            )
            .into());
        }
    }
    // No other point may count a packet twice, except points named by a thread, since several threads with one name may
    // read it, and drop points, since a bridge drops copies.
    for (point, got) in seen.keys() {
        let kind = point.parse::<Point>()?.kind;
        let times = |all: &[(u16, u32)], one: &(u16, u32)| all.iter().filter(|other| *other == one).count();
        let twice = got.iter().find(|one| times(&got, one) > times(want, one));
        if let Some(twice) = twice.filter(|_| !kind.is_named_by_thread() && !kind.is_drop()) {
            return Err(format!("{point}: saw {twice:?} more often than it was sent").into());
        }
    }
    Ok(())
}
