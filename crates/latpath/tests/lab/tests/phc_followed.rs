//! A NIC's clock is read by each method, and the reported offset, drift, steps, swings and stops agree with its true
//! state.

use crate::{
    stamping::{StampingNics, Truth},
    Outcome, Scale, Test,
};
use anyhow::{bail, ensure, Context, Result};
use latpath_clock::{
    phc::{ClockFault, Disturbance, Method, Reader, Reading},
    Phc, PhcWatch,
};
use latpath_linux::monotonic;
use std::time::{Duration, Instant};

pub const TEST: Test = Test { name: "phc_followed", smoke: false, only_whole: true, seconds: 100, run };

/// Drift of lpn1's clock.
const DRIFT_PPB: i64 = 40_000;

fn run(_: &Scale) -> Outcome {
    for (precise, method) in [("Y", Method::Precise), ("N", Method::Extended)] {
        let nics = StampingNics::load(&format!(
            "phcs=2 offset_ns=-3000000000,5000000 drift_ppb=0,{DRIFT_PPB} precise={precise}"
        ))?;
        for (nic, drift) in [(0, 0), (1, DRIFT_PPB)] {
            let mut clock = open(&nics, nic)?;
            for _ in 0..10 {
                let (truth, reading) = (nics.truth()?, clock.read()?);
                let wrong = reading.phc_ns - shows(&truth, nic, drift, reading.monotonic_ns);
                let bound = reading.uncertainty_ns;
                ensure!(clock.method() == method, "read by {}", clock.method());
                ensure!(wrong.abs() <= bound + 1, "lpn{nic}: wrong by {wrong} ns, not by {bound} at most");
            }
        }
        if method == Method::Extended {
            offset_and_drift_are_within_their_bounds(&nics)?;
            disturbances_are_reported(&nics)?;
        }
    }
    Ok(())
}

fn offset_and_drift_are_within_their_bounds(nics: &StampingNics) -> Outcome {
    let mut followed = Followed::start(nics, 1)?;
    let found = followed.for_a_while(Duration::from_secs(4))?;
    ensure!(found.is_empty(), "nothing happened, but it says {found:?}");
    let now = monotonic();
    let at = followed.watch.offset_at(now).context("no offset")?;
    let wrong = at.offset_ns - (shows(&nics.truth()?, 1, DRIFT_PPB, now) - now);
    ensure!(wrong.abs() <= at.bound_ns, "the offset is wrong by {wrong} ns, not by {} at most", at.bound_ns);
    let drift = followed.watch.drift_ppb().context("no drift")?;
    eprintln!("offset wrong by {wrong} of {} ns at most, drift {drift} ppb", at.bound_ns);
    ensure!((drift - DRIFT_PPB).abs() < DRIFT_PPB, "a drift of {drift} ppb");
    Ok(())
}

fn disturbances_are_reported(nics: &StampingNics) -> Outcome {
    let mut followed = Followed::start(nics, 0)?;
    followed.for_a_while(Duration::from_secs(3))?;

    let before = monotonic();
    nics.phc_ctl(0, "adj -0.25")?;
    let after = monotonic();
    let step = followed.until_disturbed()?;
    let ClockFault::Step { by_ns } = step.trouble else { bail!("a step is said to be {step:?}") };
    // The step occurred between two readings, and the clock also advanced in that time, so its size is known only to
    // within the time between them.
    let between = step.until_ns - step.after_ns;
    ensure!((by_ns + 250_000_000).abs() <= between, "a step by -0.25 s is said to be by {by_ns} ns");
    ensure!(step.after_ns <= after && before <= step.until_ns, "from {before} to {after}, not as said: {step:?}");

    followed.for_a_while(Duration::from_secs(3))?;
    nics.phc_ctl(0, "freq 5000000")?; // ppb
    let swing = followed.until_disturbed()?;
    let ClockFault::Swing { from_ppb, to_ppb } = swing.trouble else { bail!("a swing is said to be {swing:?}") };
    ensure!(from_ppb.abs() < 1_000_000 && to_ppb > 2_500_000, "a swing to 5000000 ppb is said to be {swing:?}");

    followed.for_a_while(Duration::from_secs(3))?;
    nics.set("frozen", "1,1")?;
    let stop = followed.until_disturbed()?;
    nics.set("frozen", "0,0")?;
    ensure!(stop.trouble == ClockFault::Stopped, "a stop is said to be {stop:?}");
    Ok(())
}

/// Expected reading of a clock at a moment, from its state at another moment.
fn shows(truth: &Truth, nic: usize, drift_ppb: i64, monotonic: i64) -> i64 {
    let elapsed = monotonic - truth.monotonic;
    truth.phcs[nic] + elapsed + elapsed * drift_ppb / 1_000_000_000
}

fn open(nics: &StampingNics, nic: usize) -> Result<Phc> {
    let device = nics.phc(nic)?.display().to_string();
    let index = device.strip_prefix("/dev/ptp").and_then(|n| n.parse().ok()).context("its number")?;
    Ok(Phc::open(index)?)
}

/// A clock that is read periodically.
struct Followed {
    clock: Phc,
    watch: PhcWatch,
}

impl Followed {
    fn start(nics: &StampingNics, nic: usize) -> Result<Self> {
        Ok(Self { clock: open(nics, nic)?, watch: PhcWatch::default() })
    }

    fn observe(&mut self) -> Result<Vec<Disturbance>> {
        let reading: Reading = self.clock.read()?;
        latpath_testkit::waits::pace(Duration::from_millis(50));
        Ok(self.watch.observe(reading))
    }

    fn for_a_while(&mut self, time: Duration) -> Result<Vec<Disturbance>> {
        let until = Instant::now() + time;
        let mut found = Vec::new();
        while Instant::now() < until {
            found.extend(self.observe()?);
        }
        Ok(found)
    }

    fn until_disturbed(&mut self) -> Result<Disturbance> {
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if let Some(found) = self.observe()?.first() {
                return Ok(*found);
            }
        }
        bail!("nothing is reported")
    }
}
