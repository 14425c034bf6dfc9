//! The oldest kernel's verifier accepts every eBPF program: those of the points with a stream of each protocol, of the
//! flight recorder, of `latpath path`, `profile` and `queues`, and the XDP program of `latpath ping`. Some frames pass
//! through each.

use crate::{
    stage::{plain, Stage, Stream},
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_caps::Works;
use latpath_doctor::DoctorDocument;
use latpath_flight::{Recorder, Scope};
use latpath_lab::{Switch, APPLICATION, PUBLISHER};
use latpath_model::Observation;
use latpath_observe::queues::QueuesFigures;
use latpath_path::PathDocument;
use latpath_ping::document::EmitDocument;
use latpath_testkit::waits::says;
use serde_json::Value;
use std::time::Duration;

pub const TEST: Test = Test { name: "programs_load", smoke: true, only_whole: false, seconds: 200, run };

/// Time limit of any step.
const PATIENCE: Duration = Duration::from_secs(90);

fn run(_: &Scale) -> Outcome {
    let mut stage = Stage::lay_without_guest(Switch::LinuxBridge)?;
    let others = ["udp::5000", "ether:0x1234", "goose:IED1LD0/LLN0.gcb01", "ptp:sync"];
    let others = others.map(|spec| format!("--stream {spec}")).join(" ");
    let stream = Stream::sv("MU01", 200).publish("--wrap 65536");
    // `--stamps nic` adds the code for NIC times, which is otherwise left out.
    let recording = stage.record(&stream, &format!("{others} --stamps nic"))?;
    stage.publish(&stream)?;
    stage.wait_for_quiet()?;
    let report = recording.end(&stage)?;
    ensure!(report.figures().journeys == 200, "not every frame has a journey: {}", report.in_short());

    let recorder = Recorder::start(Recorder::BYTES_PER_CPU).context("the flight recorder")?;
    let missing: Vec<String> = recorder.missing().iter().map(ToString::to_string).collect();
    eprintln!("the flight recorder lacks: {missing:?}");
    drop(recorder);
    let recorder = Recorder::start_for(Scope::Transfers, Recorder::BYTES_PER_CPU).context("the events of transfers")?;
    ensure!(recorder.missing().is_empty(), "of transfers are not recorded: {:?}", recorder.missing());
    drop(recorder);
    let recorder = Recorder::start_for(Scope::Door, Recorder::BYTES_PER_CPU).context("the events of doors")?;
    ensure!(recorder.missing().is_empty(), "of doors are not recorded: {:?}", recorder.missing());
    drop(recorder);

    let options =
        latpath_profile::Options { vcpus: vec![1], calls_of: Some(Vec::new()), ..latpath_profile::Options::default() };
    let mut recorder = latpath_profile::Recorder::start(&options).context("the profile")?;
    ensure!(recorder.missing().is_empty(), "of a profile is not seen: {:?}", recorder.missing());
    ensure!(recorder.absences().is_some(), "when vCPUs are not in their guest is not seen");
    ensure!(recorder.guest_time(1) == Some(0), "how long process 1 was in a guest: {:?}", recorder.guest_time(1));
    drop(recorder);

    let queues: Observation<QueuesFigures> = serde_json::from_str(&stage.latpath("queues --duration 1s --json")?)?;
    ensure!(queues.not_shown.is_empty(), "of virtqueues is not seen: {queues:?}");

    for kind in ["tracepoints", "kprobes"] {
        let words = format!("path --stream svid:MU01 --with {kind} --duration 1s --json");
        serde_json::from_str::<PathDocument>(&stage.latpath(&words)?).with_context(|| words)?;
    }
    // The tested kernels have all features, except that 6.1 cannot attach to all functions at once.
    let doctor: DoctorDocument = serde_json::from_str(&stage.latpath("doctor --commands --json")?)?;
    for command in doctor.capabilities.context("no commands")?.commands {
        let is_path = command.commands == ["path"];
        ensure!(command.works == Works::Yes || is_path && command.works == Works::Partly, "{command:#?}");
    }
    pings(&stage)
}

/// Sends frames over AF_XDP through the bridge and back.
fn pings(stage: &Stage) -> Outcome {
    let links: Value = serde_json::from_slice(&stage.application().ip(&format!("-j link show {APPLICATION}"))?)?;
    let mac = links[0]["address"].as_str().context("no address")?;
    let reflector = format!("ping reflect --ethernet --xdp -i {APPLICATION}");
    let mut reflector = stage.start(stage.application(), &reflector)?;
    says(&mut reflector, "reflecting at").map_err(plain)?;
    let words = format!("ping emit --xdp -i {PUBLISHER} {mac} --count 20 --json");
    let emitter = stage.start(&stage.path().publisher, &words)?.finish(PATIENCE).map_err(plain)?;
    reflector.interrupt();
    let document: EmitDocument = serde_json::from_str(&emitter.stdout).with_context(|| emitter.stderr.clone())?;
    let answered = document.sessions.first().context("no session")?.report.counts.answered;
    ensure!(answered == 20, "{answered} of 20 probes were answered: {}", emitter.stderr);
    Ok(())
}
