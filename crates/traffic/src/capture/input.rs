//! Buffered input of a capture, with lookahead.

use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufRead, BufReader, Read};

/// Bytes per read.
const CHUNK: usize = 1 << 16;

/// Why a record cannot be read.
#[derive(Debug)]
pub(super) enum Fault {
    /// The input ends in the middle of the record.
    Cut,
    /// The record is damaged or unsupported, for this reason.
    Broken(String),
    /// The system's error.
    Io(io::Error),
}

/// Input that is decompressed if it is gzip-compressed.
pub(super) struct Input<'a> {
    from: Box<dyn Read + 'a>,
    bytes: Vec<u8>,
    at: usize,
    is_end: bool,
    /// The error that ended the input, reported after the bytes before it are consumed.
    error: Option<io::Error>,
}

impl<'a> Input<'a> {
    pub fn new(source: impl Read + 'a) -> io::Result<Self> {
        let mut raw = BufReader::with_capacity(CHUNK, source);
        let from: Box<dyn Read + 'a> = match raw.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
            true => Box::new(MultiGzDecoder::new(raw)),
            false => Box::new(raw),
        };
        Ok(Self { from, bytes: Vec::new(), at: 0, is_end: false, error: None })
    }

    /// Returns the next `n` bytes without consuming them; fewer at the end. Memory grows only with the bytes available,
    /// however large `n` is.
    pub fn peek(&mut self, n: usize) -> &[u8] {
        while self.bytes.len() - self.at < n && !self.is_end {
            self.read_more();
        }
        let end = self.bytes.len().min(self.at.saturating_add(n));
        &self.bytes[self.at..end]
    }

    fn read_more(&mut self) {
        self.bytes.drain(..self.at);
        self.at = 0;
        let before = self.bytes.len();
        self.bytes.resize(before + CHUNK, 0);
        let read = self.from.read(&mut self.bytes[before..]);
        self.bytes.truncate(before + read.as_ref().map_or(0, |n| *n));
        match read {
            Ok(0) => self.is_end = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                self.is_end = true;
                // Compressed data that end prematurely count as truncated.
                self.error = Some(error).filter(|error| error.kind() != io::ErrorKind::UnexpectedEof);
            }
        }
    }

    /// Consumes `n` bytes that [`Self::peek`] has returned.
    pub fn take(&mut self, n: usize) {
        self.at = (self.at + n).min(self.bytes.len());
    }

    /// Skips `n` bytes.
    pub fn skip(&mut self, mut n: usize) -> Result<(), Fault> {
        while n > 0 {
            let there = self.peek(n.min(CHUNK)).len();
            if there == 0 {
                return Err(self.end());
            }
            self.take(there);
            n -= there;
        }
        Ok(())
    }

    /// Returns the next `n` bytes, or an error.
    pub fn need(&mut self, n: usize) -> Result<&[u8], Fault> {
        if self.peek(n).len() < n {
            return Err(self.end());
        }
        Ok(self.peek(n))
    }

    /// Whether the input is at its end.
    pub fn is_empty(&mut self) -> Result<bool, Fault> {
        let is_empty = self.peek(1).is_empty();
        match self.error.take().filter(|_| is_empty) {
            Some(error) => Err(Fault::Io(error)),
            None => Ok(is_empty),
        }
    }

    /// Why the input has no further bytes.
    fn end(&mut self) -> Fault {
        self.error.take().map_or(Fault::Cut, Fault::Io)
    }
}

/// Byte order of the numbers in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub is_big: bool,
}

impl Order {
    /// The number at `at`; 0 beyond the end.
    pub fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = bytes.get(at..).and_then(|b| b.first_chunk().copied()).unwrap_or_default();
        if self.is_big {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        }
    }

    pub fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = bytes.get(at..).and_then(|b| b.first_chunk().copied()).unwrap_or_default();
        if self.is_big {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        }
    }

    pub fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let (first, second) = (u64::from(self.u32(bytes, at)), u64::from(self.u32(bytes, at + 4)));
        if self.is_big {
            first << 32 | second
        } else {
            second << 32 | first
        }
    }
}
