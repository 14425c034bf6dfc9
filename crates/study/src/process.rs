//! The processes of a trial: publisher, reader, load, and the commands that set up and take down.
//!
//! A process that runs during the recording has its own PID namespace. The first process of this namespace is killed
//! when latpath ends; the kernel then kills all other processes in it, even those that left their process group. So no
//! process of a trial survives latpath, not even after `kill -9`.

use latpath_linux::background::leave_at_exec;
use latpath_linux::{die_with_parent, spawn_on_lasting_thread, Cpus};
use nix::sched::{sched_setaffinity, setns, CloneFlags, CpuSet};
use nix::sys::signal::{killpg, Signal};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Polling interval while waiting.
const TICK: Duration = Duration::from_millis(10);
/// Time after SIGTERM within which a process must end.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum length to quote of a process's last line, bytes.
const MAX_QUOTED: usize = 300;

/// Environment, network namespace and CPUs of a process.
#[derive(Clone, Default)]
pub struct Surroundings {
    /// Environment variables.
    pub variables: Vec<(String, String)>,
    /// Network namespace, open for setns(2); `None` for latpath's own.
    pub namespace: Option<Arc<File>>,
    /// CPUs that the process may use; `None` for the same as latpath.
    pub cpus: Option<Cpus>,
}

/// A process that runs during the recording, and all processes that it started. Dropping this value ends them.
pub struct BackgroundProcess {
    what: String,
    child: Child,
    /// File with its stderr.
    errors: std::path::PathBuf,
}

impl BackgroundProcess {
    /// Starts a program. Its stdout is written to `NAME.json`, its stderr to `NAME.txt`, both in `folder`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        what: &str,
        words: &[OsString],
        surroundings: &Surroundings,
        folder: (&latpath_linux::Directory, &Path),
    ) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child=KILL", "--"]).args(words);
        let failed = |e: io::Error| format!("{what}: cannot be started: {e}");
        let output = |extension: &str| folder.0.new_file(format!("{what}.{extension}")).map_err(failed);
        command.stdout(output("json")?).stderr(output("txt")?).current_dir(folder.1);
        let child = spawn(command, surroundings).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => format!("{what}: cannot be started: unshare (of util-linux) is not installed"),
            _ => failed(e),
        })?;
        Ok(Self { what: what.into(), child, errors: folder.0.join(format!("{what}.txt")) })
    }

    /// Why the process has ended; `None` while it is running.
    pub fn why_ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(format!("{} ended before the recording: {}", self.what, self.reason(status))),
            Err(e) => Some(format!("{}: {e}", self.what)),
        }
    }

    fn reason(&self, status: ExitStatus) -> String {
        match last_line(&self.errors) {
            Some(line) => format!("{status}: {line}"),
            None => status.to_string(),
        }
    }

    /// Sends SIGTERM, so that the process can print its results.
    pub fn ask_to_end(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        }
    }

    /// Ends the process and all processes that it started: with SIGTERM, and if necessary with SIGKILL.
    pub fn end(&mut self) {
        let group = Pid::from_raw(self.child.id() as i32);
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = killpg(group, Signal::SIGTERM);
            let until = Instant::now() + PATIENCE;
            while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(TICK);
            }
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            // The first process of the PID namespace belongs to the process group.
            let _ = killpg(group, Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a shell command until it exits. Processes that it starts in the background are not ended: a topology may need a
/// daemon.
///
/// # Errors
/// If it cannot be started, fails, or takes longer than `limit`; as a sentence.
pub fn run(
    what: &str,
    command: &str,
    surroundings: &Surroundings,
    (folder, current): (&latpath_linux::Directory, &Path),
    limit: Duration,
) -> Result<(), String> {
    let name = format!("{what}.txt");
    let failed = |e: io::Error| format!("{what}: cannot be started: {e}");
    let output = folder.new_file(&name).map_err(failed)?;
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdout(output.try_clone().map_err(failed)?).stderr(output).current_dir(current);
    let mut child = spawn(shell, surroundings).map_err(failed)?;
    let until = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() >= until => {
                let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
                let _ = child.wait();
                return Err(format!("{what}: not done after {limit:?} (command_limit): {command}"));
            }
            None => thread::sleep(TICK),
        }
    };
    match (status.success(), last_line(&folder.join(&name))) {
        (true, _) => Ok(()),
        (false, Some(line)) => Err(format!("{what}: {status}: {line}")),
        (false, None) => Err(format!("{what}: {status}: {command}")),
    }
}

/// The last non-empty line of a process's output, truncated.
fn last_line(file: &Path) -> Option<String> {
    let text = latpath_linux::read_text(file, 1 << 20).ok()?;
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    let end = (0..=MAX_QUOTED.min(line.len())).rev().find(|at| line.is_char_boundary(*at))?;
    Some(line[..end].to_owned())
}

/// Starts a command in its own process group; it is killed when latpath dies.
fn spawn(mut command: Command, surroundings: &Surroundings) -> io::Result<Child> {
    command.stdin(Stdio::null()).process_group(0);
    command.envs(surroundings.variables.iter().map(|(name, value)| (name, value)));
    let cpus = surroundings.cpus.as_ref().map(cpu_set);
    let namespace = surroundings.namespace.clone();
    die_with_parent(&mut command, Signal::SIGKILL);
    let before_exec = move || {
        if let Some(namespace) = &namespace {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
        }
        if let Some(cpus) = &cpus {
            sched_setaffinity(Pid::from_raw(0), cpus)?;
        }
        Ok(())
    };
    leave_at_exec(&mut command);
    // SAFETY: between fork and exec, only async-signal-safe system calls are made and nothing is allocated: an
    // `io::Error` made from an errno or a kind does not allocate.
    unsafe { command.pre_exec(before_exec) };
    spawn_on_lasting_thread(command)
}

fn cpu_set(cpus: &Cpus) -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in cpus.iter() {
        // Ignore errors: a CPU beyond the size of the set does not exist.
        let _ = set.set(cpu as usize);
    }
    set
}
