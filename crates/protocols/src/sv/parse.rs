//! From bytes to a frame, as the kernel programs read it (`crates/bpf/protocols/sv.h`): what does not name a packet may stand in any
//! order, be missing, or have a length of its own. Everything that names one is checked once, in [`Frame::parse`].

use super::{ETHERTYPE, MAX_SVID};
use crate::ber::{Element, Reader};
use crate::ethernet::{Header, Iec61850, Tag};
use crate::FrameError;

/// ASDUs of a frame that are looked at, and fields of one: SV_ASDUS and SV_FIELDS of the kernel programs.
const MAX_ASDUS: u32 = 16;
const MAX_FIELDS: usize = 10;
/// Elements of savPdu up to seqASDU that are looked at.
const MAX_ELEMENTS: usize = 4;

/// One Sampled Values frame; borrows its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// MACs and tags.
    pub header: Header,
    /// APPID and what follows it.
    pub link: Iec61850,
    /// noASDU, where it is a number.
    announced: Option<u32>,
    /// ASDUs that are read: the first ones, where there are more than the kernel programs look at or the capture cut some off.
    found: u32,
    /// These are all.
    is_all: bool,
    asdus: Reader<'a>,
}

/// One ASDU. `smpMod` and `smpRate` are the numbers as they stand; `refr_tm` is a UtcTime of IEC 61850-8-1 (8.1.3.6). A field that is
/// missing, cut off, or not of the length that 9-2 gives it is `None`, except for svID and smpCnt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asdu<'a> {
    /// svID: 1 to 129 bytes.
    pub svid: &'a [u8],
    /// datSet, the reference of the data set.
    pub dat_set: Option<&'a [u8]>,
    pub smp_cnt: u16,
    /// Where smpCnt's two bytes stand in the frame.
    pub smp_cnt_at: usize,
    pub conf_rev: Option<u32>,
    pub refr_tm: Option<[u8; 8]>,
    /// smpSynch: 0 none, 1 local, 2 global, 5 to 254 a local area clock.
    pub smp_synch: Option<u8>,
    pub smp_rate: Option<u16>,
    pub data: Option<&'a [u8]>,
    /// Where the samples stand in the frame.
    pub data_at: usize,
    /// smpMod: 0 samples a period, 1 samples a second, 2 seconds a sample.
    pub smp_mod: Option<u16>,
    /// gmIdentity of the clock (IEC 61850-9-2 Ed. 2.1).
    pub gm_identity: Option<[u8; 8]>,
}

impl<'a> Frame<'a> {
    /// Reads a frame from its destination MAC to its last byte, without the frame check sequence.
    ///
    /// # Errors
    /// [`FrameError::OtherProtocol`] for another ethertype; otherwise the first thing that is wrong.
    pub fn parse(frame: &'a [u8]) -> Result<Self, FrameError> {
        Self::parse_captured(frame, frame.len())
    }

    /// The same of the first bytes of a frame that had `len` when it was sent.
    ///
    /// # Errors
    /// As those of [`parse`](Self::parse); [`FrameError::CutOff`] where no smpCnt lies within the bytes.
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

    /// The ASDUs that are read, in the frame's order.
    pub fn asdus(&self) -> Asdus<'a> {
        Asdus { reader: self.asdus, left: self.found }
    }

    /// How many ASDUs of this svID the frame has; `None` where it has more ASDUs than are read, of different svIDs.
    pub fn samples_of(&self, svid: &[u8]) -> Option<u16> {
        let own = self.asdus().filter(|asdu| asdu.svid == svid).count() as u32;
        match self.announced.filter(|announced| *announced >= self.found) {
            _ if self.is_all => Some(own as u16),
            Some(announced) if own == self.found => u16::try_from(announced).ok(),
            _ => None,
        }
    }
}

/// The ASDUs of a frame, see [`Frame::asdus`].
#[derive(Clone, Debug)]
pub struct Asdus<'a> {
    reader: Reader<'a>,
    left: u32,
}

impl<'a> Iterator for Asdus<'a> {
    type Item = Asdu<'a>;

    fn next(&mut self) -> Option<Asdu<'a>> {
        self.left = self.left.checked_sub(1)?;
        // `parse` has walked the same bytes: an error cannot come here.
        asdu(&mut self.reader).ok()
    }
}

/// The next ASDU. Of svID and smpCnt the first one counts, and they stand before smpSynch, as for the kernel programs.
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
