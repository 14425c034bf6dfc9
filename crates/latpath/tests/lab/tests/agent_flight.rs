//! Reads the guest's flight recorder for an interval in which frames arrived: it contains the guest kernel's events
//! with their names in the guest, at the times at which the guest's probe saw the frames.

use crate::{
    stage::{plain, Stage, Stream, GUEST, RELAY},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_agent::{Address, GuestWindow, Machine, StartRequest, Timeouts};
use latpath_clock::Method;
use latpath_flight::{Doing, Timeline};
use latpath_lab::Switch;
use latpath_model::{Ns, PointKind, Sighting, Source};
use latpath_testkit::waits::until;
use std::time::Duration;

pub const TEST: Test = Test { name: "agent_flight", smoke: false, only_whole: false, seconds: 400, run };

const NET_RX: u32 = 3;
/// Maximum time between a sighting and the matching event of the recorder, ns, unless twice the error bound of the
/// clocks' offset is larger.
const NEAR: Ns = 20_000;
const WINDOW: Ns = 400_000_000;

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay(Switch::LinuxBridge)?;
    stage.boot_guest()?;
    let stream = Stream::sv("MU01", 8_000).rate(100);
    stage.subscribe(&stream)?;
    let s = Duration::from_secs;
    let timeouts = Timeouts { connect: s(30), start: s(90), window: s(20), ..Timeouts::default() };
    let at = Address::Unix(stage.guest()?.agent_socket().into());
    let mut machine = Machine::connect(GUEST, &at, timeouts)?;
    let options = [(StartRequest::FLIGHT.into(), (1 << 20).to_string())].into();
    machine.start(&StartRequest { streams: vec![stream.spec().parse()?], options })?;
    let publishing = stage.start_publishing(&stream)?;

    let mut sightings: Vec<Sighting> = Vec::new();
    for _ in 0..3 {
        let enough = sightings.len() + 600;
        let come = until("600 sightings come", || {
            machine.drain(&mut sightings);
            machine.fault().is_some() || sightings.len() >= enough
        });
        come.map_err(plain).with_context(|| format!("{} sightings; {:?}", sightings.len(), machine.fault()))?;
        let last = sightings.iter().map(|s| s.t).max().context("sightings")?;
        let id = machine.request_window(last - WINDOW, last);
        let mut window = None;
        let comes = until("the window comes", || {
            machine.drain(&mut sightings);
            window = machine.take_windows().pop();
            machine.fault().is_some() || window.is_some()
        });
        comes.map_err(plain)?;
        let (of, window) = window.with_context(|| format!("no window: {:?}", machine.fault()))?;
        ensure!(of == id, "a window of request {of}");
        let window = window.map_err(anyhow::Error::msg)?;
        check(&window, &sightings, &machine.points(), (last - WINDOW, last))?;
    }
    let figures = machine.recorder().context("it was asked for")?.map_err(anyhow::Error::msg)?;
    eprintln!("the guest's recorder: {figures:?}; the clock: {:?}", machine.clock());
    // This guest has no ptp_kvm.
    ensure!(machine.clock().method == Method::TscOffset, "the clock is known by {:?}", machine.clock());
    ensure!(figures.events > 0 && figures.missed == 0, "{figures:?}");
    drop(publishing);
    machine.stop()?;
    let counters = machine.counters();
    ensure!(counters.dropped == 0, "{counters:?}");
    Ok(())
}

/// Compares the sightings of an interval with the recorder's events.
fn check(
    window: &GuestWindow,
    seen: &[Sighting],
    points: &[latpath_model::PointInfo],
    (from, to): (Ns, Ns),
) -> Outcome {
    let GuestWindow { offset_ns, error_bound_ns, snapshot } = window;
    let record = &snapshot.window;
    // Sighting and record were converted with different estimates of the clocks' offset, each with this error bound.
    let near = NEAR.max(2 * error_bound_ns);
    let events: usize = record.cpus.iter().map(|cpu| cpu.events.len()).sum();
    let bytes = snapshot.encode().len();
    eprintln!("{events} events in {bytes} bytes, offset {offset_ns} ± {error_bound_ns}, {:?}", snapshot.missing);
    ensure!(
        record.is_complete(),
        "something is missing: {:?}",
        record.cpus.iter().map(|c| c.since).collect::<Vec<_>>()
    );
    let names = snapshot.names();
    let timeline = Timeline::of(record);
    let (mut softirqs, mut reads, mut others) = (0, 0, Vec::new());
    for s in seen.iter().filter(|s| (from + near..to - near).contains(&s.t)) {
        let t = s.t + offset_ns;
        let cpu = timeline.cpus.iter().find(|cpu| cpu.cpu == u32::from(s.cpu)).context("a CPU without a record")?;
        let around = cpu.between(t - near, t + near);
        let kind = points[usize::from(s.point)].point.kind;
        let fits = |doing: Doing| match kind {
            PointKind::NicRx => doing == Doing::Softirq(NET_RX),
            PointKind::AppRead => doing.thread() == Some(s.tid) && names.of(&doing) == format!("{RELAY} ({})", s.tid),
            _ => true,
        };
        match around.iter().any(|tile| fits(tile.doing)) {
            false => others.push((kind, around.iter().map(|tile| names.of(&tile.doing)).collect::<Vec<_>>())),
            true if kind == PointKind::NicRx => softirqs += 1,
            true => reads += 1,
        }
    }
    eprintln!("{softirqs} frames in softirqs, {reads} in the application's thread; others: {others:?}");
    ensure!(softirqs >= 10 && reads >= 10, "too few");
    ensure!(others.is_empty(), "the recorder and the probe do not agree");
    Ok(())
}
