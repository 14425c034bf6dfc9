//! The message with a source's notes, the senders of its streams, and the error bounds of its points' times.

use crate::message::{printable, MAX_POINTS};
use latpath_model::{text::cut, Ns, PointInfo, Sender, SenderAt, SourceNote, SourceNoteKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of notes of a source, and their maximum length.
const MAX_SOURCE_NOTES: usize = 64;
const MAX_SOURCE_NOTE: usize = 1024;
/// Maximum number of senders of a source's streams, counted per point.
const MAX_SENDERS: usize = 1024;

/// The reports of a source, in the order of the fields of [`SourceNotes`].
pub type ReadNotes = (Vec<SourceNote>, Vec<SenderAt>, Vec<Ns>);

/// Notes of a source, and the senders of its streams.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SourceNotes {
    #[prost(message, repeated, tag = "1")]
    pub notes: Vec<WireSourceNote>,
    #[prost(message, repeated, tag = "2")]
    pub senders: Vec<WireSender>,
    /// Error bounds of the points' times on the machine's clock, ns, in the order of the points; points beyond the end
    /// of the list have 0.
    #[prost(uint64, repeated, tag = "3")]
    pub bounds: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireSourceNote {
    /// [`SourceNoteKind::number`].
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    #[prost(string, tag = "2")]
    pub text: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireSender {
    #[prost(uint32, tag = "1")]
    pub stream: u32,
    #[prost(uint32, tag = "2")]
    pub point: u32,
    /// MAC address (6 bytes) or IP address (4 or 16 bytes).
    #[prost(bytes = "vec", tag = "3")]
    pub address: Vec<u8>,
}

impl SourceNotes {
    /// Encodes notes, senders and bounds up to the limits.
    pub fn of(notes: &[SourceNote], senders: &[SenderAt], points: &[PointInfo]) -> Self {
        let points = &points[..points.len().min(MAX_POINTS)];
        let last = points.iter().rposition(|info| info.error_bound_ns > 0).map_or(0, |last| last + 1);
        let note = |note: &SourceNote| WireSourceNote {
            kind: note.kind.number(),
            text: cut(&note.text, MAX_SOURCE_NOTE).into(),
        };
        let sender = |at: &SenderAt| WireSender {
            stream: at.stream.into(),
            point: at.point.into(),
            address: match at.sender {
                Sender::Mac(mac) => mac.into(),
                Sender::Ip(IpAddr::V4(v4)) => v4.octets().into(),
                Sender::Ip(IpAddr::V6(v6)) => v6.octets().into(),
            },
        };
        Self {
            notes: notes.iter().take(MAX_SOURCE_NOTES).map(note).collect(),
            senders: senders.iter().take(MAX_SENDERS).map(sender).collect(),
            bounds: points[..last].iter().map(|info| info.error_bound_ns.max(0) as u64).collect(),
        }
    }

    /// Decodes the notes (prefixed with the machine's name), the senders and the bounds.
    ///
    /// # Errors
    /// The message is invalid; the error describes the problem.
    pub fn read(self, machine: &str) -> Result<ReadNotes, String> {
        let (notes, senders, bounds) = (self.notes.len(), self.senders.len(), self.bounds.len());
        if notes > MAX_SOURCE_NOTES || senders > MAX_SENDERS || bounds > MAX_POINTS {
            return Err(format!("{notes} notes, {senders} senders and {bounds} bounds, more than there can be"));
        }
        let note = |note: WireSourceNote| {
            let text = printable(cut(&note.text, MAX_SOURCE_NOTE));
            SourceNote::new(SourceNoteKind::from_number(note.kind), format!("{machine}: {text}"))
        };
        let senders = self.senders.into_iter().map(WireSender::read).collect::<Result<_, _>>()?;
        let bounds = self.bounds.into_iter().map(|bound| Ns::try_from(bound).unwrap_or(Ns::MAX)).collect();
        Ok((self.notes.into_iter().map(note).collect(), senders, bounds))
    }
}

impl WireSender {
    fn read(self) -> Result<SenderAt, String> {
        let bytes = &self.address[..];
        let sender = match bytes.len() {
            6 => bytes.try_into().ok().map(Sender::Mac),
            4 => <[u8; 4]>::try_from(bytes).ok().map(|v4| Sender::Ip(Ipv4Addr::from(v4).into())),
            16 => <[u8; 16]>::try_from(bytes).ok().map(|v6| Sender::Ip(Ipv6Addr::from(v6).into())),
            _ => None,
        };
        let numbers = u16::try_from(self.stream).ok().zip(u16::try_from(self.point).ok());
        match numbers.zip(sender) {
            Some(((stream, point), sender)) => Ok(SenderAt { stream, sender, point }),
            None => Err(format!("a sender of {} bytes at point {}", bytes.len(), self.point)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_and_senders_survive_the_wire_and_have_the_machines_name() {
        let notes = [
            SourceNote::new(SourceNoteKind::Fragments, "udp::5000: 7 of its packets passed nic-rx@eth1 in fragments"),
            SourceNote::new(SourceNoteKind::Note, "a\u{1b}[2J\nhost: b"),
        ];
        let ip = |text: &str| Sender::Ip(text.parse().unwrap());
        let senders = [Sender::Mac([2, 0, 0, 0, 0, 7]), ip("10.0.0.2"), ip("fd00::2")];
        let senders: Vec<_> = (0..).zip(senders).map(|(point, sender)| SenderAt { stream: 3, sender, point }).collect();
        let point = |error_bound_ns| PointInfo {
            error_bound_ns,
            ..PointInfo::from("g/nic-rx@a".parse::<latpath_model::Point>().unwrap())
        };
        let points = [0, 700, 0].map(point);
        let (read, who, bounds) = SourceNotes::of(&notes, &senders, &points).read("guest0").unwrap();
        assert_eq!(bounds, [0, 700]);
        assert_eq!(who, senders);
        assert_eq!(read[0].kind, SourceNoteKind::Fragments);
        assert_eq!(read[0].text, format!("guest0: {}", notes[0].text));
        assert_eq!(read[1].text, "guest0: a?[2J host: b");
    }

    #[test]
    fn endless_and_invalid_notes_and_senders_are_refused() {
        let note = |kind, text: &str| WireSourceNote { kind, text: text.into() };
        let of = |notes, senders| SourceNotes { notes, senders, bounds: Vec::new() }.read("g");
        assert!(of(vec![note(0, "x"); MAX_SOURCE_NOTES + 1], Vec::new()).is_err());
        assert!(SourceNotes { bounds: vec![1; MAX_POINTS + 1], ..SourceNotes::default() }.read("g").is_err());
        let (read, ..) = of(vec![note(u32::MAX, &"x".repeat(1 << 16))], Vec::new()).unwrap();
        assert_eq!((read[0].kind, read[0].text.len()), (SourceNoteKind::Note, 3 + MAX_SOURCE_NOTE));
        let sender = |stream, len| WireSender { stream, point: 0, address: vec![1; len] };
        assert!(of(Vec::new(), vec![sender(0, 6); MAX_SENDERS + 1]).is_err());
        assert!(of(Vec::new(), vec![sender(0, 5)]).is_err() && of(Vec::new(), vec![sender(1 << 16, 6)]).is_err());
    }
}
