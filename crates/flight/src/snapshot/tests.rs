use super::*;
use crate::event::Event;
use crate::layout::RawEvent;
use crate::window::CpuRecord;
use proptest::prelude::*;

fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    // Small numbers, as real events have, and any.
    let number = || prop_oneof![0..5u64, (0..3u64, 0..3u64).prop_map(|(l, h)| l | h << 32), any::<u64>()];
    let raw = (prop_oneof![0..10_000u64, any::<u64>()], 0..4u32, 0..32u16, number(), number());
    let event = raw.prop_map(|(time, pid, kind, b, c)| RawEvent { time, pid, kind, lap: 0, b, c }.decode());
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
    let missing = prop::collection::vec(name(), 0..3);
    (any::<(i64, i64)>(), cpus, threads, irqs, functions, missing).prop_map(
        |((from, to), cpus, threads, irqs, functions, missing)| Snapshot {
            window: Window { from, to, cpus },
            threads,
            irqs,
            functions,
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
