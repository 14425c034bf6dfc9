//! Runs in directories of other users, and runs written by other users.

use latpath_capture::{Capture, CaptureKind, RankedCapture, RetentionLimits, RetentionPolicy};
use latpath_journey::Journey;
use latpath_model::{Ns, Point, PointInfo, StreamSpec};
use latpath_run::{
    ClockSample, DeficiencyKind, Manifest, Mark, Run, Select, Stamp, Writer, JOURNEYS, MANIFEST, SPIKES,
};
use latpath_testkit::waits::until;
use latpath_vms::VmsByMachine;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

fn manifest() -> Manifest {
    let point = |name: &str| PointInfo::from(name.parse::<Point>().unwrap());
    let points = ["host/nic-rx@eth0", "host/app-read@relay"].map(point).to_vec();
    Manifest { points, streams: vec![StreamSpec::svid("A")], ..Manifest::begin() }
}

fn push(writer: &mut Writer, number: u64, t: [Ns; 2]) {
    let journey = Journey { number, seen: 0b11, t: &t, cpu: &[0; 2], tid: &[7; 2], ..Journey::default() };
    writer.push(&journey).unwrap();
}

/// All files below a directory, with content.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => all.extend(files(&entry)),
            false => drop(all.insert(entry.clone(), fs::read(&entry).unwrap())),
        }
    }
    all
}

/// Replaces the run's directory with a link to a directory with the same structure.
fn put_a_link_in_place_of(run: &Path, victim: &Path) -> PathBuf {
    for folder in [JOURNEYS, SPIKES] {
        fs::create_dir_all(victim.join(folder)).unwrap();
    }
    let names = [MANIFEST, "clocks.jsonl", "marks.jsonl", "vms.json", ".reserve"].map(PathBuf::from);
    let parts = (0..200).map(|n| Path::new(JOURNEYS).join(format!("part-{n:08}.parquet")));
    let spikes = (0..9).map(|n| Path::new(SPIKES).join(format!("{n:06}.spike")));
    names.into_iter().chain(parts).chain(spikes).for_each(|name| fs::write(victim.join(name), "mine").unwrap());
    let moved = run.with_file_name("moved");
    fs::rename(run, &moved).unwrap();
    symlink(victim, run).unwrap();
    moved
}

fn capture(number: u32) -> RankedCapture {
    let (kind, packets, machines) = (CaptureKind::Spike, Vec::new(), Vec::new());
    let capture = Capture { number, kind, from: 0, to: 1, machines, packets, more_late: 0 };
    RankedCapture { capture, worst: u64::from(number) as Ns, late: vec![1] }
}

#[test]
fn a_run_with_a_replaced_directory_continues_in_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (path, victim) = (folder.path().join("run"), folder.path().join("victim"));
    let mut writer = Writer::create(&path, manifest()).unwrap();
    writer.set_part_time(Duration::ZERO);
    let limits = RetentionLimits { captures: 2, ..RetentionLimits::default() };
    writer.begin_spikes(RetentionPolicy::new(limits)).unwrap();
    let moved = put_a_link_in_place_of(&path, &victim);
    let before = files(&victim);

    writer.keep_vms(&VmsByMachine::default()).unwrap();
    // More parts than are merged at once.
    for n in 0..150 {
        push(&mut writer, n, [n as Ns, n as Ns + 5]);
        writer.clock_sample(ClockSample { clock: "g".into(), t_ns: 5, offset_ns: 0, error_bound_ns: 0 });
        writer.tick().unwrap();
        until("the part is closed", || writer.stored() == n + 1).unwrap();
    }
    for number in 0..5 {
        writer.spike_patiently(capture(number)).unwrap();
    }
    writer.mark(&Mark::new(5, "x")).unwrap();
    writer.update(|manifest| manifest.notes.push("a note".into())).unwrap();
    writer.finish().unwrap();

    assert_eq!(files(&victim), before, "nothing was written, removed or made outside of the run");
    let run = Run::open(&moved).unwrap();
    assert_eq!((run.journeys(), run.marks().len(), run.size().0), (150, 1, 3), "{:?}", run.notes());
    assert_eq!(run.spikes().files.len(), 2);
    assert!(run.notes().iter().any(|note| note == "a note"));
}

#[test]
fn each_missing_or_truncated_file_of_a_finished_run_is_a_deficiency() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let mut writer = Writer::create(&path, manifest()).unwrap();
    writer.set_part_time(Duration::ZERO);
    writer.begin_spikes(RetentionPolicy::new(RetentionLimits::default())).unwrap();
    writer.keep_vms(&VmsByMachine::default()).unwrap();
    for n in 0..3 {
        push(&mut writer, n, [n as Ns, n as Ns + 5]);
        writer.clock_sample(ClockSample { clock: "g".into(), t_ns: 5, offset_ns: 0, error_bound_ns: 0 });
        writer.tick().unwrap();
        until("the part is closed", || writer.stored() == n + 1).unwrap();
        writer.spike_patiently(capture(n as u32)).unwrap();
        writer.mark(&Mark::new(5, "x")).unwrap();
    }
    writer.finish().unwrap();
    // A mark added later does not make the run deficient.
    Mark::new(6, "later").add(&path).unwrap();
    let found = || Run::open(&path).unwrap().deficiencies().to_vec();
    assert_eq!(found(), []);

    let whole = files(&path);
    let names: Vec<_> = whole.keys().map(|file| file.strip_prefix(&path).unwrap().display().to_string()).collect();
    for needed in ["clocks.jsonl", "marks.jsonl", "vms.json", "spikes/000002.spike", JOURNEYS] {
        assert!(names.iter().any(|name| name.starts_with(needed)), "{names:?}");
    }
    for (file, bytes) in whole.iter().filter(|(file, _)| !file.ends_with(MANIFEST)) {
        let kind = match file.strip_prefix(&path).unwrap().to_str().unwrap() {
            "clocks.jsonl" => [DeficiencyKind::Clock; 2],
            name if name.starts_with(JOURNEYS) => [DeficiencyKind::Missing, DeficiencyKind::Damaged],
            _ => [DeficiencyKind::ContextMissing; 2],
        };
        fs::remove_file(file).unwrap();
        assert!(found().iter().any(|one| one.kind == kind[0]), "{} is gone: {:?}", file.display(), found());
        let notes = Run::open(&path).unwrap().notes().to_vec();
        assert!(found().iter().all(|one| notes.contains(&one.text)), "{notes:?}");
        // Half of the marks file would still include the marks added during the recording, so cut it to 9 bytes.
        let rest = if file.ends_with("marks.jsonl") { 9 } else { bytes.len() / 2 };
        fs::write(file, &bytes[..rest]).unwrap();
        assert!(found().iter().any(|one| one.kind == kind[1]), "{} is cut: {:?}", file.display(), found());
        fs::write(file, bytes).unwrap();
    }
    assert_eq!(found(), [], "it is whole again");
}

#[test]
fn an_abandoned_run_removes_itself_and_not_a_successor_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, victim) = (folder.path().join("run"), folder.path().join("victim"));
    for is_exchanged in [false, true] {
        let mut writer = Writer::create(&path, manifest()).unwrap();
        writer.remove_unless_finished();
        writer.begin_spikes(RetentionPolicy::new(RetentionLimits::default())).unwrap();
        push(&mut writer, 0, [0, 5]);
        let moved = is_exchanged.then(|| put_a_link_in_place_of(&path, &victim));
        let before = moved.as_ref().map(|_| files(&victim));
        drop(writer);
        assert_eq!(path.symlink_metadata().is_ok(), is_exchanged, "only the run's own directory is removed");
        assert_eq!(moved.as_ref().map(|_| files(&victim)), before);
        assert!(moved.is_none_or(|moved| files(&moved).is_empty()));
    }
}

#[test]
fn impossible_times_are_omitted_by_the_writer_and_damage_for_the_reader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let mut writer =
        Writer::create(&path, Manifest { start: Stamp { utc_ns: 5, ..Stamp::default() }, ..manifest() }).unwrap();
    for (n, t) in [0, (1 << 61) - 1, 1 << 61, i64::MAX, i64::MIN, -(1 << 61)].into_iter().enumerate() {
        push(&mut writer, n as u64, [t, 9]);
    }
    let written = writer.finish().unwrap();
    assert_eq!(written.journeys, 3);
    assert!(written.notes.iter().any(|note| note.starts_with("3 packets are left out")), "{:?}", written.notes);
    let read = |run: &Run| {
        let scan = run.scan(&Select::default(), 2, || 0_u64, |n, _| *n += 1);
        (scan.gathered.iter().sum::<u64>(), scan.damaged.iter().map(ToString::to_string).collect::<String>())
    };
    assert_eq!(read(&Run::open(&path).unwrap()), (3, String::new()));

    // The same times are impossible in a run that began at another time.
    let manifest_file = path.join(MANIFEST);
    let edit = |start: &str| {
        let text = fs::read_to_string(&manifest_file).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json.as_object_mut().unwrap().remove("xxh64");
        for stamp in ["start", "end"] {
            json[stamp]["monotonic_ns"] = serde_json::from_str(start).unwrap();
        }
        json["written_ns"] = json["start"]["monotonic_ns"].clone();
        fs::write(&manifest_file, json.to_string()).unwrap();
    };
    edit("1000");
    let run = Run::open(&path).unwrap();
    assert_eq!(run.times(), None);
    let (n, damaged) = read(&run);
    assert!(n == 0 && damaged.contains("damaged: a time in it is more than 73 years away"), "{n} {damaged}");
    for impossible in ["-9223372036854775807", "9223372036854775807", "4611686018427387905"] {
        edit(impossible);
        assert!(Run::open(&path).unwrap_err().to_string().contains("73 years"), "{impossible}");
    }
}
