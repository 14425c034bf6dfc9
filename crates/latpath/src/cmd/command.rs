//! `-- COMMAND`: what is measured for as long as it runs.

use super::Outcome;
use anyhow::{bail, Context, Result};
use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How long a command may take to end when it is told to.
const PATIENCE: Duration = Duration::from_secs(2);

/// A command of the user's.
pub struct Workload(Child);

impl Workload {
    /// Starts it, where there is one. It has this process's standard streams.
    pub fn start(words: &[OsString]) -> Result<Option<Self>> {
        let Some((program, arguments)) = words.split_first() else { return Ok(None) };
        let child = Command::new(program).args(arguments).spawn();
        let child = child.with_context(|| format!("cannot start {}", program.to_string_lossy().escape_debug()))?;
        Ok(Some(Self(child)))
    }

    /// How it ended, once it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.0.try_wait().context("waiting for the command")
    }

    /// Ends it, if it still runs: SIGTERM, and SIGKILL where that does not help.
    pub fn end(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// What a command's end makes of ours: the figures are printed in any case.
    pub fn verdict(ended: Option<ExitStatus>) -> Result<Outcome> {
        match ended {
            Some(status) if !status.success() => {
                bail!("the command failed ({status}); the figures are of the time until then")
            }
            _ => Ok(Outcome::Done),
        }
    }
}
