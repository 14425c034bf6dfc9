//! `latpath ping` between NICs whose clocks have an offset, drift, step or stop: the reported times between clocks are
//! correct within the stated bound, and disturbances are reported with their time and size.

use crate::{
    linked::ADDRESSES,
    pinging::{Reflector, Session},
    stamping::StampingNics,
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_linux::monotonic;
use latpath_ping::timeline::Relation;
use std::time::Duration;

pub const TEST: Test = Test { name: "ping_clocks", smoke: false, only_whole: true, seconds: 200, run };

const WIRE_NS: i64 = 20_000;
/// Maximum delay until a disturbance is noticed, ns: a clock is read about twenty times a second, and the machine is
/// slow.
const SOON: i64 = 1_000_000_000;
/// Difference between the two machines' clocks.
const AHEAD_S: u32 = 1000;

fn run(_: &Scale) -> Outcome {
    let mut failed = Vec::new();
    let mut check = |name: String, outcome: Outcome| {
        if let Err(error) = outcome {
            failed.push(format!("{name}: {error:#}"));
        }
    };
    for drift_ppb in [0, 30_000] {
        let nics = two_clocks(drift_ppb)?;
        check(format!("one kernel, {drift_ppb} ppb"), two_clocks_of_one_kernel(&nics));
        check(format!("two machines, {drift_ppb} ppb"), two_machines(&nics));
    }
    let nics = StampingNics::load(&format!("wire_ns={WIRE_NS}"))?;
    check("one kernel, two times of it".into(), two_times_of_one_kernel(&nics));
    check("a step".into(), a_step_is_reported(&nics));
    check("a clock that stands still".into(), a_clock_that_stands_still_is_reported(&nics));
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// Loads NICs with two clocks; lpn1's is 7 s ahead.
fn two_clocks(drift_ppb: i64) -> anyhow::Result<StampingNics> {
    StampingNics::load(&format!("wire_ns={WIRE_NS} phcs=2 offset_ns=0,7000000000 drift_ppb=0,{drift_ppb}"))
}

fn bind() -> String {
    format!("--bind {}", ADDRESSES[1])
}

fn expect_all_and_undisturbed(session: &Session, relation: Relation) -> Outcome {
    session.expect_answered(600)?;
    let clocks = session.0.report.clocks;
    ensure!(clocks == relation, "{clocks:?} is not {relation:?}");
    session.expect_parts_to_add_up()?;
    session.expect_undisturbed()
}

fn two_clocks_of_one_kernel(nics: &StampingNics) -> Outcome {
    let reflector = Reflector::start(nics, &bind())?;
    let session = Session::run(nics, "--count 600 --rate 200")?;
    reflector.end()?;
    expect_all_and_undisturbed(&session, Relation::SameKernel)?;
    let bound = session.expect_wires(WIRE_NS)?;
    eprintln!("one kernel: wires wrong by {bound} ns at most");
    Ok(())
}

fn two_machines(nics: &StampingNics) -> Outcome {
    for stamps in ["nic", "kernel", "app"] {
        let words = format!("--stamps {stamps}");
        let reflector = Reflector::start_elsewhere(nics, AHEAD_S, &format!("{} {words}", bind()))?;
        let session = Session::run(nics, &format!("--count 600 --rate 200 {words}"))?;
        reflector.end()?;
        expect_all_and_undisturbed(&session, Relation::Estimated).context(words)?;
        // The times between the machines equal the wire's, within the bound.
        let (there, back) = match stamps {
            "nic" => ("wire there", "wire back"),
            "kernel" => ("there: driver → kernel", "back: driver → kernel"),
            _ => ("there: app → app", "back: app → app"),
        };
        let (least, _, bound) = session.extremes(there)?;
        let (least_back, _, _) = session.extremes(back)?;
        let wrong = WIRE_NS - least.min(least_back);
        ensure!(wrong <= bound, "{stamps}: {least} ns there and {least_back} back, ± {bound}");
        if stamps == "nic" {
            session.expect_wires(WIRE_NS)?;
        }
        eprintln!("two machines, {stamps}: wrong by {bound} ns at most");
    }
    Ok(())
}

/// CLOCK_MONOTONIC has an offset in a time namespace, e.g. that of a migrated container.
fn two_times_of_one_kernel(nics: &StampingNics) -> Outcome {
    let reflector = Reflector::start_in_time_namespace(nics, AHEAD_S, &bind())?;
    let session = Session::run(nics, "--count 600 --rate 200")?;
    reflector.end()?;
    expect_all_and_undisturbed(&session, Relation::Estimated)?;
    session.expect_wires(WIRE_NS).map(drop)
}

fn a_step_is_reported(nics: &StampingNics) -> Outcome {
    let reflector = Reflector::start(nics, &bind())?;
    let running = Session::start(nics, "--duration 4s --rate 100")?;
    // The disturbance occurs in the middle of the run.
    latpath_testkit::waits::fault_for(Duration::from_secs(2));
    let before = monotonic();
    nics.phc_ctl(0, "adj -0.25")?;
    let after = monotonic();
    let session = Session::of(running)?;
    let reflected = reflector.end()?;
    let (at, said) = session.disturbed_by("was set")?;
    ensure!((before..after + SOON).contains(&at), "stepped from {before} to {after}, reported at {at}");
    let by = said.split("by ").nth(1).and_then(|rest| rest.split(' ').next()).context("by how much?")?;
    let wrong = by.parse::<i64>()? + 250_000_000;
    ensure!(wrong.abs() < 100_000, "a step of -0.25 s is reported as {said}");
    // The reflector's NIC shares this clock, so its report must also contain the step.
    ensure!(reflected.contains("was set"), "the reflector does not report it: {reflected}");
    // Times between this clock and others may be wrong around the step; the reported figures must account for that.
    for name in ["emitter app → nic", "reflector nic → app", "reflector app → nic", "emitter nic → app"] {
        let (min, max, bound) = session.extremes(name)?;
        ensure!(min >= -bound && max < 250_000_000 + bound, "{name} takes {min} to {max} ns, ± {bound}");
    }
    Ok(())
}

fn a_clock_that_stands_still_is_reported(nics: &StampingNics) -> Outcome {
    let reflector = Reflector::start(nics, &bind())?;
    let running = Session::start(nics, "--duration 4s --rate 100")?;
    // The disturbance occurs in the middle of the run.
    latpath_testkit::waits::fault_for(Duration::from_secs(2));
    let before = monotonic();
    nics.set("frozen", "1,1")?;
    let session = Session::of(running);
    nics.set("frozen", "0,0")?;
    let session = session?;
    reflector.end()?;
    let (at, _) = session.disturbed_by("stopped")?;
    ensure!((before..before + SOON).contains(&at), "stopped at {before}, reported at {at}");
    Ok(())
}
