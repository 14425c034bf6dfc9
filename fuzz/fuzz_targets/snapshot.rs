//! Any bytes as what another machine's flight recorder sends: refused, or read, and then written and read again the same; the
//! names in it cannot steer a terminal.
#![no_main]

use latpath_flight::Snapshot;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(snapshot) = Snapshot::decode(bytes) else { return };
    let events: usize = snapshot.window.cpus.iter().map(|cpu| cpu.events.len()).sum();
    assert!(events <= bytes.len(), "an event takes at least one byte");
    let names = snapshot.threads.values().map(|thread| &thread.name);
    let names = names.chain(snapshot.irqs.values()).chain(snapshot.functions.values()).chain(&snapshot.missing);
    names.for_each(|name| assert!(!name.chars().any(char::is_control), "{name:?}"));
    let again = Snapshot::decode(&snapshot.encode()).expect("what was read can be written and read");
    assert_eq!(again, snapshot);
});
