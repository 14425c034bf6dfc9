//! Handwritten logs in the format of `rant --log`, imported as runs of round trips.

use crate::recording;
use latpath_import::import_rant;
use latpath_model::round_trip::Stamp;
use latpath_model::Ns;
use latpath_run::{Manifest, Run, Select};
use std::{collections::BTreeMap, fs, path::PathBuf, sync::atomic::AtomicBool};
use tempfile::TempDir;

/// Start of the test, TAI, ns.
const BEGIN: Ns = 1_774_000_037_000_000_000;
/// Interval between probes, ns.
const PERIOD: Ns = 20_000;

struct Bench(TempDir);

/// One transaction: T1 to T4 by application (`sw`) and by NIC (`hw`), ns since [`BEGIN`]; negative for a missing stamp.
#[derive(Clone, Copy)]
struct Times {
    sw: [Ns; 4],
    hw: [Ns; 4],
}

/// According to the NICs, each answer arrives 12 µs after its probe was sent, and every hundredth one 5 µs later still.
fn times(n: u64) -> Times {
    let (t, late) = (n as Ns * PERIOD, if n % 100 == 7 { 5000 } else { 0 });
    let hw = [t + 1000, t + 4000, t + 9000 + late, t + 13_000 + late];
    Times { sw: [t, t + 5000, t + 8000 + late, t + 14_000 + late], hw }
}

fn stamp(t: Ns) -> String {
    let t = if t < 0 { 0 } else { BEGIN + t };
    format!("{:>20}.{:09}", t / 1_000_000_000, t % 1_000_000_000)
}

fn log(head: [&str; 6], rows: impl Iterator<Item = (u64, [Ns; 4], Ns)>) -> String {
    let [a, b, c, d, e, f] = head;
    let mut text = format!("{a:>10} {b:>30} {c:>30} {d:>30} {e:>30} {f:>15}\n");
    text += &("-".repeat(text.len() - 1) + "\n");
    for (n, [a, b, c, d], time) in rows {
        text += &format!("{n:>10} {} {} {} {} {:>15}\n", stamp(a), stamp(b), stamp(c), stamp(d), time.max(0));
    }
    text
}

fn emitters(rows: impl Iterator<Item = (u64, Times)>) -> String {
    let head = ["SEQ", "T1_SW", "T1_HW", "T4_HW", "T4_SW", "RTT"];
    log(head, rows.map(|(n, t)| (n, [t.sw[0], t.hw[0], t.hw[3], t.sw[3]], t.hw[3] - t.hw[0])))
}

fn reflectors(rows: impl Iterator<Item = (u64, Times)>) -> String {
    let head = ["SEQ", "T2_HW", "T2_SW", "T3_SW", "T3_HW", "RESPONSE"];
    log(head, rows.map(|(n, t)| (n, [t.hw[1], t.sw[1], t.sw[2], t.hw[2]], t.hw[2] - t.hw[1])))
}

fn all(count: u64) -> impl Iterator<Item = (u64, Times)> {
    (0..count).map(|n| (n, times(n)))
}

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn import(&self, emit: &str, reflect: Option<&str>, to: &str) -> Result<Manifest, String> {
        fs::write(self.path("roundtrip.txt"), emit).unwrap();
        let other = self.path("response.txt");
        reflect.iter().for_each(|text| fs::write(&other, text).unwrap());
        let logs = (&*self.path("roundtrip.txt"), reflect.map(|_| other.as_path()));
        let made = import_rant(logs, &self.path(to), 200_000, &AtomicBool::new(false), |_| {});
        made.map_err(|error| error.to_string())
    }

    /// The round trips of a run, in order: the sequence number, and the time of each stamp.
    fn rows(&self, name: &str) -> Vec<(u64, BTreeMap<Stamp, Ns>)> {
        let run = Run::open(&self.path(name)).unwrap();
        let stamp = |point: usize| {
            let is_it = |stamp: &Stamp| stamp.point() == run.points()[point].point;
            Stamp::ALL.into_iter().find(is_it).unwrap()
        };
        let stamps: Vec<Stamp> = (0..run.points().len()).map(stamp).collect();
        let mut rows = Vec::new();
        let damaged = run.for_each(&Select::default(), |journey| {
            let times = stamps.iter().enumerate().filter_map(|(at, stamp)| Some((*stamp, journey.at(at as u16)?)));
            rows.push((journey.number, times.collect()));
            true
        });
        assert!(damaged.is_empty(), "{damaged:?}");
        rows
    }
}

/// The round trip measured by the application's stamps.
fn round_trip(row: &BTreeMap<Stamp, Ns>) -> Option<Ns> {
    Some(row.get(&Stamp::T4App)? - row.get(&Stamp::T1App)?)
}

#[test]
fn both_ends_make_one_run_that_can_be_compared() {
    let bench = Bench::new();
    // The reflector numbers its rows independently, and it started earlier.
    let answers = reflectors((0..10_500).map(|n| (n, times(n))));
    let emit = emitters((500..10_500).map(|n| (n - 500, times(n))));
    let made = bench.import(&emit, Some(&answers), "log").unwrap();
    assert_eq!(made.journeys, 10_000);
    for (n, (number, row)) in bench.rows("log").iter().enumerate() {
        use Stamp::*;
        let t = times(n as u64 + 500);
        let expected = [t.sw[0], t.hw[0], t.hw[1], t.sw[1], t.sw[2], t.hw[2], t.hw[3], t.sw[3]].map(|t| BEGIN + t);
        let stamps = [T1App, T1Nic, T2Nic, T2App, T3App, T3Nic, T4Nic, T4App];
        assert_eq!(*row, BTreeMap::from_iter(stamps.into_iter().zip(expected)), "{n}");
        assert_eq!(*number, n as u64);
    }
    assert!(made.notes.iter().any(|note| note.contains("as PTP kept these clocks")), "{:?}", made.notes);
    {
        let read = recording(&bench.path("log"), 15_000, true).unwrap();
        let figures = |name: &str| {
            let s = read.segments.iter().find(|s| s.name == name).expect(name);
            (s.histogram.count(), s.histogram.min(), s.histogram.max(), s.over)
        };
        assert_eq!(figures("total"), (10_000, 14_000, 19_000, 100));
        assert_eq!(figures("nic_round_trip"), (10_000, 12_000, 17_000, 100));
        assert_eq!((read.segments.len(), read.lost()), (3 + 7, Some(0)));
    }
}

#[test]
fn round_trips_are_computed_from_the_stamps_and_negative_ones_remain() {
    let bench = Bench::new();
    let backwards = |(n, mut t): (u64, Times)| {
        if n == 50 {
            t.hw[3] = t.hw[0] - 300;
        }
        // No application stamps, as without --sw-timestamps.
        (n, Times { sw: [-1; 4], ..t })
    };
    let text = emitters(all(200).map(backwards));
    assert!(text.lines().nth(52).unwrap().trim_end().ends_with(" 0"), "rant writes 0");
    bench.import(&text, None, "log").unwrap();
    let read = recording(&bench.path("log"), 15_000, false).unwrap();
    let whole = &read.segments[0];
    assert_eq!((read.segments.len(), whole.name.as_str(), read.lost()), (1, "total", Some(0)));
    assert_eq!((whole.histogram.min(), whole.histogram.count(), whole.over), (-300, 200, 2));
    assert_eq!(round_trip(&bench.rows("log")[50].1), None, "no application stamped it");
}

#[test]
fn missing_nic_stamps_have_no_time() {
    let bench = Bench::new();
    let without = |(n, t): (u64, Times)| (n, Times { hw: [-1; 4], ..t });
    let made = bench.import(&emitters(all(100).map(without)), None, "log").unwrap();
    assert!(made.notes.iter().any(|note| note.contains("rant -R")));
    let (_, row) = &bench.rows("log")[3];
    assert_eq!((row.get(&Stamp::T1Nic), round_trip(row)), (None, Some(14_000)));
    let error = bench.import(&emitters(all(100).map(without)), Some(&reflectors(all(100))), "other").unwrap_err();
    assert!(error.contains("roundtrip.txt") && error.contains("rant -R"), "{error}");
    // One answer is missing, and the reflector's send stamps are missing (rant -N).
    let some = |(n, mut t): (u64, Times)| {
        if n == 99 {
            (t.sw[3], t.hw[3]) = (-1, -1);
        }
        (n, t)
    };
    let answers = reflectors(all(100).map(|(n, mut t)| {
        t.hw[2] = -1;
        (n, t)
    }));
    bench.import(&emitters(all(100).map(some)), Some(&answers), "some").unwrap();
    let rows = bench.rows("some");
    assert_eq!((round_trip(&rows[99].1), rows[99].1.get(&Stamp::T2Nic)), (None, None));
    assert_eq!((rows[98].1.contains_key(&Stamp::T2Nic), rows[98].1.get(&Stamp::T3Nic)), (true, None));
    assert_eq!(recording(&bench.path("some"), 15_000, false).unwrap().lost(), Some(1));
}

#[test]
fn rows_that_repeat_the_first_ones_are_cut_off() {
    let bench = Bench::new();
    // The log has room for 300 transactions, but there are 450.
    let made = bench.import(&emitters((0..450).map(|n| (n, times(n % 300)))), None, "log").unwrap();
    assert_eq!(made.journeys, 300);
    assert!(
        made.notes.iter().any(|note| note.contains("150 rows at its end repeat its first ones")),
        "{:?}",
        made.notes
    );
}

#[test]
fn logs_without_all_transactions_of_a_test_are_refused_with_the_reason() {
    let bench = Bench::new();
    let late_alone = (0..100).map(|n| (n, times(n * 100 + 7)));
    let output = "Test is complete. Duration: 1.00 s\n\n--- Latency Statistics ---\nMIN: 6875 ns | MAX: 32989 ns | AVG: 9911 ns | \
                  Total Samples: 28546206 \n";
    let breach = "Round-Trip latency (31000 ns) exceeds threshold (30000 ns).\n  T1_HW (NIC tx):  1.000000001\n";
    let whole = emitters(all(100));
    let cut = whole[..whole.len() - 30].to_owned();
    let strange = whole.replace(" 50 ", " 5x ");
    let head_alone: String = whole.lines().take(2).map(|line| format!("{line}\n")).collect();
    let late_alone = emitters(late_alone);
    for (emit, says) in [
        (output, "run rant with --log FILE"),
        (breach, "run rant with --log FILE"),
        ("hello\n", "its first line is \"hello\""),
        ("", "its first line is \"\""),
        (&reflectors(all(100)), "the log of the other end: name it reflect instead of emit"),
        (&late_alone, "rant -L logs those over a limit"),
        (&strange, "line 53"),
        (&head_alone, "it has no row"),
    ] {
        let error = bench.import(emit, None, "log").unwrap_err();
        assert!(error.contains("roundtrip.txt") && error.contains(says), "{says:?} is not in {error}");
        let left: Vec<_> = fs::read_dir(bench.0.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["roundtrip.txt"], "{says}");
    }
    assert_eq!(bench.import(&cut, None, "log").unwrap().journeys, 99);
}

#[test]
fn ends_with_contradictory_clocks_are_not_joined() {
    let bench = Bench::new();
    let off = |(n, mut t): (u64, Times)| {
        t.hw = t.hw.map(|t| t + 9_000);
        (n, t)
    };
    let error = bench.import(&emitters(all(1000)), Some(&reflectors(all(1000).map(off))), "log").unwrap_err();
    assert!(error.contains("response.txt") && error.contains("further apart than half of a round trip"), "{error}");
    assert!(!bench.path("log").exists());
}
