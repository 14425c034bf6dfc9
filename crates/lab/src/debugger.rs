//! A client of QEMU's debugger stub (GDB's remote serial protocol), for state that a machine cannot report itself.

use crate::error::{Doing, Error, Result};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

fn fail(why: String) -> Error {
    Error::Command { command: "ask QEMU's debugger".into(), why }
}

/// A connection to the stub. The machine is stopped until [`Debugger::leave`].
pub(crate) struct Debugger {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Debugger {
    /// Connects, and stops the machine.
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).doing(format!("connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).doing("set a time limit on the debugger")?;
        let mut debugger = Self { stream, pending: Vec::new() };
        debugger.ask("?")?;
        Ok(debugger)
    }

    /// A byte of the machine's memory at a virtual address of its running program.
    pub(crate) fn read(&mut self, address: u64) -> Result<u8> {
        let answer = self.ask(&format!("m{address:x},1"))?;
        u8::from_str_radix(&answer, 16)
            .map_err(|_| fail(format!("the byte at {address:#x} cannot be read: {answer:?}")))
    }

    pub(crate) fn write(&mut self, address: u64, byte: u8) -> Result<()> {
        match self.ask(&format!("M{address:x},1:{byte:02x}"))?.as_str() {
            "OK" => Ok(()),
            answer => Err(fail(format!("the byte at {address:#x} cannot be written: {answer:?}"))),
        }
    }

    /// Resumes the machine.
    pub(crate) fn leave(mut self) -> Result<()> {
        self.ask("D").map(drop)
    }

    /// The instruction pointer of one of the machine's CPUs, counted from 1.
    pub(crate) fn instruction(&mut self, cpu: u32) -> Result<u64> {
        let bad = |answer: &str| fail(format!("CPU {cpu} has no registers: {answer:?}"));
        match self.ask(&format!("Hg{cpu:x}"))?.as_str() {
            "OK" => {}
            answer => return Err(bad(answer)),
        }
        let all = self.ask("g")?;
        // rip is the 17th 64-bit register; its bytes are in memory order.
        let digits = all.get(16 * 16..17 * 16).ok_or_else(|| bad(&all))?;
        u64::from_str_radix(digits, 16).map(u64::swap_bytes).map_err(|_| bad(digits))
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        self.stream.write_all(&packet(request)).doing("write to the debugger")?;
        loop {
            let answer = self.packet()?;
            // The machine may report its stop at any time; such a report is the answer only to the request `?`.
            if request == "?" || !answer.starts_with('T') {
                return Ok(answer);
            }
        }
    }

    fn packet(&mut self) -> Result<String> {
        let mut buffer = [0; 4096];
        loop {
            if let Some((content, length)) = first_packet(&self.pending) {
                self.pending.drain(..length);
                self.stream.write_all(b"+").doing("write to the debugger")?;
                return Ok(content);
            }
            if self.pending.len() > 1 << 16 {
                return Err(fail("the debugger's answer has no end".into()));
            }
            match self.stream.read(&mut buffer).doing("read from the debugger")? {
                0 => return Err(fail("the debugger is gone".into())),
                n => self.pending.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

/// Encodes the content as `$content#checksum`.
fn packet(content: &str) -> Vec<u8> {
    let sum = content.bytes().fold(0u8, u8::wrapping_add);
    format!("${content}#{sum:02x}").into_bytes()
}

/// The first complete packet in these bytes, and its end; acknowledgements before it are skipped.
fn first_packet(bytes: &[u8]) -> Option<(String, usize)> {
    let start = bytes.iter().position(|b| *b == b'$')?;
    let end = start + bytes[start..].iter().position(|b| *b == b'#')?;
    (bytes.len() >= end + 3).then(|| (String::from_utf8_lossy(&bytes[start + 1..end]).into_owned(), end + 3))
}

#[cfg(test)]
mod tests {
    use super::{first_packet, packet};

    #[test]
    fn packets_are_written_and_read_as_gdb_has_them() {
        assert_eq!(packet("?"), b"$?#3f");
        assert_eq!(packet("m1000,1"), b"$m1000,1#8b");
        assert_eq!(first_packet(b"+$OK#9a$T05"), Some(("OK".into(), 7)));
        assert_eq!(first_packet(b"+$OK#9"), None);
    }
}
