//! A NIC that has only some of the capabilities that its driver claims: QEMU's igb stamps sent frames, but no received
//! ones.

use crate::{
    linked::{emulated, Caps, Linked, Pair, ADDRESSES},
    pinging::{Reflector, Session},
    Outcome, Scale, Test,
};
use anyhow::ensure;
use latpath_nic_timestamps::document::CheckState;
use latpath_ping::Stamp;
use std::time::Duration;

pub const TEST: Test = Test { name: "igb", smoke: false, only_whole: true, seconds: 120, run };

fn run(_: &Scale) -> Outcome {
    let nics = Linked::new(emulated("igb")?)?;
    nics.phc_ctl(0, "set 1000 adj 5.5")?;
    let shown: f64 = nics.phc_reading(0)?.parse()?;
    ensure!((1005.5..1040.0).contains(&shown), "set to 1000 s and stepped by 5.5 s it shows {shown}");

    let caps = Caps::of(&nics, 0)?;
    for works in ["clock", "tx_sched", "tx_driver", "tx_nic"] {
        caps.expect(works, CheckState::Works)?;
    }
    caps.expect("rx_nic", CheckState::NotOffered)?; // for all frames; only PTP frames are stamped

    let pair = Pair::open(&nics)?;
    for _ in 0..3 {
        let (left, arrived) = pair.send()?;
        ensure!(left.or_else(|| pair.wait_for_tx_stamp(Duration::from_secs(5))).is_some(), "no TX stamp");
        ensure!(arrived.is_none(), "it stamps what it receives");
    }
    drop(pair);

    // Kernel stamps replace those that the NIC lacks. The NIC stamps one frame at a time, and skips frames that are
    // sent before it has finished with the previous one.
    let reflector = Reflector::start(&nics, &format!("--bind {}", ADDRESSES[1]))?;
    let session = Session::run(&nics, "--count 100 --rate 50")?;
    reflector.end()?;
    session.expect_answered(100)?;
    session.expect_parts_to_add_up()?;
    let (missing, skipped) = (session.missing(Stamp::T1Nic), nics.count(0, "tx_hwtstamp_skipped")?);
    let timeouts = nics.count(0, "tx_hwtstamp_timeouts")?;
    ensure!(
        missing < 100 && missing <= skipped + timeouts,
        "{missing} missing, {skipped} skipped, {timeouts} timeouts"
    );
    for part in ["there: nic → kernel", "back: nic → kernel"] {
        let (min, _, bound) = session.extremes(part)?;
        ensure!(min >= -bound, "{part} takes {min} ns, ± {bound}");
    }
    Ok(())
}
