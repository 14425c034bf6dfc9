//! Runs the example without a terminal: it follows a stream over a bridge, and prints its events as lines of JSON.

use latpath_lab::PUBLISHER;
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use latpath_session::Event;
use latpath_stats::Summary;
use latpath_testkit::names::own;
use latpath_testkit::waits::LIMIT;
use latpath_testkit::{bench, equal, need_btf, need_lab, need_root, trial, Bench, Failed};
use latpath_wire::{Listen, PacketSocket};
use serde::Deserialize;
use serde_json::Value;
use std::io::IoSlice;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SECONDS: &str = "4";
/// The points on the route of every packet.
const ROUTE: [&str; 4] = ["host/tx@lp-pub", "host/nic-rx@nic0", "host/tx@veth0", "host/nic-rx@lp-app"];

fn main() -> ExitCode {
    let needs = [need_root(), need_btf(), need_lab()];
    let test = trial("a_program_without_a_terminal_follows_a_stream_and_prints_typed_events", &needs, follows);
    latpath_testkit::main(vec![test.side_by_side()])
}

/// The last line that the example prints.
#[derive(Deserialize)]
struct Over {
    why: String,
    figures: Summary,
}

fn follows() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("events");
    // cargo puts examples into a directory next to that of the test programs.
    let me = std::env::current_exe()?;
    let example = me.ancestors().nth(2).ok_or("target/release")?.join("examples/follow");
    if !example.exists() {
        let build = "cargo build --release -p latpath-session --examples";
        return Err(format!(
            "{}: no such file; {build} makes it, as cargo test of all targets does",
            example.display()
        )
        .into());
    }
    let mut command = Command::new(example);
    command.args([&format!("svid:{svid}"), SECONDS]);
    let started = bench.start(&bench.path.hypervisor, command)?;
    let ended = AtomicBool::new(false);
    let finished = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| publish(&bench, &svid, &ended));
        let finished = started.finish(LIMIT);
        ended.store(true, Ordering::Relaxed);
        publisher.join().map_err(|_| "the publisher panicked")??;
        finished
    })?;
    equal(&finished.stderr, finished.code, Some(0))?;
    let lines: Vec<Value> = finished.stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let is = |line: &Value, event: &str| line["event"] == event;
    let route = Event::Route { points: ROUTE.map(str::to_string).to_vec() };
    let route = serde_json::to_value(&route)?;
    equal(&finished.stdout, lines.contains(&route), true)?;
    equal("figures, once a second", lines.iter().filter(|line| is(line, "figures")).count() >= 2, true)?;
    let last = lines.last().ok_or("nothing printed")?;
    equal("the last line", is(last, "over"), true)?;
    let Over { why, figures } = serde_json::from_value(last.clone())?;
    equal("why it ended", why.as_str(), "duration")?;
    equal("packets", figures.streams[0].complete > 100, true)?;
    let pacing = &figures.streams[0].pacing;
    let is_paced = |point: &str| pacing.iter().any(|at| at.point == point && at.count > 100);
    equal("their pace is known on the whole route", ROUTE.into_iter().all(is_paced), true)
}

/// Sends a frame every millisecond until `ended` is set.
fn publish(bench: &Bench, svid: &str, ended: &AtomicBool) -> Result<(), String> {
    let send = || -> Result<(), String> {
        let mut socket = PacketSocket::open(PUBLISHER, Listen::No).map_err(|e| e.to_string())?;
        let mut smp_cnt = 0;
        while !ended.load(Ordering::Relaxed) {
            let asdu = AsduSpec { svid: svid.into(), smp_cnt, conf_rev: 1, data: vec![7; 64], ..AsduSpec::default() };
            let frame = FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().map_err(|e| e.to_string())?;
            socket.send(&[IoSlice::new(&frame)]).map_err(|e| e.to_string())?;
            smp_cnt = (smp_cnt + 1) % 4000;
            latpath_testkit::waits::pace(Duration::from_millis(1));
        }
        Ok(())
    };
    bench.path.publisher.inside(send).map_err(|e| e.to_string())?
}
