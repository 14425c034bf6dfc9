//! Redundant networks (IEC 62439-3): a sender sends each packet over two LANs. The Parallel Redundancy Protocol (PRP)
//! appends a trailer to frames (clause 4.1.8), High-availability Seamless Redundancy (HSR) inserts a tag (clause
//! 5.1.3).
//!
//! ```text
//! PRP: dst(6) src(6) [802.1Q tag(4)]{0,2} type(2) payload sequence(2) LAN(4 bits) size(12 bits) 88FB
//! HSR: dst(6) src(6) [802.1Q tag(4)]{0,2} 892F path(4 bits) size(12 bits) sequence(2) type(2) payload
//! ```
//! `size` counts the bytes after the Ethernet header and its 802.1Q tags, including the trailer or tag.

use crate::ethernet::{array, pad, Header};
use crate::{BuildError, FrameError};

/// Ethertype of HSR's tag.
pub const HSR: u16 = 0x892F;
/// The last two bytes of PRP's trailer.
pub const PRP_SUFFIX: u16 = 0x88FB;
/// Size of PRP's trailer, bytes.
pub const TRAILER: usize = 6;
/// Size of HSR's tag after its ethertype, bytes.
pub(crate) const TAG: usize = 6;
/// PRP: identifier of LAN A; B is the next one.
const PRP_LAN_A: u16 = 0xA;

/// One of two LANs of redundant networks: a LAN of PRP, or a direction of an HSR ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lan {
    /// PRP: LAN A. HSR: packets that left the sender through its port A.
    A,
    /// PRP: LAN B. HSR: packets that left the sender through its port B.
    B,
}

/// How a frame is marked as one of two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// PRP: by a trailer.
    Prp,
    /// HSR: by a tag.
    Hsr,
}

/// The mark of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyMark {
    /// The protocol.
    pub method: Method,
    /// The LAN.
    pub lan: Lan,
    /// The sender's sequence number, equal in both copies.
    pub sequence: u16,
}

impl Lan {
    /// Both LANs.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// The name: `A` or `B`.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
        }
    }

    fn of_bit(field: u16) -> Self {
        match field >> 12 & 1 {
            0 => Self::A,
            _ => Self::B,
        }
    }

    fn bit(self) -> u16 {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }
}

/// Reads the HSR tag at `at`, after its ethertype; also returns the ethertype of the payload.
pub(crate) fn tag(frame: &[u8], at: usize) -> Result<(CopyMark, u16), FrameError> {
    let number = |i: usize| array(frame, at + 2 * i, "HSR tag").map(u16::from_be_bytes);
    let (path, sequence, ethertype) = (number(0)?, number(1)?, number(2)?);
    Ok((CopyMark { method: Method::Hsr, lan: Lan::of_bit(path), sequence }, ethertype))
}

/// Reads the PRP trailer of a whole frame; `None` if there is none.
pub fn trailer(frame: &[u8], header: &Header) -> Option<CopyMark> {
    let payload = frame.get(header.payload_at..).filter(|_| header.copy.is_none())?;
    let end = payload.last_chunk::<TRAILER>()?;
    let number = |i: usize| u16::from_be_bytes([end[i], end[i + 1]]);
    let (sequence, field, suffix) = (number(0), number(2), number(4));
    let is_trailer =
        suffix == PRP_SUFFIX && field >> 13 == PRP_LAN_A >> 1 && usize::from(field & 0xfff) == payload.len();
    is_trailer.then_some(CopyMark { method: Method::Prp, lan: Lan::of_bit(field), sequence })
}

/// Pads a frame and marks it as the copy for a LAN.
///
/// # Errors
/// The frame has no Ethernet header, is already a copy, or is too long for the size field.
pub fn mark(frame: &mut Vec<u8>, copy: CopyMark) -> Result<(), BuildError> {
    pad(frame);
    let header = Header::parse(frame).map_err(|_| BuildError::TooLong(frame.len()))?;
    let after_tags = header.payload_at;
    let size = u16::try_from(frame.len() - after_tags + TRAILER).ok().filter(|size| *size < 1 << 12);
    let size = size.filter(|_| header.copy.is_none()).ok_or(BuildError::TooLong(frame.len() + TRAILER))?;
    match copy.method {
        Method::Prp => {
            frame.extend(copy.sequence.to_be_bytes());
            frame.extend(((PRP_LAN_A | copy.lan.bit()) << 12 | size).to_be_bytes());
            frame.extend(PRP_SUFFIX.to_be_bytes());
        }
        Method::Hsr => {
            let tag = [HSR, copy.lan.bit() << 12 | size, copy.sequence].map(u16::to_be_bytes).concat();
            let at = after_tags - 2;
            frame.splice(at..at, tag);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::FrameLink;
    use crate::sv::{AsduSpec, FrameSpec};
    use crate::{Matcher, Tag};
    use proptest::prelude::*;

    fn sv(tags: Vec<Tag>, samples: usize) -> Vec<u8> {
        let asdu = AsduSpec { svid: b"MU01".to_vec(), smp_cnt: 7, data: vec![0; samples], ..AsduSpec::default() };
        let link = FrameLink { tags, ..FrameLink::default() };
        FrameSpec { link, asdus: vec![asdu], ..FrameSpec::default() }.build().expect("a legal frame")
    }

    fn tags() -> impl Strategy<Value = Vec<Tag>> {
        prop::collection::vec((0..4095_u16, 0..8_u8).prop_map(|(vlan, priority)| Tag::new(vlan, priority)), 0..3)
    }

    fn copy() -> impl Strategy<Value = CopyMark> {
        let method = prop_oneof![Just(Method::Prp), Just(Method::Hsr)];
        let lan = prop_oneof![Just(Lan::A), Just(Lan::B)];
        (method, lan, any::<u16>()).prop_map(|(method, lan, sequence)| CopyMark { method, lan, sequence })
    }

    proptest! {
        #[test]
        fn a_mark_reads_back_and_does_not_hide_the_stream(tags in tags(), samples in 0..200_usize, copy in copy()) {
            let plain = sv(tags, samples);
            let mut frame = plain.clone();
            mark(&mut frame, copy).unwrap();
            prop_assert_eq!(frame.len(), plain.len() + 6);
            let (header, found) = Matcher::read(&frame).unwrap();
            let (before, streams) = Matcher::read(&plain).unwrap();
            prop_assert_eq!(header.copy, Some(copy));
            prop_assert_eq!((header.ethertype, header.tags()), (before.ethertype, before.tags()));
            prop_assert_eq!(found, streams);
            let is_marked_again = mark(&mut frame, copy).is_ok();
            prop_assert!(!is_marked_again || copy.method == Method::Prp, "one tag is enough");
        }

        #[test]
        fn no_bytes_make_it_panic(frame in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut frame = [&[0; 12][..], &HSR.to_be_bytes(), &frame].concat();
            if let Ok(header) = Header::parse(&frame) {
                trailer(&frame, &header);
            }
            frame.truncate(10);
            let marked = mark(&mut frame, CopyMark { method: Method::Prp, lan: Lan::A, sequence: 0 });
            prop_assert!(marked.is_ok());
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_standard() {
        let mut frame = [&[0; 12][..], &[0x88, 0xba], &[1; 46]].concat();
        let copy = |method, lan| CopyMark { method, lan, sequence: 0x1234 };
        let mut tagged = frame.clone();
        mark(&mut frame, copy(Method::Prp, Lan::B)).unwrap();
        assert_eq!(frame[60..], [0x12, 0x34, 0xb0, 52, 0x88, 0xfb]);
        mark(&mut tagged, copy(Method::Hsr, Lan::A)).unwrap();
        assert_eq!(tagged[12..20], [0x89, 0x2f, 0x00, 52, 0x12, 0x34, 0x88, 0xba]);
    }

    #[test]
    fn other_bytes_at_the_end_are_no_trailer() {
        let mut frame = sv(vec![], 64);
        mark(&mut frame, CopyMark { method: Method::Prp, lan: Lan::A, sequence: 1 }).unwrap();
        let header = Header::parse(&frame).unwrap();
        let (end, is_copy) = (frame.len(), |frame: &[u8]| trailer(frame, &header).is_some());
        assert!(is_copy(&frame));
        for (at, byte) in [(end - 1, 0xfa), (end - 3, frame[end - 3] ^ 1), (end - 4, 0xc0)] {
            let mut other = frame.clone();
            other[at] = byte;
            assert!(!is_copy(&other), "{at}");
        }
        assert!(!is_copy(&frame[..end - 1]), "a capture without the end");
        assert!(mark(&mut vec![0; 4200], CopyMark { method: Method::Prp, lan: Lan::A, sequence: 1 }).is_err());
    }
}
