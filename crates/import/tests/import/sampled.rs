//! Imports captures whose packets contain the times of their samples: Tmu must be known, even with a single file.

use crate::captures::pcap;
use crate::{packets, Bench, PUB, SUB};
use latpath_import::{import, ImportError, Options};
use latpath_model::Ns;
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use latpath_run::Run;
use std::sync::atomic::AtomicBool;

const SECOND: Ns = 1_000_000_000;
const BEGIN: Ns = 1_767_225_600 * SECOND;

/// Time from a packet's sample to its arrival, ns.
fn delay(n: Ns) -> Ns {
    1_500_000 + n % 7 * 1000
}

fn sample_of(n: Ns) -> Ns {
    BEGIN + n * SECOND / 4000
}

/// A capture of `count` packets from a publisher of 4000 samples per second, each seen `late` ns after it was sent.
fn capture(count: Ns, late: Ns, synch: impl Fn(Ns) -> u8) -> Vec<u8> {
    let frame = |n: Ns| {
        let smp_cnt = (n % 4000) as u16;
        let asdu = AsduSpec { svid: "MU01".into(), smp_cnt, smp_synch: synch(n), ..AsduSpec::default() };
        FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().unwrap()
    };
    pcap(&(0..count).map(|n| (sample_of(n) + delay(n) + late, frame(n))).collect::<Vec<_>>())
}

/// Number of packets in the run for which the time of the sample is known; checks these times. The first packet must be
/// number 0.
fn dated(bench: &Bench) -> usize {
    let mut all = packets(&bench.path("run"));
    all.sort_by_key(|packet| packet.t[0]);
    let is_dated = |(n, packet): (usize, &crate::Packet)| {
        let sampled = packet.t.last().copied().flatten()?;
        assert_eq!(sampled, sample_of(n as Ns), "{n}: {packet:?}");
        Some(n)
    };
    all.iter().enumerate().filter_map(is_dated).count()
}

fn make(bench: &Bench, options: &Options) -> Run {
    import(options, &bench.path("run"), &AtomicBool::new(false), |_| {}).unwrap();
    Run::open(&bench.path("run")).unwrap()
}

#[test]
fn one_capture_has_the_time_since_the_samples() {
    let bench = Bench::new();
    bench.write("sub.pcap", capture(20_000, 0, |_| 2));
    let options = Options { clock_error: Some(7000), ..bench.options(&[(SUB, "sub.pcap")]) };
    let run = make(&bench, &options);
    let manifest = run.manifest();
    let segments: Vec<_> = manifest.segments.iter().map(|s| format!("{}: {}..{}", s.name, s.from, s.to)).collect();
    assert_eq!(segments, ["Tmu: MU/sampled@smpCnt..relay/app-read@relay"]);
    let clocks = manifest.machines.iter().map(|m| (m.clock.machine.as_str(), m.clock.error_bound_ns));
    assert_eq!(clocks.collect::<Vec<_>>(), [("relay", 0), ("MU", 7000)]);
    assert!(manifest.notes.is_empty(), "{:?}", manifest.notes);
    // smpCnt must have wrapped, and then restarted with each second, before the times of samples are known.
    let dated = dated(&bench);
    assert!((20_000 - 9000..20_000).contains(&dated), "{dated}");
}

#[test]
fn beside_other_files_tmu_ends_at_the_first_without_a_bound_unless_given() {
    let bench = Bench::new();
    bench.write("pub.pcap", capture(16_000, 0, |_| 2));
    bench.write("sub.pcap", capture(16_000, 40_000, |_| 2));
    let run = make(&bench, &bench.options(&[(PUB, "pub.pcap"), (SUB, "sub.pcap")]));
    let segments: Vec<_> = run.manifest().segments.iter().map(|s| format!("{}: {}", s.name, s.to)).collect();
    assert_eq!(segments, [format!("Tmu: {PUB}"), format!("total: {SUB}")]);
    assert!(run.manifest().machines.iter().all(|m| m.clock.machine != "MU"));
    let says = "how far the clock of publisher is off UTC";
    assert!(run.manifest().notes.iter().any(|note| note.contains(says)), "{:?}", run.manifest().notes);
    assert!(dated(&bench) > 7000);
}

#[test]
fn when_a_sender_loses_its_clock_the_run_gets_a_mark_and_tmu_ends() {
    let bench = Bench::new();
    bench.write("sub.pcap", capture(20_000, 0, |n| if n < 12_000 { 2 } else { 1 }));
    let run = make(&bench, &bench.options(&[(SUB, "sub.pcap")]));
    let marks: Vec<_> = run.marks().iter().map(|mark| (mark.t_ns, mark.text.as_str())).collect();
    assert_eq!(marks, [(sample_of(12_000) + delay(12_000), "MU01: smpSynch 2 -> 1")]);
    assert!(run.manifest().notes.iter().any(|note| note == "MU01: smpSynch changed once, at last to 1"));
    assert!((3000..=12_000).contains(&dated(&bench)));
}

#[test]
fn a_single_file_without_sample_times_is_refused() {
    let bench = Bench::new();
    for (file, says) in [
        (capture(20_000, 0, |_| 1), "no packet says that its sender keeps UTC"),
        (capture(3000, 0, |_| 2), "two seconds of packets or more"),
    ] {
        bench.write("sub.pcap", file);
        let error = bench.import(&bench.options(&[(SUB, "sub.pcap")])).unwrap_err();
        assert!(matches!(error, ImportError::OneFile { .. }) && error.to_string().contains(says), "{error}");
        assert!(!bench.path("run").exists());
    }
}
