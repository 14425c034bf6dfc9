//! Which VMs are watched and for how long: until a time is over, a command has ended, or the user has had enough.

use super::interrupt::stop_flag;
use super::progress::Progress;
use super::{Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use latpath_vms::Vm;
use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is looked whether the window is over.
const STEP: Duration = Duration::from_millis(50);

/// How long a command may take to end when it is told to.
const PATIENCE: Duration = Duration::from_secs(2);

/// What commands that watch VMs have in common.
#[derive(ClapArgs)]
pub struct Window {
    /// Watch this VM alone (a name or process of latpath vms); several are allowed [default: all VMs, also those that start later]
    #[arg(long = "vm", value_name = "NAME")]
    pub vms: Vec<String>,
    /// Stop after this time (10s, 1h 30m) [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// Run this command, and watch for as long as it runs
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Window {
    /// The VMs that the user means, of those that are here.
    pub fn vms(&self) -> Result<Vec<Vm>> {
        let all = latpath_vms::find()?.vms;
        let is = |vm: &Vm, name: &String| vm.name == *name || vm.pid.to_string() == *name;
        if let Some(unknown) = self.vms.iter().find(|name| !all.iter().any(|vm| is(vm, name))) {
            let known: Vec<&str> = all.iter().map(|vm| vm.name.as_str()).collect();
            let known = if known.is_empty() { "none runs here".into() } else { known.join(", ") };
            bail!(Usage(format!("--vm {unknown}: no such VM ({known})")));
        }
        let is_meant = |vm: &Vm| self.vms.is_empty() || self.vms.iter().any(|name| is(vm, name));
        Ok(all.into_iter().filter(is_meant).collect())
    }

    /// Checked before anything begins.
    ///
    /// # Errors
    /// Where the window would be empty, or Ctrl-C cannot be caught.
    pub fn prepare(&self) -> Result<Arc<AtomicBool>> {
        if self.duration == Some(Duration::ZERO) {
            bail!(Usage("--duration 0s leaves nothing to watch".into()));
        }
        stop_flag()
    }

    /// Starts the command, and returns when the window is over; calls `step` some twenty times a second.
    pub fn pass(&self, stop: &AtomicBool, quiet: bool, mut step: impl FnMut()) -> Result<Passed> {
        let mut workload = Workload::start(&self.command)?;
        let (began, mut progress) = (Instant::now(), Progress::begin(quiet && !self.command.is_empty()));
        let mut ended = None;
        while !stop.load(Ordering::SeqCst) && self.duration.is_none_or(|time| began.elapsed() < time) {
            ended = workload.as_mut().map(Workload::ended).transpose()?.flatten();
            if ended.is_some() {
                break;
            }
            progress.show(|elapsed| anyhow::Ok(format!("watching for {} s", elapsed.as_secs())))?;
            std::thread::sleep(self.duration.map_or(STEP, |time| time.saturating_sub(began.elapsed())).min(STEP));
            step();
        }
        progress.end();
        Ok(Passed { workload, ended })
    }
}

/// A window that is over.
pub struct Passed {
    workload: Option<Workload>,
    ended: Option<ExitStatus>,
}

impl Passed {
    /// Ends a command that still runs. What its end makes of ours: the figures are printed in any case.
    pub fn verdict(mut self) -> Result<Outcome> {
        if let Some(workload) = &mut self.workload {
            workload.end();
        }
        match self.ended {
            Some(status) if !status.success() => {
                bail!("the command failed ({status}); the figures are of the time until then")
            }
            _ => Ok(Outcome::Done),
        }
    }
}

/// A command of the user's.
struct Workload(Child);

impl Workload {
    /// Starts it, where there is one. It has this process's standard streams.
    fn start(words: &[OsString]) -> Result<Option<Self>> {
        let Some((program, arguments)) = words.split_first() else { return Ok(None) };
        let child = Command::new(program).args(arguments).spawn();
        let child = child.with_context(|| format!("cannot start {}", program.to_string_lossy().escape_debug()))?;
        Ok(Some(Self(child)))
    }

    /// How it ended, once it has.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.0.try_wait().context("waiting for the command")
    }

    /// Ends it, if it still runs: SIGTERM, and SIGKILL where that does not help.
    fn end(&mut self) {
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
}
