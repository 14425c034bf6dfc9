//! Runs read back as written.

use latpath_capture::{Capture, CaptureKind, RankedCapture, RetentionLimits, RetentionPolicy};
use latpath_journey::Journey;
use latpath_model::{Link, Ns, Point, PointInfo, StreamSpec};
use latpath_run::{Condition, Manifest, Replaced, Rows, Run, RunError, Select, Writer, JOURNEYS, MANIFEST, SPIKES};
use latpath_testkit::waits::until;
use latpath_vms::{Role, Thread, Vm, VmsByMachine};
use proptest::prelude::*;
use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

fn info(name: &str) -> PointInfo {
    let point: Point = name.parse().unwrap();
    PointInfo {
        point,
        link: Link::Nic,
        netns: 1,
        ifindex: 2,
        peer: 0,
        peer_netns: 0,
        error_bound_ns: 0,
        clock: "CLOCK_MONOTONIC".into(),
    }
}

fn manifest(points: &[&str]) -> Manifest {
    let streams = vec![StreamSpec::svid("A"), StreamSpec::svid("B"), StreamSpec::svid("C")];
    Manifest { points: points.iter().map(|p| info(p)).collect(), streams, ..Manifest::begin() }
}

const POINTS: [&str; 3] = ["host/nic-rx@eth0.7", "host/tx@vnet0", "guest0/app-read@my relay"];

#[derive(Clone, Debug, PartialEq)]
struct Owned {
    stream: u16,
    key: u32,
    number: u64,
    at: Vec<Option<(Ns, u16, u32)>>,
    duplicates: u32,
    out_of_order: bool,
    drop_note: u16,
    missing_before: u32,
}

impl Owned {
    fn plain(stream: u16, number: u64, points: usize) -> Self {
        let t = 1_000_000 * number as Ns;
        let at = (0..points as Ns).map(|p| Some((t + 10 * p, p as u16, 7))).collect();
        Self {
            stream,
            key: number as u32,
            number,
            at,
            duplicates: 0,
            out_of_order: false,
            drop_note: 0,
            missing_before: (number % 3) as u32,
        }
    }

    fn of(j: &Journey) -> Self {
        let at = (0..j.t.len()).map(|p| (j.seen >> p & 1 == 1).then(|| (j.t[p], j.cpu[p], j.tid[p]))).collect();
        let Journey { stream, key, number, duplicates, out_of_order, drop_note, missing_before, .. } = *j;
        Self { stream, key, number, at, duplicates, out_of_order, drop_note, missing_before }
    }

    fn lend<T>(&self, to: impl FnOnce(&Journey) -> T) -> T {
        let get = |p: usize| self.at[p].unwrap_or((-77, 77, 77));
        let (t, cpu, tid): (Vec<_>, Vec<_>, Vec<_>) = (0..self.at.len()).map(get).fold(
            Default::default(),
            |(mut a, mut b, mut c): (Vec<_>, Vec<_>, Vec<_>), v| {
                a.push(v.0);
                b.push(v.1);
                c.push(v.2);
                (a, b, c)
            },
        );
        let seen = self.at.iter().enumerate().map(|(p, s)| u64::from(s.is_some()) << p).sum();
        let Self { stream, key, number, duplicates, out_of_order, drop_note, missing_before, .. } = *self;
        let (t, cpu, tid) = (&t[..], &cpu[..], &tid[..]);
        let all = Journey { seen, t, cpu, tid, ..Journey::default() };
        to(&Journey { stream, key, number, duplicates, out_of_order, drop_note, missing_before, ..all })
    }
}

fn push(writer: &mut Writer, journey: &Owned) {
    journey.lend(|j| writer.push(j)).unwrap();
}

fn everything() -> Select {
    Select { cpus_and_threads: true, ..Select::default() }
}

fn read(run: &Path, select: &Select) -> Vec<Owned> {
    let run = Run::open(run).unwrap();
    let mut all = Vec::new();
    let damaged = run.for_each(select, |j| {
        all.push(Owned::of(j));
        true
    });
    assert!(damaged.is_empty(), "{damaged:?}");
    all
}

fn sighting() -> impl Strategy<Value = Option<(Ns, u16, u32)>> {
    // Times within the valid range of a run: see `span.rs`.
    let t = prop_oneof![0..1_000_000_000_000_i64, -(1_i64 << 60)..1 << 60];
    proptest::option::weighted(0.9, (t, any::<u16>(), any::<u32>()))
}

fn journey() -> impl Strategy<Value = Owned> {
    let rare = prop_oneof![3 => Just(0_u16), 1 => any::<u16>()];
    (0..3_u16, any::<u32>(), any::<u64>(), proptest::collection::vec(sighting(), 3), any::<u32>(), any::<bool>(), rare)
        .prop_map(|(stream, key, number, at, duplicates, out_of_order, drop_note)| Owned {
            stream,
            key,
            number,
            at,
            duplicates,
            out_of_order,
            drop_note,
            missing_before: duplicates % 3,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_journey_reads_back_as_it_was_written(journeys in proptest::collection::vec(journey(), 0..300)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
        journeys.iter().for_each(|j| push(&mut writer, j));
        writer.finish().unwrap();
        let mut expected = journeys;
        expected.sort_by_key(|j| j.stream);
        prop_assert_eq!(read(&path, &everything()), expected);
    }

    #[test]
    fn a_part_with_any_byte_changed_is_an_error_or_readable_but_never_the_end(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
        (0..200).for_each(|n| push(&mut writer, &Owned::plain(0, n, 3)));
        writer.finish().unwrap();
        let part = path.join(JOURNEYS).join("part-00000000.parquet");
        let mut bytes = std::fs::read(&part).unwrap();
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        std::fs::write(&part, bytes).unwrap();
        let run = Run::open(&path).unwrap();
        let scan = run.scan(&everything(), 2, || 0_u64, |n, _| *n += 1);
        let read: u64 = scan.gathered.iter().sum();
        prop_assert!(read <= 200, "{read} journeys of 200");
    }
}

#[test]
fn a_point_that_appears_later_is_missing_in_the_journeys_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut writer = Writer::create(&path, manifest(&POINTS[..1])).unwrap();
    push(&mut writer, &Owned::plain(0, 0, 1));
    let late = Owned::plain(0, 1, 3);
    assert!(matches!(late.lend(|j| writer.push(j)), Err(RunError::UnknownPoint { point: 2, known: 1 })));
    writer.update(|m| m.points.extend([info(POINTS[1]), info(POINTS[2])])).unwrap();
    push(&mut writer, &late);
    writer.finish().unwrap();
    let mut early = Owned::plain(0, 0, 1);
    early.at.resize(3, None);
    assert_eq!(read(&path, &everything()), vec![early, late]);
}

#[test]
fn a_nonempty_directory_is_refused_and_an_empty_one_is_used() {
    let dir = tempfile::tempdir().unwrap();
    Writer::create(dir.path(), manifest(&POINTS)).unwrap().finish().unwrap();
    let error = Writer::create(dir.path(), manifest(&POINTS)).err().unwrap().to_string();
    assert!(error.contains("exists already (a run of 2") && error.contains("-o"), "{error}");

    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(matches!(Writer::create(&file, manifest(&POINTS)), Err(RunError::Exists { .. })));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

#[test]
fn small_parts_become_one_and_every_journey_stays_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
    writer.set_part_time(Duration::ZERO);
    let journeys: Vec<Owned> = (0..130 * 3).map(|n| Owned::plain((n % 3) as u16, n / 3, 3)).collect();
    for three in journeys.chunks(3) {
        three.iter().for_each(|j| push(&mut writer, j));
        writer.tick().unwrap();
    }
    writer.finish().unwrap();
    let run = Run::open(&path).unwrap();
    assert_eq!((run.size().0, run.journeys()), (7, 390), "a part a journey: six times 60, and the rest");
    let one_stream = Select { streams: Some(vec![1]), ..everything() };
    let expected: Vec<Owned> = journeys.iter().filter(|j| j.stream == 1).cloned().collect();
    assert_eq!(read(&path, &one_stream), expected);
}

#[test]
fn parts_that_a_crash_left_beside_their_merged_one_do_not_count_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
    writer.set_part_time(Duration::ZERO);
    for n in 0..20 {
        push(&mut writer, &Owned::plain(0, n, 3));
        writer.tick().unwrap();
    }
    writer.finish().unwrap();
    let parts = path.join(JOURNEYS);
    std::fs::copy(parts.join("part-00000000-00000019.parquet"), parts.join("part-00000007.parquet")).unwrap();
    std::fs::write(parts.join(".part-00000020.parquet.tmp"), "half").unwrap();
    assert_eq!(read(&path, &everything()).len(), 20);
}

#[test]
fn a_recording_that_merges_its_parts_reads_whole_at_any_instant() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
    writer.set_part_time(Duration::ZERO);
    let (done, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let run = Run::open(&path).unwrap();
                let mut numbers = Vec::new();
                let damaged = run.for_each(&everything(), |j| {
                    numbers.push(j.number);
                    true
                });
                assert!(damaged.is_empty(), "{damaged:?}");
                assert_eq!(numbers, (0..run.journeys()).collect::<Vec<u64>>());
                assert_eq!(run.notes().len(), 1, "{:?}", run.notes());
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Writes one part per journey, with pauses in which merging catches up, as it would with one part per second.
        for n in 0..3000 {
            push(&mut writer, &Owned::plain(0, n, 3));
            writer.tick().unwrap();
            while n % 60 == 0 && std::fs::read_dir(path.join(JOURNEYS)).unwrap().count() > 300 {
                latpath_testkit::waits::pace(Duration::from_millis(1));
            }
        }
        let read = until("it was read three times", || reads.load(Ordering::Relaxed) >= 3);
        done.store(true, Ordering::Relaxed);
        read.unwrap();
    });
    writer.finish().unwrap();
}

#[test]
fn an_early_reader_does_not_lock_out_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = |n: usize| dir.path().join(format!("run{n}"));
    let (next, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = Run::open(&path(next.load(Ordering::Relaxed)));
                }
            });
        }
        let recording = |n: usize| {
            next.store(n, Ordering::Relaxed);
            let _writer = Writer::create(&path(n), manifest(&POINTS)).unwrap();
            *Run::open(&path(n)).unwrap().condition() == Condition::Recording
        };
        let wrong: Vec<usize> = (0..300).filter(|n| !recording(*n)).collect();
        done.store(true, Ordering::Relaxed);
        assert!(wrong.is_empty(), "{wrong:?} are taken for killed");
    });
}

#[test]
fn streams_and_times_select_journeys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
    (0..300).for_each(|n| push(&mut writer, &Owned::plain((n % 3) as u16, n, 3)));
    writer.finish().unwrap();
    let select = Select { streams: Some(vec![0, 2]), from_ns: 100_000_000, to_ns: 200_000_000, ..everything() };
    let numbers: Vec<u64> = read(&path, &select).iter().map(|j| j.number).collect();
    let expected = |stream| (100..200).filter(move |n| n % 3 == stream);
    assert_eq!(numbers, expected(0).chain(expected(2)).collect::<Vec<u64>>());
}

#[test]
fn a_damaged_part_is_named_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
    // Enough journeys for parts that are too large to be merged.
    let mut row = Owned::plain(0, 0, 3);
    for n in 0..2_100_000 {
        row.number = n;
        if n % 983_040 == 0 {
            writer.tick().unwrap();
        }
        push(&mut writer, &row);
    }
    writer.finish().unwrap();
    // The number of parts varies: a slow machine creates more.
    let mut parts: Vec<_> =
        std::fs::read_dir(path.join(JOURNEYS)).unwrap().map(|entry| entry.unwrap().path()).collect();
    parts.sort();
    let victim = parts.swap_remove(parts.len() / 2);
    let rows = Run::open(&path).unwrap().journeys();
    let damaged = format!("{}: damaged", victim.file_name().unwrap().to_str().unwrap());
    let bytes = std::fs::read(&victim).unwrap();
    std::fs::write(&victim, &bytes[..bytes.len() / 2]).unwrap();
    let run = Run::open(&path).unwrap();
    assert!(run.notes().iter().any(|n| n.contains(&damaged)), "{:?}", run.notes());
    let scan = run.scan(&Select::default(), 2, || 0_u64, |n, _| *n += 1);
    let read: u64 = scan.gathered.iter().sum();
    assert_eq!(read, run.journeys());
    assert!(rows == 2_100_000 && read > 0 && read < rows, "{read} of {rows}");
    assert_eq!(scan.damaged.len(), 1);
}

#[test]
fn a_single_bit_that_flips_in_a_part_is_reported_or_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
    let mut row = Owned::plain(0, 0, 3);
    for n in 0..2_000 {
        row.number = n;
        push(&mut writer, &row);
    }
    writer.finish().unwrap();
    let part = path.join(JOURNEYS).join("part-00000000.parquet");
    let (whole, expected) = (std::fs::read(&part).unwrap(), read(&path, &everything()));
    let notes = Run::open(&path).unwrap().notes().to_vec();
    // Flips bits throughout the file, at every bit position within a byte.
    for n in 0..1_000 {
        let bit = n * (whole.len() * 8) / 1_000 + n % 8;
        let mut bytes = whole.clone();
        bytes[(bit / 8).min(whole.len() - 1)] ^= 1 << (bit % 8);
        std::fs::write(&part, bytes).unwrap();
        let run = Run::open(&path).unwrap();
        let mut all = Vec::new();
        let damaged = run.for_each(&everything(), |j| {
            all.push(Owned::of(j));
            true
        });
        let is_reported = !damaged.is_empty() || run.notes() != notes;
        assert!(is_reported || all == expected, "bit {bit}");
    }
}

#[test]
fn a_fifo_in_place_of_a_file_does_not_block_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let mut writer = Writer::create(&run, manifest(&POINTS)).unwrap();
    push(&mut writer, &Owned::plain(0, 0, 3));
    writer.finish().unwrap();
    let replace = |name: &str| {
        std::fs::remove_file(run.join(name)).unwrap();
        nix::unistd::mkfifo(&run.join(name), nix::sys::stat::Mode::S_IRUSR).unwrap();
    };
    replace("journeys/part-00000000.parquet");
    replace("clocks.jsonl");
    let open = Run::open(&run).unwrap();
    assert!(open.notes().iter().any(|note| note.contains("it is no file")), "{:?}", open.notes());
    assert!(open.for_each_clock_sample(drop).is_err());
    replace("manifest.json");
    assert!(Run::open(&run).unwrap_err().to_string().contains("it is no file"));
}

#[test]
fn a_directory_writable_by_others_is_refused_and_a_run_is_private() {
    use std::os::unix::fs::{chown, PermissionsExt};
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let mode = |mode| std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(mode)).unwrap();
    for open in [0o777, 0o1777, 0o770] {
        mode(open);
        let error = Writer::create(&shared, manifest(&POINTS)).err().unwrap().to_string();
        assert!(error.contains("other users may write") && error.contains("-o"), "{error}");
    }
    mode(0o755);
    if chown(&shared, Some(12345), None).is_ok() {
        let error = Writer::create(&shared, manifest(&POINTS)).err().unwrap().to_string();
        assert!(error.contains("belongs to another user"), "{error}");
    }
    assert_eq!(std::fs::read_dir(&shared).unwrap().count(), 0);

    let run = dir.path().join("run");
    let mut writer = Writer::create(&run, manifest(&POINTS)).unwrap();
    writer.begin_spikes(RetentionPolicy::new(RetentionLimits::default())).unwrap();
    push(&mut writer, &Owned::plain(0, 0, 3));
    let (kind, machines, packets) = (CaptureKind::Spike, Vec::new(), Vec::new());
    let capture = Capture { number: 1, kind, from: 0, to: 1, machines, packets, more_late: 0 };
    writer.push_capture(RankedCapture { capture, worst: 1, late: vec![1] });
    let of = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for directory in ["", JOURNEYS, SPIKES] {
        assert_eq!(of(&run.join(directory)), 0o700, "{directory}");
    }
    // A link planted by a hostile owner of the directory must be replaced, not followed.
    let target = dir.path().join("target");
    std::fs::write(&target, "mine").unwrap();
    std::os::unix::fs::symlink(&target, run.join(".manifest.json.tmp")).unwrap();
    writer.finish().unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    for name in ["manifest.json", "clocks.jsonl", "journeys/part-00000000.parquet", "spikes/000001.spike"] {
        assert_eq!(of(&run.join(name)), 0o600, "{name}");
    }
}

#[test]
fn a_run_has_the_end_of_its_recording() {
    let dir = tempfile::tempdir().unwrap();
    let condition = |name: &str| Run::open(&dir.path().join(name)).unwrap().condition().clone();
    let begin = |name: &str| {
        let mut writer = Writer::create(&dir.path().join(name), manifest(&POINTS)).unwrap();
        push(&mut writer, &Owned::plain(0, 0, 3));
        writer
    };

    let writer = begin("a");
    assert_eq!(condition("a"), Condition::Recording);
    writer.finish().unwrap();
    assert_eq!(condition("a"), Condition::Finished);

    begin("b").interrupt("the guest went away").unwrap();
    assert_eq!(condition("b"), Condition::Interrupted("the guest went away".into()));

    drop(begin("c"));
    assert!(matches!(condition("c"), Condition::Interrupted(_)));
    assert_eq!(Run::open(&dir.path().join("c")).unwrap().journeys(), 1);
}

#[test]
fn a_directory_without_a_run_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = |path: &Path| Run::open(path).err().unwrap().to_string();
    assert!(error(dir.path()).contains("it has no manifest.json"));
    assert!(error(&dir.path().join("none")).contains("no such directory"));
    std::fs::write(dir.path().join("manifest.json"), "{").unwrap();
    assert!(error(dir.path()).contains("manifest.json: damaged"));
    std::fs::write(dir.path().join("manifest.json"), r#"{"format": 9, "latpath": "7.0"}"#).unwrap();
    assert!(error(dir.path()).contains("use latpath 7.0 or later"));
}

#[test]
fn clock_samples_and_the_manifest_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
    let sample = latpath_run::ClockSample { clock: "guest0".into(), t_ns: 5, offset_ns: -9, error_bound_ns: 3 };
    writer.clock_sample(sample.clone());
    writer.update(|m| m.notes.push("svid:C: never came".into())).unwrap();
    let written = writer.finish().unwrap();
    // A crash may truncate the last line.
    let clocks = path.join(latpath_run::CLOCKS);
    std::fs::write(&clocks, std::fs::read_to_string(&clocks).unwrap() + "{\"clock\":\"gu").unwrap();
    let run = Run::open(&path).unwrap();
    let mut samples = Vec::new();
    assert_eq!(run.for_each_clock_sample(|sample| samples.push(sample)).unwrap(), 0);
    assert_eq!(samples, vec![sample]);
    assert_eq!(*run.manifest(), written);
    assert_eq!(run.notes(), ["svid:C: never came"]);
}

#[test]
fn an_earlier_run_is_there_until_the_new_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    assert!(Replaced::set_aside(&path).unwrap().is_none());
    Writer::create(&path, manifest(&POINTS)).unwrap().finish().unwrap();
    let earlier = || std::fs::read(path.join(MANIFEST)).unwrap();
    let first = earlier();
    let replaced = Replaced::set_aside(&path).unwrap().unwrap();
    assert!(!path.exists());
    drop(replaced);
    assert_eq!(earlier(), first, "nothing took its place");

    let replaced = Replaced::set_aside(&path).unwrap().unwrap();
    let writer = Writer::create(&path, manifest(&POINTS[..2])).unwrap();
    replaced.remove();
    let names = || std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(), ["run"]);
    assert_ne!(earlier(), first);
    assert!(matches!(Replaced::set_aside(&path), Err(RunError::InUse { .. })));
    writer.finish().unwrap();

    // Directories that are not runs remain, and so does a run that is reached through a link.
    std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
    std::fs::create_dir(dir.path().join("notes")).unwrap();
    std::fs::write(dir.path().join("notes/mine"), "mine").unwrap();
    for name in ["link", "notes", "notes/mine"] {
        let refused = Replaced::set_aside(&dir.path().join(name));
        assert!(matches!(refused, Err(RunError::Exists { .. })), "{name}: {refused:?}");
    }
    assert_eq!(std::fs::read(dir.path().join("notes/mine")).unwrap(), b"mine");
    assert_eq!(names().len(), 3);
}

#[test]
fn an_obstacle_to_a_run_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str| Writer::create(&dir.path().join(name), manifest(&POINTS)).map(drop);
    let refused = |name: &str| make(name).unwrap_err().to_string();
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    assert!(refused("link").contains("exists already (it is a link to nothing)"));
    let device = Writer::create("/dev/null".as_ref(), manifest(&POINTS)).err().unwrap().to_string();
    assert_eq!(device, "/dev/null: exists already (it is a device); name another directory with -o");
    assert!(refused(&"x".repeat(300)).contains("File name too long"));
    assert!(refused("no/run").contains("create the parent directory first"));
    let error = Writer::create("/proc/run".as_ref(), manifest(&POINTS)).err().unwrap().to_string();
    assert!(error.starts_with("/proc/run: cannot write") && !error.contains("parent"), "{error}");
    make("run").unwrap();
    assert!(refused("run").contains("exists already (a run of 20"));
    assert!(refused("run").ends_with("or replace this one with --force"));
}

#[test]
fn a_step_of_the_time_of_day_is_noticed_and_sampled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut manifest = manifest(&POINTS);
    // As if the clock had been set forward by 5 s since the start.
    manifest.start.utc_ns -= 5_000_000_000;
    manifest.start.tai_ns -= 5_000_000_000;
    let start = manifest.start.clone();
    let mut writer = Writer::create(&path, manifest).unwrap();
    (0..3).for_each(|_| writer.tick().unwrap());
    let written = writer.finish().unwrap();
    let [step] = written.utc_steps[..] else { panic!("one step: {:?}", written.utc_steps) };
    assert!((step.by_ns - 5_000_000_000).abs() < 1_000_000, "{step:?}");
    let (begin, end) = (start.monotonic_ns, written.end.clone().unwrap());
    assert_eq!(written.time_of_day().utc(begin), start.utc_ns);
    assert!((written.time_of_day().utc(end.monotonic_ns) - end.utc_ns).abs() < 1_000_000);
    let run = Run::open(&path).unwrap();
    let mut samples = Vec::new();
    run.for_each_clock_sample(|sample| samples.push(sample)).unwrap();
    let of = |clock: &str| samples.iter().filter(|s| s.clock == clock).cloned().collect::<Vec<_>>();
    let ([utc], [tai]) = (&of("utc")[..], &of("tai")[..]) else { panic!("a sample each, at the step: {samples:?}") };
    assert!((utc.offset_ns - (end.utc_ns - end.monotonic_ns)).abs() < 1_000_000);
    assert_eq!(tai.t_ns, utc.t_ns);
}

#[test]
fn rows_return_the_pushed_journeys() {
    let journey = Owned::plain(2, 40, 3);
    let mut rows = Rows::new(3);
    journey.lend(|j| rows.push(j));
    let mut lent = Vec::new();
    rows.for_each(|j| lent.push(Owned::of(j)));
    assert_eq!(lent, vec![journey.clone()]);
    assert_eq!(rows.with_journey(0, Owned::of), journey);
}

#[test]
fn a_manifest_with_counts_whose_sum_overflows_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    Writer::create(&run, manifest(&["host/tx@a"])).unwrap().finish().unwrap();
    let path = run.join("manifest.json");
    let mut forged: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    forged["joined"] = serde_json::json!([{ "duplicates": u64::MAX }, { "duplicates": u64::MAX }]);
    std::fs::write(&path, forged.to_string()).unwrap();
    let error = Run::open(&run).err().unwrap().to_string();
    assert!(error.contains("damaged") && error.contains("18446744073709551615"), "{error}");
}

#[test]
fn virtual_machines_are_kept_by_machine_and_those_of_earlier_runs_are_the_hosts() {
    let home = tempfile::tempdir().unwrap();
    let vm = |name: &str| Vm {
        name: name.into(),
        threads: vec![Thread { tid: 7, role: Role::Vhost, ..Thread::default() }],
        ..Vm::default()
    };
    let stored = |name: &str, vms: &VmsByMachine| {
        let path = home.path().join(name);
        let mut writer = Writer::create(&path, manifest(&POINTS)).unwrap();
        writer.keep_vms(vms).unwrap();
        writer.finish().unwrap();
        (Run::open(&path).unwrap().vms(), std::fs::read_to_string(path.join("vms.json")).unwrap())
    };
    let mut both = VmsByMachine::from(vec![vm("relay1")]);
    let (read, text) = stored("host", &both);
    assert!(read == both && text.starts_with("[{\"name\":\"relay1\""), "the form of earlier versions: {text}");
    both.set("b", vec![vm("relay2"), vm("relay3")]);
    let (read, text) = stored("both", &both);
    assert!(read == both && text.starts_with("{\"b\":["), "{text}");
    let name = |machine| read.of_thread(machine, 7).map(|(vm, _)| vm.name.as_str());
    assert_eq!([name("host"), name("b"), name("c")], [Some("relay1"), Some("relay2"), None]);
}
