//! `--require-sync`: a measurement begins only once the clocks are synchronised, and reports a later loss of
//! synchronisation.

use super::interrupt::stop_flag;
use super::values::{some_time, time};
use super::{ns, Outcome};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_model::text::printable;
use latpath_model::Ns;
use latpath_stats::units::duration;
use latpath_timesync::{GateError, Monitor, SurveyOptions};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Which clocks a measurement requires.
#[derive(ClapArgs, Clone, Debug)]
pub struct SyncArgs {
    /// Begin only when the system clock is within this bound of the clock that it follows (docs/clocks.md), e.g. 1us;
    /// exit with code 3 if it leaves the bound later
    #[arg(long, value_name = "BOUND", value_parser = time)]
    require_sync: Option<Duration>,
    /// How long to wait for the clock to be within that bound
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = some_time)]
    sync_timeout: Duration,
    /// Query ptp4l at this socket, instead of the usual ones; can be repeated
    #[arg(long = "ptp-socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,
}

impl SyncArgs {
    /// The required bound, ns.
    pub fn required(&self) -> Option<Ns> {
        self.require_sync.map(ns)
    }

    /// Where to look for daemons.
    pub fn survey(&self) -> SurveyOptions {
        SurveyOptions { sockets: self.sockets.clone(), ..SurveyOptions::default() }
    }

    /// Starts to watch the clocks.
    pub fn monitor(&self) -> Monitor {
        Monitor::start(self.survey(), self.required())
    }

    /// Measures while the required bound is watched, if one is required.
    ///
    /// # Errors
    /// The bound was not reached within the time limit, or the measurement failed.
    pub fn guard(&self, measure: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
        if self.required().is_none() {
            return measure();
        }
        let monitor = self.monitor();
        if !self.wait(&monitor, &*stop_flag()?)? {
            return Ok(Outcome::Done);
        }
        let outcome = measure()?;
        Ok(self.outcome(Some(&monitor), outcome))
    }

    /// Waits for the required bound, if any. Returns false if the user stopped the wait.
    ///
    /// # Errors
    /// The bound was not reached within the time limit.
    pub fn wait(&self, monitor: &Monitor, stop: &AtomicBool) -> Result<bool> {
        let Some(required) = self.required() else { return Ok(true) };
        let waiting = |why: &str| {
            eprintln!("latpath: waiting for the clocks to be within {}: {}", duration(required), printable(why));
        };
        match monitor.wait_within(required, self.sync_timeout, stop, waiting) {
            Ok(report) => {
                let bound = report.system_bound_ns.map(duration).unwrap_or_default();
                let root = report.root.unwrap_or_default();
                eprintln!("latpath: the system clock is within {bound} of {}", printable(&root));
                Ok(true)
            }
            Err(GateError::Stopped) => Ok(false),
            Err(GateError::Late(why)) => bail!(
                "the clocks were not within {} after {}: {why}; 'latpath clocks' shows who keeps them, --sync-timeout \
                 waits longer",
                duration(required),
                humantime::format_duration(self.sync_timeout)
            ),
        }
    }

    /// The outcome of a measurement: a broken bound counts as a broken limit.
    pub fn outcome(&self, monitor: Option<&Monitor>, outcome: Outcome) -> Outcome {
        match (self.required(), monitor.map_or(0, Monitor::broken)) {
            (Some(required), broken) if broken > 0 => {
                eprintln!(
                    "latpath: the clocks were not within {} all the time: {broken} of the readings, twice a second, \
                     exceed it",
                    duration(required)
                );
                Outcome::LimitBroken
            }
            _ => outcome,
        }
    }
}
