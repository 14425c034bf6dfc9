//! Which packets a baseline is learnt from.

use latpath_analysis::Explainer;
use latpath_capture::{Capture, CaptureKind, MachineSnapshot, Packet};
use latpath_cause::RunContext;
use latpath_flight::{Snapshot, Window};
use latpath_model::{Ns, PacketSighting, Point, PointInfo};

#[test]
fn a_baseline_is_learnt_from_packets_that_arrived_and_were_on_time() {
    let points = ["host/nic-rx@eth0", "host/app-read@relay"];
    let info = |name: &str| PointInfo::from(name.parse::<Point>().unwrap());
    let context = RunContext {
        points: points.map(info).into(),
        routes: vec![vec![0, 1]],
        streams: vec!["svid:MU01".parse().unwrap()],
        ..RunContext::default()
    };
    let seen = |point, t| PacketSighting { point, t, cpu: Some(0), tid: Some(7) };
    let packet = |number: u64, late, arrived: Option<Ns>| {
        let t = number as Ns * 1_000;
        let sightings = std::iter::once(seen(0, t)).chain(arrived.map(|after| seen(1, t + after))).collect();
        Packet { stream: 0, key: number as u32, number, late, sightings }
    };
    let packets =
        vec![packet(1, false, None), packet(2, true, Some(900)), packet(3, false, Some(100)), packet(4, false, None)];
    let window = Window { from: 0, to: 10_000, cpus: Vec::new() };
    let record = Ok(Snapshot { window, ..Snapshot::default() });
    let machines = vec![MachineSnapshot { machine: "host".into(), offset_ns: 0, error_bound_ns: 0, record }];
    let capture = Capture { number: 1, kind: CaptureKind::Spike, from: 0, to: 10_000, machines, packets, more_late: 0 };
    let mut explainer = Explainer::new(context.clone(), 1);
    explainer.learn(&capture);
    assert_eq!(explainer.learnt(), 1, "two were lost, and one was late");
    let lost = Capture { packets: vec![packet(1, false, None), packet(2, true, Some(900))], ..capture };
    let mut explainer = Explainer::new(context, 1);
    explainer.learn(&lost);
    assert_eq!(explainer.learnt(), 0, "none was on time");
}
