//! Compares an import with a slow, simple joiner, which keeps all packets in memory and joins those nearest in time.

use crate::{Bench, Packet, PUB, SUB};
use latpath_model::Ns;
use latpath_testkit::Noise;
use std::{collections::HashMap, fmt::Write};

/// A line of a log: time, smpCnt, stream.
type Line = (Ns, u32, u16);

/// Two logs of a network that occasionally loses, repeats and reorders packets. Times are whole microseconds.
fn network(seed: u64, packets: u64, streams: u64) -> (Vec<Line>, Vec<Line>) {
    let mut noise = Noise(seed);
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for packet in 0..packets {
        let (stream, number) = ((packet % streams) as u16, packet / streams);
        let t = 1_767_225_600_000_000_000 + (number * 250_000 + u64::from(stream) * 3_000) as Ns;
        let line = |t| (t, (number % 4000) as u32, stream);
        sent.push(line(t));
        let mut draw = |most: u64| noise.draw() % most;
        // Let the last packets all arrive: at the end, a loss could not be detected.
        let inside = packet > 300 * streams && packet + 300 * streams < packets;
        if inside && draw(200) == 0 {
            continue;
        }
        let late = if inside && draw(300) == 0 { 2_000 } else { 40 };
        let arrived = t + (late + draw(60)) as Ns * 1000;
        got.push(line(arrived));
        if inside && draw(400) == 0 {
            got.push(line(arrived + 5_000));
        }
    }
    got.sort_by_key(|line| line.0);
    (sent, got)
}

fn log(lines: &[Line]) -> String {
    let mut text = String::new();
    for (t, key, stream) in lines {
        writeln!(text, "{}:MU{stream:02}:{key}:{}", 0, t / 1000).unwrap();
    }
    text
}

/// Joins packets by the nearest time.
fn slow_join(sent: &[Line], got: &[Line]) -> Vec<Packet> {
    let mut by_key: HashMap<(u16, u32), Vec<usize>> = HashMap::new();
    let mut packets: Vec<Packet> = Vec::new();
    for (at, (t, key, stream)) in sent.iter().enumerate() {
        by_key.entry((*stream, *key)).or_default().push(at);
        let t = vec![Some(*t), None];
        packets.push(Packet { stream: *stream, key: *key, t, duplicates: 0, out_of_order: false });
    }
    let mut newest: HashMap<u16, usize> = HashMap::new();
    for (t, key, stream) in got {
        let nearest = by_key[&(*stream, *key)].iter().min_by_key(|at| (t - sent[**at].0).abs()).unwrap();
        if packets[*nearest].t[1].is_some() {
            packets[*nearest].duplicates += 1;
            continue;
        }
        packets[*nearest].t[1] = Some(*t);
        let newest = newest.entry(*stream).or_default();
        packets[*nearest].out_of_order = *nearest < *newest;
        *newest = (*newest).max(*nearest);
    }
    packets
}

#[test]
fn losses_duplicates_and_order_are_those_of_a_slow_joiner() {
    for (seed, streams) in [(1, 1), (2, 3), (3, 1), (4, 2)] {
        let bench = Bench::new();
        let (sent, got) = network(seed, 60_000, streams);
        bench.write("pub.txt", log(&sent));
        bench.write("sub.txt", log(&got));
        let (manifest, packets) = bench.import(&bench.options(&[(PUB, "pub.txt"), (SUB, "sub.txt")])).unwrap();
        let expected = slow_join(&sent, &got);
        assert!(expected.iter().any(|p| p.t[1].is_none()) && expected.iter().any(|p| p.out_of_order));
        assert_eq!(packets.len(), expected.len());
        for (found, expected) in packets.iter().zip(&expected) {
            assert_eq!(found, expected, "seed {seed}");
        }
        assert_eq!(manifest.streams.len(), streams as usize);
        assert_eq!(manifest.joined.iter().map(|t| t.never_seen).sum::<u64>(), 0);
        let packets = (sent.len() as u64, got.len() as u64);
        assert_eq!((manifest.imported[0].packets, manifest.imported[1].packets), packets);
        assert_eq!(manifest.counters.sightings, packets.0 + packets.1);
    }
}

#[test]
fn an_offset_moves_a_machines_times_and_keeps_its_bound() {
    let bench = Bench::new();
    let (sent, got) = network(5, 8_000, 1);
    let ahead: Vec<Line> = got.iter().map(|(t, key, stream)| (t + 3_600_000_000_000, *key, *stream)).collect();
    bench.write("pub.txt", log(&sent));
    bench.write("sub.txt", log(&ahead));
    let mut options = bench.options(&[(PUB, "pub.txt"), (SUB, "sub.txt")]);
    assert!(bench.import(&options).unwrap_err().to_string().contains("--offset relay=3600s corrects it"));
    options.offsets = vec!["relay=1h±7us".parse().unwrap()];
    let (manifest, packets) = bench.import(&options).unwrap();
    assert!(packets == slow_join(&sent, &got));
    let clock = &manifest.machines[1].clock;
    assert_eq!((clock.machine.as_str(), clock.offset_ns, clock.error_bound_ns), ("relay", 3_600_000_000_000, 7_000));
    assert!(manifest.notes.iter().all(|note| !note.starts_with("clocks")));
}

#[test]
fn the_error_of_an_estimated_offset_is_within_its_bound() {
    for drift_ppb in [0, 2_000, -5_000] {
        let bench = Bench::new();
        let (sent, got) = network(7, 200_000, 1);
        let begin = sent[0].0;
        let offset = |t: Ns| 123_456_000 + (t - begin) / 1_000_000 * drift_ppb / 1_000;
        let ahead: Vec<Line> = got.iter().map(|(t, key, stream)| (t + offset(*t), *key, *stream)).collect();
        bench.write("pub.txt", log(&sent));
        bench.write("sub.txt", log(&ahead));
        let mut options = bench.options(&[(PUB, "pub.txt"), (SUB, "sub.txt")]);
        // The fastest packets of the network take 40 us, and logs truncate times to whole microseconds.
        options.estimates = vec!["relay=42us".parse().unwrap()];
        let (manifest, packets) = bench.import(&options).unwrap();
        let clock = &manifest.machines[1].clock;
        for t in [begin, begin + 25_000_000_000, begin + 50_000_000_000] {
            assert!((clock.offset_ns - offset(t)).abs() <= clock.error_bound_ns + 1000, "{clock:?}");
        }
        assert!(clock.error_bound_ns <= 21_000 + 40 * drift_ppb.abs() + 4000, "{clock:?}");
        assert!(packets.len() > 190_000 && clock.method == "estimated");
    }
}

#[test]
fn packets_outside_the_common_time_of_files_do_not_count_as_lost() {
    let (sent, got) = network(6, 40_000, 1);
    let whole = slow_join(&sent, &got);
    for (sent_from, sent_to, got_from, got_to) in
        [(0, 40_000, 5_000, 30_000), (5_000, 40_000, 0, 30_000), (5_000, 30_000, 0, got.len())]
    {
        let bench = Bench::new();
        bench.write("pub.txt", log(&sent[sent_from..sent_to]));
        bench.write("sub.txt", log(&got[got_from..got_to]));
        let (_, packets) = bench.import(&bench.options(&[(PUB, "pub.txt"), (SUB, "sub.txt")])).unwrap();
        assert!(packets.len() > 24_000, "{}", packets.len());
        for found in &packets {
            assert!(whole.iter().any(|p| (p.key, &p.t) == (found.key, &found.t)), "{found:?}");
        }
    }
}
