//! A log file contains exactly the transactions pushed into it, and a report on it contains the same figures as ping.

mod rant;

use latpath_analysis::compare::RecordingOptions;
use latpath_analysis::{Analysis, SummaryOptions};
use latpath_compare::Recording;
use latpath_import::{open_recording, open_round_trips};
use latpath_model::{Ns, SegmentKind};
use latpath_ping::figures::{FigureOptions, Figures};
use latpath_ping::log::{Keep, Log, LogError, LogOptions, Summary};
use latpath_ping::table::{Counts, End};
use latpath_ping::timeline::{Relation, Timeline};
use latpath_ping::{Route, Stamp, Transaction};
use parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::Field,
};
use proptest::prelude::*;
use std::{fs, fs::File, path::Path, time::Duration};

/// A test transaction: one per millisecond; every 7th lacks its hardware stamps, every 10th its answer.
fn transaction(sequence: u64) -> Transaction {
    let mut t = Transaction { sequence, ..Transaction::default() };
    let noise = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    for (at, stamp) in Stamp::ALL.into_iter().enumerate() {
        let lacks = sequence % 7 == 6 && stamp.name().ends_with("nic") || sequence % 10 == 9 && stamp > Stamp::T1Nic;
        if !lacks {
            let mapped = sequence as Ns * 1_000_000 + at as Ns * (1000 + noise as Ns);
            t.mapped.set(stamp, mapped);
            // The PHC's time is far from the other clocks'.
            t.raw.set(stamp, mapped + if stamp.name().ends_with("nic") { -4_000_000_000_000_000_000 } else { 0 });
        }
    }
    t
}

fn route() -> Route {
    Route::of_seven(u16::MAX)
}

/// The row of a transaction, as specified in the docs.
fn row(t: &Transaction) -> Vec<Option<i64>> {
    let stamps = Stamp::ALL.into_iter().map(|s| t.raw.get(s));
    let line = route();
    [Some(t.sequence as i64)].into_iter().chain(stamps).chain([t.round_trip()]).chain(t.segments(&line)).collect()
}

fn columns() -> Vec<String> {
    let stamps = Stamp::ALL.map(|s| s.column().to_owned());
    let parts: Vec<_> = route().segments().map(|p| p.column()).collect();
    [vec!["sequence".into()], stamps.into(), vec!["round_trip_ns".into()], parts].concat()
}

fn read(path: &Path) -> (Vec<String>, Vec<Vec<Option<i64>>>) {
    if path.extension().is_some_and(|e| e == "csv") {
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let names = lines.next().unwrap().split(',').map(str::to_owned).collect();
        let value = |v: &str| (!v.is_empty()).then(|| v.parse().unwrap());
        return (names, lines.map(|l| l.split(',').map(value).collect()).collect());
    }
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let columns = reader.metadata().file_metadata().schema_descr().columns().to_vec();
    let value = |field: &Field| match field {
        Field::Long(v) => Some(*v),
        Field::ULong(v) => Some(*v as i64),
        Field::Null => None,
        other => panic!("{other}"),
    };
    let rows = reader.get_row_iter(None).unwrap();
    let rows = rows.map(|r| r.unwrap().get_column_iter().map(|(_, field)| value(field)).collect()).collect();
    (columns.iter().map(|c| c.name().to_owned()).collect(), rows)
}

fn log(path: &Path, keep: Keep, transactions: impl Iterator<Item = Transaction>) -> Summary {
    let options = LogOptions { rate_hz: Some(1000.0), huge_pages: false };
    let mut log = Log::open(path, keep, &options).unwrap();
    log.begin(&route());
    transactions.for_each(|t| log.push(&t));
    log.finish()
}

fn check(path: &Path, expected: impl Iterator<Item = u64>) {
    let (names, rows) = read(path);
    assert_eq!(names, columns());
    let expected: Vec<_> = expected.map(|n| row(&transaction(n))).collect();
    assert_eq!(rows.len(), expected.len());
    assert_eq!(rows, expected);
}

#[test]
fn a_log_of_all_has_every_transaction_in_either_format() {
    let folder = tempfile::tempdir().unwrap();
    // The number of rows exceeds one batch and one row group.
    for (name, n) in [("log.csv", 20_000), ("log.parquet", 20_000), ("none.csv", 0), ("none.parquet", 0)] {
        let path = folder.path().join(name);
        let summary = log(&path, Keep::All, (0..n).map(transaction));
        assert!(summary.error.is_none() && summary.notes.is_empty(), "{summary:?}");
        assert_eq!((summary.rows, summary.dropped, &summary.files), (n, 0, &vec![path.clone()]));
        assert_eq!(summary.bytes, fs::metadata(&path).unwrap().len());
        check(&path, 0..n);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "parts are gone");
}

/// The figures of a log for a comparison.
fn recording(path: &Path, threshold: Ns, steps: bool) -> Result<Recording, String> {
    let run = open_recording(path).map_err(|e| e.to_string())?;
    let options = RecordingOptions { threshold_ns: Some(threshold), steps, workers: 2, ..RecordingOptions::default() };
    latpath_analysis::compare::recording(&run, &options).map(|(recording, _)| recording)
}

#[test]
fn a_log_of_all_can_be_compared() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["log.csv", "log.parquet"] {
        let path = folder.path().join(name);
        log(&path, Keep::All, (0..20_000).map(transaction));
        let recording = recording(&path, 40_000, true).unwrap();
        assert_eq!((recording.packets(), recording.lost()), (20_000, Some(2_000)));
        let whole = recording.segments.iter().find(|s| s.kind == SegmentKind::Total).unwrap();
        let times: Vec<Ns> = (0..20_000).filter_map(|n| transaction(n).round_trip()).collect();
        assert_eq!((whole.histogram.count(), whole.histogram.max()), (18_000, *times.iter().max().unwrap()));
        assert_eq!(whole.over, times.iter().filter(|time| **time > 40_000).count() as u64);
        let by_nic = recording.segments.iter().find(|s| s.name == "nic_round_trip").unwrap();
        let times: Vec<Ns> = (0..20_000).filter_map(|n| transaction(n).nic_round_trip()).collect();
        assert_eq!(by_nic.histogram.count(), times.len() as u64);
        assert!(by_nic.error_bound_ns.is_some_and(|bound| bound <= 10), "one clock took both times");
        assert_eq!(by_nic.histogram.max(), *times.iter().max().unwrap());
        assert_eq!(recording.segments.len(), 3 + route().segments().count());
        let wire = recording.segments.iter().find(|s| s.name == "wire there").unwrap();
        assert_eq!(wire.error_bound_ns, None, "a log does not say how far the clocks were apart");
    }
}

#[test]
fn logs_of_some_transactions_lack_the_others_and_other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.parquet");
    log(&path, Keep::Over(40_000), (0..1000).map(transaction));
    let lacks = open_round_trips(&path).unwrap().deficiencies().to_vec();
    assert!(
        lacks.iter().any(|one| one.text.contains("of 1 000 transactions") || one.text.contains("of 9")),
        "{lacks:?}"
    );
    for (name, text) in [("empty.csv", ""), ("other.csv", "a,b\n1,2\n"), ("none.csv", "-"), ("none.parquet", "-")] {
        let path = folder.path().join(name);
        if text != "-" {
            fs::write(&path, text).unwrap();
        }
        let error = open_round_trips(&path).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn a_report_on_a_log_has_pings_own_figures_to_the_digit() {
    let folder = tempfile::tempdir().unwrap();
    // The first log contains only complete transactions; the second also those without NIC stamps or without answers.
    for (name, whole_alone) in [("whole.parquet", true), ("all.csv", false)] {
        let path = folder.path().join(name);
        let all = || (0..30_000).map(transaction).filter(|t| !whole_alone || t.raw.mask().count_ones() == 14);
        log(&path, Keep::All, all());
        let mut figures = Figures::new(&FigureOptions { threshold: Some(40_000), ..FigureOptions::default() });
        figures.set_route(u16::MAX);
        all().for_each(|t| figures.add(&t, if t.round_trip().is_some() { End::Answered } else { End::Lost }));
        let pings = figures.report(&Counts::default(), None, &Timeline::new(Relation::SameKernel), (0, 0));

        let run = open_round_trips(&path).unwrap();
        let options = SummaryOptions { threshold_ns: Some(40_000), workers: 2, ..SummaryOptions::default() };
        let summary = Analysis::open(&run, options).unwrap().summarise().unwrap();
        let times = |name: &str| &summary.segments.iter().find(|s| s.name == name).expect(name).times;
        for (name, own) in [
            ("total", Some(&pings.round_trip)),
            ("nic_round_trip", pings.nic_round_trip.as_ref()),
            ("nic_turnaround", pings.nic_turnaround.as_ref()),
        ] {
            assert_eq!(*times(name), own.expect(name).times, "{path:?} {name}");
        }
        // The imported run also contains the times of the segments that a lost probe passed, which ping's figures lack,
        // so these segments are not compared.
        for part in pings.segments.iter().filter(|part| whole_alone || part.to > Stamp::T1Nic) {
            assert_eq!(*times(&part.name), part.times, "{path:?} {}", part.name);
        }
        let total = summary.segments.iter().find(|s| s.name == "total").unwrap();
        assert_eq!(total.over_threshold, pings.over_threshold);
    }
}

#[test]
fn a_log_over_a_limit_has_slower_and_lost_transactions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.csv");
    let limit = 40_000;
    let late = |n: &u64| transaction(*n).round_trip().is_none_or(|t| t > limit);
    let expected: Vec<u64> = (0..1000).filter(late).collect();
    assert!((150..900).contains(&expected.len()), "{}", expected.len());
    let summary = log(&path, Keep::Over(limit), (0..1000).map(transaction));
    assert_eq!(summary.rows, expected.len() as u64);
    check(&path, expected.into_iter());
}

#[test]
fn a_log_of_the_last_seconds_has_the_time_before_each_breach_and_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("last.parquet");
    let options = LogOptions { rate_hz: Some(1000.0), huge_pages: false };
    let mut log = Log::open(&path, "last:100ms".parse().unwrap(), &options).unwrap();
    log.begin(&route());
    for n in 0..5000 {
        if n == 2000 {
            log.breach(&transaction(2000));
        }
        log.push(&transaction(n));
    }
    let summary = log.finish();
    assert!(summary.error.is_none(), "{summary:?}");
    // The breach is the arrival of the answer, some µs after the sending, hence 1901 instead of 1900.
    check(&path, (1901..=2000).chain(4899..5000));
}

#[test]
fn rows_without_a_buffer_are_counted_and_the_rest_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flood.csv");
    // Too fast for any disk, because the writer wakes only every 20 ms.
    let n = 400_000;
    let summary = log(&path, Keep::All, (0..n).map(transaction));
    assert!(summary.error.is_none());
    let (_, rows) = read(&path);
    assert_eq!(rows.len() as u64, summary.rows);
    assert_eq!(summary.rows + summary.dropped, n);
    assert!(summary.dropped > 0, "the test is to be a flood");
    assert!(rows.iter().all(|r| *r == row(&transaction(r[0].unwrap() as u64))));
}

#[test]
fn existing_files_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| Log::open(&folder.path().join(name), Keep::All, &LogOptions::default());
    fs::write(folder.path().join("old.csv"), "mine").unwrap();
    fs::write(folder.path().join("old.parquet"), "mine").unwrap();
    fs::write(folder.path().join("killed.part-00000003.parquet"), "mine").unwrap();
    for name in ["old.csv", "old.parquet", "killed.parquet"] {
        let error = open(name).err().unwrap();
        assert!(matches!(error, LogError::Exists(_)), "{error}");
    }
    let error = open("log.txt").err().unwrap().to_string();
    assert!(error.ends_with("a log is FILE.csv or FILE.parquet"), "{error}");
    let error = open("no/such/folder/log.parquet").err().unwrap().to_string();
    assert!(error.contains("no/such/folder"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn missing_huge_pages_are_an_error_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    // No machine has a million free huge pages.
    let options = LogOptions { rate_hz: Some(1e6), huge_pages: true };
    let error = Log::open(&path, Keep::Last(Duration::from_secs(10_000)), &options).err().unwrap();
    assert!(error.to_string().contains("/proc/sys/vm/nr_hugepages"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn any_stamps_come_back_exactly(times in prop::collection::vec(prop::option::of(-1i64 << 61..1 << 61), 14), csv: bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(if csv { "log.csv" } else { "log.parquet" });
        let mut t = Transaction { sequence: u64::MAX >> 1, ..Transaction::default() };
        for (stamp, time) in Stamp::ALL.into_iter().zip(times) {
            t.raw.set_if(stamp, time);
            t.mapped.set_if(stamp, time);
        }
        log(&path, Keep::All, [t].into_iter());
        prop_assert_eq!(read(&path).1, [row(&t)]);
    }
}
