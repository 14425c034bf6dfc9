//! A machine that runs in QEMU and offers a shell: a guest, or the hypervisor, which boots guests itself.

use crate::{
    error::{Error, Result},
    files::{last_lines, tail},
    process::Running,
    qemu::Start,
    shell::Shell,
    Output, Stop,
};
use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitStatus,
    thread,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(50);

/// A running machine, which ends when this value is dropped.
#[derive(Debug)]
pub struct Machine {
    qemu: Running,
    shell: Shell,
    name: String,
    /// The file of QEMU's own messages.
    messages: PathBuf,
    console: PathBuf,
    release: String,
    boot_time: Duration,
}

impl Machine {
    /// Starts QEMU and waits until the machine's shell answers, for at most `limit`.
    pub(crate) fn boot(start: &Start, limit: Duration, stop: Stop) -> Result<Self> {
        let began = Instant::now();
        let until = began + limit;
        let mut qemu = start.start()?;
        let fail = |why: String| Error::Guest { guest: start.name.into(), why };
        let alive = |qemu: &mut Running| is_alive(qemu, start.name, &start.files.messages);
        let stream = loop {
            match UnixStream::connect(&start.files.shell) {
                Ok(stream) => break stream,
                Err(_) if stop() => return Err(Error::Interrupted),
                Err(_) if Instant::now() < until => {
                    alive(&mut qemu)?;
                    thread::sleep(TICK);
                }
                Err(e) => return Err(fail(format!("QEMU opened no socket: {e}"))),
            }
        };
        let mut shell = Shell::new(start.name, stream)?;
        match shell.ready(until, stop) {
            Ok(release) => {
                let console = start.files.console.clone();
                let (name, messages) = (start.name.to_owned(), start.files.messages.clone());
                Ok(Self { qemu, shell, name, messages, console, release, boot_time: began.elapsed() })
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                // The socket closes shortly before QEMU has written its last message and ended.
                qemu.wait(Duration::from_millis(500))?;
                alive(&mut qemu)?;
                Err(error)
            }
        }
    }

    /// The release of its kernel, as printed by `uname -r`.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Time from QEMU's start to the first answer of the shell.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    /// QEMU's exit status, if it has ended.
    ///
    /// # Errors
    /// If the process cannot be waited for.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.qemu.ended()
    }

    /// Runs a shell script in the machine and waits for its end. Only one script runs at a time; in a guest,
    /// [`Guest::start`](crate::Guest::start) runs a command in the background.
    ///
    /// # Errors
    /// If the script exceeds `limit`, the machine ends or does not answer, or the user requests a stop.
    pub fn run(&mut self, script: &str, limit: Duration, stop: Stop) -> Result<Output> {
        let ran = self.shell.run(script, limit, stop);
        self.or_how_it_ended(ran)
    }

    /// [`Machine::run`] for a script that must succeed; returns its output.
    ///
    /// # Errors
    /// Like [`Machine::run`], and if the script fails.
    pub fn expect(&mut self, script: &str, stop: Stop) -> Result<String> {
        let printed = self.shell.expect(script, stop);
        self.or_how_it_ended(printed)
    }

    /// Replaces the error of a silent shell with the exit status of the machine, if it has ended.
    fn or_how_it_ended<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(Error::Guest { .. }) = result {
            self.qemu.wait(Duration::from_millis(500))?;
            is_alive(&mut self.qemu, &self.name, &self.messages)?;
        }
        result
    }

    /// An error with the machine's name.
    pub(crate) fn fail(&self, why: String) -> Error {
        self.shell.fail(why)
    }

    /// The file of its serial console.
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// The last lines of its serial console.
    pub fn console_tail(&self) -> String {
        tail(&self.console, 40)
    }
}

/// Checks that QEMU still runs; otherwise returns an error with its exit status.
fn is_alive(qemu: &mut Running, name: &str, messages: &Path) -> Result<()> {
    match qemu.ended()? {
        Some(status) => {
            // Warnings about CPU features that the emulation lacks do not explain why QEMU ended.
            let lines = last_lines(messages, 10).into_iter().filter(|line| !line.contains(": warning: "));
            let why = std::iter::once(format!("QEMU ended, {status}")).chain(lines);
            Err(Error::Guest { guest: name.into(), why: why.collect::<Vec<_>>().join("; ") })
        }
        None => Ok(()),
    }
}
