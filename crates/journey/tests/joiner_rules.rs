//! One test per rule of the joiner that docs/journeys.md states.

use latpath_journey::{Joiner, Options};
use latpath_model::{KeyRule, Ns, Point, PointInfo, Sighting};
use latpath_protocols::{goose, ProtocolId};

const MS: Ns = 1_000_000;
const US: Ns = 1_000;
/// Interval between frames at 4000 per second.
const INTERVAL: Ns = 250 * US;
const NIC: u16 = 0;
const TAP: u16 = 1;
const APP: u16 = 2;
const DROP: u16 = 3;
const LINE: u64 = 0b111;

/// A journey handed out: number, key, points, duplicates, drop note.
#[derive(Clone, Debug, PartialEq)]
struct Out {
    number: u64,
    key: u32,
    seen: u64,
    nic: Option<Ns>,
    app: Option<Ns>,
    duplicates: u32,
    out_of_order: bool,
    note: u16,
    missing: u32,
}

struct Bench {
    joiner: Joiner,
    out: Vec<Out>,
}

impl Bench {
    fn new(rule: KeyRule, options: Options) -> Self {
        let mut joiner = Joiner::new([rule], options);
        let info = |text: &str| PointInfo::from(text.parse::<Point>().unwrap());
        joiner.set_points(&["host/nic-rx@e", "host/tx@tap", "g/app-read@a", "host/drop@tap"].map(info));
        Self { joiner, out: Vec::new() }
    }

    fn sv() -> Self {
        Self::new(KeyRule::SMP_CNT, Options::default())
    }

    fn see(&mut self, point: u16, key: u32, t: Ns) {
        self.see_note(point, key, t, 0);
    }

    fn see_note(&mut self, point: u16, key: u32, t: Ns, note: u16) {
        let out = &mut self.out;
        self.joiner.push(&Sighting { t, key, point, note, ..Sighting::default() }, &mut |j| out.push(Self::out(j)));
    }

    fn out(j: &latpath_journey::Journey) -> Out {
        Out {
            number: j.number,
            key: j.key,
            seen: j.seen,
            nic: j.at(NIC),
            app: j.at(APP),
            duplicates: j.duplicates,
            out_of_order: j.out_of_order,
            note: j.drop_note,
            missing: j.missing_before,
        }
    }

    fn advance(&mut self, now: Ns) {
        let out = &mut self.out;
        self.joiner.advance(now, &mut |j| out.push(Self::out(j)));
    }

    fn flush(&mut self) {
        let out = &mut self.out;
        self.joiner.flush(&mut |j| out.push(Self::out(j)));
    }

    /// Pushes the packets of `range` of a stream that wraps at 4000; the application sees them at `app(packet, sent)`,
    /// if at all.
    fn stream(&mut self, range: std::ops::Range<u64>, app: impl Fn(u64, Ns) -> Option<Ns>) {
        let mut all = Vec::new();
        for n in range {
            let t = sent(n);
            all.push((t, NIC, n));
            all.push((t + 10 * US, TAP, n));
            if let Some(at) = app(n, t) {
                all.push((at, APP, n));
            }
        }
        all.sort();
        for (n, (t, point, packet)) in all.into_iter().enumerate() {
            self.see(point, (packet % 4000) as u32, t);
            if n % 100 == 99 {
                self.advance(t);
            }
        }
    }
}

fn sent(n: u64) -> Ns {
    1000 * MS + n as Ns * INTERVAL
}

#[test]
fn journeys_are_emitted_once_in_order_of_first_sighting() {
    let mut b = Bench::sv();
    b.joiner.set_expected(0, LINE);
    b.stream(0..9000, |n, t| (n % 10 != 3).then_some(t + 50 * US));
    b.flush();
    assert!(b.out.iter().enumerate().all(|(i, o)| o.number == i as u64 && o.key == i as u32 % 4000));
    assert!(b.out.iter().all(|o| (o.seen == LINE) == (o.number % 10 != 3)));
    assert_eq!(b.joiner.totals(0).journeys, 9000);
}

#[test]
fn packets_that_no_point_saw_are_missing_before_the_next_one() {
    let mut b = Bench::sv();
    let lost = |n: u64| matches!(n, 500..503 | 3999..4001 | 6000);
    (0..6200_u64).filter(|n| !lost(*n) && *n != 700).for_each(|n| {
        b.see(NIC, (n % 4000) as u32, sent(n));
        if n == 702 {
            // Two later packets have overtaken packet 700.
            b.see(NIC, 700, sent(n) + US);
        }
    });
    b.flush();
    let missing: Vec<(u32, u32)> = b.out.iter().filter(|o| o.missing > 0).map(|o| (o.key, o.missing)).collect();
    assert_eq!(missing, [(503, 3), (1, 2), (2001, 1)]);
}

#[test]
fn while_the_route_is_unknown_only_the_window_closes_a_journey() {
    let mut b = Bench::sv();
    b.see(NIC, 7, 0);
    b.see(TAP, 7, 10);
    b.advance(1000 * MS);
    assert_eq!(b.out.len(), 0);
    b.advance(1000 * MS + 1);
    assert_eq!(b.out.len(), 1);
}

#[test]
fn a_complete_journey_waits_for_late_sightings() {
    let mut b = Bench::sv();
    b.joiner.set_expected(0, 1 << NIC | 1 << TAP);
    b.see(NIC, 7, 0);
    b.see(TAP, 7, 10);
    b.advance(50 * MS);
    b.see(APP, 7, 50 * MS); // a point that was unknown
    b.advance(50 * MS + 9);
    assert_eq!(b.out.len(), 0);
    b.advance(100 * MS);
    assert_eq!(b.out[0].seen, LINE);
}

#[test]
fn a_packet_is_lost_once_two_packets_more_than_r_later_were_seen() {
    let mut b = Bench::sv();
    b.joiner.set_expected(0, LINE);
    b.stream(0..1, |_, _| None);
    b.stream(1..257, |_, t| Some(t + 50 * US));
    b.advance(sent(256));
    assert_eq!(b.out.len(), 0);
    b.stream(257..259, |_, t| Some(t + 50 * US));
    b.advance(sent(259));
    let first = &b.out[0];
    assert_eq!((first.number, first.key, first.seen, first.app), (0, 0, 0b11, None));
    assert_eq!((first.duplicates, first.out_of_order, first.note), (0, false, 0));
}

#[test]
fn sightings_after_a_stall_of_1_05_s_join_their_journeys_or_are_late() {
    // The guest pauses from 2.0 s to 3.05 s; its queue keeps everything.
    let (from, to) = (sent(4000), sent(4000) + 1050 * MS);
    let drained = |n: u64, t: Ns| match (from..to).contains(&t) {
        true => Some(to + (n as Ns - 4000) * 3 * US),
        false if t >= to => Some((t + 50 * US).max(to + 20 * MS + n as Ns)),
        false => Some(t + 50 * US),
    };
    let mut b = Bench::sv();
    b.joiner.set_expected(0, LINE);
    b.stream(0..12_000, drained);
    b.flush();
    let late = b.joiner.totals(0).late;
    for o in &b.out {
        let expected = drained(o.number, sent(o.number)).unwrap();
        if expected - sent(o.number) > 1000 * MS {
            assert_eq!(o.app, None, "{}", o.number);
        } else {
            assert_eq!(o.app, Some(expected), "{}", o.number);
        }
    }
    assert_eq!(b.out.len(), 12_000);
    assert_eq!(late, b.out.iter().filter(|o| o.app.is_none()).count() as u64);
    assert!(late > 150);
    assert_eq!(b.joiner.totals(0).duplicates, 0);
}

#[test]
fn sightings_after_a_stall_longer_than_the_memory_are_late_and_unjoined() {
    // The guest pauses for 5 s; its queue keeps the first 1000 packets and drops the rest.
    let (from, to) = (sent(4000), sent(4000) + 5000 * MS);
    let drained = |n: u64, t: Ns| match (from..to).contains(&t) {
        true => (n < 5000).then_some(to + (n as Ns - 4000) * 3 * US),
        false if t >= to => Some((t + 50 * US).max(to + 4 * MS + n as Ns)),
        false => Some(t + 50 * US),
    };
    let mut b = Bench::sv();
    b.joiner.set_expected(0, LINE);
    b.stream(0..32_000, drained);
    b.flush();
    assert_eq!(b.out.len(), 32_000);
    let wrong: Vec<_> = b
        .out
        .iter()
        .filter(|o| o.app != drained(o.number, sent(o.number)).filter(|t| t - sent(o.number) < 1000 * MS))
        .collect();
    assert_eq!(wrong.first(), None, "{} are wrong", wrong.len());
    assert_eq!(b.joiner.totals(0).late, 1000);
}

#[test]
fn a_new_point_with_a_queue_older_than_the_window_makes_no_separate_journeys() {
    // The application begins to read after 0.8 s: its first packets were queued for longer than the window, its last
    // were not.
    let (window, begin) = (500 * MS, sent(0) + 800 * MS);
    let read = |n: u64, t: Ns| Some((t + 50 * US).max(begin + n as Ns * 3 * US));
    let mut b = Bench::new(KeyRule::SMP_CNT, Options { window, ..Options::default() });
    b.stream(0..3900, read);
    b.flush();
    assert_eq!(b.out.len(), 3900);
    for o in &b.out {
        let (sent, read) = (sent(o.number), read(o.number, sent(o.number)));
        assert_eq!(o.app, read.filter(|t| t - sent <= window), "{}", o.number);
    }
    assert!(b.joiner.totals(0).late > 1000);
}

#[test]
fn after_a_queue_overflow_the_newest_packet_is_right() {
    let mut b = Bench::sv();
    b.joiner.set_expected(0, LINE);
    b.stream(0..20_000, |n, t| (!(5000..8000).contains(&n)).then_some(t + 50 * US));
    b.flush();
    assert!(b.out.iter().all(|o| o.app.is_some() != (5000..8000).contains(&o.number)));
}

#[test]
fn an_outage_of_just_one_cycle_heals_within_r_packets() {
    let mut b = Bench::new(KeyRule::SMP_CNT, Options { window: 1500 * MS, ..Options::default() });
    b.joiner.set_expected(0, LINE);
    b.stream(0..20_000, |n, t| (!(5000..9000).contains(&n)).then_some(t + 50 * US));
    b.flush();
    let wrong = b.out.iter().filter(|o| o.app.is_some_and(|t| t != sent(o.number) + 50 * US)).count();
    assert!(wrong <= 300, "{wrong}");
    assert!(b.out[10_000..].iter().all(|o| o.app == Some(sent(o.number) + 50 * US)));
}

#[test]
fn a_second_sighting_at_a_point_is_a_duplicate_even_after_the_journey_is_gone() {
    let mut b = Bench::sv();
    b.joiner.set_expected(0, LINE);
    b.stream(0..10, |_, t| Some(t + 50 * US));
    b.see(APP, 9, sent(10));
    b.advance(sent(500));
    assert_eq!((b.out.len(), b.out[9].duplicates), (10, 1));
    b.see(APP, 9, sent(501));
    assert_eq!((b.joiner.totals(0).duplicates, b.joiner.totals(0).journeys), (2, 10));
}

#[test]
fn an_overtaken_packet_is_out_of_order() {
    let mut b = Bench::sv();
    for (point, key, t) in [(NIC, 0, 0), (NIC, 1, 1), (NIC, 2, 2), (TAP, 1, 3), (TAP, 0, 4), (TAP, 2, 5)] {
        b.see(point, key, t);
    }
    b.flush();
    assert_eq!(b.out.iter().map(|o| o.out_of_order).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn a_frame_sent_twice_is_one_duplicate_at_the_reader() {
    let (mut b, line) = (Bench::sv(), [NIC, TAP, APP]);
    b.joiner.set_route(0, &line);
    for n in 0..100_u64 {
        for (at, point) in (0..).zip(line) {
            b.see(point, n as u32, sent(n) + at * US);
            b.see(point, n as u32, sent(n) + at * US + 500);
        }
        // A third sighting at the tap only; the reader does not see this copy.
        b.see(TAP, n as u32, sent(n) + 4 * US);
    }
    b.flush();
    assert!(b.out.iter().all(|o| o.duplicates == 1 && !o.out_of_order));
    let totals = b.joiner.totals(0);
    assert_eq!((totals.journeys, totals.duplicates, totals.repeated), (100, 100, 400));
}

#[test]
fn packets_that_are_overtaken_before_the_first_point_are_out_of_order_at_the_reader() {
    let (mut b, line) = (Bench::sv(), [NIC, TAP, APP]);
    b.joiner.set_route(0, &line);
    // Two of every ten packets are swapped before any point sees them.
    let order = (0..1000_u64).map(|n| match n % 10 {
        8 => n + 1,
        9 => n - 1,
        _ => n,
    });
    for (place, n) in (0..).zip(order) {
        line.iter().zip(0..).for_each(|(point, at)| b.see(*point, n as u32, sent(place) + at * US));
    }
    b.flush();
    assert_eq!(b.out.iter().filter(|o| o.out_of_order).count(), 100);
    assert_eq!(b.joiner.totals(0).never_seen, 0);
}

#[test]
fn clones_that_bridges_free_are_no_duplicates_and_the_rarer_note_is_kept() {
    const CLONE: u16 = 1;
    const FULL_RING: u16 = 2;
    let mut b = Bench::sv();
    for n in 0..20 {
        b.see(NIC, n, sent(n.into()));
        b.see_note(DROP, n, sent(n.into()) + 1, CLONE);
        b.see_note(DROP, n, sent(n.into()) + 2, CLONE);
        if n == 9 {
            b.see_note(DROP, n, sent(n.into()) + 3, FULL_RING);
        }
    }
    b.flush();
    assert!(b.out.iter().all(|o| o.duplicates == 0 && o.seen == 1 << NIC | 1 << DROP));
    let notes: Vec<_> = b.out.iter().map(|o| o.note).collect();
    assert!(notes.iter().enumerate().all(|(n, note)| *note == if n == 9 { FULL_RING } else { CLONE }), "{notes:?}");
}

#[test]
fn of_equally_rare_notes_the_later_drop_is_kept() {
    const BRIDGES_COPY: u16 = 1;
    const NOBODY_LISTENS: u16 = 2;
    let mut b = Bench::sv();
    for n in 0..20 {
        b.see(NIC, n, sent(n.into()));
        b.see_note(DROP, n, sent(n.into()) + 1, BRIDGES_COPY);
        b.see_note(DROP, n, sent(n.into()) + 2, NOBODY_LISTENS);
    }
    b.flush();
    assert!(b.out.iter().all(|o| o.note == NOBODY_LISTENS));
}

/// Journeys of a stream whose packets pass the observed points; a clone of each packet is dropped `drop` after it was
/// sent.
fn with_clones(drop: Ns, watched: &[u16]) -> Vec<Out> {
    let mut b = Bench::sv();
    b.joiner.set_expected(0, watched.iter().fold(0, |mask, p| mask | 1 << p));
    let mut all: Vec<(Ns, u16, u64)> = Vec::new();
    for n in 0..10_000 {
        let line = [(NIC, 0), (TAP, 10 * US), (APP, 50 * US)];
        all.extend(line.iter().filter(|(p, _)| watched.contains(p)).map(|(p, after)| (sent(n) + after, *p, n)));
        all.push((sent(n) + drop, DROP, n));
    }
    all.sort();
    for (i, (t, point, n)) in all.into_iter().enumerate() {
        b.see_note(point, (n % 4000) as u32, t, u16::from(point == DROP));
        if i % 100 == 99 {
            b.advance(t - MS);
        }
    }
    b.flush();
    assert_eq!((b.joiner.totals(0).late, b.joiner.totals(0).duplicates, b.joiner.totals(0).never_seen), (0, 0, 0));
    b.out
}

#[test]
fn a_drop_before_between_or_after_other_sightings_never_splits_a_journey() {
    for drop in [-30 * US, -1, 0, 5 * US, 10 * US, 60 * US, 700 * US, 40 * MS] {
        for watched in [&[NIC, TAP, APP][..], &[TAP, APP], &[APP]] {
            let out = with_clones(drop, watched);
            let whole = watched.iter().fold(1 << DROP, |mask, p| mask | 1 << p);
            let wrong = out.iter().enumerate().find(|(n, o)| o.number != *n as u64 || o.seen != whole);
            assert_eq!((out.len(), wrong), (10_000, None), "{drop} {watched:?}");
            assert!(out.iter().all(|o| o.key == (o.number % 4000) as u32 && !o.out_of_order && o.duplicates == 0));
        }
    }
}

#[test]
fn a_drop_after_its_journey_was_emitted_makes_no_second_journey() {
    // A queue is discarded 0.3, 1.2 and 5 s after packets 4000 to 4100 entered it, while the stream continues.
    for (wait, now) in [(300 * MS, 5300), (1200 * MS, 8900), (5000 * MS, 24_100)] {
        let mut b = Bench::sv();
        b.joiner.set_expected(0, LINE);
        b.stream(0..now, |n, t| (!(4000..4100).contains(&n)).then_some(t + 50 * US));
        (4000..4100).for_each(|n| b.see_note(DROP, (n % 4000) as u32, sent(n) + wait, 2));
        b.flush();
        assert_eq!(b.out.len() as u64, now, "{wait}");
        assert_eq!(b.out.iter().filter(|o| o.seen & LINE == 0).count(), 0);
    }
}

#[test]
fn a_packet_with_only_a_drop_has_a_journey() {
    let mut b = Bench::sv();
    b.joiner.set_expected(0, LINE);
    b.stream(0..9000, |_, t| Some(t + 50 * US));
    b.see_note(DROP, 9000 % 4000, sent(9000), 2);
    b.stream(9001..9500, |_, t| Some(t + 50 * US));
    b.flush();
    assert_eq!(b.out.len(), 9500);
    assert_eq!((b.out[9000].key, b.out[9000].seen, b.out[9000].note), (1000, 1 << DROP, 2));
    assert_eq!(b.joiner.totals(0).never_seen, 0);
}

#[test]
fn hashes_have_no_order_and_mean_a_new_packet_after_the_window() {
    let mut b = Bench::new(KeyRule::Hash { offset: 0, len: 32 }, Options::default());
    for t in [0, 1200 * MS] {
        b.see(NIC, 0xdead_beef, t);
        b.see(NIC, 0x1234, t + 1);
        b.see(TAP, 0x1234, t + 2);
        b.see(TAP, 0xdead_beef, t + 3);
        b.see(TAP, 0xdead_beef, t + 4);
        b.advance(t + 5);
    }
    b.flush();
    let seen: Vec<_> = b.out.iter().map(|o| (o.key, o.seen, o.duplicates)).collect();
    assert_eq!(seen, [(0xdead_beef, 0b11, 1), (0x1234, 0b11, 0), (0xdead_beef, 0b11, 1), (0x1234, 0b11, 0)]);
}

#[test]
fn goose_messages_are_joined_and_counted_where_states_change_restart_and_wait() {
    let mut b = Bench::new(KeyRule::Own(ProtocolId::Goose), Options::default());
    b.joiner.set_expected(0, LINE);
    // A state every 100 ms, with messages after 0, 2, 6, 14, 30 and 62 ms. The low half of stNum rolls over; at the end
    // the device restarts.
    let states = (65_500..65_700).chain(1..50_u32).enumerate().map(|(i, st)| (1000 * MS + i as Ns * 100 * MS, st));
    let messages =
        states.flat_map(|(begin, st)| (0..6_u32).map(move |sq| (begin, begin + ((2 << sq) - 2) * MS, st, sq)));
    let (mut all, mut sent) = (Vec::new(), Vec::new());
    for (n, (begin, t, st, sq)) in messages.enumerate() {
        // One message of each tenth state reaches no point, one in fifty is lost before the application.
        if (st % 10, sq) == (3, 2) {
            continue;
        }
        // The application pauses in every seventh state, until 20 ms after the next has begun.
        let stands = |st: u32, from: Ns| (st.is_multiple_of(7) && t >= from + 20 * MS).then_some(from + 120 * MS);
        let waits =
            stands(st, begin).or_else(|| stands(st.wrapping_sub(1), begin - 100 * MS).filter(|until| t < *until));
        let app = (n % 50 != 7).then_some(waits.map_or(t + 50 * US, |until| until + n as Ns * US));
        all.extend([(t, NIC, goose::key(st, sq)), (t + 10 * US, TAP, goose::key(st, sq))]);
        all.extend(app.map(|app| (app, APP, goose::key(st, sq))));
        sent.push((goose::key(st, sq), t, app));
    }
    all.sort();
    for (t, point, key) in all {
        b.see(point, key, t);
        b.advance(t);
    }
    b.flush();
    assert_eq!(b.out.iter().map(|o| (o.key, o.nic.unwrap_or(0), o.app)).collect::<Vec<_>>(), sent);
    let totals = b.joiner.totals(0);
    assert_eq!((totals.never_seen, totals.duplicates, totals.late, totals.restarts), (25, 0, 0, 1));
}

#[test]
fn too_many_open_journeys_are_emitted_early_and_counted() {
    let options = Options { max_open: 256, ..Options::default() };
    let mut b = Bench::new(KeyRule::SMP_CNT, options);
    (0..1000).for_each(|n| b.see(NIC, n, n.into()));
    assert_eq!((b.out.len(), b.joiner.open()), (744, 256));
    assert_eq!(b.joiner.totals(0).evicted, 744);
    b.flush();
    assert!(b.out.iter().enumerate().all(|(i, o)| o.number == i as u64));
}

#[test]
fn memory_does_not_grow_with_the_run() {
    let mut b = Bench::sv();
    b.joiner.set_expected(0, LINE);
    b.stream(0..40_000, |n, t| (n % 100 != 0).then_some(t + 50 * US));
    let bytes = b.joiner.bytes();
    b.out.clear();
    b.stream(40_000..400_000, |n, t| (n % 100 != 0).then_some(t + 50 * US));
    assert_eq!(b.joiner.bytes(), bytes);
    assert!(bytes < 1 << 20, "{bytes}");
}

#[test]
fn at_the_end_packets_in_flight_do_not_count_as_lost() {
    let mut b = Bench::sv();
    b.joiner.set_expected(0, LINE);
    b.stream(0..300, |n, t| (n != 7 && n < 290).then_some(t + 50 * US));
    let out = &mut b.out;
    b.joiner.finish(sent(300), &mut |j| out.push(Bench::out(j)));
    assert_eq!((b.out.len(), b.joiner.totals(0).unfinished), (290, 10));
    assert_eq!(b.out.iter().filter(|o| o.app.is_none()).map(|o| o.number).collect::<Vec<_>>(), [7]);
}

#[test]
fn late_and_slow_points_are_found() {
    // The application reads 200 ms later, long after the journey would be handed out; the point is not expected.
    let mut b = Bench::sv();
    b.joiner.set_expected(0, 1 << NIC | 1 << TAP);
    b.stream(0..12_000, |_, t| Some(t + 200 * MS));
    b.flush();
    assert!(b.out.iter().filter(|o| o.app.is_some()).count() > 4000);
    let (totals, whole) = (b.joiner.totals(0), b.out.iter().filter(|o| o.app.is_some()).count() as u64);
    assert_eq!((totals.late + whole, totals.duplicates), (12_000, 0));
}

/// Journeys of a stream of which the application, 700 µs behind the other points, is observed alone for `early`
/// packets, then all points are.
fn watched_from_its_end(early: u64) -> Vec<Out> {
    let mut b = Bench::sv();
    let mut all = Vec::new();
    for n in 0..20_000 {
        if n >= early {
            all.push((sent(n), NIC, n));
            all.push((sent(n) + 10 * US, TAP, n));
        }
        all.push((sent(n) + 700 * US, APP, n));
    }
    all.sort();
    for (n, (t, point, packet)) in all.into_iter().enumerate() {
        b.see(point, (packet % 4000) as u32, t);
        if n % 100 == 99 {
            b.advance(t);
        }
    }
    b.flush();
    b.out
}

#[test]
fn a_later_point_joins_packets_of_the_current_cycle() {
    for early in [100, 3_990, 4_000, 4_003, 4_100, 6_000, 7_999, 9_000] {
        let out = watched_from_its_end(early);
        let whole = out.iter().filter(|o| o.seen == LINE).count() as u64;
        // A point that is added late is taken to be at the head of the stream after 16 packets; a few more were under
        // way.
        assert!(whole + 20 >= 20_000 - early, "{early} early: {whole} whole");
        let times = out.iter().filter_map(|o| Some(o.app? - o.nic?));
        assert_eq!(times.filter(|t| *t != 700 * US).count(), 0, "{early} early: joined with packets of another cycle");
        let alone = out.iter().filter(|o| o.seen == 1 << APP).count() as u64;
        assert!(alone <= early + 20, "{early} early: {alone} by the application alone");
    }
}

#[test]
fn many_and_unusual_points_are_accepted_or_refused() {
    let mut b = Bench::sv();
    for point in [0, 9, 40, 63] {
        b.see(point, 1, i64::from(point));
    }
    b.see(64, 1, 70);
    b.joiner.push(&Sighting { stream: 5, ..Sighting::default() }, &mut |_| panic!());
    b.flush();
    assert_eq!(b.out[0].seen, 1 | 1 << 9 | 1 << 40 | 1 << 63);
    assert_eq!(b.joiner.refused(), 2);
}

#[test]
fn no_sightings_make_it_panic() {
    for rule in [KeyRule::SMP_CNT, KeyRule::Hash { offset: 0, len: 1 }, KeyRule::Seq { offset: 0, len: 4 }] {
        let mut b = Bench::new(rule, Options { max_open: 1000, ..Options::default() });
        b.joiner.set_expected(0, LINE);
        let mut x = 1_u64;
        for n in 0..300_000_u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let t = if n % 1000 == 0 { x as Ns } else { n as Ns * 1000 + (x >> 50) as Ns };
            let key = if n % 3 == 0 { (x >> 33) as u32 } else { (x >> 60) as u32 };
            b.see_note((x >> 40) as u16 % 5, key, t, (x >> 44) as u16);
            if n % 5000 == 0 {
                b.advance(if n % 100_000 == 0 { x as Ns } else { n as Ns * 1000 });
                b.out.clear();
            }
        }
    }
}

/// A sender of 4,000 frames per second with up to 20 µs of jitter that stalls for 15 ms three times, then sends the
/// overdue frames in a burst.
#[test]
fn packets_late_at_the_first_point_are_counted() {
    let mut b = Bench::sv();
    for n in 0..20_000_u32 {
        let turn = Ns::from(n) * INTERVAL + Ns::from(n % 7) * 3 * US;
        let stalled = [6_000, 9_000, 15_000].into_iter().any(|stall| (stall..stall + 60).contains(&n));
        let t = if stalled { Ns::from(n - n % 60 + 60) * INTERVAL + Ns::from(n % 60) * US } else { turn };
        b.see(NIC, n % 4000, t);
    }
    let totals = b.joiner.totals(0);
    assert!((170..=180).contains(&totals.behind_schedule), "{totals:?}");
    assert!((14 * MS..16 * MS).contains(&totals.behind_schedule_max_ns), "{totals:?}");
}

/// Despite a drift of 100 ppm, a restart, a pause and lost packets.
#[test]
fn a_sender_with_another_clock_is_on_time() {
    let mut b = Bench::sv();
    let mut t = 0;
    for n in 0..40_000_u32 {
        t += INTERVAL + INTERVAL / 10_000;
        if n == 20_000 {
            t += 30_000 * MS;
        }
        if n % 5_000 < 4_990 {
            let key = if n < 30_000 { n } else { n + 1_700 };
            b.see(NIC, key % 4000, t);
        }
    }
    let totals = b.joiner.totals(0);
    assert_eq!(totals.behind_schedule, 0, "{totals:?}");
}

/// A journey over two LANs: its points, and the times of its first and second copy.
type OfCopies = (u64, Option<Ns>, Option<Ns>);

/// Journeys of a receiver with two LANs, from sightings as (point, key, time); points: LAN A, LAN B, the application.
fn over_two_lans(sightings: &[(u16, u32, Ns)]) -> (Vec<OfCopies>, u64) {
    let info = |text: &str| PointInfo::from(text.parse::<Point>().unwrap());
    let mut points = ["host/nic-rx@e0:A", "host/nic-rx@e1:B", "host/app-read@a"].map(info).to_vec();
    latpath_journey::copies::add_points(&mut points, |_| None);
    let mut joiner = Joiner::new([KeyRule::SMP_CNT], Options::default());
    joiner.set_points(&points);
    joiner.set_route(0, &[3, 2]);
    let mut out = Vec::new();
    let mut take = |j: &latpath_journey::Journey| out.push((j.seen, j.at(3), j.at(4)));
    for (point, key, t) in sightings {
        joiner.push(&Sighting { t: *t, key: *key, point: *point, ..Sighting::default() }, &mut take);
    }
    joiner.flush(&mut take);
    (out, joiner.totals(0).never_seen)
}

#[test]
fn copies_of_two_lans_are_one_journey_with_a_first_and_a_second_copy() {
    let (journeys, _) = over_two_lans(&[
        (0, 0, 0),
        (2, 0, 5 * US),
        (1, 0, 7 * US),
        // LAN B is faster, and its sighting arrives later.
        (0, 1, 260 * US),
        (1, 1, 250 * US),
        (2, 1, 265 * US),
        // Lost by LAN A, then by LAN B, then by both.
        (1, 2, 500 * US),
        (2, 2, 505 * US),
        (0, 3, 750 * US),
        (2, 3, 755 * US),
        (1, 5, 1250 * US),
        (0, 5, 1251 * US),
        (2, 5, 1255 * US),
    ]);
    let (first, second) = (1 << 3, 1 << 4);
    assert_eq!(
        journeys,
        [
            (0b111 | first | second, Some(0), Some(7 * US)),
            (0b111 | first | second, Some(250 * US), Some(260 * US)),
            (0b110 | first, Some(500 * US), None),
            (0b101 | first, Some(750 * US), None),
            (0b111 | first | second, Some(1250 * US), Some(1251 * US)),
        ]
    );
}

/// The route ends at the ports of the LANs: A alone swaps packets 1 and 2, both LANs swap packets 3 and 4.
#[test]
fn packets_are_out_of_order_if_their_first_copies_are() {
    let info = |text: &str| PointInfo::from(text.parse::<Point>().unwrap());
    let mut points = ["host/nic-rx@e0:A", "host/nic-rx@e1:B"].map(info).to_vec();
    latpath_journey::copies::add_points(&mut points, |_| None);
    let mut joiner = Joiner::new([KeyRule::SMP_CNT], Options::default());
    joiner.set_points(&points);
    joiner.set_route(0, &[2]);
    let mut out = Vec::new();
    let mut take = |j: &latpath_journey::Journey| out.push((j.key, j.out_of_order, j.duplicates));
    let order =
        [(0, 0), (1, 0), (1, 1), (0, 2), (0, 1), (1, 2), (0, 4), (1, 4), (1, 3), (0, 3), (0, 5), (1, 5), (1, 5)];
    for (at, (point, key)) in (0..).zip(order) {
        joiner.push(&Sighting { t: at * 100 * US, key, point, ..Sighting::default() }, &mut take);
    }
    joiner.flush(&mut take);
    out.sort_unstable();
    assert_eq!(out, [0, 1, 2, 3, 4, 5].map(|key| (key, key == 3, 0)));
}

#[test]
fn a_storm_of_duplicates_by_one_lan_is_no_second_copy() {
    let storm = (0..50).map(|n| (0, 7, n * US));
    let (journeys, _) = over_two_lans(&storm.chain([(1, 7, 60 * US), (2, 7, 61 * US)]).collect::<Vec<_>>());
    assert_eq!(journeys, [(0b11111, Some(0), Some(60 * US))]);
}

/// One LAN fails for a while and is far behind afterwards; its copies still join their journeys.
#[test]
fn a_lan_that_fails_and_returns_changes_no_number() {
    let mut sightings = Vec::new();
    for n in 0..12_000_u32 {
        let (t, key) = (i64::from(n) * INTERVAL, n % 4000);
        if n == 10_000 {
            continue; // lost by both
        }
        if !(3000..9000).contains(&n) {
            sightings.push((0, key, t));
        }
        sightings.push((1, key, t + 20 * US));
        sightings.push((2, key, t + 30 * US));
    }
    let (journeys, never_seen) = over_two_lans(&sightings);
    let with = |bit: u64| journeys.iter().filter(|(seen, ..)| seen >> bit & 1 == 1).count();
    assert_eq!((journeys.len(), never_seen), (11_999, 1));
    assert_eq!([with(0), with(1), with(2), with(3), with(4)], [5999, 11_999, 11_999, 11_999, 5999]);
}
