//! A machine that QEMU runs and that offers a shell: a guest, or the hypervisor that boots guests itself.

use crate::{
    error::{Error, Result},
    files::tail,
    process::Running,
    qemu::Start,
    shell::Shell,
    Stop,
};
use std::{
    os::unix::net::UnixStream,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(50);

/// It runs until this value goes.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) qemu: Running,
    pub(crate) shell: Shell,
    pub(crate) console: PathBuf,
    /// Its kernel, as `uname -r` says it.
    pub(crate) release: String,
    /// From QEMU's start until its shell answered.
    pub(crate) boot: Duration,
}

impl Machine {
    /// Starts QEMU and waits until the machine's shell answers, at most `limit`.
    pub(crate) fn boot(start: &Start, limit: Duration, stop: Stop) -> Result<Self> {
        let began = Instant::now();
        let until = began + limit;
        let mut qemu = start.start()?;
        let fail = |why: String| Error::Guest { guest: start.name.into(), why };
        let died = |qemu: &mut Running| match qemu.ended()? {
            Some(status) => {
                Err(fail(format!("QEMU ended, {status}: {}", tail(&start.files.messages, 3).replace('\n', "; "))))
            }
            None => Ok(()),
        };
        let stream = loop {
            match UnixStream::connect(&start.files.shell) {
                Ok(stream) => break stream,
                Err(_) if stop() => return Err(Error::Interrupted),
                Err(_) if Instant::now() < until => {
                    died(&mut qemu)?;
                    thread::sleep(TICK);
                }
                Err(e) => return Err(fail(format!("QEMU opened no socket: {e}"))),
            }
        };
        let mut shell = Shell::new(start.name, stream)?;
        match shell.ready(until, stop) {
            Ok(release) => {
                let console = start.files.console.clone();
                Ok(Self { qemu, shell, console, release, boot: began.elapsed() })
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                // The socket closes a moment before the process has ended and said why.
                qemu.wait(Duration::from_millis(500))?;
                died(&mut qemu)?;
                Err(error)
            }
        }
    }

    /// The last lines of its serial console.
    pub(crate) fn console_tail(&self) -> String {
        tail(&self.console, 20)
    }
}
