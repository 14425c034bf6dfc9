//! From bytes to a frame. Everything is checked once, in [`Frame::parse`]; afterwards nothing can fail.

use super::{ETHERTYPE, MAX_SVID};
use crate::ber::Reader;
use crate::ethernet::{Header, Iec61850, Tag};
use crate::FrameError;

/// One Sampled Values frame; borrows its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// MACs and tags.
    pub header: Header,
    /// APPID and what follows it.
    pub link: Iec61850,
    pub asdu_count: u32,
    asdus: Reader<'a>,
}

/// One ASDU. `smpMod` and `smpRate` are the numbers as they stand; `refr_tm` is a UtcTime of IEC 61850-8-1 (8.1.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asdu<'a> {
    /// svID: 1 to 129 bytes.
    pub svid: &'a [u8],
    /// datSet, the reference of the data set.
    pub dat_set: Option<&'a [u8]>,
    pub smp_cnt: u16,
    /// Where smpCnt's two bytes stand in the frame.
    pub smp_cnt_at: usize,
    pub conf_rev: u32,
    pub refr_tm: Option<[u8; 8]>,
    /// smpSynch: 0 none, 1 local, 2 global, 5 to 254 a local area clock.
    pub smp_synch: u8,
    pub smp_rate: Option<u16>,
    pub data: &'a [u8],
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
        let header = Header::parse(frame)?;
        if header.ethertype != ETHERTYPE {
            return Err(FrameError::OtherProtocol { ethertype: header.ethertype });
        }
        let (link, mut pdu) = Iec61850::parse(frame, header.payload_at)?;
        let sav = pdu.expect(0x60, "savPdu")?;
        let mut inside = pdu.inside(&sav);
        let said = inside.expect(0x80, "noASDU")?.unsigned(3, "noASDU")?;
        inside.optional(0x81, "security")?;
        let seq = inside.expect(0xa2, "seqASDU")?;
        inside.finish("savPdu")?;
        let asdus = inside.inside(&seq);

        let (mut rest, mut found) = (asdus, 0);
        while rest.left() > 0 {
            asdu(&mut rest)?;
            found += 1;
        }
        if said != found || found == 0 {
            return Err(FrameError::AsduCount { said, found });
        }
        Ok(Self { header, link, asdu_count: found, asdus })
    }

    /// The 802.1Q tags, outermost first.
    pub fn tags(&self) -> &[Tag] {
        self.header.tags()
    }

    /// The ASDUs in the frame's order.
    pub fn asdus(&self) -> Asdus<'a> {
        Asdus(self.asdus)
    }
}

/// The ASDUs of a frame, see [`Frame::asdus`].
#[derive(Clone, Debug)]
pub struct Asdus<'a>(Reader<'a>);

impl<'a> Iterator for Asdus<'a> {
    type Item = Asdu<'a>;

    fn next(&mut self) -> Option<Asdu<'a>> {
        // `parse` has walked the same bytes: an error cannot come here, the end can.
        asdu(&mut self.0).ok()
    }
}

fn asdu<'a>(reader: &mut Reader<'a>) -> Result<Asdu<'a>, FrameError> {
    let whole = reader.expect(0x30, "ASDU")?;
    let mut r = reader.inside(&whole);
    let svid = r.expect(0x80, "svID")?;
    if !(1..=MAX_SVID).contains(&svid.value.len()) {
        return Err(FrameError::BadLength { what: "svID", at: svid.at, found: svid.value.len() });
    }
    let dat_set = r.optional(0x81, "datSet")?.map(|e| e.value);
    let smp_cnt = r.expect(0x82, "smpCnt")?;
    let conf_rev = r.expect(0x83, "confRev")?.unsigned(4, "confRev")?;
    let refr_tm = r.optional(0x84, "refrTm")?.map(|e| e.fixed("refrTm")).transpose()?;
    let [smp_synch] = r.expect(0x85, "smpSynch")?.fixed("smpSynch")?;
    let smp_rate = r.optional(0x86, "smpRate")?.map(|e| e.fixed("smpRate").map(u16::from_be_bytes)).transpose()?;
    let data = r.expect(0x87, "samples")?;
    let smp_mod = r.optional(0x88, "smpMod")?.map(|e| e.unsigned(2, "smpMod")).transpose()?;
    let gm_identity = r.optional(0x89, "gmIdentity")?.map(|e| e.fixed("gmIdentity")).transpose()?;
    r.finish("ASDU")?;
    Ok(Asdu {
        svid: svid.value,
        dat_set,
        smp_cnt: u16::from_be_bytes(smp_cnt.fixed("smpCnt")?),
        smp_cnt_at: smp_cnt.at,
        conf_rev,
        refr_tm,
        smp_synch,
        smp_rate,
        data: data.value,
        data_at: data.at,
        smp_mod: smp_mod.map(|m| m as u16),
        gm_identity,
    })
}
