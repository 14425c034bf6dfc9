//! `latpath ping` between NICs whose stamps are known: round trips in NIC time are exact; lost, late or zero stamps are
//! counted as missing, never waited for, and never assigned to another probe.

use crate::{
    linked::{plain, ADDRESSES},
    pinging::{logged, Reflector, Session},
    stamping::StampingNics,
    Outcome, Scale, Test,
};
use anyhow::ensure;
use latpath_ping::{document::SessionDocument, Stamp};
use latpath_testkit::waits::until;
use std::{fs, time::Duration};

pub const TEST: Test = Test { name: "ping_hardware", smoke: false, only_whole: false, seconds: 200, run };

const WIRE_NS: i64 = 20_000;
/// MAC address of lpn1 (crates/lab/module/nics.c).
const MAC: &str = "02:6c:70:6e:00:01";

fn run(scale: &Scale) -> Outcome {
    let nics = StampingNics::load(&format!("wire_ns={WIRE_NS}"))?;
    let reflector = Reflector::start(&nics, &format!("--bind {}", ADDRESSES[1]))?;
    let probes = scale.frames(100, 1000);
    round_trips_are_exact(&nics, probes, &ADDRESSES[1].to_string(), "")?;
    if scale.whole {
        a_nic_that_fails_from_the_start_is_done_without(&nics)?;
        stamps_lost_on_the_way_are_counted(&nics)?;
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
    let report = &session.0.report;
    ensure!(report.missing.is_empty(), "missing: {:?}", report.missing);
    // No frame is forwarded before it is stamped, so no time is negative.
    for part in &report.segments {
        ensure!(part.times.count == probes && part.times.negative == 0, "{part:?}");
    }
    let all = logged(&fs::read_to_string(&log)?)?;
    ensure!(all.len() as u64 == probes, "{} transactions are logged", all.len());
    for one in all {
        let wires = [one.between("t1_nic", "t2_nic")?, one.between("t3_nic", "t4_nic")?];
        ensure!(wires == [Some(WIRE_NS); 2], "wires of {wires:?}");
        let (round_trip, turnaround) = (one.between("t1_nic", "t4_nic")?, one.between("t2_nic", "t3_nic")?);
        ensure!(round_trip.zip(turnaround).is_some_and(|(r, t)| r - t == 2 * WIRE_NS), "{round_trip:?} {turnaround:?}");
    }
    // The run has switched stamping off again.
    let said = nics.run(0, "hwstamp_ctl -i lpn0")?;
    ensure!(said.contains("tx_type 0\nrx_filter 0"), "stamping was left on: {said}");
    Ok(())
}

/// A stamp that already fails before the run is detected by a trial, and not used.
fn a_nic_that_fails_from_the_start_is_done_without(nics: &StampingNics) -> Outcome {
    for (parameter, value, said, lacking) in [
        ("tx_lost", "1,0", "packets sent", &[Stamp::T1Nic][..]),
        ("tx_zero", "1,0", "packets sent", &[Stamp::T1Nic]),
        ("tx_late_ms", "5000,0", "packets sent", &[Stamp::T1Nic]),
        ("frozen", "1,1", "clock", &[Stamp::T1Nic, Stamp::T4Nic]),
    ] {
        nics.set(parameter, value)?;
        let session = Session::run(nics, "--count 40");
        nics.set(parameter, "0,0")?;
        let session = session?;
        session.expect_answered(40)?;
        let SessionDocument { stamps, notes, report, .. } = &session.0;
        ensure!(notes.iter().any(|note| note.contains(said)), "{parameter} {value}: it says {notes:?}");
        for stamp in lacking {
            ensure!(!stamps.contains(stamp), "{parameter} {value}: {stamp:?} is asked for: {stamps:?}");
        }
        // Another stamp replaces the missing one, so that all parts have times.
        session.expect_parts_to_add_up()?;
        ensure!(report.counts.incomplete == 0, "{parameter} {value}: {:?}", report.missing);
    }
    Ok(())
}

/// Stamps that fail during the run are counted; everything else is unaffected.
fn stamps_lost_on_the_way_are_counted(nics: &StampingNics) -> Outcome {
    for (parameter, value, lacking) in [
        ("tx_lost", "1,0", &[Stamp::T1Nic][..]),
        ("tx_lost", "3,0", &[Stamp::T1Nic]),
        ("tx_zero", "1,0", &[Stamp::T1Nic]),
        ("tx_late_ms", "5000,0", &[Stamp::T1Nic]),
        ("rx_lost", "0,1", &[Stamp::T2Nic]),
        ("tx_lost", "0,1", &[Stamp::T3Nic]),
        ("rx_lost", "1,0", &[Stamp::T4Nic]),
        ("tx_lost", "1,1", &[Stamp::T1Nic, Stamp::T3Nic]),
    ] {
        let running = Session::start(nics, "--count 300 --rate 150")?;
        let before = nics.count(0, "tx_stamps")?;
        let begun = || nics.count(0, "tx_stamps").is_ok_and(|stamps| stamps >= before + 80);
        until("80 stamps are taken", begun).map_err(plain)?;
        nics.set(parameter, value)?;
        // Duration of the fault.
        latpath_testkit::waits::fault_for(Duration::from_millis(500));
        nics.set(parameter, "0,0")?;
        let session = Session::of(running)?;
        session.expect_answered(300)?;
        session.expect_parts_to_add_up()?;
        let missing = &session.0.report.missing;
        let some = missing.iter().all(|missing| lacking.contains(&missing.stamp) && (1..300).contains(&missing.count));
        ensure!(some && missing.len() == lacking.len(), "{parameter} {value}: missing {missing:?}");
        let wires = [("wire there", [Stamp::T1Nic, Stamp::T2Nic]), ("wire back", [Stamp::T3Nic, Stamp::T4Nic])];
        for (wire, ends) in wires {
            let (min, max, _) = session.extremes(wire)?;
            ensure!((min, max) == (WIRE_NS, WIRE_NS), "{parameter} {value}: {wire} takes {min} to {max} ns");
            let lost: u64 = ends.iter().map(|stamp| session.missing(*stamp)).sum();
            let part = session.part(wire)?;
            ensure!(part.times.count == 300 - lost, "{parameter} {value}: {part:?}");
        }
    }
    Ok(())
}

fn late_stamps_find_their_probe(nics: &StampingNics) -> Outcome {
    nics.set("tx_late_ms", "40,40")?;
    let session = Session::run(nics, "--count 50 --rate 100")?;
    nics.set("tx_late_ms", "0,0")?;
    session.expect_answered(50)?;
    ensure!(session.missing(Stamp::T1Nic) == 0, "missing: {:?}", session.0.report.missing);
    let (min, max, _) = session.extremes("wire there")?;
    ensure!((min, max) == (WIRE_NS, WIRE_NS), "the wire takes {min} to {max} ns");
    // The reflector sends late stamps with a later reply.
    let (min, max, _) = session.extremes("wire back")?;
    ensure!((min, max) == (WIRE_NS, WIRE_NS), "the wire back takes {min} to {max} ns");
    Ok(())
}
