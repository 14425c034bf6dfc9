//! Framing: converts bytes to messages and back.
//!
//! A session opens with a preamble: 8 magic bytes, then a number chosen by the host and repeated by the agent. Bytes
//! before the preamble, left by an older session, a login shell's greeting or a dead peer, are skipped. Frames follow:
//! length (4 bytes, little endian, at most 1 MiB), content. A preamble is never a valid length: its first 4 bytes
//! exceed 1 MiB.

use crate::message::{Envelope, Message};
use prost::Message as _;
use std::collections::VecDeque;

/// Maximum length of a frame's content, bytes.
pub const MAX_FRAME: usize = 1 << 20;
/// Magic bytes of the host's preamble.
pub const HOST_MAGIC: [u8; 8] = *b"\xfe\xffLATPTH";
/// Magic bytes of the agent's preamble.
pub const AGENT_MAGIC: [u8; 8] = *b"\xfe\xfflatpth";
const PREAMBLE: usize = 16;

#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Message(Box<Message>),
    /// The preamble of the session with this ID.
    Preamble(u64),
}

/// Errors in a peer's frames.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes (limit: {MAX_FRAME})")]
    TooLong(usize),
    #[error("a frame that is not a message ({0})")]
    Content(String),
    #[error("an unknown message")]
    Unknown,
}

/// The preamble of a session.
pub fn preamble(magic: [u8; 8], nonce: u64) -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    bytes[..8].copy_from_slice(&magic);
    bytes[8..].copy_from_slice(&nonce.to_le_bytes());
    bytes
}

/// Assembles messages from bytes. Buffers at most one frame and one read.
#[derive(Debug)]
pub struct FrameReader {
    magic: [u8; 8],
    bytes: Vec<u8>,
    at: usize,
}

impl FrameReader {
    /// Creates a reader for the peer with this magic.
    pub fn new(magic: [u8; 8]) -> Self {
        Self { magic, bytes: Vec::new(), at: 0 }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
        if self.bytes.capacity() > 2 * MAX_FRAME && self.bytes.len() < MAX_FRAME / 4 {
            self.bytes.shrink_to(MAX_FRAME / 2);
        }
    }

    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Skips to the next preamble and returns its session ID. If none is found, keeps only bytes that may be the start
    /// of one.
    pub fn scan(&mut self) -> Option<u64> {
        loop {
            let magic = self.magic;
            let rest = self.rest();
            let Some(found) = rest.iter().position(|&b| b == magic[0]) else {
                self.at = self.bytes.len();
                return None;
            };
            let here = &rest[found..];
            let known = here.len().min(magic.len());
            if here[..known] != magic[..known] {
                self.at += found + 1;
            } else if here.len() < PREAMBLE {
                self.at += found;
                return None;
            } else {
                let nonce = u64::from_le_bytes(here[8..PREAMBLE].try_into().expect("8 bytes"));
                self.at += found + PREAMBLE;
                return Some(nonce);
            }
        }
    }

    /// Returns the session ID if a preamble comes next, without consuming it.
    pub fn peek_preamble(&self) -> Option<u64> {
        let here = self.rest();
        (here.len() >= PREAMBLE && here[..8] == self.magic)
            .then(|| u64::from_le_bytes(here[8..PREAMBLE].try_into().expect("8 bytes")))
    }

    /// Returns the next complete item, if any.
    ///
    /// # Errors
    /// The bytes are not a valid frame.
    pub fn next(&mut self) -> Result<Option<Item>, FrameError> {
        let rest = self.rest();
        let Some(head) = rest.first_chunk::<4>() else { return Ok(None) };
        if *head == self.magic[..4] {
            if rest.len() < PREAMBLE {
                return Ok(None);
            }
            if let Some(nonce) = self.peek_preamble() {
                self.at += PREAMBLE;
                return Ok(Some(Item::Preamble(nonce)));
            }
        }
        let len = u32::from_le_bytes(*head) as usize;
        if len > MAX_FRAME {
            return Err(FrameError::TooLong(len));
        }
        let Some(content) = rest.get(4..4 + len) else { return Ok(None) };
        let envelope = Envelope::decode(content).map_err(|e| FrameError::Content(e.to_string()))?;
        self.at += 4 + len;
        Ok(Some(Item::Message(Box::new(envelope.message.ok_or(FrameError::Unknown)?))))
    }
}

pub fn append(bytes: &mut Vec<u8>, message: Message) {
    let envelope = Envelope { message: Some(message) };
    let len = envelope.encoded_len();
    assert!(len <= MAX_FRAME, "messages are kept small where they are made");
    bytes.extend_from_slice(&(len as u32).to_le_bytes());
    envelope.encode(bytes).expect("a Vec takes any length");
}

/// Queue of frames to be written.
#[derive(Debug, Default)]
pub struct Outgoing {
    current: Vec<u8>,
    written: usize,
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Outgoing {
    /// Queues raw bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.waiting.push_back(bytes.to_vec());
    }

    pub fn push(&mut self, message: Message) {
        let mut frame = Vec::new();
        append(&mut frame, message);
        self.bytes += frame.len();
        self.waiting.push_back(frame);
    }

    /// Number of queued bytes.
    pub fn waiting(&self) -> usize {
        self.bytes
    }

    /// Writes as much as the stream accepts; returns the number of bytes. `urgent` is called right before each frame
    /// and may insert another one, so that a timestamp in it is the time of writing. `idle` is called for more when the
    /// queue is empty.
    pub fn flush(
        &mut self,
        mut write: impl FnMut(&[u8]) -> std::io::Result<usize>,
        mut urgent: impl FnMut() -> Option<Message>,
        mut idle: impl FnMut() -> Option<Message>,
    ) -> std::io::Result<usize> {
        let mut total = 0;
        loop {
            if self.written == self.current.len() {
                self.current.clear();
                self.written = 0;
                if let Some(message) = urgent() {
                    append(&mut self.current, message);
                    self.bytes += self.current.len();
                } else if let Some(frame) = self.waiting.pop_front() {
                    self.current = frame;
                } else if let Some(message) = idle() {
                    append(&mut self.current, message);
                    self.bytes += self.current.len();
                } else {
                    return Ok(total);
                }
            }
            match write(&self.current[self.written..])? {
                0 => return Ok(total),
                n => {
                    self.written += n;
                    self.bytes -= n;
                    total += n;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Empty, ErrorText, TimeRequest};
    use proptest::prelude::*;

    fn request(id: u64) -> Message {
        Message::TimeRequest(TimeRequest { id })
    }

    fn items(reader: &mut FrameReader) -> Vec<Item> {
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    #[test]
    fn messages_survive_any_splitting_of_the_bytes() {
        let mut bytes = preamble(HOST_MAGIC, 5).to_vec();
        for id in 0..20 {
            append(&mut bytes, request(id << 40));
        }
        for cut in 1..40 {
            let mut reader = FrameReader::new(HOST_MAGIC);
            let mut got = Vec::new();
            for part in bytes.chunks(cut) {
                reader.push(part);
                got.extend(items(&mut reader));
            }
            assert_eq!(got[0], Item::Preamble(5));
            assert_eq!(got.len(), 21);
            assert_eq!(got[20], Item::Message(Box::new(request(19 << 40))));
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_it_is_read() {
        let mut reader = FrameReader::new(HOST_MAGIC);
        reader.push(&0x0010_0001u32.to_le_bytes());
        assert_eq!(reader.next(), Err(FrameError::TooLong(0x10_0001)));
    }

    #[test]
    fn an_unknown_message_differs_from_a_broken_one() {
        let mut reader = FrameReader::new(HOST_MAGIC);
        reader.push(&[0, 0, 0, 0]);
        assert_eq!(reader.next(), Err(FrameError::Unknown));
        let mut reader = FrameReader::new(HOST_MAGIC);
        reader.push(&[3, 0, 0, 0, 0xff, 0xff, 0xff]);
        assert!(matches!(reader.next(), Err(FrameError::Content(_))));
    }

    #[test]
    fn an_urgent_message_overtakes_waiting_ones_except_the_started_frame() {
        let mut outgoing = Outgoing::default();
        outgoing.push(Message::Stop(Empty {}));
        outgoing.push(Message::Bye(Empty {}));
        let mut wire = Vec::new();
        // The first write takes 2 bytes, then the stream is full.
        let mut room = 2;
        let mut write = |bytes: &[u8]| {
            let n = bytes.len().min(room);
            room -= n;
            wire.extend_from_slice(&bytes[..n]);
            Ok(n)
        };
        outgoing.flush(&mut write, || None, || None).unwrap();
        let (mut urgent, mut idle) = (Some(request(1)), Some(Message::Started(Empty {})));
        outgoing
            .flush(
                |bytes| {
                    wire.extend_from_slice(bytes);
                    Ok(bytes.len())
                },
                || urgent.take(),
                || idle.take(),
            )
            .unwrap();
        assert_eq!(outgoing.waiting(), 0);
        let mut reader = FrameReader::new(AGENT_MAGIC);
        reader.push(&wire);
        let names: Vec<_> = items(&mut reader)
            .into_iter()
            .map(|item| match item {
                Item::Message(m) => std::mem::discriminant(&*m),
                Item::Preamble(_) => panic!("no preamble was written"),
            })
            .collect();
        let expected = [Message::Stop(Empty {}), request(1), Message::Bye(Empty {}), Message::Started(Empty {})];
        assert_eq!(names, expected.iter().map(std::mem::discriminant).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn the_preamble_is_found_after_any_bytes(
            rubbish in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xfeu8), Just(0xffu8), Just(b'L')], 0..300),
            nonce in any::<u64>(),
            cut in 1usize..50,
        ) {
            let mut bytes = rubbish;
            bytes.extend(preamble(HOST_MAGIC, nonce));
            append(&mut bytes, request(3));
            let mut reader = FrameReader::new(HOST_MAGIC);
            let mut found = None;
            for part in bytes.chunks(cut) {
                reader.push(part);
                found = found.or_else(|| reader.scan());
            }
            prop_assert_eq!(found, Some(nonce));
            prop_assert_eq!(reader.next().unwrap(), Some(Item::Message(Box::new(request(3)))));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), short in any::<bool>()) {
            let mut reader = FrameReader::new(AGENT_MAGIC);
            let mut bytes = bytes;
            if short && bytes.len() > 4 {
                bytes[2..4].fill(0);
            }
            reader.push(&bytes);
            while let Ok(Some(_)) = reader.next() {}
            reader.scan();
        }

        #[test]
        fn any_text_survives(text in ".{0,200}") {
            let mut bytes = Vec::new();
            append(&mut bytes, Message::Error(ErrorText { text: text.clone() }));
            let mut reader = FrameReader::new(AGENT_MAGIC);
            reader.push(&bytes);
            prop_assert_eq!(reader.next().unwrap(), Some(Item::Message(Box::new(Message::Error(ErrorText { text })))));
        }
    }
}
