//! A command that the agent runs for the host during a measurement: its output and its exit code.

use crate::message::{printable, CommandChunk, Message, RunCommand};
use latpath_linux::{background::leave_at_exec, die_with_parent};
use nix::sys::signal::{killpg, Signal};
use nix::sys::wait::{waitid, Id, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

/// Maximum number of words of a command, and their maximum total length in bytes.
const MAX_WORDS: usize = 4096;
const MAX_WORDS_BYTES: usize = 128 << 10;
/// Maximum size of an output chunk, bytes.
const PIECE: usize = 8 << 10;
/// Maximum number of chunks waiting for the host; beyond it, the command's writes block.
const MAX_WAITING: usize = 16;
/// Time from SIGTERM to SIGKILL; a tracing command may have many programs to detach.
const TIME_TO_END: Duration = Duration::from_secs(10);
/// Maximum time for which surviving child processes may keep the output open after the command's end.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum size of unfetched output on the host, bytes.
const MAX_KEPT: usize = 4 << 20;
/// Overhead of a chunk in memory, bytes.
const PIECE_COST: usize = 64;

/// A running command on the agent's side.
pub(crate) struct Running {
    child: Child,
    output: Receiver<(bool, Vec<u8>)>,
    /// Exit code and time of the end. The process is reaped only when the output is complete: until then, its PID,
    /// which is also its process group's ID, is not reused.
    ended: Option<(i32, Instant)>,
    signalled: Option<Instant>,
}

impl Running {
    /// Starts the command in its own process group.
    pub fn start(run: &RunCommand) -> Result<Self, String> {
        let bytes: usize = run.words.iter().map(String::len).sum();
        let Some((program, arguments)) = run.words.split_first() else { return Err("a command of no words".into()) };
        if run.words.len() > MAX_WORDS || bytes > MAX_WORDS_BYTES {
            return Err(format!("a command of {} words and {bytes} bytes is too long", run.words.len()));
        }
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        die_with_parent(&mut command, Signal::SIGKILL);
        leave_at_exec(&mut command);
        let mut child = command.spawn().map_err(|e| format!("cannot start {}: {e}", printable(program)))?;
        let (sender, output) = sync_channel(MAX_WAITING);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let running = Self { child, output, ended: None, signalled: None };
        stdout.into_iter().try_for_each(|pipe| pass_on(pipe, false, sender.clone()))?;
        stderr.into_iter().try_for_each(|pipe| pass_on(pipe, true, sender.clone()))?;
        Ok(running)
    }

    /// Returns the next message to send; the one with the exit code is the last.
    pub fn step(&mut self) -> Result<Option<Message>, String> {
        if self.signalled.is_some_and(|at| at.elapsed() >= TIME_TO_END) {
            self.signal(Signal::SIGKILL);
        }
        if self.ended.is_none() {
            self.ended =
                self.code().map_err(|e| format!("waiting for the command: {e}"))?.map(|code| (code, Instant::now()));
        }
        let over = match self.output.try_recv() {
            Ok((is_error, bytes)) => {
                return Ok(Some(Message::CommandChunk(CommandChunk { bytes, is_error, ..Default::default() })));
            }
            Err(TryRecvError::Disconnected) => true,
            Err(TryRecvError::Empty) => false,
        };
        let Some((code, at)) = self.ended else { return Ok(None) };
        // Surviving child processes may keep the output open: wait for its end, but not for ever.
        if !over && at.elapsed() < PATIENCE {
            return Ok(None);
        }
        Ok(Some(Message::CommandChunk(CommandChunk { ended: true, code, ..Default::default() })))
    }

    /// Sends SIGTERM to the command.
    pub fn end(&mut self) {
        self.signal(Signal::SIGTERM);
        self.signalled.get_or_insert_with(Instant::now);
    }

    /// Returns the exit code (128 + signal number after a fatal signal) once the process has ended, without reaping it.
    fn code(&self) -> nix::Result<Option<i32>> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        Ok(match waitid(Id::Pid(self.group()), flags)? {
            WaitStatus::Exited(_, code) => Some(code),
            WaitStatus::Signaled(_, signal, _) => Some(128 + signal as i32),
            _ => None,
        })
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Sends a signal to the command's process group, even if the command itself has ended.
    fn signal(&self, signal: Signal) {
        let _ = killpg(self.group(), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Forwards the output of a pipe until its end, or until the receiver is gone.
fn pass_on(
    mut pipe: impl Read + Send + 'static,
    is_error: bool,
    sender: SyncSender<(bool, Vec<u8>)>,
) -> Result<(), String> {
    let pass = move || {
        let mut bytes = [0; PIECE];
        while let Ok(n @ 1..) = pipe.read(&mut bytes) {
            if sender.send((is_error, bytes[..n].to_vec())).is_err() {
                return;
            }
        }
    };
    let spawned = std::thread::Builder::new().name("lp-command".into()).spawn(pass);
    spawned.map(drop).map_err(|e| format!("no thread for the command's output: {e}"))
}

/// State of a command on the host's side.
#[derive(Default)]
pub(crate) struct Commanded {
    printed: VecDeque<(bool, Vec<u8>)>,
    kept: usize,
    /// Number of output bytes discarded because they were not fetched in time.
    left_out: u64,
    end: Option<Result<i32, String>>,
}

/// Output of a remote command since the last call, and its result once it has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CommandNews {
    /// Output chunks in order, each with a flag for standard error.
    pub printed: Vec<(bool, Vec<u8>)>,
    /// Number of output bytes lost because they were not fetched in time.
    pub left_out: u64,
    /// Exit code (128 + signal number after a fatal signal), or the reason why the command did not run.
    pub end: Option<Result<i32, String>>,
}

impl Commanded {
    pub fn take(&mut self, piece: CommandChunk) -> Result<(), String> {
        if self.end.is_some() {
            return Err("the agent reported on a command that had ended".into());
        }
        if !piece.bytes.is_empty() {
            self.keep(piece.is_error, piece.bytes);
        }
        if !piece.error.is_empty() {
            self.end = Some(Err(printable(&piece.error)));
        } else if piece.ended {
            self.end = Some(Ok(piece.code));
        }
        Ok(())
    }

    /// Stores output unless the buffer is full, merging consecutive small chunks.
    fn keep(&mut self, is_error: bool, bytes: Vec<u8>) {
        let last = self.printed.back_mut().filter(|(of, _)| *of == is_error);
        let cost = bytes.len() + if last.is_some() { 0 } else { PIECE_COST };
        if self.kept + cost > MAX_KEPT {
            self.left_out += bytes.len() as u64;
            return;
        }
        self.kept += cost;
        match last {
            Some((_, before)) => before.extend(bytes),
            None => self.printed.push_back((is_error, bytes)),
        }
    }

    pub fn news(&mut self) -> CommandNews {
        self.kept = 0;
        CommandNews {
            printed: std::mem::take(&mut self.printed).into(),
            left_out: std::mem::take(&mut self.left_out),
            end: self.end.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> RunCommand {
        RunCommand { words: words.iter().map(ToString::to_string).collect(), key: Vec::new() }
    }

    /// Runs a command to its end, handling its messages as the host does.
    fn to_its_end(running: &mut Running) -> CommandNews {
        let (mut host, began) = (Commanded::default(), Instant::now());
        while host.end.is_none() {
            match running.step().unwrap() {
                Some(Message::CommandChunk(piece)) => host.take(piece).unwrap(),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(began.elapsed() < Duration::from_secs(30), "it does not end");
        }
        host.news()
    }

    #[test]
    fn output_arrives_in_order_before_the_exit_code() {
        let mut running = Running::start(&run(&["sh", "-c", "seq 100000; echo no >&2; exit 7"])).unwrap();
        let news = to_its_end(&mut running);
        let of = |is: bool| news.printed.iter().filter(|(of, _)| *of == is).flat_map(|(_, b)| b.clone()).collect();
        let (out, err): (Vec<u8>, Vec<u8>) = (of(false), of(true));
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 100_000);
        assert_eq!((err.as_slice(), news.end, news.left_out), (&b"no\n"[..], Some(Ok(7)), 0));
    }

    #[test]
    fn kept_output_is_bounded_for_any_size_of_chunks() {
        let piece = |n: usize, is_error| CommandChunk { bytes: vec![b'x'; n], is_error, ..CommandChunk::default() };
        for alternates in [false, true] {
            let mut host = Commanded::default();
            for n in 0..MAX_KEPT + 5 {
                host.take(piece(1, alternates && n % 2 == 0)).unwrap();
            }
            let pieces = host.printed.len();
            assert!(pieces * PIECE_COST <= MAX_KEPT, "{pieces} pieces");
            let memory: usize = host.printed.iter().map(|(_, bytes)| bytes.capacity() + PIECE_COST).sum();
            assert!(memory <= 2 * MAX_KEPT + PIECE_COST, "{memory} bytes");
            let news = host.news();
            let kept: usize = news.printed.iter().map(|(_, bytes)| bytes.len()).sum();
            assert_eq!(kept as u64 + news.left_out, MAX_KEPT as u64 + 5, "what is left out is counted");
        }
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_with_its_children() {
        let mut running =
            Running::start(&run(&["sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait; wait"])).unwrap();
        let pid = loop {
            if let Some(Message::CommandChunk(piece)) = running.step().unwrap() {
                break String::from_utf8(piece.bytes).unwrap().trim().to_owned();
            }
        };
        running.end();
        assert_eq!(to_its_end(&mut running).end, Some(Ok(137)));
        latpath_testkit::waits::until("the child is gone", || {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        })
        .unwrap();
    }

    #[test]
    fn orphans_of_a_command_do_not_delay_its_end_and_are_killed() {
        let mut running = Running::start(&run(&["sh", "-c", "sleep 1000 & exit 0"])).unwrap();
        assert_eq!(to_its_end(&mut running).end, Some(Ok(0)));
        let group = running.group();
        assert_eq!(killpg(group, None), Ok(()), "it is there");
        drop(running);
        let began = Instant::now();
        while killpg(group, None).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(30), "what it left behind is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The kernel kills the command when the agent is killed.
    #[test]
    fn the_command_dies_with_the_agent() {
        let running = Running::start(&run(&["sh", "-c", "exec sleep 1000"])).unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{}/status", running.child.id())).unwrap_or_default();
        assert!(stat().contains(&format!("PPid:\t{}\n", std::process::id())));
        // The kernel sends the parent-death signal when the starting thread ends, as it does when the agent is killed.
        let orphan = std::thread::spawn(|| {
            let running = Running::start(&run(&["sleep", "1000"])).unwrap();
            let group = running.group();
            std::mem::forget(running);
            group
        });
        let group = orphan.join().unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{group}/stat")).unwrap_or_default();
        let began = Instant::now();
        while !state().contains(") Z ") {
            assert!(began.elapsed() < Duration::from_secs(30), "{}", state());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_command_that_cannot_start_is_reported() {
        let why = |words: &[&str]| Running::start(&run(words)).err().unwrap();
        assert!(why(&["/no/such\u{1b}program"]).contains("cannot start /no/such?program: No such file"));
        assert!(why(&[]).contains("no words"));
        assert!(why(&vec!["x"; MAX_WORDS + 1]).contains("too long"));
    }

    #[test]
    fn unfetched_output_is_bounded_and_counted() {
        let mut host = Commanded::default();
        for _ in 0..2_000 {
            host.take(CommandChunk { bytes: vec![b'x'; 4096], ..Default::default() }).unwrap();
        }
        assert!(host.kept <= MAX_KEPT);
        let news = host.news();
        let kept: usize = news.printed.iter().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(kept as u64 + news.left_out, 2_000 * 4096);
        host.take(CommandChunk { ended: true, ..Default::default() }).unwrap();
        assert!(host.take(CommandChunk::default()).is_err());
    }
}
