//! Compares the joiner, which sees wrapping keys, with a slow joiner that knows the packets' identities. Both must
//! return the same journeys, times and counts, whatever the network does within the documented limits.

mod network;
mod slow;

use latpath_journey::{Joiner, Options};
use latpath_model::{KeyRule, Ns};
use network::{Known, Network, Random, Stall};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use slow::{Slow, Whole};
use std::collections::HashSet;

const MS: Ns = 1_000_000;
/// All points of a line, without the first `watched_from`.
fn line(watched_from: usize) -> Vec<u16> {
    (watched_from as u16..6).collect()
}

/// Journeys of the joiner and of the reference, one entry per stream.
struct Outcome {
    got: Vec<Vec<Whole>>,
    expected: Vec<Vec<Whole>>,
    totals: Vec<(latpath_journey::Totals, latpath_journey::Totals)>,
    never_seen: Vec<u64>,
}

fn run(networks: &[Network], options: Options, expect_from: Option<Ns>) -> Outcome {
    let rules = networks.iter().map(|n| match n.wrap {
        256 => KeyRule::Seq { offset: 0, len: 1 },
        _ => KeyRule::SMP_CNT,
    });
    let mut joiner = Joiner::new(rules, options);
    joiner.set_points(&network::points());
    let mut slow: Vec<_> = networks.iter().map(|_| Slow::new(options)).collect();
    let mut all: Vec<Known> = Vec::new();
    for (id, network) in networks.iter().enumerate() {
        all.extend(network.run(id as u16, 10 * MS + id as Ns * 77_000));
    }
    all.sort_by_key(|known| (known.arrives, known.s.t));
    // A source's watermark: no later sighting is older.
    let mut watermarks = vec![Ns::MAX; all.len() + 1];
    for (n, known) in all.iter().enumerate().rev() {
        watermarks[n] = watermarks[n + 1].min(known.s.t);
    }
    let mut got = vec![Vec::new(); networks.len()];
    let mut sink = |j: &latpath_journey::Journey| got[usize::from(j.stream)].push(Whole::of(j));
    let mut r = Random(networks[0].seed);
    let mut left = r.below(500);
    for (n, known) in all.iter().enumerate() {
        if expect_from.is_some_and(|from| known.s.t >= from) {
            for (stream, (slow, network)) in slow.iter_mut().zip(networks).enumerate() {
                joiner.set_route(stream as u16, &line(network.watched_from));
                slow.expect(&line(network.watched_from));
            }
        }
        joiner.push(&known.s, &mut sink);
        slow[usize::from(known.s.stream)].push(known);
        if left == 0 {
            left = r.below(500);
            joiner.advance(watermarks[n + 1], &mut sink);
            slow.iter_mut().for_each(|s| s.advance(watermarks[n + 1]));
        }
        left = left.saturating_sub(1);
    }
    joiner.flush(&mut sink);
    slow.iter_mut().for_each(Slow::flush);
    let mut expected: Vec<Vec<Whole>> = slow.iter_mut().map(|s| std::mem::take(&mut s.out)).collect();
    for ((network, got), expected) in networks.iter().zip(&mut got).zip(&mut expected) {
        // Order across an uncommon wrap is only known from the second time on. If a queue overflows, packets that
        // overtake each other may be more than R packets apart.
        let overflows = network.stalls.iter().any(|stall| stall.queue < usize::MAX);
        if UNKNOWN.contains(&network.wrap) || overflows {
            got.iter_mut().chain(expected).for_each(|whole| whole.out_of_order = false);
        }
    }
    let never_seen = (0..networks.len())
        .map(|stream| {
            let seen: HashSet<_> = all.iter().filter(|k| usize::from(k.s.stream) == stream).map(|k| k.packet).collect();
            let span = seen.iter().max().map_or(0, |max| max + 1 - seen.iter().min().unwrap());
            (span - seen.len()) as u64
        })
        .collect();
    let counted = |s: &Slow| latpath_journey::Totals { duplicates: s.duplicates(), ..s.totals };
    let totals = slow.iter().enumerate().map(|(id, s)| (joiner.totals(id as u16), counted(s))).collect();
    Outcome { got, expected, totals, never_seen }
}

fn check(outcome: &Outcome) -> Result<(), TestCaseError> {
    for (stream, (got, expected)) in outcome.got.iter().zip(&outcome.expected).enumerate() {
        if let Some((g, w)) = got.iter().zip(expected).find(|(g, w)| g != w) {
            return Err(TestCaseError::fail(format!("stream {stream}:\n  got {g:?}\n expected {w:?}")));
        }
        prop_assert_eq!(got.len(), expected.len());
        let (g, w) = outcome.totals[stream];
        prop_assert_eq!(
            (g.sightings, g.journeys, g.duplicates, g.repeated, g.late, g.evicted, g.crowded),
            (w.sightings, w.journeys, w.duplicates, w.repeated, w.late, 0, 0)
        );
        prop_assert!(g.never_seen <= outcome.never_seen[stream], "{} {}", g.never_seen, outcome.never_seen[stream]);
    }
    Ok(())
}

const R: u64 = 32;
/// Uncommon wraps of cycles().
const UNKNOWN: [u64; 2] = [300, 700];

fn options() -> Options {
    Options {
        window: 100 * MS,
        reorder: R,
        linger: 2 * MS,
        retain: 400 * MS,
        late: MS,
        max_open: 1 << 16,
        separate_senders: true,
    }
}

/// Cycles of 256 to 4000 packets: keys wrap often among the kept journeys.
fn cycles() -> impl Strategy<Value = (u64, u64)> {
    prop::sample::select(vec![(1, 256), (1, 300), (2, 700), (8, 12800), (1, 4000), (2, 4800), (6, 14400)])
}

prop_compose! {
    fn networks()(
        seed in any::<u64>(),
        (step, wrap) in cycles(),
        packets in 100_usize..5000,
        loss in prop::sample::select(vec![0, 0, 3, 30, 150]),
        sighting_loss in prop::sample::select(vec![0, 0, 2, 20]),
        duplicates in prop::sample::select(vec![0, 0, 5, 50]),
        reorder in prop::sample::select(vec![0, 0, 10, 100]),
        reorder_span in 1_u64..4,
        clock_error in -300_000_i64..300_000,
        disorder in 0_i64..300_000,
        clones in prop::option::of((0_usize..6, -5000_i64..MS)),
        watched_from in prop::sample::select(vec![0, 0, 0, 1, 4]),
        stall in prop::option::of((1_usize..6, 5_i64..500, 1_i64..100)),
        queue in prop::sample::select(vec![usize::MAX, 20, 100]),
    ) -> Network {
        let interval = 250_000;
        // If packets are first seen as drops, the wrap must be a common one.
        let known = !UNKNOWN.contains(&wrap);
        let clones = clones.filter(|(hop, after)| known || *hop > 0 || *after >= 0);
        let clear = loss < 150 && known && stall.is_none_or(|(hop, ..)| hop > watched_from);
        let watched_from = if clear { watched_from } else { 0 };
        let cycle = (wrap / step) as Ns * interval;
        let stalls = stall.into_iter().map(|(hop, from, percent)| Stall {
            hop,
            from: from * MS,
            length: (cycle.min(150 * MS) - 4 * R as Ns * interval).max(MS) * percent / 100,
            // If a drop is the only sighting of a packet, the wrap must be a common one.
            queue: if known || sighting_loss == 0 { queue } else { usize::MAX },
        }).collect();
        Network {
            seed, packets, interval, step, wrap, loss, sighting_loss, duplicates, reorder, reorder_span,
            clock_error, disorder, stalls, clones, watched_from,
        }
    }
}

/// A fixed set of networks; with PROPTEST_CASES set, that many random ones.
fn config() -> ProptestConfig {
    let more = std::env::var("PROPTEST_CASES").is_ok();
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if more {
        default
    } else {
        ProptestConfig { cases: 300, rng_seed: RngSeed::Fixed(61850), ..default }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_network_within_the_limits(
        networks in prop::collection::vec(networks(), 1..4),
        expect_from in prop::option::of(0..500 * MS),
    ) {
        check(&run(&networks, options(), expect_from))?;
    }
}
