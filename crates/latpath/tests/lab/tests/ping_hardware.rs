//! `latpath ping` between NICs whose stamps are known: round trips in their time are exact, and stamps that are lost, late or
//! zero are counted as missing, never waited for, and never another probe's.

use crate::{
    linked::ADDRESSES,
    pinging::{logged, Reflector, Session},
    stamping::StampingNics,
    Outcome, Scale, Test,
};
use anyhow::{ensure, Context};
use std::fs;

pub const TEST: Test = Test { name: "ping_hardware", only_whole: false, seconds: 150, run };

const WIRE_NS: i64 = 20_000;
/// lpn1's (crates/lab/module/nics.c).
const MAC: &str = "02:6c:70:6e:00:01";

fn run(scale: &Scale) -> Outcome {
    let nics = StampingNics::load(&format!("wire_ns={WIRE_NS}"))?;
    let reflector = Reflector::start(&nics, &format!("--bind {}", ADDRESSES[1]))?;
    let probes = scale.frames(100, 1000);
    round_trips_are_exact(&nics, probes, &ADDRESSES[1].to_string(), "")?;
    if scale.whole {
        lost_stamps_are_counted(&nics)?;
        late_stamps_find_their_probe(&nics)?;
    }
    reflector.end()?;

    let reflector = Reflector::start(&nics, "--ethernet -i lpn1")?;
    round_trips_are_exact(&nics, probes, MAC, "-i lpn0")?;
    reflector.end().map(drop)
}

fn round_trips_are_exact(nics: &StampingNics, probes: u64, target: &str, words: &str) -> Outcome {
    let log = format!("/tmp/latpath-lab-ping-{probes}.csv");
    let _ = fs::remove_file(&log);
    let session = Session::run_to(nics, target, &format!("{words} --count {probes} --log {log}"))?;
    session.expect_answered(probes)?;
    session.expect_undisturbed()?;
    session.expect_parts_to_add_up()?;
    for name in ["wire there", "wire back"] {
        let (min, max, bound) = session.extremes(name)?;
        ensure!((min, max, bound) == (WIRE_NS, WIRE_NS, 0), "{name} takes {min} to {max} ns, wrong by {bound}");
    }
    ensure!(session.json()["missing"] == serde_json::json!([]), "missing: {}", session.json()["missing"]);
    // Nothing is handed over before it is stamped.
    for part in session.json()["parts"].as_array().context("no parts")? {
        ensure!(part["count"] == probes && part["negative"] == 0, "{part}");
    }
    let all = logged(&fs::read_to_string(&log)?)?;
    ensure!(all.len() as u64 == probes, "{} transactions are logged", all.len());
    for one in all {
        let wires = [one.between("t1_nic", "t2_nic")?, one.between("t3_nic", "t4_nic")?];
        ensure!(wires == [Some(WIRE_NS); 2], "wires of {wires:?}");
        let (round_trip, turnaround) = (one.between("t1_nic", "t4_nic")?, one.between("t2_nic", "t3_nic")?);
        ensure!(round_trip.zip(turnaround).is_some_and(|(r, t)| r - t == 2 * WIRE_NS), "{round_trip:?} {turnaround:?}");
    }
    // What was switched on is off again.
    let said = nics.run(0, "hwstamp_ctl -i lpn0")?;
    ensure!(said.contains("tx_type 0\nrx_filter 0"), "stamping was left on: {said}");
    Ok(())
}

fn lost_stamps_are_counted(nics: &StampingNics) -> Outcome {
    for (parameter, value, stamp) in [
        ("tx_lost", "1,0", "t1_nic"),
        ("tx_zero", "1,0", "t1_nic"),
        ("tx_late_ms", "5000,0", "t1_nic"),
        ("rx_lost", "0,1", "t2_nic"),
        ("tx_lost", "0,1", "t3_nic"),
        ("rx_lost", "1,0", "t4_nic"),
    ] {
        nics.set(parameter, value)?;
        let session = Session::run(nics, "--count 40")?;
        nics.set(parameter, "0,0")?;
        session.expect_answered(40)?;
        let missing = &session.json()["missing"];
        let only_it = missing.as_array().is_some_and(|all| all.len() == 1) && session.missing(stamp) == 40;
        ensure!(only_it, "{parameter} {value}: missing {missing}");
        ensure!(session.json()["counts"]["incomplete"] == 40, "{}", session.json()["counts"]);
    }

    // Some of them: the rest is as it was.
    nics.set("tx_lost", "4,0")?;
    let before = nics.count(0, "tx_stamps_lost")?;
    let session = Session::run(nics, "--count 200")?;
    let lost = nics.count(0, "tx_stamps_lost")? - before;
    nics.set("tx_lost", "0,0")?;
    let missing = session.missing("t1_nic");
    // Those of hellos were lost too.
    ensure!((40..=lost).contains(&missing), "{missing} are missing, {lost} were lost");
    let (min, max, _) = session.extremes("wire there")?;
    ensure!((min, max) == (WIRE_NS, WIRE_NS), "the wire takes {min} to {max} ns");
    ensure!(session.part("wire there")?["count"] == 200 - missing, "{}", session.part("wire there")?);

    nics.set("tx_lost", "1,1")?;
    nics.set("rx_lost", "1,1")?;
    let session = Session::run(nics, "--count 40")?;
    for stamp in ["t1_nic", "t2_nic", "t3_nic", "t4_nic"] {
        ensure!(session.missing(stamp) == 40, "not all of {stamp} are missing: {}", session.json()["missing"]);
    }
    nics.set("tx_lost", "0,0")?;
    nics.set("rx_lost", "0,0")
}

fn late_stamps_find_their_probe(nics: &StampingNics) -> Outcome {
    nics.set("tx_late_ms", "40,40")?;
    let session = Session::run(nics, "--count 50 --rate 100")?;
    nics.set("tx_late_ms", "0,0")?;
    session.expect_answered(50)?;
    ensure!(session.missing("t1_nic") == 0, "missing: {}", session.json()["missing"]);
    let (min, max, _) = session.extremes("wire there")?;
    ensure!((min, max) == (WIRE_NS, WIRE_NS), "the wire takes {min} to {max} ns");
    // The reflector sends them with a later answer.
    let (min, max, _) = session.extremes("wire back")?;
    ensure!((min, max) == (WIRE_NS, WIRE_NS), "the wire back takes {min} to {max} ns");
    Ok(())
}
