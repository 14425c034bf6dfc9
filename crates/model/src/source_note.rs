//! Additional output of a source of sightings: notes, and the senders of packets.

use crate::{stream::format_mac, PointId, StreamId};
use std::fmt;
use std::net::IpAddr;

/// Topic of a note, which determines the figures that it qualifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceNoteKind {
    /// General information for the reader.
    Note,
    /// A limit of observation on this machine, without evidence that packets are affected.
    Footnote,
    /// Packets are sent in several fragments, of which only the first is followed.
    Fragments,
    /// The VLAN tag or an address of packets changes along the route, so the stream includes them on only one side of
    /// the change.
    Changed,
    /// Packets of several senders of a stream meet, and may be joined as one packet.
    SendersMeet,
}

impl SourceNoteKind {
    /// All kinds; the index of a kind is its number in the agent's protocol.
    const ALL: [Self; 5] = [Self::Note, Self::Footnote, Self::Fragments, Self::Changed, Self::SendersMeet];

    /// The number in the agent's protocol.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The kind with this number; a plain note for a kind of a newer version.
    pub fn from_number(number: u32) -> Self {
        usize::try_from(number).ok().and_then(|at| Self::ALL.get(at)).copied().unwrap_or(Self::Note)
    }
}

/// A note of a source, for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceNote {
    /// Topic of the note.
    pub kind: SourceNoteKind,
    /// The note.
    pub text: String,
}

impl SourceNote {
    /// A note.
    pub fn new(kind: SourceNoteKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// The sender of packets, from their headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sender {
    /// Source MAC address of frames without IP.
    Mac([u8; 6]),
    /// Source address of IP packets.
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
    /// The stream.
    pub stream: StreamId,
    /// The sender.
    pub sender: Sender,
    /// The point.
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
