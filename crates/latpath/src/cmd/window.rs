//! Which VMs are watched and for how long: until a time is over, a command has ended, or the user has had enough.

use super::interrupt::stop_flag;
use super::progress::Progress;
use super::report::print_as;
use super::{Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use latpath_agent::{Address, CommandKey, Machine, Timeouts};
use latpath_model::text::printable;
use latpath_vms::Vm;
use serde::Serialize;
use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often latpath checks whether the window is over.
const STEP: Duration = Duration::from_millis(50);

/// How long a command may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same on another machine, whose agent waits for 10 s.
const THERE: Duration = Duration::from_secs(12);

/// What commands that watch VMs have in common.
#[derive(ClapArgs)]
pub struct Window {
    /// Watch this VM alone (a name or process of latpath vms); several are allowed [default: all VMs, also those that
    /// start later]
    #[arg(long = "vm", value_name = "NAME")]
    pub vms: Vec<String>,
    /// Stop after this time (10s, 1h 30m) [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::time)]
    pub duration: Option<Duration>,
    /// Run the command on this machine instead, as guest0=ssh:root@guest, guest0=unix:PATH or guest0=vsock:CID:PORT;
    /// an agent there runs it (latpath agent --allow-commands; over ssh: it is started so)
    #[arg(long = "in", value_name = "NAME=ADDRESS", requires = "command", value_parser = super::following::machine)]
    pub inside: Option<(String, Address)>,
    /// The key without which the agent of --in runs no command (latpath agent --allow-commands=KEYFILE)
    #[arg(long, value_name = "KEYFILE", requires = "inside")]
    pub agent_key: Option<PathBuf>,
    /// Run this command, and watch for as long as it runs
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    /// Where what the command prints goes; `None` for our own standard output.
    #[arg(skip)]
    pub output: Option<File>,
    /// Called when the window begins, and when it is over.
    #[arg(skip)]
    pub at_border: Option<Box<dyn Fn()>>,
    /// The machine on which the command runs, once it is reached.
    #[arg(skip)]
    pub machine: RefCell<Option<Machine>>,
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

    /// With those that have started since, where all are watched. One that has ended keeps its name.
    pub fn vms_now(&self, mut vms: Vec<Vm>) -> Vec<Vm> {
        if self.vms.is_empty() {
            let found = latpath_vms::find().map(|found| found.vms).unwrap_or_default();
            let known = vms.len();
            vms.extend(
                found
                    .into_iter()
                    .filter(|vm| !vms[..known].iter().any(|other| other.pid == vm.pid))
                    .collect::<Vec<_>>(),
            );
        }
        vms
    }

    /// Checked before anything begins.
    ///
    /// # Errors
    /// Where the window would be empty, the command's machine is not reached, or Ctrl-C cannot be caught.
    pub fn prepare(&self) -> Result<Arc<AtomicBool>> {
        if self.duration == Some(Duration::ZERO) {
            bail!(Usage("--duration 0s leaves nothing to watch".into()));
        }
        if let Some((name, address)) = &self.inside {
            // Reached beforehand: the window is the command's life.
            let mut machine = Machine::connect_for_commands(name, address, Timeouts::default())?;
            if let Some(file) = &self.agent_key {
                machine.set_command_key(CommandKey::read(file).map_err(anyhow::Error::msg)?);
            }
            self.machine.replace(Some(machine));
        }
        stop_flag()
    }

    /// What ends it, where nothing else does: to be said after what is watched.
    pub fn end(&self) -> &'static str {
        if self.command.is_empty() && self.duration.is_none() {
            "; Ctrl-C ends it"
        } else {
            ""
        }
    }

    /// Starts the command, and returns when the window is over; calls `step` some twenty times a second.
    pub fn pass(&self, stop: &AtomicBool, quiet: bool, mut step: impl FnMut()) -> Result<Passed> {
        let at_border = || self.at_border.iter().for_each(|noted| noted());
        at_border();
        let mut workload = Workload::start(&self.command, self.output.as_ref(), self.machine.take())?;
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
        at_border();
        progress.end();
        Ok(Passed { workload, ended })
    }
}

/// The figures of a window, and what the end of its command makes of ours.
pub type Measured<T> = Result<(T, Result<Outcome>)>;

/// How figures are printed.
pub struct Shown<'a, T> {
    /// As JSON.
    pub json: bool,
    /// As text, where that is not asked for.
    pub text: &'a dyn Fn(&T) -> String,
    /// What is to be said of them, on standard error.
    pub notes: &'a dyn Fn(&T) -> Vec<String>,
}

impl<T: Serialize> Shown<'_, T> {
    /// Prints them. What the end of the window's command makes of ours.
    pub fn print(&self, (figures, outcome): (T, Result<Outcome>)) -> Result<Outcome> {
        print_as(self.json, || &figures, || (self.text)(&figures))?;
        (self.notes)(&figures).iter().for_each(|note| eprintln!("latpath: {note}"));
        outcome
    }
}

/// A window that is over.
pub struct Passed {
    workload: Option<Workload>,
    ended: Option<End>,
}

impl Passed {
    /// Ends a command that still runs. What its end makes of ours: the figures are printed in any case.
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

/// How a command ended: why it failed, where it did.
type End = Result<(), String>;

/// A command of the user's.
enum Workload {
    Here(Child),
    There(Box<Machine>, Option<File>, Printer),
}

impl Workload {
    /// Starts it, where there is one. It has this process's standard streams, and writes to `output` where that is
    /// there.
    fn start(words: &[OsString], output: Option<&File>, machine: Option<Machine>) -> Result<Option<Self>> {
        let Some((program, arguments)) = words.split_first() else { return Ok(None) };
        let output = output.map(File::try_clone).transpose().context("the command's output")?;
        if let Some(mut machine) = machine {
            let text = |word: &OsString| word.to_str().map(str::to_owned).context("a word of the command is no text");
            machine.run_command(words.iter().map(text).collect::<Result<_>>()?)?;
            return Ok(Some(Self::There(Box::new(machine), output, Printer::default())));
        }
        let mut command = Command::new(program);
        output.into_iter().for_each(|output| {
            command.stdout(output);
        });
        let child = command.args(arguments).spawn();
        let child = child.with_context(|| format!("cannot start {}", program.to_string_lossy().escape_debug()))?;
        Ok(Some(Self::Here(child)))
    }

    /// How it ended, once it has.
    fn ended(&mut self) -> Result<Option<End>> {
        match self {
            Self::Here(child) => {
                let failed = |status: ExitStatus| if status.success() { Ok(()) } else { Err(status.to_string()) };
                Ok(child.try_wait().context("waiting for the command")?.map(failed))
            }
            Self::There(machine, output, printer) => {
                let news = machine.command();
                for (is_error, bytes) in &news.printed {
                    printer.show(*is_error, bytes, output.as_mut())?;
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

    /// Ends it, if it still runs: SIGTERM, and SIGKILL where that does not help.
    fn end(&mut self) {
        let child = match self {
            Self::Here(child) => child,
            // Its agent does the same. The end of the session would be sudden.
            Self::There(machine, ..) => {
                let until = Instant::now() + THERE;
                if machine.command().end.is_none() {
                    machine.end_command();
                }
                while machine.command().end.is_none() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(10));
                }
                return;
            }
        };
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Shows what a command on another machine prints: nothing in it is obeyed by a terminal. A file or a pipe gets it as it is.
#[derive(Default)]
struct Printer {
    /// Begins of characters whose ends have not come yet, of the standard output and of the standard error.
    begun: [Vec<u8>; 2],
}

impl Printer {
    fn show(&mut self, is_error: bool, bytes: &[u8], output: Option<&mut File>) -> Result<()> {
        match output {
            Some(file) if !is_error => return file.write_all(bytes).context("the command's output"),
            _ => {}
        }
        let is_terminal = if is_error { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        let clean = if is_terminal { self.clean(is_error, bytes).into_bytes() } else { bytes.to_vec() };
        match is_error {
            // Nobody may be there to read it.
            true => std::io::stderr().write_all(&clean).unwrap_or_default(),
            false => std::io::stdout().write_all(&clean).context("standard output")?,
        }
        Ok(())
    }

    /// What a terminal may show of it.
    fn clean(&mut self, is_error: bool, bytes: &[u8]) -> String {
        let begun = &mut self.begun[usize::from(is_error)];
        begun.extend(bytes);
        let whole = match std::str::from_utf8(begun) {
            // The end of a character may come with the next piece.
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
    use std::rc::Rc;

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

    #[test]
    fn borders_are_the_commands_begin_and_end_whatever_comes_before_and_after() {
        let folder = tempfile::tempdir().expect("a folder");
        let made = folder.path().join("made");
        let (seen, file) = (Rc::new(RefCell::new(Vec::new())), made.clone());
        let noted = seen.clone();
        let window = Window {
            vms: Vec::new(),
            duration: None,
            inside: None,
            agent_key: None,
            command: vec!["touch".into(), made.into()],
            output: None,
            at_border: Some(Box::new(move || noted.borrow_mut().push(file.exists()))),
            machine: RefCell::default(),
        };
        assert!(seen.borrow().is_empty(), "preparations are no part of it");
        let passed = window.pass(&AtomicBool::new(false), true, || {}).expect("a window");
        assert_eq!(*seen.borrow(), [false, true], "before the command, and when it has ended");
        passed.outcome().expect("the command has not failed");
        assert_eq!(seen.borrow().len(), 2, "what follows is no part of it");
    }
}
