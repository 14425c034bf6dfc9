//! Processes that end with the lab: started in a network namespace and in their own process group (so that a terminal's
//! Ctrl-C reaches them only through this process), and signalled by the kernel when their parent dies.

use crate::{
    error::{Doing, Error, Result},
    Stop,
};
use latpath_linux::{die_with_parent, spawn_on_lasting_thread};
use nix::{
    sched::{setns, CloneFlags},
    sys::signal::{kill, Signal},
    unistd::Pid,
};
use std::{
    fs::File,
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Interval between polls during a wait.
const TICK: Duration = Duration::from_millis(20);

/// A child process, which is ended when this value is dropped, if not before.
#[derive(Debug)]
pub struct Running {
    child: Child,
    what: String,
}

impl Running {
    /// Starts `command` in `namespace`, by default this process's own. When this process dies, for any reason, the
    /// kernel sends `on_parent_death` to the child.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn start(command: Command, namespace: Option<&Arc<File>>, on_parent_death: Signal) -> Result<Self> {
        let what = command.get_program().to_string_lossy().into_owned();
        let child = spawn(command, namespace.cloned(), on_parent_death).doing(format!("start {what}"))?;
        Ok(Self { child, what })
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The child's exit status, if it has ended.
    ///
    /// # Errors
    /// If the child cannot be waited for.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().doing(format!("wait for {}", self.what))
    }

    /// Sends a signal; no effect on a child that has ended.
    pub fn signal(&self, signal: Signal) {
        // The child is not reaped before `ended` or drop, so its id cannot have been reused.
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// Waits for the child's end, for at most `limit`; `None` if it still runs.
    ///
    /// # Errors
    /// If the child cannot be waited for.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            thread::sleep(TICK);
        }
    }

    /// Sends `signal`, and kills a child that still runs after `limit`. Returns `None` if it had to be killed.
    ///
    /// # Errors
    /// If the child cannot be waited for.
    pub fn end(&mut self, signal: Signal, limit: Duration) -> Result<Option<ExitStatus>> {
        if self.ended()?.is_none() {
            self.signal(signal);
        }
        let status = self.wait(limit)?;
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Starts a command in a process group of its own; the kernel signals it when latpath dies.
fn spawn(command: Command, namespace: Option<Arc<File>>, on_parent_death: Signal) -> io::Result<Child> {
    let mut command = command;
    command.process_group(0);
    die_with_parent(&mut command, on_parent_death);
    if let Some(namespace) = namespace {
        let enter = move || Ok(setns(&namespace, CloneFlags::CLONE_NEWNET)?);
        // SAFETY: between fork and exec, the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(enter) };
    }
    spawn_on_lasting_thread(command)
}

/// Runs a short command to its end and returns its output; an error has the command's last messages.
pub(crate) fn run(command: &mut Command, limit: Duration, stop: Stop) -> Result<Vec<u8>> {
    let output = output(command, limit, stop)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let why = match words.trim() {
        "" => output.status.to_string(),
        words => words.lines().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("; "),
    };
    Err(Error::Command { command: line(command), why })
}

fn output(command: &mut Command, limit: Duration, stop: Stop) -> Result<Output> {
    let mut taken = Command::new(command.get_program());
    taken.args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        taken.current_dir(dir);
    }
    taken.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(taken, None, Signal::SIGKILL)?;
    let drain = |pipe: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let stdout = drain(running.child.stdout.take().map(|p| Box::new(p) as _));
    let stderr = drain(running.child.stderr.take().map(|p| Box::new(p) as _));
    let until = Instant::now() + limit;
    let status = loop {
        if let Some(status) = running.wait(TICK)? {
            break status;
        }
        if stop() {
            return Err(Error::Interrupted);
        }
        if Instant::now() >= until {
            return Err(Error::Command { command: line(command), why: format!("not done after {limit:?}") });
        }
    };
    Ok(Output { status, stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default() })
}

/// The command line as text.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_reported_in_its_own_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such tap >&2; exit 3"]);
        let error = run(&mut command, Duration::from_secs(10), &|| false).unwrap_err().to_string();
        assert!(error.ends_with("no such tap"), "{error}");
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let error = run(&mut command, Duration::from_millis(50), &|| false).unwrap_err().to_string();
        assert!(error.contains("not done after"), "{error}");
        assert!(matches!(run(&mut command, Duration::from_secs(1000), &|| true), Err(Error::Interrupted)));
    }

    #[test]
    fn a_child_outlives_the_thread_that_started_it() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let mut running = thread::spawn(|| Running::start(command, None, Signal::SIGKILL).unwrap()).join().unwrap();
        assert!(running.wait(Duration::from_millis(100)).unwrap().is_none());
        assert!(running.end(Signal::SIGTERM, Duration::from_secs(10)).unwrap().is_some());
    }
}
