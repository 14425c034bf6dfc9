//! Captures are read back from a run exactly as they were written.

use latpath_capture::{
    Capture, CaptureKind, LateCounts, MachineSnapshot, Packet, RankedCapture, RetentionLimits, RetentionPolicy,
};
use latpath_flight::{CpuRecord, Event, EventKind, Snapshot, Window};
use latpath_model::{Ns, PacketSighting, Point, PointInfo, StreamSpec};
use latpath_run::{Manifest, Run, RunError, StoreError, Writer, SPIKES};
use std::path::Path;

fn manifest() -> Manifest {
    let point = |name: &str| PointInfo::from(name.parse::<Point>().unwrap());
    let points = vec![point("host/nic-rx@eth0"), point("host/tx@vnet0")];
    Manifest { points, streams: vec![StreamSpec::svid("A"), StreamSpec::svid("B")], ..Manifest::begin() }
}

fn ranked(number: u32, kind: CaptureKind, worst: Ns) -> RankedCapture {
    let t = 1_000_000 * Ns::from(number);
    let events = (0..50).map(|n| Event { t: t + n * 1_000, pid: 5, what: EventKind::IrqEntry(n as u32) }).collect();
    let cpu = CpuRecord { cpu: 0, events, since: t, overwritten: 0, unfinished: 0 };
    let window = Window { from: t, to: t + 50_000, cpus: vec![cpu] };
    let record = Ok(Snapshot { window, ..Snapshot::default() });
    let machines = vec![MachineSnapshot { machine: "host".into(), offset_ns: 0, error_bound_ns: 0, record }];
    let seen = |point, dt| PacketSighting { point, t: t + dt, cpu: Some(0), tid: Some(7) };
    let late = kind == CaptureKind::Spike;
    let sightings = vec![seen(0, 0), seen(1, worst)];
    let packets = vec![Packet { stream: 0, key: number, number: number.into(), late, sightings }];
    let capture = Capture { number, kind, from: t, to: t + 50_000, machines, packets, more_late: 0 };
    RankedCapture { capture, worst, late: vec![u64::from(late), 0] }
}

fn writer(run: &Path, captures: usize) -> Writer {
    let mut writer = Writer::create(run, manifest()).unwrap();
    writer.begin_spikes(RetentionPolicy::new(RetentionLimits { captures, ..RetentionLimits::default() })).unwrap();
    writer
}

#[test]
fn the_worst_captures_read_back_and_the_manifest_counts_the_rest() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let mut writer = writer(&path, 8);
    writer.push_capture(ranked(1, CaptureKind::Baseline, 10_000));
    for number in 2..=20 {
        writer.push_capture(ranked(number, CaptureKind::Spike, Ns::from(number % 10) * 1_000_000 + 1));
    }
    writer.count_spikes(&LateCounts { late: vec![100, 2], passed_over: 3 });
    let manifest = writer.finish().unwrap();
    let run = Run::open(&path).unwrap();
    let found = run.spikes();
    assert!(found.notes.is_empty(), "{:?}", found.notes);
    let numbers: Vec<u32> = found.files.iter().map(|f| f.head.number).collect();
    assert_eq!(numbers, [1, 6, 7, 8, 9, 17, 18, 19], "the on-time one, and 6 to 9 ms; of those of 6 ms the earlier");
    let record = manifest.spikes.as_ref().unwrap();
    assert_eq!((record.captures, record.baselines, record.captures_not_kept), (7, 1, 12 + 3));
    assert_eq!((record.late.as_slice(), record.late_kept.as_slice()), (&[100, 2][..], &[7, 0][..]));
    assert_eq!(record.bytes, found.files.iter().map(|f| f.bytes).sum::<u64>());
    assert_eq!(run.manifest().spikes, manifest.spikes);
    for number in numbers {
        let (read, was) =
            (run.capture(number).unwrap(), ranked(number, CaptureKind::Spike, Ns::from(number % 10) * 1_000_000 + 1));
        assert_eq!(read.capture.machines[0].record, was.capture.machines[0].record);
        if number != 1 {
            assert_eq!((read.capture.packets, read.worst), (was.capture.packets, was.worst));
        }
    }
}

#[test]
fn an_unfinished_capture_is_skipped_and_an_invalid_one_is_reported() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let mut writer = writer(&path, 8);
    writer.push_capture(ranked(1, CaptureKind::Spike, 5));
    writer.push_capture(ranked(2, CaptureKind::Spike, 5));
    writer.finish().unwrap();
    let spikes = path.join(SPIKES);
    std::fs::write(spikes.join(".000003.spike.tmp"), b"half").unwrap();
    std::fs::write(spikes.join("notes.txt"), b"mine").unwrap();
    std::fs::write(spikes.join("000004.spike"), b"something else").unwrap();
    std::fs::create_dir(spikes.join("000005.spike")).unwrap();
    std::fs::copy(spikes.join("000001.spike"), spikes.join("000006.spike")).unwrap();
    let whole = std::fs::read(spikes.join("000002.spike")).unwrap();
    std::fs::write(spikes.join("000002.spike"), &whole[..whole.len() - 20]).unwrap();
    let run = Run::open(&path).unwrap();
    let found = run.spikes();
    assert_eq!(found.files.iter().map(|f| f.head.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(found.notes.len(), 3, "{:?}", found.notes);
    assert!(
        found.notes.iter().all(|n| n.contains("damaged") || n.contains("000005.spike: cannot read: it is no file")),
        "{:?}",
        found.notes
    );
    assert!(matches!(run.capture(2), Err(RunError::Store(StoreError::Damaged { .. }))), "its end is missing");
    assert!(matches!(run.capture(3), Err(RunError::Store(StoreError::Read { .. }))));
    assert!(run.capture(1).is_ok());
}

#[test]
fn sightings_at_unknown_points_are_omitted() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let mut writer = writer(&path, 8);
    let mut strange = ranked(1, CaptureKind::Spike, 5);
    strange.capture.packets[0].sightings[0].point = 2;
    writer.push_capture(strange);
    writer.finish().unwrap();
    let sightings = &Run::open(&path).unwrap().capture(1).unwrap().capture.packets[0].sightings;
    assert_eq!(sightings.iter().map(|s| s.point).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_run_without_spikes_has_none() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let mut writer = Writer::create(&path, manifest()).unwrap();
    writer.push_capture(ranked(1, CaptureKind::Spike, 5));
    let manifest = writer.finish().unwrap();
    assert_eq!(manifest.spikes, None);
    let found = Run::open(&path).unwrap().spikes();
    assert!(found.files.is_empty() && found.notes.is_empty() && !path.join(SPIKES).exists());
}
