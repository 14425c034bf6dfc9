//! A command that runs while instruments are attached.

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval at which an instrument reads its events and the end of the window is checked.
const STEP: Duration = Duration::from_millis(50);
/// Maximum time for a command to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(2);

/// Result of a command: an error if it failed, with the reason.
pub type End = Result<(), String>;

/// A running command on this machine.
pub struct Workload(Child);

impl Workload {
    /// Starts the command with these environment variables. It writes to `output`, or to this process's standard
    /// output.
    ///
    /// # Errors
    /// If `words` is empty, or the command cannot be started.
    pub fn start(words: &[OsString], variables: &[(&str, &str)], output: Option<&File>) -> io::Result<Self> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).envs(variables.iter().copied());
        if let Some(output) = output {
            command.stdout(output.try_clone()?);
        }
        let named = |e: io::Error| {
            io::Error::new(e.kind(), format!("cannot start {}: {e}", program.to_string_lossy().escape_debug()))
        };
        command.spawn().map(Self).map_err(named)
    }

    /// The command's result, once it has ended.
    ///
    /// # Errors
    /// If the kernel does not report the state of the process.
    pub fn ended(&mut self) -> io::Result<Option<End>> {
        let status = self.0.try_wait()?;
        Ok(status.map(|status| if status.success() { Ok(()) } else { Err(status.to_string()) }))
    }

    /// Ends the command if it is still running: with SIGTERM, or SIGKILL if SIGTERM has no effect.
    pub fn end(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
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

/// Waits until `stop` is set, the duration has passed, or `ended` returns a value, which is then returned. Calls `step`
/// about 20 times a second with the elapsed time.
///
/// # Errors
/// If `ended` fails.
pub fn pass<T, E>(
    stop: &AtomicBool,
    duration: Option<Duration>,
    mut ended: impl FnMut() -> Result<Option<T>, E>,
    mut step: impl FnMut(Duration),
) -> Result<Option<T>, E> {
    let began = Instant::now();
    while !stop.load(Ordering::SeqCst) && duration.is_none_or(|time| began.elapsed() < time) {
        if let Some(end) = ended()? {
            return Ok(Some(end));
        }
        std::thread::sleep(duration.map_or(STEP, |time| time.saturating_sub(began.elapsed())).min(STEP));
        step(began.elapsed());
    }
    Ok(None)
}
