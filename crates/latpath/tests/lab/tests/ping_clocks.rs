//! `latpath ping` between NICs with clocks that are apart, drift, are stepped, or stand still: what is said of times between
//! clocks is true within the stated bound, and what disturbs them is reported, with when and how much.

use crate::{
    linked::ADDRESSES,
    pinging::{Reflector, Session},
    stamping::StampingNics,
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use latpath_linux::monotonic;
use std::time::Duration;

pub const TEST: Test = Test { name: "ping_clocks", smoke: false, only_whole: true, seconds: 200, run };

const WIRE_NS: i64 = 20_000;
/// A clock is read some twenty times a second, on a machine that takes its time.
const SOON: i64 = 1_000_000_000;
/// What the two machines' clocks are apart.
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
    for (apart_ns, together) in [(0, true), (1_000_000, false)] {
        let nics = StampingNics::load(&format!("wire_ns={WIRE_NS} phcs=2 offset_ns=0,{apart_ns}"))?;
        check(format!("said to be together, {apart_ns} ns apart"), said_to_be_together(&nics, together));
    }
    let nics = StampingNics::load(&format!("wire_ns={WIRE_NS}"))?;
    check("one kernel, two times of it".into(), two_times_of_one_kernel(&nics));
    check("a step".into(), a_step_is_reported(&nics));
    check("a clock that stands still".into(), a_clock_that_stands_still_is_reported(&nics));
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// lpn1's is 7 s ahead.
fn two_clocks(drift_ppb: i64) -> anyhow::Result<StampingNics> {
    StampingNics::load(&format!("wire_ns={WIRE_NS} phcs=2 offset_ns=0,7000000000 drift_ppb=0,{drift_ppb}"))
}

fn bind() -> String {
    format!("--bind {}", ADDRESSES[1])
}

fn expect_all_and_undisturbed(session: &Session, relation: &str) -> Outcome {
    session.expect_answered(600)?;
    ensure!(session.json()["clocks"] == relation, "{} is not {relation}", session.json()["clocks"]);
    session.expect_parts_to_add_up()?;
    session.expect_undisturbed()
}

fn two_clocks_of_one_kernel(nics: &StampingNics) -> Outcome {
    let reflector = Reflector::start(nics, &bind())?;
    let session = Session::run(nics, "--count 600 --rate 200")?;
    reflector.end()?;
    expect_all_and_undisturbed(&session, "same_kernel")?;
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
        expect_all_and_undisturbed(&session, "estimated").context(words)?;
        // Nothing takes longer or shorter between the machines than it does, but for the bound.
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

/// As PTP keeps clocks, or fails to.
fn said_to_be_together(nics: &StampingNics, together: bool) -> Outcome {
    let reflector = Reflector::start_elsewhere(nics, AHEAD_S, &bind())?;
    let session = Session::run(nics, "--count 600 --rate 200 --synchronised 100ns")?;
    reflector.end()?;
    if !together {
        return session.disturbed_by("not synchronised").map(drop);
    }
    expect_all_and_undisturbed(&session, "synchronised")?;
    let bound = session.expect_wires(WIRE_NS)?;
    ensure!((100..20_000).contains(&bound), "wires wrong by {bound} ns at most");
    eprintln!("clocks together: wires wrong by {bound} ns at most");
    Ok(())
}

/// In a time namespace, as of a container that was moved, CLOCK_MONOTONIC is another.
fn two_times_of_one_kernel(nics: &StampingNics) -> Outcome {
    let reflector = Reflector::start_in_time_namespace(nics, AHEAD_S, &bind())?;
    let session = Session::run(nics, "--count 600 --rate 200")?;
    reflector.end()?;
    expect_all_and_undisturbed(&session, "estimated")?;
    session.expect_wires(WIRE_NS).map(drop)
}

fn a_step_is_reported(nics: &StampingNics) -> Outcome {
    let reflector = Reflector::start(nics, &bind())?;
    let running = Session::start(nics, "--duration 4s --rate 100")?;
    // In the middle of the run.
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
    // It is the reflector's clock too, and its report says so.
    ensure!(reflected.contains("was set"), "the reflector does not report it: {reflected}");
    // What lies between two clocks of which one was set is not what it is said to be, and that is said.
    for name in ["emitter app → nic", "reflector nic → app", "reflector app → nic", "emitter nic → app"] {
        let (min, max, bound) = session.extremes(name)?;
        ensure!(min >= -bound && max < 250_000_000 + bound, "{name} takes {min} to {max} ns, ± {bound}");
    }
    Ok(())
}

fn a_clock_that_stands_still_is_reported(nics: &StampingNics) -> Outcome {
    let reflector = Reflector::start(nics, &bind())?;
    let running = Session::start(nics, "--duration 4s --rate 100")?;
    // In the middle of the run.
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
