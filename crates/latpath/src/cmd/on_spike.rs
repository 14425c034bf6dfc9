//! `--on-spike`: runs the user's command when a packet is late, one at a time and at most once a second.

use super::Usage;
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_linux::background::{housekeeping, keep_prompt};
use latpath_linux::{monotonic, realtime, Cpus};
use latpath_model::text::printable;
use latpath_model::Ns;
use latpath_ping::document::CommandRuns;
use latpath_stats::units::{count, number_of};
use nix::sched::{sched_setaffinity, CpuSet};
use nix::sys::signal::{killpg, Signal};
use nix::unistd::Pid;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Minimum time between two starts of the command.
const EVERY: Duration = Duration::from_secs(1);
/// Interval between checks whether the command has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time for the command to end after latpath's own end; then it gets SIGTERM, and after the same time SIGKILL.
const PATIENCE: Duration = Duration::from_secs(5);

/// The flag.
#[derive(ClapArgs, Debug, Default)]
pub struct OnSpike {
    /// Run this command when a packet is late, with the packet in its environment (LATPATH_STREAM, LATPATH_NUMBER,
    /// LATPATH_TOTAL_NS, …): a program and its arguments; for shell syntax, use "sh -c '…'"
    #[arg(long, value_name = "COMMAND")]
    on_spike: Option<String>,
}

/// A late packet, as the command's environment.
#[derive(Clone, Debug, Default)]
pub struct LateEvent {
    /// The kind of late event: `packet`, `round_trip`, `turnaround`.
    pub event: &'static str,
    /// The stream, or the address of the other end.
    pub stream: String,
    /// Number of the packet in its stream.
    pub number: u64,
    /// Its time, ns; `None` if unknown.
    pub total_ns: Option<Ns>,
    /// Start of that time, `CLOCK_MONOTONIC` ns.
    pub at_ns: Ns,
    /// Further variables, by their names without `LATPATH_`.
    pub more: Vec<(&'static str, String)>,
}

impl LateEvent {
    /// Names and values of the variables. Values contain no control characters, whoever chose them.
    fn variables(&self) -> Vec<(String, String)> {
        let utc = u64::try_from(realtime() - (monotonic() - self.at_ns)).unwrap_or(0);
        let time = humantime::format_rfc3339_nanos(std::time::UNIX_EPOCH + Duration::from_nanos(utc)).to_string();
        let all = [
            ("EVENT", self.event.to_owned()),
            ("STREAM", self.stream.clone()),
            ("NUMBER", self.number.to_string()),
            ("TOTAL_NS", self.total_ns.map_or(String::new(), |ns| ns.to_string())),
            ("TIME", time),
        ];
        let more = self.more.iter().cloned();
        all.into_iter().chain(more).map(|(name, value)| (format!("LATPATH_{name}"), printable(&value))).collect()
    }
}

impl OnSpike {
    /// Whether the flag is given.
    pub fn is_requested(&self) -> bool {
        self.on_spike.is_some()
    }

    /// Starts the thread that runs the command. Its output goes to stderr, or nowhere if `is_silent`. `avoid`: a CPU on
    /// which the command does not run, unless there is no other.
    ///
    /// # Errors
    /// If the command is not a list of words, or every CPU is isolated.
    pub fn begin(&self, is_silent: bool, avoid: Option<usize>) -> Result<Option<SpikeCommand>> {
        let Some(text) = &self.on_spike else { return Ok(None) };
        let words = split(text).map_err(|why| Usage(format!("--on-spike {text:?}: {why}")))?;
        let cpus = housekeeping().context("--on-spike: all CPUs are isolated, and none is left for the command")?;
        SpikeCommand::start(Runner { words, cpus: off(cpus, avoid), is_silent }).map(Some)
    }
}

/// These CPUs without the one of the measuring thread, if others are left.
fn off(cpus: Cpus, measuring: Option<usize>) -> Cpus {
    let others = cpus.without(&measuring.iter().map(|cpu| *cpu as u32).collect());
    if others.is_empty() {
        cpus
    } else {
        others
    }
}

/// The thread that runs the command.
pub struct SpikeCommand {
    sender: Option<SyncSender<LateEvent>>,
    /// Whether an event waits for the thread, or the thread is not ready for another.
    is_busy: Arc<AtomicBool>,
    not_started: AtomicU64,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<CommandRuns>>,
}

impl SpikeCommand {
    fn start(runner: Runner) -> Result<Self> {
        let (sender, events) = sync_channel(1);
        let (is_busy, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (busy, ended) = (Arc::clone(&is_busy), Arc::clone(&over));
        let thread = std::thread::Builder::new().name("lp-on-spike".into());
        let thread = thread.spawn(move || runner.run(&events, &busy, &ended)).context("--on-spike: no thread")?;
        let not_started = AtomicU64::new(0);
        Ok(Self { sender: Some(sender), is_busy, not_started, over, thread: Some(thread) })
    }

    /// Runs the command for this packet, unless it is already running or was started less than a second ago: then the
    /// packet is only counted, and `event` is not called. Never waits.
    pub fn late(&self, event: impl FnOnce() -> LateEvent) {
        let is_passed_on = !self.is_busy.swap(true, Ordering::AcqRel)
            && self.sender.as_ref().is_some_and(|sender| sender.try_send(event()).is_ok());
        if !is_passed_on {
            self.not_started.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for the command, ends it if it takes too long, and reports its runs on stderr.
    pub fn end(mut self) -> CommandRuns {
        let runs = self.finish();
        if runs.started + runs.not_started > 0 {
            let failed = if runs.failed > 0 { format!(", failed: {}", count(runs.failed)) } else { String::new() };
            let left = match runs.not_started {
                0 => String::new(),
                n => format!("; not started for {} more: it ran, or had been started a moment before", count(n)),
            };
            eprintln!("latpath: --on-spike: started {}{failed}{left}", number_of(runs.started, "time"));
        }
        if let Some(why) = &runs.first_failure {
            eprintln!("latpath: --on-spike: {}", printable(why));
        }
        runs
    }

    fn finish(&mut self) -> CommandRuns {
        self.over.store(true, Ordering::Release);
        self.sender = None;
        let Some(thread) = self.thread.take() else { return CommandRuns::default() };
        thread.thread().unpark();
        let runs = thread.join().unwrap_or_default();
        CommandRuns { not_started: self.not_started.load(Ordering::Relaxed), ..runs }
    }
}

impl Drop for SpikeCommand {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The command, and where it runs.
struct Runner {
    words: Vec<String>,
    cpus: Cpus,
    is_silent: bool,
}

impl Runner {
    fn run(&self, events: &Receiver<LateEvent>, is_busy: &AtomicBool, over: &AtomicBool) -> CommandRuns {
        keep_prompt();
        let mut runs = CommandRuns::default();
        while let Ok(event) = events.recv() {
            let begun = Instant::now();
            runs.started += 1;
            // Sets the CPUs each time, because latpath moves its threads when the CPUs of the route change.
            let ended = match place(&self.cpus) {
                Ok(()) => self.once(&event, over),
                Err(why) => Err(format!("not started, since it cannot be kept off the isolated CPUs: {why}")),
            };
            if let Err(why) = ended {
                runs.failed += 1;
                runs.first_failure.get_or_insert(why);
            }
            while begun.elapsed() < EVERY && !over.load(Ordering::Acquire) {
                std::thread::park_timeout(EVERY.saturating_sub(begun.elapsed()));
            }
            is_busy.store(false, Ordering::Release);
        }
        runs
    }

    /// Runs the command to its end.
    fn once(&self, event: &LateEvent, over: &AtomicBool) -> Result<(), String> {
        let program = &self.words[0];
        let mut child = self.spawn(event).map_err(|why| format!("{program}: cannot be started: {why}"))?;
        let status = wait(&mut child, over).map_err(|why| format!("{program}: {why}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{program}: {status}"))
        }
    }

    fn spawn(&self, event: &LateEvent) -> std::io::Result<Child> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).envs(event.variables());
        // A group of its own: a Ctrl-C ends latpath, which then ends the command.
        command.process_group(0).stdin(Stdio::null());
        match self.is_silent {
            true => command.stdout(Stdio::null()).stderr(Stdio::null()),
            // Only latpath's own results go to its stdout.
            false => command.stdout(std::io::stderr().as_fd().try_clone_to_owned()?),
        };
        // The child inherits CPUs and priority from this thread. Without code of its own between fork and exec, it
        // shares this process's memory until exec, and no page of the measuring thread is copied or write-protected.
        command.spawn()
    }
}

/// Keeps the calling thread, and all processes that it starts, on these CPUs.
fn place(cpus: &Cpus) -> nix::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(cpu as usize))?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// Waits for the end of a command. After latpath's own end, the command may run for another [`PATIENCE`].
fn wait(child: &mut Child, over: &AtomicBool) -> std::io::Result<ExitStatus> {
    let mut since: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if over.load(Ordering::Acquire) {
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            let group = Pid::from_raw(child.id() as i32);
            if waited >= 2 * PATIENCE {
                let _ = killpg(group, Signal::SIGKILL);
                return child.wait();
            }
            if waited >= PATIENCE {
                let _ = killpg(group, Signal::SIGTERM);
            }
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Splits a command into words as a shell does: quotes and backslashes, but no variables and no patterns.
fn split(text: &str) -> Result<Vec<String>, &'static str> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => {
                let escaped = letters.next().ok_or("it ends in a backslash")?;
                word.get_or_insert_default().push(escaped);
            }
            (None, ' ' | '\t' | '\n') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    match (quote, words.first().is_some_and(|program| !program.is_empty())) {
        (Some(_), _) => Err("a quote is not closed"),
        (None, false) => Err("a program is needed"),
        (None, true) => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_testkit::waits::until;
    use std::path::Path;

    #[test]
    fn commands_are_split_as_a_shell_does() {
        let words = |text: &str| split(text).map(|words| words.join("|"));
        assert_eq!(words(" logger -t  latpath 'a late packet' ").as_deref(), Ok("logger|-t|latpath|a late packet"));
        assert_eq!(
            words(r#"sh -c "echo \"$LATPATH_NUMBER\" '1'""#).as_deref(),
            Ok(r#"sh|-c|echo "$LATPATH_NUMBER" '1'"#)
        );
        assert_eq!(words(r"a\ b '' c").as_deref(), Ok("a b||c"));
        for (text, why) in [("", "a program"), ("''", "a program"), ("a 'b", "a quote"), ("a\\", "a backslash")] {
            assert!(split(text).is_err_and(|e| e.contains(why)), "{text}");
        }
    }

    fn command(text: &str) -> SpikeCommand {
        OnSpike { on_spike: Some(text.into()) }.begin(true, None).unwrap().unwrap()
    }

    fn event(number: u64) -> LateEvent {
        let more = vec![("CAPTURE", "7".into())];
        LateEvent { event: "packet", stream: "svid:A\u{1b}[2J".into(), number, total_ns: Some(5), at_ns: 0, more }
    }

    fn lines(file: &Path) -> Vec<String> {
        std::fs::read_to_string(file).unwrap_or_default().lines().map(String::from).collect()
    }

    #[test]
    fn a_command_has_the_packet_in_its_environment_and_runs_once_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out");
        let script = r#"sh -c 'echo "$LATPATH_EVENT $LATPATH_STREAM $LATPATH_NUMBER $LATPATH_TOTAL_NS $LATPATH_CAPTURE" >> FILE'"#;
        let command = command(&script.replace("FILE", &file.display().to_string()));
        (1..=100).for_each(|number| command.late(|| event(number)));
        until("the command has run", || lines(&file).len() == 1).unwrap();
        let runs = command.end();
        assert_eq!(lines(&file), ["packet svid:A?[2J 1 5 7"]);
        assert_eq!((runs.started, runs.failed, runs.not_started), (1, 0, 99));
    }

    #[test]
    fn a_second_packet_runs_it_again_a_second_later() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out");
        let command = command(&format!("sh -c 'echo $LATPATH_NUMBER >> {}'", file.display()));
        let mut number = 0;
        until("it has run twice", || {
            number += 1;
            command.late(|| event(number));
            lines(&file).len() >= 2
        })
        .unwrap();
        let runs = command.end();
        assert!(runs.started >= 2 && runs.started + runs.not_started == number, "{runs:?} of {number}");
    }

    #[test]
    fn failures_are_reported_and_end_nothing() {
        for (text, why) in [("/no/such/program", "cannot be started"), ("sh -c 'exit 3'", "exit status: 3")] {
            let command = command(text);
            command.late(|| event(1));
            until("it is ready again, and so has run", || !command.is_busy.load(Ordering::Acquire)).unwrap();
            let runs = command.end();
            assert_eq!((runs.started, runs.failed), (1, 1));
            assert!(runs.first_failure.as_ref().is_some_and(|failure| failure.contains(why)), "{runs:?}");
        }
    }

    #[test]
    fn the_command_runs_on_cpus_that_are_not_isolated() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out");
        let command = command(&format!("sh -c 'grep Cpus_allowed_list /proc/self/status > {}'", file.display()));
        command.late(|| event(1));
        until("the command has run", || !lines(&file).is_empty()).unwrap();
        command.end();
        let allowed: Cpus = lines(&file)[0].split_whitespace().last().unwrap().parse().unwrap();
        assert_eq!(Some(allowed), housekeeping());
    }

    #[test]
    fn the_command_leaves_the_measuring_threads_cpu_alone_if_there_are_others() {
        let cpus = housekeeping().unwrap();
        let measuring = cpus.iter().next().unwrap();
        let alone: Cpus = std::iter::once(measuring).collect();
        let others = cpus.without(&alone);
        assert_eq!(off(cpus.clone(), Some(measuring as usize)), if others.is_empty() { cpus } else { others });
        assert_eq!(off(alone.clone(), Some(measuring as usize)), alone, "it has no other");
    }
}
