//! What a source of sightings knows beside them: notes, and who sends the packets.

use crate::{stream::format_mac, PointId, StreamId};
use std::fmt;
use std::net::IpAddr;

/// What a note is about; it decides which figures the note puts in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceNoteKind {
    /// Anything that the reader must know.
    Note,
    /// What cannot be seen on this machine, where nothing suggests that packets are affected.
    Footnote,
    /// Packets pass in several fragments, of which only the first is followed.
    Fragments,
    /// The VLAN tag or an address of packets changes on the way: they are in the stream on one side of the change alone.
    Changed,
    /// Several senders of a stream meet, and their packets may be joined as one.
    SendersMeet,
}

impl SourceNoteKind {
    /// All kinds; a kind's place here is its number in the agent's protocol.
    const ALL: [Self; 5] = [Self::Note, Self::Footnote, Self::Fragments, Self::Changed, Self::SendersMeet];

    pub fn number(self) -> u32 {
        self as u32
    }

    /// The kind of this number; a plain note where only a newer latpath knows it.
    pub fn from_number(number: u32) -> Self {
        usize::try_from(number).ok().and_then(|at| Self::ALL.get(at)).copied().unwrap_or(Self::Note)
    }
}

/// A note of a source, for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceNote {
    pub kind: SourceNoteKind,
    pub text: String,
}

impl SourceNote {
    pub fn new(kind: SourceNoteKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// Who sends packets, as far as a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sender {
    /// The source MAC of frames that are not IP.
    Mac([u8; 6]),
    Ip(IpAddr),
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(mac) => f.write_str(&format_mac(mac)),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

/// A sender of a stream, seen at a point of the source's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SenderAt {
    pub stream: StreamId,
    pub sender: Sender,
    pub point: PointId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kinds_number_names_it_and_an_unknown_one_is_a_plain_note() {
        for kind in SourceNoteKind::ALL {
            assert_eq!(SourceNoteKind::from_number(kind.number()), kind);
        }
        assert_eq!(SourceNoteKind::from_number(u32::MAX), SourceNoteKind::Note);
    }
}
