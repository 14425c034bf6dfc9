//! Imports captures of redundant networks (PRP, HSR): one capture per LAN, or a single one of both LANs.

use crate::captures::{frame, pcap};
use crate::{Bench, Packet, SUB};
use latpath_model::Ns;
use latpath_protocols::redundancy::{mark, CopyMark, Lan, Method};

const BEGIN: Ns = 1_767_225_600_000_000_000;
const EVERY: Ns = 500_000;
const LAN_A: &str = "host/nic-rx@eth1:A";
const LAN_B: &str = "host/nic-rx@eth1:B";
/// Number of packets that arrive through both LANs, then through B only, then through A only.
const PHASES: [u16; 3] = [800, 900, 700];

/// The captured copies, sorted by time. LAN A takes 10 µs; LAN B takes 4 µs and 30 µs in turn.
fn copies(method: Method) -> Vec<(Lan, Ns, Vec<u8>)> {
    let mut all = Vec::new();
    for n in 0..PHASES.iter().sum::<u16>() {
        let sent = BEGIN + Ns::from(n) * EVERY;
        let lans: &[(Lan, Ns)] = match () {
            () if n < PHASES[0] => &[(Lan::A, 10_000), (Lan::B, if n % 2 == 0 { 4_000 } else { 30_000 })],
            () if n < PHASES[0] + PHASES[1] => &[(Lan::B, 4_000)],
            () => &[(Lan::A, 10_000)],
        };
        for (lan, takes) in lans {
            let mut bytes = frame("MU01", n * 2, Some(7));
            mark(&mut bytes, CopyMark { method, lan: *lan, sequence: n }).unwrap();
            all.push((*lan, sent + takes, bytes));
        }
    }
    all.sort_by_key(|(_, t, _)| *t);
    all
}

/// A log of the application, which reads the first copies.
fn log() -> String {
    let line = |n: u16| format!("0:MU01:{}:{}\n", n * 2, (BEGIN + Ns::from(n) * EVERY) / 1000 + 80);
    (0..PHASES.iter().sum()).map(line).collect()
}

fn write(bench: &Bench, name: &str, copies: &[(Lan, Ns, Vec<u8>)], lan: Option<Lan>) {
    let of = copies.iter().filter(|(of, ..)| lan.is_none_or(|lan| lan == *of));
    bench.write(name, pcap(&of.map(|(_, t, bytes)| (*t, bytes.clone())).collect::<Vec<_>>()));
}

fn expect_joined(packets: &[Packet]) {
    let [both, by_b, by_a] = PHASES.map(usize::from);
    assert_eq!(packets.len(), both + by_b + by_a);
    for (n, packet) in packets.iter().enumerate() {
        // The computed points follow those of the files.
        let [a, b, app, first, second] = packet.t[..] else { panic!("{packet:?}") };
        let (b_takes, is_a, is_b) =
            (if n % 2 == 0 { 4_000 } else { 30_000 }, n < both || n >= both + by_b, n < both + by_b);
        assert_eq!((a.is_some(), b.is_some(), app.is_some()), (is_a, is_b, true), "{n}");
        assert_eq!(first, a.into_iter().chain(b).min(), "{n}");
        assert_eq!(
            second.zip(first).map(|(second, first)| second - first),
            (is_a && is_b).then_some((b_takes - 10_000_i64).abs())
        );
        assert_eq!((packet.duplicates, packet.out_of_order), (0, false));
    }
}

#[test]
fn captures_of_two_lans_are_joined_even_where_one_of_them_ends_early() {
    for method in [Method::Prp, Method::Hsr] {
        let (bench, copies) = (Bench::new(), copies(method));
        write(&bench, "a.pcap", &copies, Some(Lan::A));
        write(&bench, "b.pcap", &copies, Some(Lan::B));
        bench.write("sub.txt", log());
        let mut options = bench.options(&[(LAN_A, "a.pcap"), (LAN_B, "b.pcap"), (SUB, "sub.txt")]);
        options.window = 100_000_000;
        let (manifest, packets) = bench.import(&options).unwrap();
        expect_joined(&packets);
        let said = "b.pcap ends 350.0 ms before ";
        assert!(manifest.notes.iter().any(|note| note.contains(said)), "{:?}", manifest.notes);
    }
}

#[test]
fn one_capture_of_both_lans_is_named_once_for_each() {
    let (bench, copies) = (Bench::new(), copies(Method::Prp));
    write(&bench, "both.pcap", &copies, None);
    bench.write("sub.txt", log());
    let sources = [(LAN_A, "both.pcap"), (LAN_B, "both.pcap"), (SUB, "sub.txt")];
    let (manifest, packets) = bench.import(&bench.options(&sources)).unwrap();
    expect_joined(&packets);
    assert!(!manifest.notes.iter().any(|note| note.contains("byte for byte")), "{:?}", manifest.notes);
    let files: Vec<(u64, u64)> = manifest.imported.iter().map(|file| (file.packets, file.left_out)).collect();
    assert_eq!(files, [(1500, 1700), (1700, 1500), (2400, 0)]);

    // If the names of the points contain no LAN, or only one of them, a note tells the user what to do.
    let (manifest, packets) =
        bench.import(&bench.options(&[("host/nic-rx@eth1", "both.pcap"), (SUB, "sub.txt")])).unwrap();
    assert_eq!(
        packets.iter().map(|packet| u64::from(packet.duplicates)).sum::<u64>(),
        0,
        "the application read each once"
    );
    let note = manifest.notes.iter().find(|note| note.contains("host/nic-rx@eth1:B=")).expect("a note");
    assert!(note.contains("1500 frames by LAN A, and 1700 by LAN B"), "{note}");
    let (manifest, _) = bench.import(&bench.options(&[(LAN_A, "both.pcap"), (SUB, "sub.txt")])).unwrap();
    let note = manifest.notes.iter().find(|note| note.contains("left out: 1700 frames by LAN B"));
    assert!(note.is_some(), "{:?}", manifest.notes);
}

#[test]
fn a_capture_of_the_other_lan_is_refused() {
    let (bench, copies) = (Bench::new(), copies(Method::Hsr));
    write(&bench, "b.pcap", &copies, Some(Lan::B));
    bench.write("sub.txt", log());
    let error = bench.import(&bench.options(&[(LAN_A, "b.pcap"), (SUB, "sub.txt")])).unwrap_err().to_string();
    assert!(error.contains("by the point's LAN (0 are copies by LAN A, 1700 by LAN B)"), "{error}");
}
