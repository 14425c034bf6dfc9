//! Sequences of various senders, and the losses that they show.

use super::*;
use proptest::prelude::*;

const MS: Ns = 1_000_000;

fn sv() -> Sequence {
    Sequence::new(KeyRule::SMP_CNT, 256).unwrap()
}

/// Adds the packets `range` with this step and wrap, 1 ms apart, except those in `skip`.
fn send(seq: &mut Sequence, range: std::ops::Range<u64>, step: u64, wrap: u64, skip: &[u64]) {
    for n in range.filter(|n| !skip.contains(n)) {
        seq.lead((n * step % wrap) as u32, n as Ns * MS);
    }
}

#[test]
fn step_and_wrap_are_learned_for_every_profile() {
    for (step, wrap) in [(1, 4000), (1, 4800), (8, 12800), (8, 15360), (2, 4800), (6, 14400), (1, 65536)] {
        let mut seq = sv();
        send(&mut seq, 0..2 * wrap / step + 10, step, wrap, &[]);
        assert_eq!((seq.step(), seq.wrap(), seq.never_seen()), (Some(step), Some(wrap), 0), "{step} {wrap}");
        assert_eq!(seq.cycle(), Some(wrap / step));
    }
}

#[test]
fn a_gap_of_half_a_second_is_explained_by_time() {
    let mut seq = sv();
    send(&mut seq, 0..5000, 1, 4000, &[]);
    send(&mut seq, 7000..9000, 1, 4000, &[]);
    assert_eq!((seq.never_seen(), seq.restarts()), (2000, 0));
}

#[test]
fn an_unusual_wrap_is_learned_when_seen_twice() {
    let mut seq = sv();
    send(&mut seq, 0..1001, 1, 1000, &[]);
    assert_eq!(seq.wrap(), None);
    send(&mut seq, 1001..2500, 1, 1000, &[1500]);
    assert_eq!((seq.wrap(), seq.never_seen(), seq.restarts()), (Some(1000), 1, 0));
}

#[test]
fn a_number_beyond_the_wrap_refutes_it() {
    let mut seq = sv();
    send(&mut seq, 0..4000, 1, 65536, &[]);
    send(&mut seq, 0..70000, 1, 65536, &[]); // restarted where another sender would wrap
    assert_eq!(seq.wrap(), Some(65536));
    assert_eq!(seq.never_seen(), 0);
}

#[test]
fn a_late_number_beyond_a_wrongly_learned_wrap_is_no_gap() {
    let mut seq = sv();
    // The last number of each of the first two cycles is lost, so they seem to wrap at 698; the last number of the
    // third cycle arrives late.
    send(&mut seq, 0..1049, 2, 700, &[349, 699]);
    assert_eq!(seq.wrap(), Some(698));
    seq.lead(0, 1050 * MS);
    seq.lead(698, 1051 * MS);
    send(&mut seq, 1051..1500, 2, 700, &[]);
    assert!(seq.never_seen() <= 2, "{}", seq.never_seen());
}

#[test]
fn a_number_beyond_the_wrap_refutes_it_wherever_it_is_seen_first() {
    let mut seq = sv();
    send(&mut seq, 0..9000, 1, 4000, &[]);
    for n in 0..300 {
        seq.follow(4000 + n, 9000 * MS);
    }
    assert_eq!(seq.wrap(), None);
    seq.lead(1001, 9001 * MS);
    assert_eq!(seq.never_seen(), 0);
}

#[test]
fn a_packet_first_seen_late_fills_its_gap() {
    let mut seq = sv();
    send(&mut seq, 0..100, 1, 4000, &[50, 60]);
    seq.lead(50, 100 * MS);
    assert_eq!(seq.never_seen(), 1);
    seq.follow(60, 100 * MS);
    assert_eq!(seq.never_seen(), 0);
}

#[test]
fn once_the_wrap_is_known_all_packets_of_a_stream_without_losses_are_the_next() {
    let mut seq = sv();
    send(&mut seq, 0..4010, 1, 4000, &[]);
    assert!((4010..20_000).all(|n| seq.lead_next((n % 4000) as u32, n * MS)));
    assert_eq!((seq.never_seen(), seq.gaps(), seq.restarts()), (0, 0, 0));
}

proptest! {
    /// A stream with some step and wrap that loses, repeats and reorders packets, pauses and restarts.
    #[test]
    fn the_fast_path_of_the_next_packet_gives_the_same_result(
        (step, wrap) in prop::sample::select(vec![(1_u64, 4000_u64), (2, 4800), (8, 12800), (1, 700), (1, 65536), (3, 10)]),
        events in prop::collection::vec((0..60_u8, 0..400_i64), 1..3000),
    ) {
        let (mut any, mut quick) = (sv(), sv());
        let (mut n, mut t) = ((wrap / step).saturating_sub(20), 0);
        for (event, time) in events {
            t += 250_000;
            match event {
                0 => n += time as u64 % 5,
                1 => n -= (time as u64 % 3).min(n),
                2 => t += time * 10_000_000,
                3 if time < 10 => n = time as u64,
                4 => (n, t) = (n + 40 * time as u64, t + 10_000_000 * time),
                _ => n += 1,
            }
            let key = (n * step % wrap) as u32;
            if event == 5 {
                any.follow(key, t);
                quick.follow(key, t);
                continue;
            }
            let (is_newer, known) = (any.lead(key, t), (quick.never_seen(), quick.cycle()));
            if quick.lead_next(key, t) {
                prop_assert_eq!((is_newer, known), (true, (quick.never_seen(), quick.cycle())));
            } else {
                prop_assert_eq!(is_newer, quick.lead(key, t));
            }
            let all = |s: &Sequence| {
                (s.never_seen(), s.gaps(), s.restarts(), s.step(), s.wrap(), s.votes, s.steady, s.placement(key + 1))
            };
            prop_assert_eq!(all(&any), all(&quick));
        }
    }
}

#[test]
fn hashes_have_no_sequence() {
    assert!(Sequence::new(KeyRule::Hash { offset: 0, len: 32 }, 256).is_none());
}

#[test]
fn no_numbers_make_it_panic() {
    for len in [1, 2, 4] {
        let mut seq = Sequence::new(KeyRule::Seq { offset: 0, len }, 256).unwrap();
        let mut x = 1_u32;
        for n in 0..100_000_i64 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let t = if n % 7 == 0 { Ns::MAX - n } else { Ns::MIN + n };
            if x & 0x40000 == 0 {
                seq.lead(x >> (32 - 8 * len), t);
            } else {
                seq.follow(x, t);
            }
        }
    }
}
