//! The lab's stamping NICs behave as the other tests assume, according to other tools and to the stamps that a socket
//! receives.

use crate::{linked::Pair, stamping::StampingNics, Outcome, Scale, Test};
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

pub const TEST: Test = Test { name: "stamping_nics", smoke: false, only_whole: false, seconds: 60, run };

const WIRE_NS: i64 = 20_000;

fn run(_: &Scale) -> Outcome {
    let nics = StampingNics::load(&format!("wire_ns={WIRE_NS}"))?;
    tools_see_what_they_promise(&nics)?;
    let pair = Pair::open(&nics)?;

    for _ in 0..20 {
        let (left, arrived) = pair.send()?;
        let wire = arrived.context("no RX stamp")? - left.context("no TX stamp")?;
        ensure!(wire == WIRE_NS, "the wire took {wire} ns");
    }
    clock_can_be_stepped_slewed_and_frozen(&nics)?;
    faults_are_as_ordered(&nics, &pair)
}

fn tools_see_what_they_promise(nics: &StampingNics) -> Outcome {
    for at in [0, 1] {
        let said = nics.promises(at)?;
        for promise in ["hardware-transmit", "hardware-receive", "hardware-raw-clock", "\ton", "\tall"] {
            ensure!(said.contains(promise), "no {promise} in {said}");
        }
    }
    ensure!(nics.phc(0)? == nics.phc(1)?, "not one clock");
    let said = nics.run(0, "hwstamp_ctl -i lpn0 -t 1 -r 1")?;
    ensure!(said.contains("tx_type 1\nrx_filter 1"), "hwstamp_ctl says {said}");
    nics.run(0, "hwstamp_ctl -i lpn0 -t 0 -r 0").map(drop)
}

fn clock_can_be_stepped_slewed_and_frozen(nics: &StampingNics) -> Outcome {
    // How far the NIC's clock is ahead of CLOCK_MONOTONIC.
    let ahead = || nics.truth().map(|truth| truth.phcs[0] - truth.monotonic);

    let before = ahead()?;
    nics.phc_ctl(0, "adj 7.5")?;
    ensure!(ahead()? - before == 7_500_000_000, "not 7.5 s ahead");

    let (before, began) = (ahead()?, Instant::now());
    nics.phc_ctl(0, "freq 1000000")?; // ppb: 1 µs in each ms
                                      // Duration of the changed frequency: on a busy machine it may be twice as long,
                                      // with twice the gain.
    latpath_testkit::waits::fault_for(Duration::from_millis(500));
    nics.phc_ctl(0, "freq 0")?;
    let (gained, took) = (ahead()? - before, began.elapsed().as_nanos() as i64);
    ensure!((500_000..=took / 1000).contains(&gained), "gained {gained} ns in {took} ns");
    let (one, other) = (ahead()?, ahead()?);
    ensure!(one == other, "it gains when it should not");

    nics.set("frozen", "1,1")?;
    let same = nics.phc_reading(0)? == nics.phc_reading(0)?;
    nics.set("frozen", "0,0")?;
    ensure!(same, "it is not frozen");
    Ok(())
}

fn faults_are_as_ordered(nics: &StampingNics, pair: &Pair) -> Outcome {
    let stamps = |frames: usize| -> Result<Vec<(bool, bool)>> {
        (0..frames).map(|_| pair.send().map(|(tx, rx)| (tx.is_some(), rx.is_some()))).collect()
    };
    nics.set("tx_lost", "1,0")?;
    ensure!(stamps(3)? == [(false, true); 3], "TX stamps came");
    let lost = nics.count(0, "tx_stamps_lost")?;
    ensure!(lost == 3, "{lost} TX stamps were lost");

    nics.set("tx_lost", "3,0")?;
    let came = stamps(6)?.iter().filter(|(tx, _)| *tx).count();
    ensure!(came == 4, "{came} of 6 TX stamps came");
    nics.set("tx_lost", "0,0")?;

    // The kernel treats a stamp of zero as missing.
    nics.set("tx_zero", "1,0")?;
    ensure!(stamps(2)? == [(false, true); 2], "a TX stamp that is zero");
    nics.set("tx_zero", "0,0")?;

    nics.set("rx_lost", "0,2")?;
    let came = stamps(6)?.iter().filter(|(_, rx)| *rx).count();
    ensure!(came == 3, "{came} of 6 RX stamps came");
    nics.set("rx_lost", "0,0")?;

    nics.set("tx_late_ms", "300,0")?;
    let (tx, _) = pair.send()?;
    nics.set("tx_late_ms", "0,0")?;
    ensure!(tx.is_none(), "the TX stamp was not late");
    ensure!(pair.wait_for_tx_stamp(Duration::from_secs(10)).is_some(), "the late TX stamp did not come");
    ensure!(stamps(1)? == [(true, true)], "a fault is left");
    Ok(())
}
