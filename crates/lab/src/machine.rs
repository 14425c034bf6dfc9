//! A machine that QEMU runs and that offers a shell: a guest, or the hypervisor that boots guests itself.

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

/// It runs until this value goes.
#[derive(Debug)]
pub struct Machine {
    qemu: Running,
    shell: Shell,
    name: String,
    /// What QEMU says is written here.
    messages: PathBuf,
    console: PathBuf,
    release: String,
    boot_time: Duration,
}

impl Machine {
    /// Starts QEMU and waits until the machine's shell answers, at most `limit`.
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
                // The socket closes a moment before the process has ended and said why.
                qemu.wait(Duration::from_millis(500))?;
                alive(&mut qemu)?;
                Err(error)
            }
        }
    }

    /// Its kernel, as `uname -r` says it.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// From QEMU's start until its shell answered.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    /// How its QEMU ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.qemu.ended()
    }

    /// Runs a shell script in it and waits for its end. Only one runs at a time; in a guest, what shall go on is put into the background
    /// ([`Guest::start`](crate::Guest::start)).
    pub fn run(&mut self, script: &str, limit: Duration, stop: Stop) -> Result<Output> {
        let ran = self.shell.run(script, limit, stop);
        self.or_how_it_ended(ran)
    }

    /// [`Machine::run`] for a script that must succeed; returns what it printed.
    pub fn expect(&mut self, script: &str, stop: Stop) -> Result<String> {
        let printed = self.shell.expect(script, stop);
        self.or_how_it_ended(printed)
    }

    /// The shell of a machine that is gone only stops answering.
    fn or_how_it_ended<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(Error::Guest { .. }) = result {
            self.qemu.wait(Duration::from_millis(500))?;
            is_alive(&mut self.qemu, &self.name, &self.messages)?;
        }
        result
    }

    /// An error with its name.
    pub(crate) fn fail(&self, why: String) -> Error {
        self.shell.fail(why)
    }

    /// The file that its serial console writes.
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// The last lines of its serial console.
    pub fn console_tail(&self) -> String {
        tail(&self.console, 40)
    }
}

/// Whether the machine's QEMU still runs; an error that says how it ended, if it has.
fn is_alive(qemu: &mut Running, name: &str, messages: &Path) -> Result<()> {
    match qemu.ended()? {
        Some(status) => {
            // That emulation lacks a feature of a CPU ends nothing.
            let lines = last_lines(messages, 10).into_iter().filter(|line| !line.contains(": warning: "));
            let why = std::iter::once(format!("QEMU ended, {status}")).chain(lines);
            Err(Error::Guest { guest: name.into(), why: why.collect::<Vec<_>>().join("; ") })
        }
        None => Ok(()),
    }
}
