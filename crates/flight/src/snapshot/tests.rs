use super::*;
use crate::event::Event;
use crate::layout::RawEvent;
use crate::window::CpuRecord;
use proptest::prelude::*;

fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    // Small numbers, as real events have, and any.
    let number = || prop_oneof![0..5u64, (0..3u64, 0..3u64).prop_map(|(l, h)| l | h << 32), any::<u64>()];
    let raw = (prop_oneof![0..10_000u64, any::<u64>()], 0..4u32, 0..32u16, number(), number());
    let event = raw.prop_map(|(time, pid, kind, b, c)| RawEvent { time, pid, kind, generation: 0, b, c }.decode());
    prop::collection::vec(event, 0..most).prop_map(|mut events| {
        events.sort_by_key(|e| e.t);
        events
    })
}

fn snapshots() -> impl Strategy<Value = Snapshot> {
    let rest = (prop_oneof![0..10_000i64, any::<i64>()], any::<u64>(), 0..3u64);
    let record = (events(60), rest).prop_map(|(events, (since, overwritten, unfinished))| CpuRecord {
        cpu: 0,
        events,
        since,
        overwritten,
        unfinished,
    });
    let cpus = prop::collection::btree_map(any::<u32>(), record, 0..4).prop_map(|cpus| {
        let numbered = cpus.into_iter().map(|(cpu, record)| CpuRecord { cpu, ..record });
        numbered.collect::<Vec<_>>()
    });
    let name = || "[^\\p{Cc}]{0,20}";
    let thread = (any::<u32>(), name()).prop_map(|(tgid, name)| Thread { name, tgid });
    let threads = prop::collection::btree_map(any::<u32>(), thread, 0..6);
    let irqs = prop::collection::btree_map(any::<u32>(), name(), 0..4);
    let functions = prop::collection::btree_map(any::<u64>(), name(), 0..4);
    let idle = prop::collection::btree_map(any::<u32>(), prop::collection::vec(name(), 0..5), 0..3);
    let missing = prop::collection::vec(name(), 0..3);
    (any::<(i64, i64)>(), cpus, threads, irqs, functions, idle, missing).prop_map(
        |((from, to), cpus, threads, irqs, functions, idle, missing)| Snapshot {
            window: Window { from, to, cpus },
            threads,
            irqs,
            functions,
            idle_states: IdleStates { from: idle },
            missing,
        },
    )
}

proptest! {
    #[test]
    fn any_snapshot_is_the_same_when_it_has_been_bytes(snapshot in snapshots()) {
        prop_assert_eq!(Snapshot::decode(&snapshot.encode()), Ok(snapshot));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), packed: bool) {
        let mut all = b"LPFS\x01".to_vec();
        all.extend(if packed { zstd::bulk::compress(&bytes, 1).unwrap() } else { bytes });
        let _ = Snapshot::decode(&all);
    }

    #[test]
    fn a_damaged_snapshot_is_refused_or_another_snapshot(
        snapshot in snapshots(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
    ) {
        let good = snapshot.encode();
        let mut plain = zstd::bulk::decompress(&good[5..], 1 << 20).unwrap();
        *at.get_mut(&mut plain) = byte;
        plain.truncate(cut.index(plain.len()) + 1);
        let mut bad = good[..5].to_vec();
        bad.extend(zstd::bulk::compress(&plain, 1).unwrap());
        if let Ok(other) = Snapshot::decode(&bad) {
            prop_assert!(other.window.cpus.iter().all(|cpu| cpu.events.is_sorted_by_key(|e| e.t)));
            prop_assert_eq!(Snapshot::decode(&other.encode()), Ok(other));
        }
    }
}

fn many(cpu: u32, events: usize) -> CpuRecord {
    let events = (0..events).map(|i| Event { t: i as Ns, pid: 1, what: What::TimerExit }).collect();
    CpuRecord { cpu, events, since: -5, overwritten: 2, unfinished: 0 }
}

#[test]
fn of_more_events_than_can_be_read_again_the_oldest_are_left_out_and_counted() {
    let cpus = vec![many(0, 10), many(1, 700_000), many(4, 900_000)];
    let all = Snapshot { window: Window { from: 0, to: 9, cpus }, ..Snapshot::default() };
    let some = Snapshot::decode(&all.encode()).unwrap();
    let [few, many, most] = &some.window.cpus[..] else { panic!("three CPUs") };
    assert_eq!((few, few.is_complete(0)), (&all.window.cpus[0], true), "those that have few keep them");
    let each = ((1 << 20) - 10) / 2;
    assert_eq!((many.events.len(), most.events.len()), (each, each));
    assert_eq!((many.overwritten, many.since), (2 + 700_000 - each as u64, 700_000 - each as Ns));
    assert_eq!(many.events.last(), all.window.cpus[1].events.last());
}

#[test]
fn disorder_is_put_in_order_before_it_is_written() {
    let event = |t| Event { t, pid: 1, what: What::TimerExit };
    let record = |cpu, times: &[Ns]| CpuRecord { cpu, events: times.iter().map(|t| event(*t)).collect(), ..many(0, 0) };
    let cpus = vec![record(7, &[3, 1, 2]), record(2, &[]), record(7, &[5])];
    let read = Snapshot::decode(&Snapshot { window: Window { from: 0, to: 9, cpus }, ..Snapshot::default() }.encode());
    assert_eq!(read.unwrap().window.cpus, [record(2, &[]), record(7, &[1, 2, 3])]);
}

#[test]
fn names_are_cut_and_cleaned_before_they_are_written() {
    let thread = Thread { name: "a\x1b[2J".into(), tgid: 1 };
    let snapshot = Snapshot {
        threads: [(1, thread)].into(),
        functions: [(2, "é".repeat(400))].into(),
        idle_states: IdleStates::told([(3, vec!["C6\x1b[2J".to_owned(); 30])]),
        missing: vec!["two\nlines".into(); 300],
        ..Snapshot::default()
    };
    let read = Snapshot::decode(&snapshot.encode()).unwrap();
    assert_eq!((read.threads[&1].name.as_str(), read.functions[&2].as_str()), ("a?[2J", &*"é".repeat(256)));
    assert_eq!((read.missing.len(), read.missing[0].as_str()), (256, "two?lines"));
    let idle = |state| read.idle_states.name(3, state);
    assert_eq!((idle(15), idle(16)), (Some("C6?[2J"), None), "no CPU has so many states");
}

/// A snapshot of this one section.
fn of_section(tag: u8, body: &[u8]) -> Result<Snapshot, BadSnapshot> {
    assert!(body.len() < 128, "its length takes a byte");
    let plain = [&[tag, body.len() as u8][..], body].concat();
    Snapshot::decode(&[b"LPFS\x01", &zstd::bulk::compress(&plain, 1).unwrap()[..]].concat())
}

#[test]
fn what_does_not_fit_is_refused_with_what_is_wrong() {
    let said = |bytes: &[u8]| Snapshot::decode(bytes).unwrap_err().to_string();
    assert_eq!(said(b""), "this is no flight record");
    assert_eq!(said(b"PAR1\x01"), "this is no flight record");
    assert!(said(b"LPFS\x02").contains("of version 2, this latpath reads up to 1"));
    assert!(said(b"LPFS\x01rubbish").contains("cannot be decompressed"));
    // A little that becomes much.
    let bomb = zstd::bulk::compress(&vec![0; 200 << 20], 1).unwrap();
    assert!(bomb.len() < 100_000);
    assert!(said(&[b"LPFS\x01", &bomb[..]].concat()).contains("more bytes than anything needs"));
    let said = |tag, body: &[u8]| of_section(tag, body).unwrap_err().to_string();
    // CPU 0, then its events: more than there are bytes, and more than anything has.
    assert!(said(2, &[0, 0, 0, 0, 9]).contains("ends too early"));
    assert!(said(2, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f]).contains("more events than anything needs"));
    assert!(said(3, &[0xff, 0xff, 0x7f]).contains("more names than anything needs"));
    assert!(said(6, &[1, 2, b'\x1b', b'c']).contains("control characters"));
    assert!(said(6, &[1, 1, 0xff]).contains("no text"));
    assert!(said(4, &[2, 1, 1, b'a', 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0]).contains("a number is too large"));
    assert!(said(1, &[0, 0, 0]).contains("left over"));
    // From CPU 0 on, more states than any has; then one whose name is a command.
    assert!(said(7, &[1, 0, 17, 0]).contains("more idle states than anything needs"));
    assert!(said(7, &[1, 0, 1, 2, b'\x1b', b'c']).contains("control characters"));
    assert_eq!(of_section(7, &[1, 4, 2, 0, 2, b'C', b'6']).unwrap().idle_states.name(5, 1), Some("C6"));
    assert_eq!(of_section(99, b"of a later latpath"), Ok(Snapshot::default()), "what is unknown is skipped");
}
