//! Messages that are lost, duplicated, late, out of order or foreign.

use crate::run::{at_a_rate, by_chance, one_by_one, Fault, Run, LONG, MS};
use crate::wire::{Fate, PHC_AHEAD};
use latpath_ping::emit::{EndReason, Pacing};
use latpath_ping::table::End;
use latpath_ping::wire::{Header, Kind};
use latpath_ping::Stamp;
use proptest::prelude::*;

fn another_version() -> Vec<u8> {
    let mut message = vec![0; 96];
    Header { kind: Kind::Answer, session: 0x1234_5678, sequence: 3, first: 4, second: 5 }.write(&mut message);
    message[2] = 9;
    message
}

#[test]
fn over_a_wire_without_faults_every_probe_is_answered_with_every_stamp() {
    for plan in [one_by_one(500), at_a_rate(2_000)] {
        let outcome = Run::new(plan).go();
        outcome.adds_up();
        let c = outcome.ended.counts;
        assert_eq!(outcome.ended.why, Ok(EndReason::Done));
        assert_eq!((c.duplicates, c.foreign, c.refused), (0, 0, 0));
        // The bound allows for stamps that a busy machine delays.
        assert!(c.incomplete * 10 < c.sent, "{c:?}");
        assert_eq!(outcome.taken, (1 << 14) - 1, "all fourteen stamps");
        assert_eq!(outcome.report.segments.len(), 7);
        assert_eq!((outcome.report.detail.len(), outcome.report.unplaced), (13, 0));
        for t in outcome.answered() {
            for stamp in [Stamp::T1Nic, Stamp::T2Nic, Stamp::T3Nic, Stamp::T4Nic] {
                let placed = t.raw.get(stamp).map(|time| time - PHC_AHEAD);
                assert_eq!(t.mapped.get(stamp), placed, "{} of probe {}", stamp.name(), t.sequence);
            }
        }
    }
}

#[test]
fn losses_of_one_percent_are_counted_with_their_direction() {
    let run = Run::new(at_a_rate(3_000));
    run.wire.there(by_chance(1, &[Fault(10, || Fate::Lost)]));
    run.wire.back(by_chance(2, &[Fault(10, || Fate::Lost)]));
    let outcome = run.go();
    outcome.adds_up();
    let there = outcome.report.lost_there.unwrap();
    let back = outcome.report.lost_back.unwrap();
    assert!(there > 0 && back > 0, "{there} and {back}");
    assert_eq!(there + back, outcome.ledger.lost);
}

#[test]
fn one_by_one_a_lost_probe_delays_the_next_by_its_timeout_at_most() {
    let mut run = Run::new(one_by_one(400));
    run.plan.lost_after = 20 * MS;
    run.wire.there(by_chance(3, &[Fault(20, || Fate::Lost)]));
    let outcome = run.go();
    outcome.adds_up();
    assert!(outcome.ledger.lost > 0);
    assert_eq!(outcome.report.lost_there, Some(outcome.ledger.lost));
}

#[test]
fn a_duplicated_probe_is_answered_once() {
    let run = Run::new(at_a_rate(3_000));
    run.wire.there(by_chance(4, &[Fault(30, || Fate::Twice)]));
    run.wire.back(by_chance(5, &[Fault(30, || Fate::Twice)]));
    let outcome = run.go();
    outcome.adds_up();
    let seen = outcome.ended.seen.unwrap();
    assert!(seen.duplicates > 0 && outcome.ended.counts.duplicates > seen.duplicates);
}

#[test]
fn reordering_is_counted_in_its_direction() {
    let run = Run::new(at_a_rate(3_000));
    run.wire.there(by_chance(6, &[Fault(30, || Fate::Overtaken)]));
    let outcome = run.go();
    outcome.adds_up();
    let there = outcome.ended.seen.unwrap().reordered;
    assert!(there > 0);
    let run = Run::new(at_a_rate(3_000));
    run.wire.back(by_chance(7, &[Fault(30, || Fate::Overtaken)]));
    let outcome = run.go();
    outcome.adds_up();
    assert_eq!(outcome.ended.seen.unwrap().reordered, 0);
    assert!(outcome.ended.counts.reordered > 0);
}

#[test]
fn an_answer_after_the_timeout_is_late_and_its_probe_remains_lost() {
    let mut run = Run::new(at_a_rate(4_000));
    run.plan.lost_after = 60 * MS;
    run.wire.back(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Answer && h.sequence == 5 => Fate::Held,
        _ => Fate::Comes,
    });
    run.on_closed = Box::new(|wire, t, end| {
        if t.sequence == 5 {
            assert_eq!(end, End::Lost);
            wire.release();
        }
    });
    let outcome = run.go();
    outcome.adds_up();
    assert!(outcome.ended.counts.late >= 1);
    assert!(outcome.ledger.back.contains(&5));
}

#[test]
fn an_answer_whose_entry_was_reused_is_foreign() {
    let mut run = Run::new(at_a_rate(20_000));
    // With a timeout of 1 ms, the table holds 2048 probes: this run wraps around several times.
    run.plan.lost_after = MS;
    run.wire.back(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Answer && h.sequence == 5 => Fate::Held,
        _ => Fate::Comes,
    });
    run.on_closed = Box::new(|wire, t, _| {
        if t.sequence == 10_000 {
            wire.release();
        }
    });
    let outcome = run.go();
    let (c, ledger) = (outcome.ended.counts, &outcome.ledger);
    assert!(ledger.back.contains(&5));
    assert!(c.foreign >= 1);
    assert_eq!((c.sent, c.answered + c.lost), (20_000, 20_000));
    assert_eq!(
        c.answered + c.late + c.duplicates + c.foreign,
        ledger.back.len() as u64,
        "nothing that came is left out"
    );
    outcome.stamps_add_up();
}

#[test]
fn a_full_table_gives_up_no_probe_early() {
    let mut run = Run::new(at_a_rate(5_000));
    run.plan.pacing = Pacing::Every("20000".parse().unwrap());
    run.plan.lost_after = 100 * MS;
    // No answer arrives: if the emitter did not wait, more probes would be pending than the table can hold.
    run.wire.back(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Answer => Fate::Lost,
        _ => Fate::Comes,
    });
    let outcome = run.go();
    outcome.adds_up();
    assert_eq!((outcome.ended.counts.sent, outcome.ended.counts.lost), (5_000, 5_000));
    assert_eq!(outcome.report.lost_back, Some(5_000));
}

#[test]
fn bytes_of_others_and_other_versions_are_foreign_and_do_no_harm() {
    let mut run = Run::new(at_a_rate(2_000));
    run.plan.lost_after = LONG;
    let faults = |seed| {
        let junk: fn() -> Fate = || Fate::And((0..200u8).collect());
        by_chance(
            seed,
            &[Fault(30, || Fate::And(another_version())), Fault(30, junk), Fault(30, || Fate::And(Vec::new()))],
        )
    };
    run.wire.there(faults(8));
    run.wire.back(faults(9));
    let outcome = run.go();
    outcome.adds_up();
    assert_eq!(outcome.ended.counts.lost, 0);
    assert!(outcome.ledger.foreign_there > 0 && outcome.ledger.foreign_back > 0);
}

#[test]
fn an_answer_of_another_length_or_session_is_foreign() {
    let run = Run::new(at_a_rate(500));
    run.wire.back(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Answer && h.sequence == 7 => Fate::And(message[..95].to_vec()),
        Some(h) if h.kind == Kind::Answer && h.sequence == 8 => {
            let mut other = message.clone();
            Header { session: 1, ..h }.write(&mut other);
            Fate::And(other)
        }
        _ => Fate::Comes,
    });
    let outcome = run.go();
    let c = outcome.ended.counts;
    assert_eq!((c.foreign, c.duplicates, c.answered + c.lost), (2, 0, 500));
}

#[test]
fn lost_hellos_are_sent_again() {
    let run = Run::new(at_a_rate(500));
    let mut n = 0;
    run.wire.there(move |message| {
        let hello = Header::read(message).is_some_and(|h| h.kind == Kind::Hello);
        n += u32::from(hello);
        if hello && n % 3 == 1 {
            Fate::Lost
        } else {
            Fate::Comes
        }
    });
    let outcome = run.go();
    outcome.adds_up();
}

#[test]
fn late_duplicated_and_overtaken_welcomes_are_used() {
    let run = Run::new(at_a_rate(500));
    let mut n = 0;
    run.wire.back(move |message| match Header::read(message) {
        Some(h) if h.kind == Kind::Welcome => {
            n += 1;
            // Each overtaken welcome arrives after the next message, which at the end of the run is the next welcome.
            if n % 3 == 0 {
                Fate::Twice
            } else {
                Fate::Overtaken
            }
        }
        _ => Fate::Comes,
    });
    let outcome = run.go();
    outcome.adds_up();
    assert_eq!(outcome.ended.restarts, 0);
}

#[test]
fn welcomes_that_are_one_hello_late_still_report_the_reflectors_counts() {
    let run = Run::new(at_a_rate(500));
    run.wire.back(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Welcome => Fate::Overtaken,
        _ => Fate::Comes,
    });
    run.go().adds_up();
}

#[test]
fn warm_up_probes_and_their_late_answers_do_not_count() {
    let mut run = Run::new(at_a_rate(500));
    run.plan.warm_up = 300;
    run.plan.lost_after = 50 * MS;
    run.wire.back(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Answer && h.sequence == 299 => Fate::Held,
        _ => Fate::Comes,
    });
    run.on_closed = Box::new(|wire, t, _| {
        if t.sequence == 300 {
            wire.release();
        }
    });
    let outcome = run.go();
    let c = outcome.ended.counts;
    assert!(outcome.ledger.back.contains(&299));
    assert_eq!((c.sent, c.answered + c.lost), (500, 500));
    let of_these = outcome.ledger.back.iter().filter(|s| **s >= 300).count() as u64;
    assert_eq!(
        c.answered + c.late,
        of_these,
        "the answer to probe 299 came when nothing of the warm-up counts any more"
    );
    assert_eq!(outcome.ended.seen.unwrap().received, 500);
    assert_eq!(outcome.report.round_trip.count, c.answered);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 16, ..ProptestConfig::default() })]

    #[test]
    fn on_any_wire_each_probe_is_accounted_for_and_segments_sum_to_round_trips(
        seed: u64, lost in 0u32..150, twice in 0u32..150, overtaken in 0u32..150, foreign in 0u32..150, one_way: bool
    ) {
        let mut run = Run::new(at_a_rate(600));
        run.plan.lost_after = 100 * MS;
        let what = [
            Fault(lost, || Fate::Lost),
            Fault(twice, || Fate::Twice),
            Fault(overtaken, || Fate::Overtaken),
            Fault(foreign, || Fate::And(another_version())),
        ];
        run.wire.there(by_chance(seed, &what));
        if !one_way {
            run.wire.back(by_chance(!seed, &what));
        }
        run.go().adds_up();
    }
}
