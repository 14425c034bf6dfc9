//! The VMs to watch and the end of the window: a duration, the end of a command, or a signal.

use super::interrupt::stop_flag;
use super::progress::Progress;
use super::report::print_as;
use super::{Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use latpath_agent::{Address, CommandKey, Machine, Timeouts};
use latpath_model::text::printable;
use latpath_model::Observation;
use latpath_observe::{pass, End, Instrument, Scope, StartError, Workload};
use serde::Serialize;
use std::cell::RefCell;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum wait for the end of a command on another machine, whose agent waits for 10 s after SIGTERM.
const THERE: Duration = Duration::from_secs(12);

/// Flags shared by the commands that watch VMs.
#[derive(ClapArgs)]
pub struct Window {
    /// Watch only this VM (its name or process in latpath vms); can be repeated [default: all VMs, including those that
    /// start later]
    #[arg(long = "vm", value_name = "NAME")]
    pub vms: Vec<String>,
    /// Stop after this time (10s, 1h 30m) [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::time)]
    pub duration: Option<Duration>,
    /// Run the command on this machine instead, e.g. guest0=ssh:root@guest, guest0=unix:PATH or guest0=vsock:CID:PORT;
    /// the agent there runs it (latpath agent --allow-commands, which ssh: starts)
    #[arg(long = "in", value_name = "NAME=ADDRESS", requires = "command", value_parser = super::following::machine)]
    pub inside: Option<(String, Address)>,
    /// Key that the agent of --in requires (latpath agent --allow-commands=KEYFILE)
    #[arg(long, value_name = "KEYFILE", requires = "inside")]
    pub agent_key: Option<PathBuf>,
    /// Show no progress on stderr
    #[arg(short, long)]
    pub quiet: bool,
    /// Run this command, and watch until it ends
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    /// The machine on which the command runs, once it is reached.
    #[arg(skip)]
    pub machine: RefCell<Option<Machine>>,
}

impl Window {
    /// Attaches an instrument for the window.
    ///
    /// # Errors
    /// If the instrument cannot be attached, or the command cannot be started.
    pub fn observe<I: Instrument>(&self, stop: &AtomicBool, options: I::Options, quiet: bool) -> Measured<I::Figures> {
        let mut instrument = Scope::of(&self.vms).and_then(|scope| I::start(scope, options)).map_err(usage)?;
        let end = if self.command.is_empty() && self.duration.is_none() { "; Ctrl-C ends it" } else { "" };
        if !self.quiet {
            eprintln!("latpath: {}{end}", instrument.subject());
        }
        let passed = self.pass(stop, quiet, || instrument.step())?;
        // A Ctrl-C may have ended the window; the next one ends the remaining work.
        let was_stopped = stop.swap(false, Ordering::SeqCst);
        let mut outcome = Ok(Outcome::Done);
        let observation = instrument.end(stop, || outcome = passed.outcome());
        stop.fetch_or(was_stopped, Ordering::SeqCst);
        Ok((observation, outcome))
    }

    /// Checks the flags before the window, and connects to the command's machine. Returns the flag that a signal sets.
    ///
    /// # Errors
    /// If the window would be empty, the command's machine cannot be reached, or signals cannot be caught.
    pub fn prepare(&self) -> Result<Arc<AtomicBool>> {
        if self.duration == Some(Duration::ZERO) {
            bail!(Usage("--duration 0s leaves nothing to watch".into()));
        }
        if let Some((name, address)) = &self.inside {
            // Connects beforehand: the window is the command's run time.
            let mut machine = Machine::connect_for_commands(name, address, Timeouts::default())?;
            if let Some(file) = &self.agent_key {
                machine.set_command_key(CommandKey::read(file).map_err(anyhow::Error::msg)?);
            }
            self.machine.replace(Some(machine));
        }
        stop_flag()
    }

    /// Starts the command, and returns at the end of the window; calls `step` about 20 times a second.
    fn pass(&self, stop: &AtomicBool, quiet: bool, mut step: impl FnMut()) -> Result<FinishedWindow> {
        let mut workload = Command::start(&self.command, self.machine.take())?;
        let mut progress = Progress::begin(self.quiet || quiet && !self.command.is_empty());
        let ended = pass(
            stop,
            self.duration,
            || workload.as_mut().map_or(Ok(None), Command::ended),
            |elapsed| {
                let _ = progress.show(|_| Ok::<_, Infallible>(format!("watching for {} s", elapsed.as_secs())));
                step();
            },
        )?;
        progress.end();
        Ok(FinishedWindow { workload, ended })
    }
}

/// Figures of a window, and the outcome from the end of its command.
pub type Measured<F> = Result<(Observation<F>, Result<Outcome>)>;

/// Attaches an instrument for a window, and prints its figures.
///
/// # Errors
/// As for [`Window::observe`]; also if the command failed.
pub fn run<I: Instrument>(
    window: &Window,
    options: I::Options,
    json: bool,
    text: impl FnOnce(&Observation<I::Figures>) -> String,
) -> Result<Outcome> {
    let stop = window.prepare()?;
    show(window.observe::<I>(&stop, options, json)?, json, text)
}

/// Prints the figures, and the notes on them to stderr.
///
/// # Errors
/// If writing to standard output fails, or the window's command failed.
pub fn show<F: Serialize>(
    (observation, outcome): (Observation<F>, Result<Outcome>),
    json: bool,
    text: impl FnOnce(&Observation<F>) -> String,
) -> Result<Outcome> {
    print_as(json, || &observation, || text(&observation))?;
    observation.remarks().for_each(|remark| eprintln!("latpath: {remark}"));
    outcome
}

/// Converts an invalid request into wrong usage.
pub fn usage(error: StartError) -> anyhow::Error {
    match error {
        StartError::Usage(why) => Usage(why).into(),
        error => error.into(),
    }
}

/// A finished window.
pub struct FinishedWindow {
    workload: Option<Command>,
    ended: Option<End>,
}

impl FinishedWindow {
    /// Ends the command if it still runs. Returns an error if it failed; the figures are printed in any case.
    pub fn outcome(mut self) -> Result<Outcome> {
        if let Some(workload) = &mut self.workload {
            workload.end();
        }
        match self.ended {
            Some(Err(why)) => bail!("the command failed ({why}); the figures are of the time until then"),
            _ => Ok(Outcome::Done),
        }
    }
}

/// The user's command, on this or another machine.
enum Command {
    Here(Workload),
    There(Box<Machine>, Printer),
}

impl Command {
    /// Starts the command, if any, with this process's standard streams.
    fn start(words: &[OsString], machine: Option<Machine>) -> Result<Option<Self>> {
        if words.is_empty() {
            return Ok(None);
        }
        let Some(mut machine) = machine else { return Ok(Some(Self::Here(Workload::start(words, &[], None)?))) };
        let text = |word: &OsString| word.to_str().map(str::to_owned).context("a word of the command is no text");
        machine.run_command(words.iter().map(text).collect::<Result<_>>()?)?;
        Ok(Some(Self::There(Box::new(machine), Printer::default())))
    }

    /// The command's result, once it has ended.
    fn ended(&mut self) -> Result<Option<End>> {
        match self {
            Self::Here(workload) => workload.ended().context("waiting for the command"),
            Self::There(machine, printer) => {
                let news = machine.command();
                for (is_error, bytes) in &news.printed {
                    printer.show(*is_error, bytes)?;
                }
                if news.left_out > 0 {
                    eprintln!("latpath: {} bytes that the command printed are left out", news.left_out);
                }
                Ok(news.end.map(|end| match end {
                    Ok(0) => Ok(()),
                    Ok(code) => Err(format!("exit code {code}")),
                    Err(why) => Err(why),
                }))
            }
        }
    }

    /// Ends the command if it still runs.
    fn end(&mut self) {
        match self {
            Self::Here(workload) => workload.end(),
            // The agent ends it with SIGTERM first; the end of the session would kill it at once.
            Self::There(machine, _) => {
                let until = Instant::now() + THERE;
                if machine.command().end.is_none() {
                    machine.end_command();
                }
                while machine.command().end.is_none() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

/// Prints the output of a command on another machine: without control characters on a terminal, unchanged into a pipe.
#[derive(Default)]
struct Printer {
    /// Incomplete characters at the end of the standard output and the standard error.
    begun: [Vec<u8>; 2],
}

impl Printer {
    fn show(&mut self, is_error: bool, bytes: &[u8]) -> Result<()> {
        let is_terminal = if is_error { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        let clean = if is_terminal { self.clean(is_error, bytes).into_bytes() } else { bytes.to_vec() };
        match is_error {
            // A closed stderr is no error.
            true => std::io::stderr().write_all(&clean).unwrap_or_default(),
            false => std::io::stdout().write_all(&clean).context("standard output")?,
        }
        Ok(())
    }

    /// The output with only characters that are safe for a terminal.
    fn clean(&mut self, is_error: bool, bytes: &[u8]) -> String {
        let begun = &mut self.begun[usize::from(is_error)];
        begun.extend(bytes);
        let whole = match std::str::from_utf8(begun) {
            // The rest of a character may be in the next piece.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => begun.len(),
        };
        let text: Vec<u8> = begun.drain(..whole).collect();
        let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
        let is_kept = |c: char| matches!(c, '\n' | '\t');
        text.split_inclusive(is_kept)
            .flat_map(|part| match part.strip_suffix(is_kept) {
                Some(line) => [printable(line), part[line.len()..].to_owned()],
                None => [printable(part), String::new()],
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_machine_prints_reaches_the_terminal_whole_but_commands_nothing() {
        let text = "{\n\t\"a\": \"µ→\"\r\n}\x1b[2J\u{202e}\n".as_bytes();
        for at in 0..text.len() {
            let mut printer = Printer::default();
            let shown =
                printer.clean(false, &text[..at]) + &printer.clean(true, b"") + &printer.clean(false, &text[at..]);
            assert_eq!(shown.replace("?\n}", "\n}"), "{\n\t\"a\": \"µ→\"\n}?[2J?\n", "cut at {at}");
        }
        assert_eq!(Printer::default().clean(true, b"\xff\n"), "\u{fffd}\n");
    }
}
