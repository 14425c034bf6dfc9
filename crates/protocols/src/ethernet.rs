//! The Ethernet header with its 802.1Q tags, and the link layer of IEC 61850.

use crate::ber::{put, Reader};
use crate::redundancy::{self, CopyMark};
use crate::{BuildError, FrameError};

/// Ethertypes that announce an 802.1Q tag: customer and service tag.
const TPIDS: [u16; 2] = [0x8100, 0x88a8];

/// An 802.1Q tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority (3 bits), drop eligible indicator (1 bit), VLAN identifier (12 bits).
    pub tci: u16,
}

impl Tag {
    /// A customer tag (TPID 0x8100).
    pub fn new(vlan: u16, priority: u8) -> Self {
        Self { tpid: 0x8100, tci: u16::from(priority & 7) << 13 | (vlan & 0x0fff) }
    }

    /// VLAN identifier, 0 to 4095.
    pub fn vlan(self) -> u16 {
        self.tci & 0x0fff
    }

    /// Priority code point, 0 to 7.
    pub fn priority(self) -> u8 {
        (self.tci >> 13) as u8
    }
}

/// An Ethernet header with up to two 802.1Q tags, followed by an HSR tag, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Destination MAC.
    pub dst: [u8; 6],
    /// Source MAC.
    pub src: [u8; 6],
    tags: [Tag; 2],
    tag_count: usize,
    /// Set if the frame is one of two copies, according to its HSR tag, or to its PRP trailer if the whole frame was
    /// read.
    pub copy: Option<CopyMark>,
    /// The ethertype after all tags.
    pub ethertype: u16,
    /// Offset of the bytes after the ethertype.
    pub payload_at: usize,
}

impl Header {
    /// Reads the header of a frame, from its destination MAC on; a PRP trailer is not read.
    ///
    /// # Errors
    /// The frame is too short, or has more than two 802.1Q tags.
    pub fn parse(frame: &[u8]) -> Result<Self, FrameError> {
        let mut header = Self {
            dst: array(frame, 0, "destination MAC")?,
            src: array(frame, 6, "source MAC")?,
            payload_at: 12,
            ..Self::default()
        };
        loop {
            header.ethertype = u16::from_be_bytes(array(frame, header.payload_at, "ethertype")?);
            header.payload_at += 2;
            if header.ethertype == redundancy::HSR && header.copy.is_none() {
                let (copy, ethertype) = redundancy::tag(frame, header.payload_at)?;
                (header.copy, header.ethertype) = (Some(copy), ethertype);
                header.payload_at += redundancy::TAG;
                return Ok(header);
            }
            if !TPIDS.contains(&header.ethertype) {
                return Ok(header);
            }
            let tci = u16::from_be_bytes(array(frame, header.payload_at, "802.1Q tag")?);
            let tag = header.tags.get_mut(header.tag_count).ok_or(FrameError::TooManyTags)?;
            *tag = Tag { tpid: header.ethertype, tci };
            header.tag_count += 1;
            header.payload_at += 2;
        }
    }

    /// The 802.1Q tags, outermost first.
    pub fn tags(&self) -> &[Tag] {
        &self.tags[..self.tag_count]
    }
}

/// The link layer that Sampled Values and GOOSE share (IEC 61850-8-1 and 9-2, annex C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iec61850 {
    /// APPID, which identifies the application.
    pub appid: u16,
    /// Number of bytes from the APPID to the end of the PDU, according to the frame's length field.
    pub length: u16,
    /// The bit S of the first reserved field: the frame is simulated.
    pub simulated: bool,
}

impl Iec61850 {
    /// Parses the eight bytes at offset `at` of a frame with `len` bytes on the wire; also returns a reader of the PDU.
    pub(crate) fn parse(frame: &[u8], at: usize, len: usize) -> Result<(Self, Reader<'_>), FrameError> {
        let number = |i: usize, what| Ok::<_, FrameError>(u16::from_be_bytes(array(frame, at + 2 * i, what)?));
        let link = Self {
            appid: number(0, "APPID")?,
            length: number(1, "length")?,
            simulated: number(2, "reserved 1")? & 0x8000 != 0,
        };
        number(3, "reserved 2")?;
        // `length` bounds the PDU: any bytes after it are padding, or a security extension (IEC 62351-6).
        let (needed, left) = (usize::from(link.length), len.max(frame.len()) - at);
        if needed > left {
            return Err(FrameError::Truncated { what: "the PDU of this length", at, needed, left });
        }
        if needed < 8 {
            return Err(FrameError::BadLength { what: "length", at: at + 2, found: needed });
        }
        Ok((link, Reader::new(frame, at + 8, at + needed)))
    }
}

/// Minimum size of an Ethernet frame without its check sequence, bytes (IEEE 802.3, 4A.4.2); shorter frames are padded
/// with zeros.
const MIN_FRAME: usize = 60;

/// Pads the frame with zeros to the minimum length.
pub(crate) fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().max(MIN_FRAME), 0);
}

/// Appends the link layer of IEC 61850 and a PDU with this tag, then pads the frame.
pub(crate) fn put_iec61850(
    out: &mut Vec<u8>,
    appid: u16,
    simulated: bool,
    tag: u8,
    inside: &[u8],
) -> Result<(), BuildError> {
    let mut pdu = Vec::with_capacity(inside.len() + 4);
    put(&mut pdu, tag, inside);
    let length = u16::try_from(8 + pdu.len()).map_err(|_| BuildError::TooLong(out.len() + 8 + pdu.len()))?;
    out.extend(appid.to_be_bytes());
    out.extend(length.to_be_bytes());
    out.extend([if simulated { 0x80 } else { 0 }, 0, 0, 0]);
    out.extend(pdu);
    pad(out);
    Ok(())
}

pub(crate) fn array<const N: usize>(frame: &[u8], at: usize, what: &'static str) -> Result<[u8; N], FrameError> {
    let rest = frame.get(at..).unwrap_or(&[]);
    rest.first_chunk().copied().ok_or(FrameError::Truncated { what, at, needed: N, left: rest.len() })
}
