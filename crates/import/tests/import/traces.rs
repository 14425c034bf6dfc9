//! Imports traces together with files: late packets must be explained for any state of the sender's clock, and errors
//! must say why a trace is unusable.

use crate::captures::pcap;
use crate::{Bench, PUB, SUB};
use latpath_import::Options;
use latpath_model::Ns;
use latpath_protocols::sv::{AsduSpec, FrameSpec};
use std::fmt::Write;

const BEGIN: Ns = 1_767_225_600_000_000_000;
/// Number of packets from one late packet to the next.
const LATE: Ns = 50;

fn capture(synch: u8, took: impl Fn(Ns) -> Ns) -> Vec<u8> {
    let packet = |n: Ns| {
        let asdu = AsduSpec { svid: b"MU01".to_vec(), smp_cnt: n as u16, smp_synch: synch, ..AsduSpec::default() };
        (BEGIN + n * 250_000 + took(n), FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().unwrap())
    };
    pcap(&(0..800).map(packet).collect::<Vec<_>>())
}

/// A trace with a switch every 100 µs; line `n` is prefixed by `before(n)`, and contains this event.
fn trace(before: impl Fn(usize) -> &'static str, event: &str) -> String {
    (0..2100).fold(String::new(), |mut text, n| {
        let t = BEGIN / 1000 + n as Ns * 100;
        let (s, us) = (t / 1_000_000, t % 1_000_000);
        let _ = writeln!(text, "{}            hog-9     [000]  {s}.{us:06}: sched_switch: {event}", before(n));
        text
    })
}

const SWITCH: &str = "hog:9 [120] R ==> relay:77 [120]";

fn options(bench: &Bench, synch: u8) -> Options {
    bench.write("pub.pcap", capture(synch, |_| 0));
    bench.write("sub.pcap", capture(synch, |n| if n % LATE == LATE - 1 { 600_000 } else { 20_000 }));
    let mut options = bench.options(&[(PUB, "pub.pcap"), (SUB, "sub.pcap")]);
    options.traces = vec![format!("relay={}", bench.path("trace.txt").display()).parse().unwrap()];
    options
}

#[test]
fn late_packets_have_captures_with_any_state_of_the_senders_clock() {
    for synch in [0, 1, 2] {
        let bench = Bench::new();
        bench.write("trace.txt", trace(|_| "", SWITCH));
        let (manifest, _) = bench.import(&options(&bench, synch)).unwrap();
        let late: u64 = manifest.spikes.map_or(0, |spikes| spikes.late.iter().sum());
        assert_eq!(late, 800 / LATE as u64, "smpSynch {synch}");
    }
}

#[test]
fn an_unusable_trace_is_refused_with_the_reason() {
    let bench = Bench::new();
    let options = options(&bench, 0);
    let with = |text: String| {
        bench.write("trace.txt", text);
        bench.import(&options).map_err(|error| error.to_string())
    };
    let two = |n: usize| if n.is_multiple_of(2) { "  host.dat:" } else { " guest.dat:" };
    let error = with(trace(two, SWITCH)).unwrap_err();
    assert!(error.contains("several traces (guest.dat, host.dat)"), "{error}");
    let raw = "prev_comm=ARRAY[68, 6f, 67] prev_pid=9 prev_prio=0x78 prev_state=0x0 next_comm=ARRAY[72] next_pid=0x4d";
    let error = with(trace(|_| "", raw)).unwrap_err();
    assert!(error.contains("2100 lines of sched_switch cannot be read, as \"prev_comm=ARRAY"), "{error}");
    let error = with("  hog-9  [000]  5.000001: sched_waking: relay:77 [-1] CPU:001\n".into()).unwrap_err();
    assert!(error.contains("no sched_switch event in it"), "{error}");
    // A file name before each line must not become part of a thread's name.
    let (manifest, _) = with(trace(|_| "  host.dat:", SWITCH)).unwrap();
    assert!(manifest.spikes.is_some());
    let lost = format!("CPU:0 [LOST {} EVENTS]\nCPU:0 [LOST 1 EVENTS]\n", u64::MAX);
    with(lost + &trace(|_| "", SWITCH)).unwrap();
}
