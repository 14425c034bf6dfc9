//! The shell of a machine in QEMU: sends scripts over a virtio-serial port, and receives their output and exit status.
//! The other end is shell.sh. It is not trusted: lines and outputs are bounded, and every wait has a limit.

use crate::{
    error::{Doing, Error, Result},
    Stop,
};
use base64::{engine::general_purpose::STANDARD, Engine};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(50);
/// Maximum output of a script, bytes: more is an error.
const MAX_OUTPUT: usize = 64 << 20;
/// Maximum length of a line of the shell's protocol, bytes.
const MAX_LINE: usize = 4096;

/// Result of a script in a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit status; 128 plus the signal's number if a signal ended the script.
    pub status: i32,
    /// Standard output and standard error.
    pub text: String,
}

#[derive(Debug)]
pub(crate) struct Shell {
    machine: String,
    stream: UnixStream,
    pending: Vec<u8>,
    requests: u64,
}

impl Shell {
    /// A shell over a connected stream; `machine` is the name in messages.
    pub(crate) fn new(machine: &str, stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(TICK)).doing("set a time limit on the machine's shell")?;
        stream.set_write_timeout(Some(Duration::from_secs(10))).doing("set a time limit on the machine's shell")?;
        Ok(Self { machine: machine.into(), stream, pending: Vec::new(), requests: 0 })
    }

    /// Waits for the shell's first line, and returns the release of the kernel.
    pub(crate) fn ready(&mut self, until: Instant, stop: Stop) -> Result<String> {
        let ready = self.line(until, stop)?;
        let mut words = ready.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("ready"), Some(_), Some(release)) => Ok(release.into()),
            _ => Err(self.fail(format!("says {ready:?} instead of being ready"))),
        }
    }

    /// Runs a shell script in the machine and waits for its end. Only one script runs at a time.
    pub(crate) fn run(&mut self, script: &str, limit: Duration, stop: Stop) -> Result<Output> {
        self.requests += 1;
        let id = self.requests;
        let request = format!("{id} {}\n", STANDARD.encode(script));
        let until = Instant::now() + limit;
        self.stream.write_all(request.as_bytes()).map_err(|e| self.fail(format!("takes no script: {e}")))?;
        loop {
            let line = self.line(until, stop)?;
            let bad = || self.fail(format!("answered {line:?}, which is no answer"));
            let numbers: Vec<u64> = line.split(' ').map_while(|w| w.parse().ok()).collect();
            let [answered, status, length] = numbers[..] else { return Err(bad()) };
            let (status, length) = (i32::try_from(status).map_err(|_| bad())?, length as usize);
            if length > MAX_OUTPUT || answered > id {
                return Err(bad());
            }
            let bytes = self.bytes(length, until, stop)?;
            // The answer of an earlier script that exceeded its limit is skipped.
            if answered == id {
                return Ok(Output { status, text: String::from_utf8_lossy(&bytes).into_owned() });
            }
        }
    }

    /// [`Shell::run`] for a script that must succeed; returns its output.
    pub(crate) fn expect(&mut self, script: &str, stop: Stop) -> Result<String> {
        let output = self.run(script, Duration::from_secs(60), stop)?;
        match output.status {
            0 => Ok(output.text),
            status => Err(self.fail(format!("{script}: exit status {status}: {}", output.text.trim()))),
        }
    }

    pub(crate) fn fail(&self, why: String) -> Error {
        Error::Guest { guest: self.machine.clone(), why }
    }

    /// The next line from the shell.
    fn line(&mut self, until: Instant, stop: Stop) -> Result<String> {
        loop {
            if let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.pending.len() > MAX_LINE {
                return Err(self.fail("sends a line without end".into()));
            }
            self.more(until, stop)?;
        }
    }

    /// The next `count` bytes from the shell.
    fn bytes(&mut self, count: usize, until: Instant, stop: Stop) -> Result<Vec<u8>> {
        while self.pending.len() < count {
            self.more(until, stop)?;
        }
        Ok(self.pending.drain(..count).collect())
    }

    /// Waits for at least one more byte.
    fn more(&mut self, until: Instant, stop: Stop) -> Result<()> {
        let mut buffer = [0; 65536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.fail("it is gone".into())),
                Ok(n) => {
                    self.pending.extend_from_slice(&buffer[..n]);
                    return Ok(());
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(self.fail(e.to_string())),
            }
            if stop() {
                return Err(Error::Interrupted);
            }
            if Instant::now() >= until {
                return Err(Error::Silent { guest: self.machine.clone() });
            }
        }
    }
}
