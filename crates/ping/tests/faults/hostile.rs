//! Peers that send arbitrary messages.

use crate::run::{at_a_rate, one_by_one, Chance, Reported, Run, LONG, MS};
use crate::wire::{End, Fate, Wire, WireError, ALL};
use latpath_model::Ns;
use latpath_ping::clocks::Clocks;
use latpath_ping::emit::EndReason;
use latpath_ping::reflect::{reflect, ReflectPlan, Reflected};
use latpath_ping::wire::{Answer, Header, Kind, LateStamps, NicReading, ReflectorCounters, Welcome, CONTROL, HEADER};
use latpath_testkit::waits::until;
use latpath_timesync::{ClockIdentity, PtpTime};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const TIMES: [Ns; 9] = [Ns::MIN, Ns::MIN + 1, -1, 0, 1, 1 << 40, 1 << 62, Ns::MAX - 1, Ns::MAX];

fn time(chance: &mut Chance) -> Ns {
    TIMES[chance.below(TIMES.len() as u32) as usize]
}

fn afterwards(chance: &mut Chance, sequence: u64) -> Option<LateStamps> {
    let sequence = [0, sequence, sequence + 1, u64::MAX - 1][chance.below(4) as usize];
    Some(LateStamps { sequence, stamps: [0; 3].map(|_| Some(time(chance))) })
}

/// Turns a reflector's message into a hostile one, in which every time is invented.
fn lies(chance: &mut Chance, message: &mut [u8], other_kernel: bool) {
    let Some(h) = Header::read(message) else { return };
    Header { first: time(chance), second: time(chance), ..h }.write(message);
    let afterwards = afterwards(chance, h.sequence);
    match h.kind {
        Kind::Answer => drop(Answer { nic: Some(time(chance)), kernel: Some(time(chance)), afterwards }.write(message)),
        Kind::Welcome => {
            let mut w = Welcome::read(message).expect("a whole welcome");
            w.boot_id[0] ^= u8::from(other_kernel);
            let clock = NicReading {
                index: chance.below(3) as i32,
                at: time(chance),
                offset: time(chance),
                bound: time(chance),
                drift_ppb: time(chance),
            };
            let n = |c: &mut Chance| time(c) as u64;
            w = Welcome {
                nic: Some(clock),
                ptp: Some(PtpTime {
                    grandmaster: ClockIdentity([3; 8]),
                    monotonic_ns: time(chance),
                    utc_ns: time(chance),
                    bound_ns: time(chance),
                }),
                taken: chance.below(1 << 16) as u16,
                disturbances: chance.below(5),
                device: "\u{1b}[31mred".into(),
                seen: ReflectorCounters {
                    received: n(chance),
                    duplicates: n(chance),
                    reordered: n(chance),
                    refused: n(chance),
                    foreign: n(chance),
                    dropped: n(chance),
                },
                afterwards,
                ..w
            };
            w.write(message);
        }
        _ => {}
    }
}

#[test]
fn invented_times_of_a_reflector_affect_its_own_segments_only() {
    for other_kernel in [false, true] {
        for seed in 0..6 {
            let mut run = Run::new(at_a_rate(300));
            run.plan.lost_after = 60 * MS;
            let mut chance = Chance(seed);
            run.wire.back(move |message| {
                lies(&mut chance, message, other_kernel);
                Fate::Comes
            });
            let outcome = run.go();
            assert_eq!(outcome.ended.why, Ok(EndReason::Done));
            let c = outcome.ended.counts;
            assert_eq!((c.sent, c.answered + c.lost, c.answered + c.late), (300, 300, 300));
            assert_eq!(outcome.report.round_trip.count, c.answered);
            // The smallest invented time exceeds the maximum duration of a run, so none is in this range.
            assert!((1..30_000 * MS).contains(&outcome.report.round_trip.max_ns), "our own times are right");
            let name = outcome.ended.welcome.unwrap().device;
            assert!(!name.chars().any(char::is_control), "{name:?}");
        }
    }
}

#[test]
fn answers_to_probes_that_were_never_sent_are_foreign() {
    let mut run = Run::new(at_a_rate(400));
    run.plan.lost_after = LONG;
    run.wire.back(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Answer && h.sequence % 10 == 0 => {
            let mut other = message.clone();
            let sequence = [h.sequence + 1_000_000, u64::MAX, u64::MAX - 1][h.sequence as usize / 10 % 3];
            Header { sequence, ..h }.write(&mut other);
            Fate::And(other)
        }
        _ => Fate::Comes,
    });
    let outcome = run.go();
    let c = outcome.ended.counts;
    assert_eq!((c.answered, c.foreign, c.duplicates, c.late), (400, 40, 0, 0));
}

#[test]
fn a_welcome_that_was_cut_off_is_foreign() {
    let mut run = Run::new(one_by_one(50));
    run.plan.timeout = LONG;
    run.wire.back(|message| {
        if Header::read(message).is_some_and(|h| h.kind == Kind::Welcome) {
            message.truncate(HEADER);
        }
        Fate::Comes
    });
    let outcome = run.go();
    assert_eq!(outcome.ended.why, Ok(EndReason::NobodyAnswers), "nobody said who he is");
    assert!(outcome.ended.counts.foreign > 0);
}

#[test]
fn an_emitters_own_messages_sent_back_to_it_are_foreign() {
    let mut run = Run::new(one_by_one(10));
    run.plan.timeout = 200 * MS;
    // Like an echo server (RFC 862), send the emitter's own messages back.
    run.wire.back(|message| {
        let h = Header::read(message).expect("what a reflector says has a header");
        let kind = if h.kind == Kind::Welcome { Kind::Hello } else { Kind::Probe };
        Header { kind, ..h }.write(message);
        Fate::Comes
    });
    let outcome = run.go();
    assert_eq!((outcome.ended.why, outcome.ended.counts.sent), (Ok(EndReason::NobodyAnswers), 0));
}

/// Address of the sender or receiver of a message, and the message.
type Addressed = (u32, Vec<u8>);

/// Sends messages to a reflector; returns its result, its answers with their receivers, and the reported breaches.
fn says(what: &[Addressed]) -> (Reflected, Vec<Addressed>, Vec<u64>) {
    let (wire, stop, reported) = (Wire::new(), AtomicBool::new(false), Reported::default());
    let mut end = End::new(&wire, true, &ALL, None);
    let reflected = thread::scope(|scope| {
        let reflector =
            scope.spawn(|| reflect(&mut end, &ReflectPlan::default(), &Clocks::watch(None), &mut &reported, &stop));
        what.iter().for_each(|(from, bytes)| wire.another_says(*from, bytes));
        // Once the reflector answers this hello, it has read all messages before it.
        wire.another_says(u32::MAX, &hello(u32::MAX));
        let welcomed = || wire.ledger().to_others.iter().any(|(to, _)| *to == u32::MAX);
        until("the last hello is answered", welcomed).expect("the reflector lives");
        stop.store(true, Ordering::Relaxed);
        reflector.join().expect("the reflector does not panic").map_err(|(e, _): (WireError, _)| e)
    });
    let mut heard = wire.ledger().to_others;
    let last = heard.iter().position(|(to, _)| *to == u32::MAX);
    heard.remove(last.expect("the reflector lives"));
    (reflected.expect("and did not fail"), heard, reported.0.into_inner().unwrap())
}

fn message(kind: Kind, session: u32, sequence: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Header { kind, session, sequence, first: 1, second: 2 }.write(&mut bytes);
    bytes
}

fn hello(session: u32) -> Vec<u8> {
    message(Kind::Hello, session, 1, CONTROL)
}

#[test]
fn a_peer_without_a_hello_gets_no_answer() {
    let (reflected, heard, reported) = says(&[
        (1, message(Kind::Probe, 7, 0, 96)),
        (2, hello(7)),
        (1, message(Kind::Probe, 7, 1, 96)),
        (1, message(Kind::Breach, 7, 1, 32)),
        (2, message(Kind::Probe, 8, 1, 96)),
    ]);
    assert_eq!(heard.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [2], "the welcome alone");
    assert_eq!((reflected.foreign, reported), (3, vec![]));
}

#[test]
fn no_answer_is_longer_than_its_message() {
    let mut all = vec![(1, hello(7))];
    for len in [32, 33, 95, 96, 97, 240, 1400, 65_507] {
        all.push((1, message(Kind::Probe, 7, len as u64, len)));
    }
    // Hellos that are too short or too long, or of another version.
    all.extend([(1, message(Kind::Hello, 8, 1, 32)), (1, message(Kind::Hello, 8, 1, CONTROL + 1))]);
    let mut other = hello(9);
    other[2] = 9;
    all.extend([(1, other.clone()), (1, other[..100].to_vec())]);
    let (_, heard, _) = says(&all);
    let lens: Vec<usize> = heard.iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(lens, [CONTROL, 32, 33, 95, 96, 97, 240, 1400, 65_507, CONTROL]);
    assert_eq!(
        Header::read(&heard[9].1).map(|h| (h.kind, h.session)),
        Some((Kind::Welcome, 9)),
        "which version is spoken here"
    );
}

#[test]
fn messages_of_any_bytes_are_counted_and_not_answered() {
    let mut chance = Chance(11);
    let junk: Vec<Addressed> = (0..500)
        .map(|i| {
            let len = chance.below(300) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| chance.below(256) as u8).collect();
            // Half of the messages have latpath's magic and version, but an invalid kind or session.
            if i % 2 == 0 && len >= HEADER {
                bytes[..3].copy_from_slice(b"LP\x01");
                bytes[3] = [0, 1, 3, 4, 5, 255][chance.below(6) as usize];
            }
            (1, bytes)
        })
        .collect();
    let (reflected, heard, reported) = says(&junk);
    assert!(heard.is_empty() && reported.is_empty());
    let silent = junk.iter().filter(|(_, b)| b.len() >= HEADER && b[..3] == *b"LP\x01" && b[3] == Kind::Breach as u8);
    assert_eq!(reflected.foreign, 500 - silent.count() as u64, "a breach of no session is nothing");
}

#[test]
fn sessions_beyond_the_limit_are_refused_and_the_others_continue() {
    let mut all: Vec<Addressed> = (0..300).map(|i| (1 + i, hello(i))).collect();
    all.push((1, message(Kind::Probe, 0, 0, 96)));
    let (wire, stop, reported) = (Wire::new(), AtomicBool::new(false), Reported::default());
    all.iter().for_each(|(from, bytes)| wire.another_says(*from, bytes));
    let mut end = End::new(&wire, true, &[], None);
    let reflected = thread::scope(|scope| {
        let reflector =
            scope.spawn(|| reflect(&mut end, &ReflectPlan::default(), &Clocks::watch(None), &mut &reported, &stop));
        let answered = || wire.ledger().to_others.iter().any(|(_, bytes)| bytes.len() == 96);
        until("the probe is answered", answered).expect("the reflector lives");
        stop.store(true, Ordering::Relaxed);
        reflector.join().expect("the reflector does not panic").map_err(|(e, _)| e).expect("and does not fail")
    });
    assert_eq!((reflected.sessions, reflected.turned_away), (256, 44));
    assert_eq!(wire.ledger().to_others.len(), 257, "256 welcomes and an answer");
}

/// Sends `before` to a reflector, then hellos from `another` until it gets a welcome.
fn is_welcomed_after(before: &[Addressed], another: u32, and_then: impl FnOnce(&Wire)) -> Reflected {
    let (wire, stop, reported) = (Wire::new(), AtomicBool::new(false), Reported::default());
    before.iter().for_each(|(from, bytes)| wire.another_says(*from, bytes));
    let mut end = End::new(&wire, true, &[], None);
    thread::scope(|scope| {
        let reflector =
            scope.spawn(|| reflect(&mut end, &ReflectPlan::default(), &Clocks::watch(None), &mut &reported, &stop));
        let is_welcomed = || {
            wire.another_says(another, &hello(999));
            wire.ledger().to_others.iter().any(|(to, _)| *to == another)
        };
        until("one more is welcomed", is_welcomed).expect("the reflector lives");
        and_then(&wire);
        stop.store(true, Ordering::Relaxed);
        let reflected = reflector.join().expect("the reflector does not panic").map_err(|(e, _)| e);
        reflected.expect("and does not fail")
    })
}

#[test]
fn silent_sessions_end_when_the_table_is_full_used_or_not() {
    let mut all = Vec::new();
    for i in 0..256 {
        all.push((1 + i, hello(i)));
        if i % 2 == 0 {
            all.push((1 + i, message(Kind::Probe, i, 0, 96)));
        }
    }
    // This session sent the latest message, so it is not replaced.
    all.push((1, message(Kind::Probe, 0, 1, 96)));
    let reflected = is_welcomed_after(&all, 1_000, |wire| {
        wire.another_says(1, &message(Kind::Probe, 0, 2, 97));
        let is_answered = || wire.ledger().to_others.iter().any(|(_, bytes)| bytes.len() == 97);
        until("the first one's probe is answered", is_answered).expect("the reflector lives");
    });
    assert_eq!(reflected.sessions, 257);
}

#[test]
fn one_host_cannot_take_all_sessions() {
    let hosts = |host: u32| (0..300).map(move |port| (host << 16 | port, hello(port)));
    let all: Vec<Addressed> = hosts(1).chain(hosts(2)).collect();
    let reflected = is_welcomed_after(&all, 1_000, |_| ());
    assert_eq!((reflected.sessions, reflected.turned_away), (2 * 64 + 1, 2 * 236));
}

#[test]
fn a_probe_whose_answer_is_too_long_is_lost_and_the_reflector_continues() {
    let mut run = Run::new(at_a_rate(100));
    run.plan.lost_after = 60 * MS;
    run.wire.back(|message| match Header::read(message) {
        Some(h) if h.kind == Kind::Answer && h.sequence % 10 == 3 => Fate::TooLong,
        _ => Fate::Comes,
    });
    let outcome = run.go();
    assert_eq!(outcome.ended.why, Ok(EndReason::Done));
    let c = outcome.ended.counts;
    assert_eq!((c.sent, c.answered + c.late, c.lost - c.late), (100, 90, 10));
}

#[test]
fn sequences_from_the_end_of_the_range_are_answered_like_others() {
    let probes = [u64::MAX, 0, u64::MAX - 1, u64::MAX, 1 << 63];
    let mut all = vec![(1, hello(7))];
    all.extend(probes.map(|sequence| (1, message(Kind::Probe, 7, sequence, 96))));
    all.push((1, hello(7)));
    let (_, heard, _) = says(&all);
    assert_eq!(heard.len(), 7);
    let seen = Welcome::read(&heard[6].1).unwrap().seen;
    assert_eq!(seen.received + seen.duplicates, 5);
}
