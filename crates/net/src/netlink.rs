//! Netlink: sends one request and receives all messages of its answer. The kernel is trusted, but an invalid length
//! never causes a read beyond the end of an answer.

use crate::{Error, Netns, Result};
use latpath_linux::net::set_option;
use latpath_model::text::of_field;
use nix::sys::{
    socket::{
        bind, recv, send, setsockopt, socket, sockopt, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol,
        SockType,
    },
    time::TimeVal,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// include/uapi/linux/netlink.h
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const DUMP_INTERRUPTED: u16 = 0x10;
const CAPPED: u16 = 0x100;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;
const SOL_NETLINK: i32 = 270;
const CAP_ACK: i32 = 10;
const EXT_ACK: i32 = 11;
const ERROR_MESSAGE: u16 = 1;
const NESTED: u16 = 0x8000;

/// Request flags: the object must not exist yet (`NLM_F_CREATE`, `NLM_F_EXCL`).
pub const CREATE_NEW: u16 = 0x600;
/// Request flags: the object is created, or replaced if it exists (`NLM_F_CREATE`, `NLM_F_REPLACE`).
pub const CREATE_OR_REPLACE: u16 = 0x500;

/// Timeout for an answer, s: the kernel answers from memory.
const TIMEOUT_S: i64 = 1;
/// Timeout for a change, s: a driver may reset its device.
const CHANGE_TIMEOUT_S: i64 = 30;
/// Maximum number of attempts at a dump that the kernel flags as inconsistent.
const TRIES: u32 = 5;
/// Maximum size of an answer, bytes: sufficient for ten thousand devices.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A netlink socket of one network namespace.
pub struct Socket {
    fd: OwnedFd,
    what: &'static str,
}

/// One message of an answer.
pub struct Message {
    /// Type of the message, e.g. `RTM_NEWLINK`.
    pub kind: u16,
    /// Bytes after the header.
    pub payload: Vec<u8>,
}

impl Socket {
    /// Opens a socket in a namespace; `what` names its purpose in errors.
    ///
    /// # Errors
    /// If the namespace cannot be entered, or the kernel does not support the protocol.
    pub fn open(netns: &Netns, protocol: SockProtocol, what: &'static str) -> Result<Self> {
        let open = move || -> std::io::Result<OwnedFd> {
            let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
            bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
            setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(TIMEOUT_S, 0))?;
            // Error messages then carry the kernel's explanation and do not repeat the request.
            for option in [CAP_ACK, EXT_ACK] {
                let _ = set_option(fd.as_fd(), SOL_NETLINK, option, &1i32);
            }
            Ok(fd)
        };
        let fd = netns.inside(open)?.map_err(|source| Error::Ask { what, source })?;
        Ok(Self { fd, what })
    }

    /// Lists all objects of a kind.
    ///
    /// # Errors
    /// If the kernel rejects the request, does not answer in time, or sends an invalid message.
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
        let mut request = Vec::with_capacity(HEADER + payload.len());
        request.extend(((HEADER + payload.len()) as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        request.extend(sequence.to_ne_bytes());
        request.extend(0u32.to_ne_bytes());
        request.extend(payload);
        send(self.fd.as_raw_fd(), &request, MsgFlags::empty()).map_err(|e| self.failed(e))?;
        Ok(())
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
        loop {
            match recv(self.fd.as_raw_fd(), buffer, MsgFlags::empty()) {
                Ok(length) => return Ok(&buffer[..length]),
                Err(nix::Error::EINTR) => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
    }

    /// Reads one object: the answer is a single message.
    ///
    /// # Errors
    /// If the object does not exist, or the kernel does not answer in time.
    pub fn get(&self, kind: u16, payload: &[u8]) -> Result<Message> {
        self.send(kind, REQUEST, payload, 1)?;
        let mut buffer = vec![0; 8 << 10];
        match message(self.receive(&mut buffer)?) {
            Some((header, body, _)) if header.kind != ERROR => {
                Ok(Message { kind: header.kind, payload: body.to_vec() })
            }
            Some(_) => Err(self.failed(nix::Error::ENOENT)),
            None => Err(Error::Answer(self.what)),
        }
    }

    /// Changes one object; `doing` names the change in errors. `flags` are [`CREATE_NEW`], [`CREATE_OR_REPLACE`] or 0.
    ///
    /// # Errors
    /// If the kernel rejects the change. The error includes the kernel's reason, if it reports one.
    pub fn change(&self, kind: u16, flags: u16, payload: &[u8], doing: &str) -> Result<()> {
        setsockopt(&self.fd, sockopt::ReceiveTimeout, &TimeVal::new(CHANGE_TIMEOUT_S, 0))
            .map_err(|e| self.failed(e))?;
        self.send(kind, REQUEST | ACK | flags, payload, 1)?;
        let mut buffer = vec![0; 8 << 10];
        match message(self.receive(&mut buffer)?) {
            Some((header, body, _)) if header.kind == ERROR => match refusal(&header, body) {
                None => Ok(()),
                Some((error, reason)) => Err(Error::Refused { doing: doing.into(), source: error.into(), reason }),
            },
            _ => Err(Error::Answer(self.what)),
        }
    }

    /// Requests a dump once; `None` if the list changed during the dump.
    fn once(&self, kind: u16, payload: &[u8], sequence: u32) -> Result<Option<Vec<Message>>> {
        self.send(kind, REQUEST | DUMP, payload, sequence)?;
        let (mut answer, mut changed, mut total) = (Vec::new(), false, 0);
        let mut buffer = vec![0; 128 << 10];
        loop {
            let mut rest = self.receive(&mut buffer)?;
            total += rest.len();
            if rest.is_empty() || total > MAX_ANSWER_BYTES {
                return Err(Error::Answer(self.what));
            }
            while !rest.is_empty() {
                let (header, body, after) = message(rest).ok_or(Error::Answer(self.what))?;
                rest = after;
                // A late message of an abandoned answer.
                if header.sequence != sequence {
                    continue;
                }
                changed |= header.flags & DUMP_INTERRUPTED != 0;
                match header.kind {
                    DONE => return Ok((!changed).then_some(answer)),
                    ERROR => match refusal(&header, body) {
                        None => return Ok(Some(answer)),
                        Some((error, _)) => return Err(self.failed(error)),
                    },
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

/// Splits a buffer after its first message: the message's header and payload, and the remaining bytes.
fn message(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let length = u32_at(bytes, 0)? as usize;
    let header = Header { kind: u16_at(bytes, 4)?, flags: u16_at(bytes, 6)?, sequence: u32_at(bytes, 8)? };
    let body = bytes.get(HEADER..length)?;
    Some((header, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The error of an `NLMSG_ERROR` and the kernel's reason; `None` for an acknowledgement.
fn refusal(header: &Header, body: &[u8]) -> Option<(nix::Error, Option<String>)> {
    let code = u32_at(body, 0).map_or(0, |code| code as i32);
    if code == 0 {
        return None;
    }
    // Without NETLINK_CAP_ACK, the message repeats the request before the reason.
    let repeated = if header.flags & CAPPED != 0 { HEADER } else { u32_at(body, 4).map_or(HEADER, |n| n as usize) };
    let at = 4usize.saturating_add(repeated.next_multiple_of(4));
    let reason = attributes(body.get(at..).unwrap_or_default()).find(|(kind, _)| *kind == ERROR_MESSAGE);
    let reason = reason.map(|(_, text)| of_field(text).to_string());
    Some((nix::Error::from_raw(code.saturating_neg()), reason))
}

/// The attributes in a payload: type (without its flag bits) and value. Ends at the first attribute with an invalid
/// length.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & 0x3fff, value))
    })
}

/// The value of the first attribute of a type.
pub fn find_attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Encodes an attribute.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len());
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Encodes an attribute with a 32-bit number.
pub fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_ne_bytes())
}

/// Encodes an attribute with a string, terminated by a zero byte as the kernel requires.
pub fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

/// Encodes an attribute that contains others.
pub fn nested(kind: u16, inner: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &inner.concat())
}

/// The 16-bit number at an offset, in the machine's byte order.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

/// The 32-bit number at an offset, in the machine's byte order.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The 64-bit number at an offset, in the machine's byte order.
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
        assert_eq!(of_field(read[0].1), "eth0");
        assert_eq!(text(3, "eth0"), attribute(3, b"eth0\0"));
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

    #[test]
    fn the_kernels_reason_is_read_behind_a_capped_and_a_repeated_request() {
        let refused = |flags, repeated: &[u8]| {
            let mut body = (-95i32).to_ne_bytes().to_vec();
            body.extend((16 + repeated.len() as u32).to_ne_bytes());
            body.extend([0; 12]);
            body.extend(repeated);
            body.extend(attribute(ERROR_MESSAGE, b"No such queue\0"));
            refusal(&Header { kind: ERROR, flags, sequence: 1 }, &body)
        };
        let expected = Some((nix::Error::EOPNOTSUPP, Some("No such queue".to_owned())));
        assert_eq!(refused(CAPPED, &[]), expected);
        assert_eq!(refused(0, &[7; 8]), expected);
        assert_eq!(refusal(&Header { kind: ERROR, flags: 0, sequence: 1 }, &[0; 20]), None);
    }

    proptest::proptest! {
        #[test]
        fn no_answer_is_read_past_its_end(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let inside: usize = attributes(&bytes).map(|(_, value)| 4 + value.len()).sum();
            assert!(inside <= bytes.len());
            if let Some((header, body, rest)) = message(&bytes) {
                assert!(HEADER + body.len() + rest.len() <= bytes.len());
                refusal(&header, body);
            }
        }
    }
}
