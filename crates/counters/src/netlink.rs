//! Netlink: one question, all messages of the answer. The kernel is trusted, but nothing is read past an answer's end.

use crate::{Error, Netns, Result};
use nix::sys::{
    socket::{
        bind, recv, send, setsockopt, socket, sockopt, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol,
        SockType,
    },
    time::TimeVal,
};
use std::os::fd::{AsRawFd, OwnedFd};

/// include/uapi/linux/netlink.h
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const DUMP_INTERRUPTED: u16 = 0x10;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;

/// The kernel answers from memory; a second is an eternity.
const LIMIT_S: i64 = 1;
/// A dump that changed while it was made is asked for again, so often.
const TRIES: u32 = 5;
/// More than a machine with ten thousand devices answers with.
const MOST_BYTES: usize = 64 << 20;

pub struct Socket {
    fd: OwnedFd,
    what: &'static str,
}

/// One message of an answer: its type and what follows the header.
pub struct Message {
    pub kind: u16,
    pub payload: Vec<u8>,
}

impl Socket {
    /// Opens a socket in a namespace; `what` names it in errors.
    pub fn open(netns: &Netns, protocol: SockProtocol, what: &'static str) -> Result<Self> {
        let open = move || -> nix::Result<OwnedFd> {
            let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
            bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
            setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(LIMIT_S, 0))?;
            Ok(fd)
        };
        let fd = netns.inside(open)?.map_err(|e| Error::Ask { what, source: e.into() })?;
        Ok(Self { fd, what })
    }

    /// Asks for all of a kind, and returns the whole answer.
    pub fn list(&self, kind: u16, payload: &[u8]) -> Result<Vec<Message>> {
        for sequence in 1..=TRIES {
            if let Some(answer) = self.once(kind, payload, sequence)? {
                return Ok(answer);
            }
        }
        Err(self.failed(nix::Error::EINTR))
    }

    fn failed(&self, e: nix::Error) -> Error {
        Error::Ask { what: self.what, source: e.into() }
    }

    fn send(&self, kind: u16, flags: u16, payload: &[u8], sequence: u32) -> Result<()> {
        let mut question = Vec::with_capacity(HEADER + payload.len());
        question.extend(((HEADER + payload.len()) as u32).to_ne_bytes());
        question.extend(kind.to_ne_bytes());
        question.extend(flags.to_ne_bytes());
        question.extend(sequence.to_ne_bytes());
        question.extend(0u32.to_ne_bytes());
        question.extend(payload);
        send(self.fd.as_raw_fd(), &question, MsgFlags::empty()).map_err(|e| self.failed(e))?;
        Ok(())
    }

    /// Asks for one thing, and returns the one message of the answer.
    pub fn get(&self, kind: u16, payload: &[u8]) -> Result<Message> {
        self.send(kind, REQUEST, payload, 1)?;
        let mut buffer = vec![0; 8 << 10];
        let length = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty()).map_err(|e| self.failed(e))?;
        match message(&buffer[..length]) {
            Some((header, body, _)) if header.kind != ERROR => {
                Ok(Message { kind: header.kind, payload: body.to_vec() })
            }
            Some(_) => Err(self.failed(nix::Error::ENOENT)),
            None => Err(Error::Answer(self.what)),
        }
    }

    /// `None`: what was listed changed in between.
    fn once(&self, kind: u16, payload: &[u8], sequence: u32) -> Result<Option<Vec<Message>>> {
        self.send(kind, REQUEST | DUMP, payload, sequence)?;
        let (mut answer, mut changed, mut total) = (Vec::new(), false, 0);
        let mut buffer = vec![0; 128 << 10];
        loop {
            let length = match recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => length,
                Err(nix::Error::EINTR) => continue,
                Err(e) => return Err(self.failed(e)),
            };
            total += length;
            if length == 0 || total > MOST_BYTES {
                return Err(Error::Answer(self.what));
            }
            let mut rest = &buffer[..length];
            while !rest.is_empty() {
                let (header, body, after) = message(rest).ok_or(Error::Answer(self.what))?;
                rest = after;
                // The end of an answer that was given up on.
                if header.sequence != sequence {
                    continue;
                }
                changed |= header.flags & DUMP_INTERRUPTED != 0;
                match header.kind {
                    DONE => return Ok((!changed).then_some(answer)),
                    ERROR => {
                        let code = body.get(..4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
                        match code {
                            0 => return Ok(Some(answer)),
                            code => return Err(self.failed(nix::Error::from_raw(code.saturating_neg()))),
                        }
                    }
                    kind => answer.push(Message { kind, payload: body.to_vec() }),
                }
            }
        }
    }
}

struct Header {
    kind: u16,
    flags: u16,
    sequence: u32,
}

/// The first message of a buffer: header, payload, what follows.
fn message(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let length = u32_at(bytes, 0)? as usize;
    let header = Header { kind: u16_at(bytes, 4)?, flags: u16_at(bytes, 6)?, sequence: u32_at(bytes, 8)? };
    let body = bytes.get(HEADER..length)?;
    Some((header, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The attributes in a payload: type (without its flag bits) and value. Ends where the bytes make no sense.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & 0x3fff, value))
    })
}

/// An attribute, as the kernel sends and reads it.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len());
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_read_back_as_written() {
        let mut bytes = attribute(3, b"eth0\0");
        bytes.extend(attribute(0x8012, &7u32.to_ne_bytes()));
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(3, b"eth0\0".as_slice()), (0x12, &7u32.to_ne_bytes())]);
        assert_eq!(latpath_model::text::of_field(read[0].1), "eth0");
    }

    #[test]
    fn attributes_that_lie_about_their_length_end_the_list() {
        for length in [0u16, 3, 9, u16::MAX] {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend([1, 0, 0, 0, 0, 0]);
            assert_eq!(attributes(&bytes).count(), 0, "{length}");
        }
    }

    #[test]
    fn a_message_longer_than_what_came_is_refused() {
        let mut bytes = vec![0; 16];
        for length in [0u32, 15, 17, u32::MAX] {
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(message(&bytes).is_none(), "{length}");
        }
        bytes[..4].copy_from_slice(&16u32.to_ne_bytes());
        assert!(message(&bytes).is_some());
    }

    proptest::proptest! {
        #[test]
        fn no_answer_is_read_past_its_end(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let inside: usize = attributes(&bytes).map(|(_, value)| 4 + value.len()).sum();
            assert!(inside <= bytes.len());
            if let Some((_, body, rest)) = message(&bytes) {
                assert!(HEADER + body.len() + rest.len() <= bytes.len());
            }
        }
    }
}
