//! A NIC whose driver claims to stamp all packets and accepts every setting, but stamps none: QEMU's e1000e.

use crate::{
    linked::{emulated, Caps, Linked, Pair, ADDRESSES},
    pinging::{Reflector, Session},
    Outcome, Scale, Test,
};
use anyhow::ensure;
use latpath_nic_timestamps::document::CheckState;
use latpath_ping::Source;
use std::time::Duration;

pub const TEST: Test = Test { name: "lying_nic", smoke: false, only_whole: true, seconds: 120, run };

fn run(_: &Scale) -> Outcome {
    let nics = Linked::new(emulated("e1000e")?)?;
    let promised = nics.promises(0)?;
    for promise in ["hardware-transmit", "hardware-receive", "hardware-raw-clock", "\tall"] {
        ensure!(promised.contains(promise), "no {promise} in {promised}");
    }
    let caps = Caps::of(&nics, 0)?;
    for works in ["tx_sched", "tx_driver"] {
        caps.expect(works, CheckState::Works)?;
    }
    for lie in ["tx_nic", "rx_nic"] {
        caps.expect(lie, CheckState::Fails)?;
        caps.expect_used(lie, false)?;
    }
    // The NIC does not stamp without latpath either.
    let pair = Pair::open(&nics)?;
    let (_, arrived) = pair.send()?;
    ensure!(arrived.is_none(), "it stamps what it receives");
    ensure!(pair.wait_for_tx_stamp(Duration::from_secs(1)).is_none(), "it stamps what it sends");
    drop(pair);

    // A run continues without the missing stamps, and reports them.
    let reflector = Reflector::start(&nics, &format!("--bind {}", ADDRESSES[1]))?;
    let session = Session::run(&nics, "--count 40")?;
    reflector.end()?;
    session.expect_answered(40)?;
    let (stamps, notes) = (&session.0.stamps, &session.0.notes);
    ensure!(stamps.iter().all(|stamp| stamp.source() != Source::Nic), "{stamps:?}");
    ensure!(notes.iter().any(|note| note.contains("its NIC's")), "{notes:?}");
    session.expect_parts_to_add_up()?;
    let processing = session.part("processing")?;
    ensure!(processing.times.count == 40, "{processing:?}");
    Ok(())
}
