use super::*;
use crate::event::Event;
use crate::layout::RawEvent;
use crate::upcalls::{FlowState, Removal};
use crate::window::CpuRecord;
use latpath_model::text::printable;
use proptest::prelude::*;

fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    // Draws small numbers, as in real events, and arbitrary ones.
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
    // Names are sanitised, as by the recorder.
    let name = || ".{0,20}".prop_map(|name| printable(&name));
    let thread = (any::<u32>(), name()).prop_map(|(tgid, name)| Thread { name, tgid });
    let threads = prop::collection::btree_map(any::<u32>(), thread, 0..6);
    let processes = || prop::collection::btree_map(any::<u32>(), name(), 0..4);
    let units = (processes(), processes());
    let irqs = prop::collection::btree_map(any::<u32>(), name(), 0..4);
    let functions = prop::collection::btree_map(any::<u64>(), name(), 0..4);
    let idle = prop::collection::btree_map(any::<u32>(), prop::collection::vec(name(), 0..5), 0..3);
    let missing = prop::collection::vec(name(), 0..3);
    let by = (any::<u32>(), name()).prop_map(|(tgid, name)| Thread { name, tgid });
    let numbers = any::<(Ns, u32, u32, bool, Option<Ns>, Option<u64>, Option<Ns>)>();
    let removal = (by, numbers).prop_map(|(by, (at, pid, flows, all, installed, packets, idle_ns))| {
        FlowState::Removed(Removal { at, pid, by, flows, all, installed, packets, idle_ns })
    });
    let flow = prop_oneof![
        Just(FlowState::Unknown),
        any::<Ns>().prop_map(|since| FlowState::NeverThere { since }),
        any::<Ns>().prop_map(|at| FlowState::Installed { at }),
        removal,
    ];
    let numbers = any::<(Ns, u32, u32, u64, Option<(u32, Ns)>, Option<Ns>)>();
    let upcall = (flow, numbers).prop_map(|(flow, (t, cpu, flows, missed_before, read, answered))| Upcall {
        t,
        cpu,
        flows,
        flow,
        missed_before,
        read,
        answered,
    });
    let limits = prop::option::of(
        any::<(Ns, u64)>().prop_map(|(max_idle_ns, flow_limit)| FlowLimits { max_idle_ns, flow_limit }),
    );
    let upcalls = (prop::collection::vec(upcall, 0..4), limits);
    (any::<(i64, i64)>(), cpus, threads, units, irqs, functions, idle, (upcalls, missing)).prop_map(
        |((from, to), cpus, threads, (units, owners), irqs, functions, idle, ((upcalls, flow_limits), missing))| {
            Snapshot {
                window: Window { from, to, cpus },
                threads,
                units,
                owners,
                irqs,
                functions,
                idle_states: IdleStates { from: idle },
                upcalls,
                flow_limits,
                missing,
            }
        },
    )
}

proptest! {
    #[test]
    fn any_snapshot_survives_encoding(snapshot in snapshots()) {
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
    let events = (0..events).map(|i| Event { t: i as Ns, pid: 1, what: EventKind::TimerExit }).collect();
    CpuRecord { cpu, events, since: -5, overwritten: 2, unfinished: 0 }
}

#[test]
fn beyond_the_readable_number_the_oldest_events_are_omitted_and_counted() {
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
fn events_are_sorted_before_they_are_written() {
    let event = |t| Event { t, pid: 1, what: EventKind::TimerExit };
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
        idle_states: IdleStates::named([(3, vec!["C6\x1b[2J".to_owned(); 30])]),
        missing: vec!["two\nlines".into(); 300],
        ..Snapshot::default()
    };
    let read = Snapshot::decode(&snapshot.encode()).unwrap();
    assert_eq!((read.threads[&1].name.as_str(), read.functions[&2].as_str()), ("a?[2J", &*"é".repeat(256)));
    assert_eq!((read.missing.len(), read.missing[0].as_str()), (256, "two?lines"));
    let idle = |state| read.idle_states.name(3, state);
    assert_eq!((idle(15), idle(16)), (Some("C6?[2J"), None), "no CPU has so many states");
}

/// Encodes a field of a message that contains bytes, a string or another message.
fn field(tag: u32, body: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::bytes::encode(tag, &body.to_vec(), &mut field);
    field
}

/// Decodes a snapshot that consists of these messages.
fn of_parts(tag: u32, bodies: &[Vec<u8>]) -> Result<Snapshot, BadSnapshot> {
    let mut plain = Vec::new();
    for body in bodies {
        let part = field(tag, body);
        prost::encode_length_delimiter(part.len(), &mut plain).unwrap();
        plain.extend(part);
    }
    Snapshot::decode(&[b"LPFS\x01", &zstd::bulk::compress(&plain, 1).unwrap()[..]].concat())
}

#[test]
fn records_over_a_limit_are_refused_with_the_reason() {
    let said = |bytes: &[u8]| Snapshot::decode(bytes).unwrap_err().to_string();
    assert_eq!(said(b""), "this is no flight record");
    assert_eq!(said(b"PAR1\x01"), "this is no flight record");
    assert!(said(b"LPFS\x02").contains("of version 2, this latpath reads up to 1"));
    assert!(said(b"LPFS\x01rubbish").contains("cannot be decompressed"));
    // A small frame that decompresses to a huge size.
    let bomb = zstd::bulk::compress(&vec![0; 200 << 20], 1).unwrap();
    assert!(bomb.len() < 100_000);
    assert!(said(&[b"LPFS\x01", &bomb[..]].concat()).contains("exceeds the maximum size"));
    let said = |tag, body: &[u8]| of_parts(tag, &[body.to_vec()]).unwrap_err().to_string();
    // Events that have kinds but no times; too many events; times without kinds.
    assert!(said(2, &field(6, &[0])).contains("ends too early"));
    let columns = |events| (6..=10).flat_map(|tag| field(tag, &vec![0; events])).collect::<Vec<_>>();
    assert!(said(2, &columns((1 << 20) + 1)).contains("too many events"));
    assert!(said(2, &field(7, &[0])).contains("left over"));
    let names: Vec<Vec<u8>> = (0..=1 << 16)
        .map(|n: u32| [&[8, 0x80 | n as u8, 0x80 | (n >> 7) as u8, (n >> 14) as u8][..], &field(3, b"a")].concat())
        .collect();
    assert!(of_parts(3, &names).unwrap_err().to_string().contains("too many names"));
    assert!(said(6, b"\x1bc").contains("control characters"));
    assert!(said(6, b"\xff").contains("not a message of latpath"));
    assert!(said(4, &[8, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).contains("a number is too large"));
    // More idle states than any CPU has; then a name that contains a terminal command.
    assert!(said(7, &field(3, &[b'\n'; 17])).contains("too many idle states"));
    assert!(said(7, &field(3, b"\x1bc\n")).contains("control characters"));
    let from_4 = [&[8, 4][..], &field(3, b"\nC6\n")].concat();
    assert_eq!(of_parts(7, &[from_4]).unwrap().idle_states.name(5, 1), Some("C6"));
    assert_eq!(of_parts(99, &[b"of a later latpath".into()]), Ok(Snapshot::default()), "what is unknown is skipped");
}

#[test]
fn a_changed_byte_is_noticed() {
    let cpus = vec![many(0, 100)];
    let good = Snapshot { window: Window { from: 0, to: 9, cpus }, ..Snapshot::default() }.encode();
    for (at, bit) in (5..good.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut bad = good.clone();
        bad[at] ^= 1 << bit;
        assert!(Snapshot::decode(&bad).is_err(), "bit {bit} of byte {at}");
    }
}
