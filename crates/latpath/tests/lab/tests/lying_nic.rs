//! A NIC whose driver promises stamps of all packets, takes every setting, and makes none: QEMU's e1000e.

use crate::{
    linked::{emulated, Caps, Linked, Pair},
    Outcome, Scale, Test,
};
use anyhow::ensure;
use std::time::Duration;

pub const TEST: Test = Test { name: "lying_nic", only_whole: true, seconds: 90, run };

fn run(_: &Scale) -> Outcome {
    let nics = Linked::new(emulated("e1000e")?)?;
    let promised = nics.promises(0)?;
    for promise in ["hardware-transmit", "hardware-receive", "hardware-raw-clock", "\tall"] {
        ensure!(promised.contains(promise), "no {promise} in {promised}");
    }
    let caps = Caps::of(&nics, 0)?;
    for works in ["tx_sched", "tx_driver"] {
        caps.expect(works, "works")?;
    }
    for lie in ["tx_nic", "rx_nic"] {
        caps.expect(lie, "fails")?;
        caps.expect_used(lie, false)?;
    }
    // It is not latpath that is blind.
    let pair = Pair::open(&nics)?;
    let (_, arrived) = pair.send()?;
    ensure!(arrived.is_none(), "it stamps what it receives");
    ensure!(pair.wait_for_tx_stamp(Duration::from_secs(1)).is_none(), "it stamps what it sends");
    Ok(())
}
