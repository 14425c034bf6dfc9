//! Stamps that are missing, late, duplicated, foreign or wrong, as from real kernels, drivers and NICs.

use crate::run::{at_a_rate, one_by_one, Chance, Outcome, Run, LONG, MS};
use crate::wire::{realtime_at, Fate, OnStamp, StampFate, PHC_AHEAD};
use latpath_model::Ns;
use latpath_ping::emit::{EndReason, Pacing};
use latpath_ping::timeline::Relation;
use latpath_ping::wire::{Answer, Header, Kind, Welcome, LATE_STAMPS};
use latpath_ping::{Source, Stamp, Transaction};
use proptest::prelude::*;
use std::sync::atomic::Ordering;
use std::sync::Arc;

fn of_probes(count: u64, fate: impl FnMut(Stamp, &Header) -> StampFate + Send + 'static) -> Outcome {
    let mut run = Run::new(at_a_rate(count));
    run.plan.lost_after = LONG;
    run.on_probes_stamp = Some(Box::new(fate));
    let outcome = run.go();
    outcome.adds_up();
    assert_eq!(outcome.ended.why, Ok(EndReason::Done));
    outcome
}

#[test]
fn a_stamp_that_never_arrives_is_missing_and_delays_nothing() {
    let outcome = of_probes(1_000, |stamp, h| match stamp {
        Stamp::T1Nic if h.sequence % 10 == 0 => StampFate::Never,
        _ => StampFate::Comes,
    });
    assert_eq!(
        outcome.answered().filter(|t| t.raw.get(Stamp::T1Nic).is_none()).count() as u64,
        missing(&outcome, Stamp::T1Nic)
    );
    assert!(missing(&outcome, Stamp::T1Nic) > 0);
    assert!(outcome
        .report
        .segments
        .iter()
        .any(|p| p.from == Stamp::T1Nic && p.times.count == outcome.with(Stamp::T1Nic)));
}

#[test]
fn missing_stamps_do_not_displace_others_with_any_timeout() {
    // More probes than the table can hold, within a time shorter than the timeout of answers.
    for pacing in [Pacing::AsAnswersCome, Pacing::Flood] {
        let mut run = Run::new(one_by_one((1 << 16) + 5_000));
        (run.plan.pacing, run.plan.lost_after) = (pacing, 25_000 * MS);
        run.takes = vec![Stamp::T1Nic];
        run.on_probes_stamp = Some(Box::new(|_, h| if h.sequence == 0 { StampFate::Never } else { StampFate::Comes }));
        let outcome = run.go();
        outcome.adds_up();
        assert_eq!(outcome.ended.why, Ok(EndReason::Done));
        assert_eq!((outcome.ended.counts.lost, missing(&outcome, Stamp::T1Nic)), (0, 1));
    }
}

#[test]
fn a_nic_without_its_promised_stamps_leaves_every_round_trip_measured() {
    for plan in [at_a_rate(500), one_by_one(200)] {
        let mut run = Run::new(plan);
        run.plan.lost_after = 50 * MS;
        run.on_probes_stamp = Some(none_of_the_nic());
        run.on_answers_stamp = Some(none_of_the_nic());
        let outcome = run.go();
        outcome.adds_up();
        let answered = outcome.ended.counts.answered;
        assert_eq!(outcome.report.round_trip.count, answered);
        assert_eq!((missing(&outcome, Stamp::T1Nic), missing(&outcome, Stamp::T3Nic)), (answered, answered));
        assert_eq!(outcome.ended.counts.incomplete, answered);
        assert_eq!(outcome.report.nic_round_trip, None);
    }
}

fn none_of_the_nic() -> OnStamp {
    Box::new(|stamp, _| if stamp == Stamp::T1Nic { StampFate::Never } else { StampFate::Comes })
}

fn missing(outcome: &Outcome, stamp: Stamp) -> u64 {
    outcome.report.missing.iter().find(|m| m.stamp == stamp).map_or(0, |m| m.count)
}

#[test]
fn a_late_stamp_joins_its_transaction_while_that_is_open() {
    // The stamp arrives sixteen probes later, long after the answer.
    let outcome =
        of_probes(1_000, |stamp, _| if stamp == Stamp::T1Driver { StampFate::After(16) } else { StampFate::Comes });
    let lack: Vec<u64> =
        outcome.answered().filter(|t| t.raw.get(Stamp::T1Driver).is_none()).map(|t| t.sequence).collect();
    // Hellos follow the last probes and bring the last stamps; on a busy machine, the run may close some probes
    // earlier.
    assert!(lack.len() < 500, "{lack:?}");
}

#[test]
fn of_two_stamps_the_first_counts() {
    let outcome = of_probes(500, |_, _| StampFate::Twice);
    for t in outcome.answered() {
        let late = t.raw.between(Stamp::T1App, Stamp::T1Driver).map(|d| d >= MS);
        assert!(
            late.is_none_or(|late| !late) || t.round_trip() > Some(MS),
            "the second one came 1 ms after the first: {t:?}"
        );
    }
}

#[test]
fn stamps_of_messages_that_were_never_sent_are_ignored() {
    let outcome = of_probes(500, |stamp, h| match stamp {
        Stamp::T1Nic if h.sequence % 3 == 0 => StampFate::AndUnknown,
        _ => StampFate::Comes,
    });
    assert_eq!(outcome.with(Stamp::T1Nic), outcome.ended.counts.answered);
}

#[test]
fn a_stamp_before_its_probe_causes_a_negative_segment_that_is_reported() {
    let outcome = of_probes(500, |stamp, h| match stamp {
        Stamp::T1Driver if h.sequence == 100 => StampFate::Is(realtime_at(h.first) - 3 * MS),
        Stamp::T1Nic if h.sequence == 200 => StampFate::Is(h.first + PHC_AHEAD - 7 * MS),
        _ => StampFate::Comes,
    });
    let part = |from, to| {
        let all = outcome.report.segments.iter().chain(&outcome.report.detail);
        all.clone().find(|p| (p.from, p.to) == (from, to)).expect("there is this part").times.clone()
    };
    // The table contains the segments between NIC stamps, and `detail` those between all stamps.
    let (nic, driver) = (part(Stamp::T1App, Stamp::T1Nic), part(Stamp::T1Sched, Stamp::T1Driver));
    assert_eq!(nic.min_ns, -7 * MS);
    assert!(nic.negative >= 1 && driver.negative >= 1);
    assert!(driver.min_ns <= -3 * MS + 100_000, "{}", driver.min_ns);
    let worst = outcome.closed[200].0;
    assert_eq!(worst.mapped.between(Stamp::T1App, Stamp::T1Nic), Some(-7 * MS));
}

#[test]
fn stamps_of_zero_are_reported_unchanged() {
    let outcome = of_probes(300, |_, _| StampFate::Is(0));
    let first = &outcome.report.segments[0];
    assert_eq!(
        (first.times.count, first.times.negative),
        (outcome.ended.counts.answered, outcome.ended.counts.answered)
    );
    assert!(outcome.report.round_trip.min_ns > 0);
}

#[test]
fn a_short_probe_has_no_room_for_the_reflectors_stamps_and_counts_as_complete() {
    for size in [32, 95] {
        let mut run = Run::new(at_a_rate(300));
        run.plan.size = size;
        let outcome = run.go();
        outcome.adds_up();
        let reflectors = [Stamp::T2Nic, Stamp::T2Kernel, Stamp::T3Sched, Stamp::T3Driver, Stamp::T3Nic];
        assert!(reflectors.iter().all(|s| outcome.taken & s.bit() == 0));
        assert_eq!((outcome.with(Stamp::T2Nic), outcome.with(Stamp::T2Kernel)), (0, 0));
        assert_eq!(outcome.ended.counts.incomplete, 0);
    }
}

/// `CLOCK_MONOTONIC` of the other kernel minus that of this one, ns.
const OTHER_KERNEL: Ns = 5_000_000_000_000;

/// Turns a reflector's message into one from another machine, whose clock is ahead by [`OTHER_KERNEL`]. The NICs still
/// share a clock.
pub fn of_another_kernel(message: &mut [u8]) {
    let Some(h) = Header::read(message) else { return };
    Header { first: h.first + OTHER_KERNEL, second: h.second + OTHER_KERNEL, ..h }.write(message);
    let later = |mut a: latpath_ping::wire::LateStamps| {
        for (_, time) in LATE_STAMPS.into_iter().zip(&mut a.stamps).filter(|(s, _)| s.source() == Source::Kernel) {
            *time = time.map(|t| t + OTHER_KERNEL);
        }
        a
    };
    match h.kind {
        Kind::Answer => {
            let a = Answer::read(message);
            let kernel = a.kernel.map(|k| k + OTHER_KERNEL);
            Answer { kernel, afterwards: a.afterwards.map(later), ..a }.write(message);
        }
        Kind::Welcome => {
            let mut w = Welcome::read(message).expect("a whole welcome");
            w.boot_id[0] ^= 1;
            w.afterwards = w.afterwards.map(later);
            if let Some(nic) = &mut w.nic {
                (nic.index, nic.at, nic.offset) = (1, nic.at + OTHER_KERNEL, nic.offset - OTHER_KERNEL);
            }
            w.write(message);
        }
        _ => {}
    }
}

#[test]
fn between_two_kernels_segments_sum_exactly_and_the_truth_is_within_the_bound() {
    let run = Run::new(at_a_rate(3_000));
    run.wire.back(|message| {
        of_another_kernel(message);
        Fate::Comes
    });
    let outcome = run.go();
    outcome.adds_up();
    assert_eq!(outcome.report.clocks, Relation::Estimated);
    let bound = outcome.report.max_error_bound_ns.expect("the offset is known");
    assert!(outcome.ended.counts.answered > 0);
    for t in outcome.answered() {
        let truth = t.raw.get(Stamp::T2App).unwrap() - OTHER_KERNEL;
        let off = t.mapped.get(Stamp::T2App).unwrap() - truth;
        assert!(off.abs() <= bound, "off by {off}, said to be at most {bound}");
        assert_eq!(t.mapped.between(Stamp::T2App, Stamp::T3App), t.raw.between(Stamp::T2App, Stamp::T3App));
    }
}

#[test]
fn after_a_nics_clock_is_set_its_stamps_are_mapped_right_or_not_at_all() {
    let mut run = Run::new(at_a_rate(3_000));
    // The run lasts three seconds before and after the clock is set: longer than a busy machine delays the reading of
    // clocks.
    run.plan.pacing = Pacing::Every("500".parse().unwrap());
    let set = Arc::clone(&run.wire.phc_set);
    run.wire.there(move |message| {
        if Header::read(message).is_some_and(|h| h.kind == Kind::Probe && h.sequence == 1_500) {
            set.store(1_000 * MS, Ordering::Relaxed);
        }
        Fate::Comes
    });
    let outcome = run.go();
    assert_eq!(outcome.report.disturbed, 2, "here, and at the reflector: {:?}", outcome.report.disturbances);
    assert!(outcome.report.unplaced > 0);
    let nics = |t: &Transaction| [Stamp::T1Nic, Stamp::T2Nic, Stamp::T3Nic, Stamp::T4Nic].map(|s| t.mapped.get(s));
    let placed: Vec<_> = outcome.answered().filter(|t| nics(t).iter().all(Option::is_some)).collect();
    assert!(placed.len() > 500, "{}", placed.len());
    for t in placed {
        let [begin, end] = [Stamp::T1App, Stamp::T4App].map(|s| t.mapped.get(s).unwrap());
        // Each NIC stamp lies within its transaction, as the clock is known to ±100 ns.
        assert!(nics(t).iter().all(|at| (begin - 100..=end + 100).contains(&at.unwrap())), "{t:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 16, ..ProptestConfig::default() })]

    #[test]
    fn with_any_stamps_segments_sum_to_round_trips_and_missing_ones_are_counted(
        seed: u64, never in 0u32..200, after in 0u32..200, twice in 0u32..200, wrong in 0u32..200, other_kernel: bool
    ) {
        let faults = |seed| -> OnStamp {
            let mut chance = Chance(seed);
            Box::new(move |stamp, h| {
                let drawn = chance.below(1000);
                let wrong_by = Ns::from(chance.below(2_000_000_000)) - 1_000_000_000;
                match [never, after, twice, wrong].iter().scan(0, |sum, n| { *sum += n; Some(*sum) }).position(|to| drawn < to) {
                    Some(0) => StampFate::Never,
                    Some(1) => StampFate::After(3),
                    Some(2) => StampFate::Twice,
                    Some(3) if stamp == Stamp::T1Nic => StampFate::Is(h.first + PHC_AHEAD + wrong_by),
                    Some(3) => StampFate::Is(realtime_at(h.first) + wrong_by),
                    _ => StampFate::Comes,
                }
            })
        };
        let mut run = Run::new(at_a_rate(600));
        run.plan.lost_after = 60 * MS;
        run.on_probes_stamp = Some(faults(seed));
        run.on_answers_stamp = Some(faults(!seed));
        if other_kernel {
            run.wire.back(|message| {
                of_another_kernel(message);
                Fate::Comes
            });
        }
        run.go().adds_up();
    }
}
