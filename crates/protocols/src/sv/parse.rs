//! Parses Sampled Values frames as the kernel programs do (`crates/bpf/protocols/sv.h`): fields that do not identify a
//! packet may come in any order, be absent, or have any length. [`Frame::parse`] checks all fields that do identify it.

use super::{ETHERTYPE, MAX_SVID};
use crate::ber::{Element, Reader};
use crate::ethernet::{Header, Iec61850, Tag};
use crate::FrameError;

/// Maximum number of ASDUs of a frame, and of fields of an ASDU (`MAX_FIELDS`), that are examined: SV_ASDUS and
/// SV_FIELDS of the kernel programs.
const MAX_ASDUS: u32 = 16;
const MAX_FIELDS: usize = 10;
/// Maximum number of elements of savPdu up to seqASDU that are examined.
const MAX_ELEMENTS: usize = 4;

/// A Sampled Values frame; borrows its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The Ethernet header.
    pub header: Header,
    /// APPID and the rest of the link layer.
    pub link: Iec61850,
    /// noASDU, if it is valid.
    announced: Option<u32>,
    /// Number of ASDUs read: fewer than present if there are more than the kernel programs examine, or if the capture
    /// is truncated.
    found: u32,
    /// Whether all ASDUs of the frame were read.
    is_all: bool,
    asdus: Reader<'a>,
}

/// An ASDU. `smp_mod` and `smp_rate` are the raw numbers; `refr_tm` is a UtcTime of IEC 61850-8-1 (8.1.3.6). Fields
/// other than svID and smpCnt are `None` if absent, truncated, or of another length than 9-2 specifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asdu<'a> {
    /// svID: 1 to 129 bytes.
    pub svid: &'a [u8],
    /// datSet, the reference of the data set.
    pub dat_set: Option<&'a [u8]>,
    /// smpCnt.
    pub smp_cnt: u16,
    /// Offset of smpCnt's two bytes in the frame.
    pub smp_cnt_at: usize,
    /// confRev: revision of the data set's configuration.
    pub conf_rev: Option<u32>,
    /// refrTm: a UtcTime.
    pub refr_tm: Option<[u8; 8]>,
    /// smpSynch: 0 none, 1 local, 2 global, 5 to 254 a local area clock.
    pub smp_synch: Option<u8>,
    /// smpRate.
    pub smp_rate: Option<u16>,
    /// The samples.
    pub data: Option<&'a [u8]>,
    /// Offset of the samples in the frame.
    pub data_at: usize,
    /// smpMod: 0 samples per period, 1 samples per second, 2 seconds per sample.
    pub smp_mod: Option<u16>,
    /// gmIdentity of the clock (IEC 61850-9-2 Ed. 2.1).
    pub gm_identity: Option<[u8; 8]>,
}

impl<'a> Frame<'a> {
    /// Parses a frame from its destination MAC to its last byte, without the frame check sequence.
    ///
    /// # Errors
    /// [`FrameError::OtherProtocol`] for another ethertype; otherwise the first fault found.
    pub fn parse(frame: &'a [u8]) -> Result<Self, FrameError> {
        Self::parse_captured(frame, frame.len())
    }

    /// Like [`parse`](Self::parse), for the first bytes of a frame that had `len` bytes on the wire.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse); [`FrameError::CutOff`] if the captured bytes contain no smpCnt.
    pub fn parse_captured(frame: &'a [u8], len: usize) -> Result<Self, FrameError> {
        let header = Header::parse(frame)?;
        if header.ethertype != ETHERTYPE {
            return Err(FrameError::OtherProtocol { ethertype: header.ethertype });
        }
        let (link, mut pdu) = Iec61850::parse(frame, header.payload_at, len)?;
        let sav = pdu.expect(0x60, "savPdu")?;
        let mut inside = pdu.inside(&sav);
        let (mut announced, mut seq) = (None, None);
        for _ in 0..MAX_ELEMENTS {
            let e = inside.any("seqASDU")?;
            match e.tag {
                0xa2 => {
                    seq = Some(e);
                    break;
                }
                0x80 => announced = e.unsigned(3, "noASDU").ok(),
                _ => {}
            }
        }
        let asdus = inside.inside(&seq.ok_or(FrameError::Missing { what: "seqASDU" })?);

        let (mut rest, mut found) = (asdus, 0);
        while rest.left() > 0 && found < MAX_ASDUS {
            match asdu(&mut rest) {
                Ok(_) => found += 1,
                Err(FrameError::CutOff { .. }) if found > 0 => break,
                Err(error) => return Err(error),
            }
        }
        match found {
            0 => Err(FrameError::NoAsdu),
            _ => Ok(Self { header, link, announced, found, is_all: rest.left() == 0, asdus }),
        }
    }

    /// The 802.1Q tags, outermost first.
    pub fn tags(&self) -> &[Tag] {
        self.header.tags()
    }

    /// The ASDUs that were read, in the frame's order.
    pub fn asdus(&self) -> Asdus<'a> {
        Asdus { reader: self.asdus, left: self.found }
    }

    /// Number of ASDUs with this svID; `None` if it is unknown: not all ASDUs were read, and those that were read have
    /// different svIDs, or noASDU is unusable.
    pub fn samples_of(&self, svid: &[u8]) -> Option<u16> {
        let own = self.asdus().filter(|asdu| asdu.svid == svid).count() as u32;
        match self.announced.filter(|announced| *announced >= self.found) {
            _ if self.is_all => Some(own as u16),
            Some(announced) if own == self.found => u16::try_from(announced).ok(),
            _ => None,
        }
    }
}

/// Iterator over the ASDUs of a frame, see [`Frame::asdus`].
#[derive(Clone, Debug)]
pub struct Asdus<'a> {
    reader: Reader<'a>,
    left: u32,
}

impl<'a> Iterator for Asdus<'a> {
    type Item = Asdu<'a>;

    fn next(&mut self) -> Option<Asdu<'a>> {
        self.left = self.left.checked_sub(1)?;
        // `parse` has validated the same bytes, so this cannot fail.
        asdu(&mut self.reader).ok()
    }
}

/// Parses the next ASDU. Only the first svID and the first smpCnt count, as in the kernel programs; both must precede
/// smpSynch.
fn asdu<'a>(reader: &mut Reader<'a>) -> Result<Asdu<'a>, FrameError> {
    let whole = reader.expect(0x30, "ASDU")?;
    let mut r = reader.inside(&whole);
    let mut asdu = Asdu::default();
    let (mut has_count, mut is_named, mut end) = (false, false, FrameError::Missing { what: "smpCnt" });
    for _ in 0..MAX_FIELDS {
        if r.left() == 0 {
            break;
        }
        let e = match r.any("a field of an ASDU") {
            Ok(e) => e,
            Err(error) => {
                end = error;
                break;
            }
        };
        match e.tag {
            0x80 if asdu.svid.is_empty() && !is_named => asdu.svid = svid(&e)?,
            0x82 if !has_count && !is_named => {
                (asdu.smp_cnt, asdu.smp_cnt_at) = (u16::from_be_bytes(e.fixed("smpCnt")?), e.at);
                has_count = true;
            }
            0x81 => asdu.dat_set = e.value("datSet").ok(),
            0x83 => asdu.conf_rev = e.unsigned(4, "confRev").ok(),
            0x84 => asdu.refr_tm = e.fixed("refrTm").ok(),
            0x85 if !is_named => {
                asdu.smp_synch = e.fixed("smpSynch").ok().map(|[synch]| synch);
                is_named = true;
            }
            0x86 => asdu.smp_rate = e.fixed("smpRate").ok().map(u16::from_be_bytes),
            0x87 => (asdu.data, asdu.data_at) = (e.value("samples").ok(), e.at),
            0x88 => asdu.smp_mod = e.unsigned(4, "smpMod").ok().and_then(|m| u16::try_from(m).ok()),
            0x89 => asdu.gm_identity = e.fixed("gmIdentity").ok(),
            _ => {}
        }
    }
    match (asdu.svid.is_empty(), has_count) {
        (false, true) => Ok(asdu),
        _ if end != (FrameError::Missing { what: "smpCnt" }) => Err(end),
        (true, _) => Err(FrameError::Missing { what: "svID" }),
        (false, false) => Err(end),
    }
}

fn svid<'a>(e: &Element<'a>) -> Result<&'a [u8], FrameError> {
    match e.len {
        1..=MAX_SVID => e.value("svID"),
        found => Err(FrameError::BadLength { what: "svID", at: e.at, found }),
    }
}
