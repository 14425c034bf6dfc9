//! How a run ends: the peer dies, restarts or never existed; the kernel refuses messages; the device vanishes.

use crate::run::{at_a_rate, one_by_one, Run, LONG, MS};
use crate::wire::{Fate, StampFate, WireError};
use latpath_ping::emit::{EndReason, Pacing, Plan};
use latpath_ping::wire::{Header, Kind};
use latpath_ping::Stamp;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn is(message: &[u8], kind: Kind) -> bool {
    Header::read(message).is_some_and(|h| h.kind == kind)
}

/// A plan with probes at this rate, per second.
fn every(rate: &str, plan: Plan) -> Plan {
    Plan { pacing: Pacing::Every(rate.parse().expect("a rate")), ..plan }
}

#[test]
fn a_reflector_that_dies_ends_the_run_and_keeps_its_results() {
    let dies = |plan: Plan, says| {
        let run = Run::new(Plan { timeout: LONG, lost_after: LONG, ..plan });
        run.wire.reflector_lives_for(300, says);
        let outcome = run.go();
        assert_eq!(outcome.ended.why, Ok(EndReason::Dead));
        outcome.emitters_counts_add_up();
        assert_eq!(outcome.ended.counts.answered + outcome.ended.counts.late, 299);
        assert_eq!(outcome.ended.seen, None, "what it said last is not what it saw");
        assert_eq!((outcome.report.lost_there, outcome.report.lost_back), (None, None));
    };
    // Run concurrently, because each run waits for its timeout.
    thread::scope(|scope| {
        scope.spawn(|| dies(every("2000", one_by_one(1_000_000)), false));
        scope.spawn(|| dies(one_by_one(1_000_000), true));
    });
}

#[test]
fn a_restarted_reflector_answers_and_its_lost_counts_are_not_invented() {
    let mut run = Run::new(every("1000", one_by_one(2_400)));
    run.plan.lost_after = LONG;
    run.wire.reflector_lives_for(300, false);
    let wire = Arc::clone(&run.wire);
    run.on_probes_stamp = Some(Box::new(move |_, h| {
        if h.sequence == 400 {
            wire.revive();
        }
        StampFate::Comes
    }));
    let outcome = run.go();
    outcome.emitters_counts_add_up();
    assert_eq!(outcome.ended.why, Ok(EndReason::Done));
    // The next hello, at the latest after a second, makes the session known to the new reflector.
    assert!(outcome.ended.counts.answered > 800, "{:?}", outcome.ended.counts);
    assert!(outcome.closed.iter().rev().take(500).any(|(_, end)| *end == latpath_ping::table::End::Answered));
    assert_eq!(outcome.ended.seen, None);
    assert_eq!(outcome.ended.restarts, 1);
}

#[test]
fn a_paused_emitter_does_not_declare_the_reflector_dead() {
    // Once without pending probes, and once just after a probe was lost.
    let stands_still = |lost: bool| {
        let long = || latpath_testkit::waits::fault_for(Duration::from_nanos(LONG as u64 * 6 / 5));
        let mut run = Run::new(Plan { timeout: LONG, lost_after: 50 * MS, ..every("100", one_by_one(30)) });
        run.wire.there(move |message| match Header::read(message) {
            Some(h) if lost && h.kind == Kind::Probe && h.sequence == 9 => Fate::Lost,
            _ => Fate::Comes,
        });
        run.on_probes_stamp = Some(Box::new(move |stamp, h| {
            if lost && h.sequence == 10 && stamp == Stamp::T1Nic {
                long();
            }
            StampFate::Comes
        }));
        run.on_closed = Box::new(move |_, t, _| {
            if !lost && t.sequence == 10 {
                long();
            }
        });
        let outcome = run.go();
        assert_eq!(outcome.ended.why, Ok(EndReason::Done), "{:?}", outcome.ended.counts);
        assert_eq!(outcome.ended.counts.sent, 30);
    };
    thread::scope(|scope| {
        scope.spawn(|| stands_still(false));
        scope.spawn(|| stands_still(true));
    });
}

#[test]
fn a_kernel_that_refuses_the_last_probes_is_not_called_in_a_busy_loop() {
    let mut run = Run::new(at_a_rate(100));
    run.takes = Vec::new();
    let refused = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&refused);
    let mut last = false;
    run.wire.there(move |message| {
        last |= Header::read(message).is_some_and(|h| h.kind == Kind::Probe && h.sequence == 99);
        if last && is(message, Kind::Hello) {
            count.fetch_add(1, Ordering::Relaxed);
            return Fate::Refused;
        }
        Fate::Comes
    });
    let outcome = run.go();
    assert_eq!((outcome.ended.why, outcome.ended.seen), (Ok(EndReason::Done), None));
    // There is one attempt per millisecond while the last answers are pending, then one per 100 ms.
    let refused = refused.load(Ordering::Relaxed);
    assert!((1..1_000).contains(&refused), "{refused}");
}

#[test]
fn waiting_for_an_answer_sleeps_after_the_probes_stamps_have_arrived() {
    let mut run = Run::new(one_by_one(10));
    run.plan.timeout = 450 * MS;
    run.wire.there(|_| Fate::Lost);
    let outcome = run.go();
    assert_eq!(outcome.ended.why, Ok(EndReason::NobodyAnswers));
    let (hellos, ended) = (outcome.ledger.hellos, outcome.ledger.waits_ended);
    assert!(hellos >= 2 && ended <= 2 * hellos, "{ended} waits of {hellos} hellos were ended");
}

#[test]
fn no_listener_and_no_answer_are_distinguished() {
    for (says, why) in [(true, EndReason::NobodyListens), (false, EndReason::NobodyAnswers)] {
        let mut run = Run::new(one_by_one(10));
        run.plan.timeout = 150 * MS;
        run.wire.reflector_lives_for(0, says);
        let outcome = run.go();
        assert_eq!(outcome.ended.why, Ok(why));
        assert_eq!(outcome.ended.counts.sent, 0);
    }
}

#[test]
fn a_reflector_of_another_version_is_named() {
    let mut run = Run::new(one_by_one(10));
    run.plan.timeout = LONG;
    run.wire.back(|message| {
        message[2] = 7;
        Fate::Comes
    });
    assert_eq!(run.go().ended.why, Ok(EndReason::OtherVersion(7)));
}

#[test]
fn refused_probes_are_counted_apart_from_sent_ones() {
    for pacing in [Pacing::AsAnswersCome, at_a_rate(1).pacing, Pacing::Flood] {
        let mut run = Run::new(at_a_rate(300));
        run.plan.pacing = pacing;
        let mut n = 0;
        run.wire.there(move |message| {
            n += u32::from(is(message, Kind::Probe));
            if is(message, Kind::Probe) && n % 4 == 0 {
                Fate::Refused
            } else {
                Fate::Comes
            }
        });
        let outcome = run.go();
        outcome.adds_up();
        let c = outcome.ended.counts;
        assert_eq!((c.sent, c.refused), (300, 99), "every fourth of 399");
    }
}

#[test]
fn at_a_rate_a_refused_probe_is_not_retried() {
    let mut run = Run::new(at_a_rate(400));
    run.plan.pacing = Pacing::Every("2000".parse().unwrap());
    run.plan.count = None;
    run.plan.duration = Some(200 * MS);
    // The kernel refuses all probes except the first 20.
    run.wire.there(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Probe && h.sequence >= 20 => Fate::Refused,
        _ => Fate::Comes,
    });
    let outcome = run.go();
    let c = outcome.ended.counts;
    assert!(c.sent <= 20 && c.refused > 0, "{c:?}");
    assert!(c.sent + c.refused <= 401, "one try for each time at which a probe was due, not {}", c.refused);
}

#[test]
fn a_kernel_that_refuses_everything_ends_the_run() {
    let mut run = Run::new(one_by_one(10));
    run.plan.timeout = 150 * MS;
    run.wire.there(|_| Fate::Refused);
    assert_eq!(run.go().ended.why, Ok(EndReason::NobodyAnswers));
    // Run concurrently, because each run waits for its timeout.
    thread::scope(|scope| {
        for pacing in [Pacing::AsAnswersCome, at_a_rate(1).pacing, Pacing::Flood] {
            scope.spawn(move || {
                let run = Run::new(Plan { pacing, timeout: LONG, ..at_a_rate(1_000) });
                run.wire.there(|message| if is(message, Kind::Probe) { Fate::Refused } else { Fate::Comes });
                let outcome = run.go();
                assert!(matches!(outcome.ended.why, Ok(EndReason::Dead)), "{:?}", outcome.ended.why);
                assert_eq!(outcome.ended.counts.sent, 0);
            });
        }
    });
}

#[test]
fn answers_that_the_reflectors_kernel_refuses_are_lost_after_the_reflector() {
    let run = Run::new(at_a_rate(500));
    run.wire.back(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Answer && h.sequence % 5 == 0 => Fate::Refused,
        _ => Fate::Comes,
    });
    let outcome = run.go();
    outcome.adds_up();
    assert_eq!(outcome.ended.seen.unwrap().refused, 100);
    assert_eq!((outcome.report.lost_there, outcome.report.lost_back), (Some(0), Some(100)));
}

#[test]
fn a_vanished_device_ends_the_run_with_its_results() {
    let mut run = Run::new(Plan { lost_after: LONG, ..at_a_rate(1_000_000) });
    run.on_closed = Box::new(|wire, t, _| {
        if t.sequence == 300 {
            wire.take_device_away();
        }
    });
    let outcome = run.go();
    assert_eq!(outcome.ended.why, Err(WireError::Gone.to_string()));
    outcome.emitters_counts_add_up();
    assert!(outcome.ended.counts.answered >= 300);
    assert_eq!(outcome.ended.seen, None);
}

#[test]
fn a_breach_is_reported_at_once_to_both_ends_and_stops_the_run() {
    for stops in [true, false] {
        let mut run = Run::new(one_by_one(200));
        (run.plan.threshold, run.plan.stop_on_breach, run.plan.lost_after) = (Some(1), stops, LONG);
        run.figures.threshold = Some(1);
        let outcome = run.go();
        outcome.adds_up();
        let breaches: Vec<u64> = outcome.breaches.iter().map(|t| t.sequence).collect();
        assert_eq!(outcome.reported, breaches, "the reflector hears of the same ones");
        assert!(outcome.breaches.iter().all(|t| t.round_trip() > Some(1)));
        match stops {
            true => {
                assert_eq!(outcome.ended.why, Ok(EndReason::Breach));
                assert_eq!((breaches, outcome.report.over_threshold), (vec![0], 1));
            }
            false => {
                assert_eq!(outcome.ended.why, Ok(EndReason::Done));
                assert_eq!((breaches.len(), outcome.report.over_threshold), (200, 200));
            }
        }
    }
}

#[test]
fn a_breach_during_the_warm_up_does_not_count() {
    let mut run = Run::new(Plan { lost_after: LONG, ..one_by_one(5) });
    (run.plan.threshold, run.plan.stop_on_breach, run.plan.warm_up) = (Some(1), true, 50);
    let outcome = run.go();
    assert_eq!(outcome.breaches.iter().map(|t| t.sequence).collect::<Vec<_>>(), [50]);
}

#[test]
fn a_run_with_a_duration_ends_on_time_with_any_pacing() {
    for pacing in [Pacing::AsAnswersCome, at_a_rate(1).pacing, Pacing::Flood] {
        let mut run = Run::new(at_a_rate(1));
        (run.plan.pacing, run.plan.count, run.plan.duration) = (pacing, None, Some(100 * MS));
        let outcome = run.go();
        assert_eq!(outcome.ended.why, Ok(EndReason::Done));
        assert!(outcome.ended.counts.sent > 0 && outcome.ended.elapsed >= 100 * MS);
    }
}

#[test]
fn spinning_does_not_change_the_counts() {
    let mut run = Run::new(one_by_one(300));
    (run.plan.spin, run.plan.lost_after) = (true, LONG);
    let outcome = run.go();
    outcome.adds_up();
    assert_eq!(outcome.ended.counts.answered, 300);
}
