//! `latpath ping caps` finds the real capabilities of a NIC that claims to have them all.

use crate::{linked::Caps, stamping::StampingNics, Outcome, Scale, Test};
use latpath_nic_timestamps::document::CheckState;

pub const TEST: Test = Test { name: "ping_caps", smoke: false, only_whole: true, seconds: 100, run };

const ALL: [&str; 5] = ["clock", "tx_sched", "tx_driver", "tx_nic", "rx_nic"];

fn run(_: &Scale) -> Outcome {
    let nics = StampingNics::load("")?;
    let honest = Caps::of(&nics, 0)?;
    for works in ALL {
        honest.expect(works, CheckState::Works)?;
    }
    nics.run(0, "hwstamp_ctl -i lpn0").and_then(|said| {
        anyhow::ensure!(said.contains("tx_type 0\nrx_filter 0"), "stamping was left on: {said}");
        Ok(())
    })?;

    let faults: [(&str, &str, &str, &[&str]); 7] = [
        ("tx_lost", "1,0", "0,0", &["tx_nic"]),
        ("tx_zero", "1,0", "0,0", &["tx_nic"]),
        // Later than the command's time limit for a stamp.
        ("tx_late_ms", "2000,0", "0,0", &["tx_nic"]),
        ("rx_lost", "1,0", "0,0", &["rx_nic"]),
        ("frozen", "1,1", "0,0", &["clock"]),
        // Stamps of every other frame are enough to show that stamping works.
        ("tx_lost", "2,0", "0,0", &[]),
        ("rx_lost", "2,0", "0,0", &[]),
    ];
    for (parameter, fault, none, fail) in faults {
        nics.set(parameter, fault)?;
        let caps = Caps::of(&nics, 0)?;
        nics.set(parameter, none)?;
        for what in ALL {
            // With a stopped clock, the stamps' own states are not checked: the fault is reported for the clock.
            let stands_still = parameter == "frozen" && what.ends_with("nic");
            if !stands_still {
                caps.expect(what, if fail.contains(&what) { CheckState::Fails } else { CheckState::Works })?;
            }
        }
        for stamp in ["tx_nic", "rx_nic"] {
            caps.expect_used(stamp, !fail.contains(&stamp) && parameter != "frozen")?;
        }
    }

    // The NIC stamps only received PTP frames, like most NICs.
    nics.set("rx_filters", &(1 | 1 << 12).to_string())?;
    let caps = Caps::of(&nics, 0)?;
    caps.expect("tx_nic", CheckState::Works)?;
    caps.expect("rx_nic", CheckState::NotOffered)
}
