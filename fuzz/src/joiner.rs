//! Passes arbitrary sequences of sightings through the joiner. Checks that nothing panics, each journey is returned
//! once and in order, and memory is bounded.
//!
//! Input: one byte of options, then sightings of 8 bytes: stream and point (1), key (2), time (3, since the previous
//! sighting, signed, in units of 64 ns), note (1), and an action (1). Some actions follow the sighting; others change
//! it first: they extend the key to 32 bits, set the clock, or move the time to an end of its range.

use latpath_journey::{Joiner, Journey, Options};
use latpath_model::{KeyRule, Link, Point, PointInfo, Sighting};

/// Number of streams: one for each key rule below.
const STREAMS: usize = 4;
const POINTS: [&str; 6] =
    ["host/tx@a", "host/nic-rx@b", "host/drop@b", "host/tx@c", "guest0/app-read@d", "guest0/drop@e"];

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Some((&kind, mut rest)) = bytes.split_first() else { return };
    let rules = [
        KeyRule::SMP_CNT,
        KeyRule::Hash { offset: 0, len: 4 },
        KeyRule::Seq { offset: 0, len: 1 },
        KeyRule::Seq { offset: 0, len: 4 },
    ];
    let mut points = POINTS.map(|text| PointInfo::from(text.parse::<Point>().expect("a point")));
    if kind & 2 != 0 {
        // With two senders, packets at the first point reach no other point.
        for (info, (netns, peer_netns)) in points.iter_mut().zip([(1, 9), (2, 3), (2, 3), (3, 2)]) {
            (info.link, info.netns, info.peer_netns) = (Link::Veth, netns, peer_netns);
        }
    }
    let options = Options {
        window: 1 << (10 + kind % 16),
        linger: 1 << (8 + kind % 8),
        retain: 3 << (10 + kind % 16),
        reorder: 1 << (kind >> 4),
        late: 200_000,
        max_open: 256,
        separate_senders: kind & 4 == 0,
    };
    let mut joiner = Joiner::new(rules, options);
    joiner.set_points(&points);
    let (mut t, mut next, mut came, mut taken) = (0i64, [0u64; STREAMS], [0u64; STREAMS], [0u64; STREAMS]);
    let mut sink = |j: &Journey| {
        let stream = usize::from(j.stream);
        // Unfinished journeys are omitted at the end.
        assert!(j.number >= next[stream]);
        assert_ne!(j.seen, 0);
        next[stream] = j.number + 1;
        came[stream] += 1;
    };
    while let Some((s, tail)) = rest.split_first_chunk::<8>() {
        let step = i64::from(i32::from_be_bytes([s[3], s[4], s[5], 0]) >> 8);
        t = match s[7] {
            // Sets the clock forward or back by up to 24 days.
            18 => t.saturating_add(step * 250_000_000),
            19 => i64::MAX - step.abs(),
            20 => i64::MIN + step.abs(),
            _ => t.saturating_add(step * 64),
        };
        let stream = u16::from(s[0]) % STREAMS as u16;
        let key = u32::from(u16::from_be_bytes([s[1], s[2]]));
        let key = if s[7] & 0x80 == 0 { key } else { key << 16 | u32::from(s[6]) };
        let point = u16::from(s[0]) / STREAMS as u16 % POINTS.len() as u16;
        joiner.push(&Sighting { t, key, point, stream, note: u16::from(s[6]), ..Sighting::default() }, &mut sink);
        taken[usize::from(stream)] += 1;
        match s[7] {
            0..=15 => joiner.advance(t, &mut sink),
            16 => (0..STREAMS as u16).for_each(|stream| joiner.set_route(stream, &[0, 1, 3, 4])),
            17 => (0..STREAMS as u16).for_each(|stream| joiner.set_route(stream, &[])),
            _ => {}
        }
        assert!(joiner.open() <= 256 && joiner.bytes() < 1 << 20);
        rest = tail;
    }
    if kind & 1 == 0 {
        joiner.flush(&mut sink);
    } else {
        joiner.finish(t, &mut sink);
    }
    assert_eq!(joiner.open(), 0);
    for (stream, taken) in taken.into_iter().enumerate() {
        let totals = joiner.totals(stream as u16);
        assert_eq!(totals.sightings + totals.other_senders, taken);
        assert_eq!(totals.journeys, came[stream]);
        assert!(next[stream] <= totals.journeys + totals.unfinished);
        assert!(totals.journeys + totals.unfinished + totals.repeated + totals.late <= taken);
    }
}
