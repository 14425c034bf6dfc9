//! The kernel programs, fed with frames of our own over a bridge: what they recognise, how they read keys, what they count.

#[path = "../support/mod.rs"]
mod support;

mod agent;
mod guest;
mod hostile;
mod live;
mod recognise;
mod taps;

use latpath_lab::PUBLISHER;
use latpath_probe::{Mode, Options, Probe};
use latpath_sv::{AsduSpec, FrameSpec, Tag};
use latpath_traffic::{Listen, PacketSocket};
use latpath_words::{Counters, PointInfo, Sighting, Source, StreamSpec};
use libtest_mimic::Failed;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::process::ExitCode;
use std::time::Duration;
use support::{need_btf, need_guest, need_lab, need_root, Bench};

fn main() -> ExitCode {
    let needs = [need_root(), need_btf(), need_lab()];
    let mut tests = recognise::trials(&needs);
    tests.extend(hostile::trials(&needs));
    tests.extend(live::trials(&needs));
    tests.extend(taps::trials(&needs));
    tests.extend(agent::trials(&needs));
    tests.extend(guest::trials(&[need_root(), need_guest()]));
    support::main(tests)
}

/// What a probe saw.
struct Seen {
    sightings: Vec<Sighting>,
    points: Vec<PointInfo>,
    counters: Counters,
}

impl Seen {
    /// The (stream, key) pairs seen at each point, in order.
    fn keys(&self) -> BTreeMap<String, Vec<(u16, u32)>> {
        let mut keys = BTreeMap::<_, Vec<_>>::new();
        for s in &self.sightings {
            keys.entry(self.points[usize::from(s.point)].point.to_string()).or_default().push((s.stream, s.key));
        }
        keys
    }

    /// The pairs at one point; none if it was never seen.
    fn at(&self, point: &str) -> Vec<(u16, u32)> {
        self.keys().remove(point).unwrap_or_default()
    }
}

fn streams(texts: &[&str]) -> Vec<StreamSpec> {
    texts.iter().map(|t| t.parse().unwrap_or_else(|e| panic!("{t}: {e}"))).collect()
}

/// An svID that no other test on this machine uses at the same time: probes see all namespaces.
fn own(name: &str) -> String {
    format!("{name}.{}", std::process::id())
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

/// Records what the probe sees of `frames`.
fn record(bench: &Bench, streams: Vec<StreamSpec>, frames: &[Vec<u8>]) -> Result<Seen, Failed> {
    let mut probe = Probe::attach(Options::new("host", streams, Mode::Record))?;
    send(bench, frames)?;
    std::thread::sleep(Duration::from_millis(20));
    probe.detach();
    let mut sightings = Vec::new();
    probe.drain(&mut sightings)?;
    Ok(Seen { sightings, points: probe.points()?, counters: probe.counters()? })
}

/// A frame with one ASDU.
fn frame(svid: &str, smp_cnt: u16) -> FrameSpec {
    let asdu =
        AsduSpec { svid: svid.into(), smp_cnt, conf_rev: 1, smp_synch: 2, data: vec![7; 64], ..Default::default() };
    FrameSpec {
        dst: [1, 12, 205, 4, 0, 1],
        src: [2, 0, 0, 0, 0, 1],
        tags: vec![],
        appid: 0x4000,
        simulated: false,
        asdus: vec![asdu],
    }
}

fn tagged(mut spec: FrameSpec, vlan: u16) -> FrameSpec {
    spec.tags.push(Tag::new(vlan, 4));
    spec
}

fn bytes(spec: &FrameSpec) -> Vec<u8> {
    spec.build().expect("a frame that can be built")
}

/// The points that every packet of the bench passes.
const LINE: [&str; 4] = ["host/tx@lp-pub", "host/nic-rx@nic0", "host/tx@veth0", "host/nic-rx@lp-app"];

/// Fails unless every point of the line saw exactly these.
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
    Ok(())
}
