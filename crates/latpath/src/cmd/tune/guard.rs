//! The process that undoes a change that is not confirmed: it survives the end of the user's terminal and connection.

use super::super::values::some_time;
use super::{need_root, Outcome};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use latpath_tune::{Machine, Tuning};
use latpath_undo::Journal;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Interval between checks of the confirmation.
const ROUND: Duration = Duration::from_millis(200);
/// Line that the process prints as soon as it owns the change.
const READY: &str = "ready\n";

/// Undo a change after a time unless it is confirmed
#[derive(ClapArgs)]
pub struct Guard {
    /// Subject of the change
    subject: String,
    /// The time
    #[arg(long, value_parser = some_time)]
    after: Duration,
}

pub fn run(args: Guard) -> Result<Outcome> {
    need_root("guard")?;
    let machine = Machine::this(&[]);
    let end = Instant::now() + args.after;
    let mut joined = || {
        let mut out = std::io::stdout();
        let _ = out.write_all(READY.as_bytes()).and_then(|()| out.flush());
    };
    let mut is_over = || {
        std::thread::sleep(ROUND.min(end.saturating_duration_since(Instant::now())));
        Instant::now() >= end
    };
    Tuning::new(&machine, Journal::of_this_machine()).guard(&args.subject, &mut joined, &mut is_over)?;
    Ok(Outcome::Done)
}

/// Starts the process for a change of this process, and returns when it owns the change.
///
/// # Errors
/// If it does not start, or does not own the change.
pub fn start(subject: &str, after: Duration) -> Result<u32> {
    let own = std::env::current_exe().context("finding the program that undoes the change")?;
    let mut command = Command::new(own);
    command.args(["tune", "guard", subject, "--after", &format!("{}ms", after.as_millis())]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).current_dir("/");
    // SAFETY: setsid is async-signal-safe; the child calls nothing else before exec.
    unsafe { command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(Into::into)) };
    let mut child = command.spawn().context("starting the process that undoes the change")?;
    let mut text = String::new();
    let mut out = child.stdout.take().context("no pipe")?;
    let mut line = [0; READY.len()];
    if out.read_exact(&mut line).is_err() {
        let _ = out.read_to_string(&mut text);
        bail!("the process that would undo the change ended early: {}", child.wait()?);
    }
    Ok(child.id())
}
