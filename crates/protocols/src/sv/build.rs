//! From fields to bytes, laid out as merging units do.

use super::{DEFAULT_APPID, ETHERTYPE, FIRST_GROUP, MAX_SVID};
use crate::ber::{length_len, put_length};
use crate::Tag;

/// Shortest Ethernet frame without its check sequence (IEEE 802.3, 4A.4.2); shorter ones are padded with zeros.
const MIN_FRAME: usize = 60;

/// A frame to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSpec {
    /// Destination MAC.
    pub dst: [u8; 6],
    /// Source MAC.
    pub src: [u8; 6],
    /// 802.1Q tags, outermost first; at most two can be read back.
    pub tags: Vec<Tag>,
    /// APPID.
    pub appid: u16,
    /// The values are simulated.
    pub simulated: bool,
    /// The ASDUs, at least one.
    pub asdus: Vec<AsduSpec>,
}

/// An ASDU to be built; the fields are those of [`super::Asdu`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsduSpec {
    /// svID: 1 to 129 bytes.
    pub svid: Vec<u8>,
    /// datSet.
    pub dat_set: Option<Vec<u8>>,
    /// smpCnt.
    pub smp_cnt: u16,
    /// confRev.
    pub conf_rev: u32,
    /// refrTm.
    pub refr_tm: Option<[u8; 8]>,
    /// smpSynch.
    pub smp_synch: u8,
    /// smpRate.
    pub smp_rate: Option<u16>,
    /// The samples.
    pub data: Vec<u8>,
    /// smpMod.
    pub smp_mod: Option<u16>,
    /// gmIdentity.
    pub gm_identity: Option<[u8; 8]>,
}

/// Why a frame cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The svID is empty or too long.
    #[error("svID {0:?}: has {len} bytes, 1 to 129 are allowed", len = .0.len())]
    Svid(String),
    /// There must be 1 to 65535 ASDUs.
    #[error("{0} ASDUs in a frame: 1 to 65535 are allowed")]
    AsduCount(usize),
    /// The length field has 16 bits.
    #[error("the frame would be {0} bytes long, more than its length field can say")]
    TooLong(usize),
}

impl Default for FrameSpec {
    fn default() -> Self {
        Self {
            dst: FIRST_GROUP,
            src: [0x02, 0, 0, 0, 0, 1],
            tags: Vec::new(),
            appid: DEFAULT_APPID,
            simulated: false,
            asdus: Vec::new(),
        }
    }
}

fn element_len(value: usize) -> usize {
    1 + length_len(value) + value
}

/// Appends an element; [`FrameSpec::build`] has checked that no length exceeds 65535.
fn put(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    put_length(out, value.len() as u16);
    out.extend_from_slice(value);
}

impl AsduSpec {
    /// Length of the inside.
    fn len(&self) -> usize {
        let optional = |present: bool, len: usize| if present { element_len(len) } else { 0 };
        element_len(self.svid.len())
            + self.dat_set.as_ref().map_or(0, |d| element_len(d.len()))
            + element_len(2)
            + element_len(4)
            + optional(self.refr_tm.is_some(), 8)
            + element_len(1)
            + optional(self.smp_rate.is_some(), 2)
            + element_len(self.data.len())
            + optional(self.smp_mod.is_some(), 2)
            + optional(self.gm_identity.is_some(), 8)
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(0x30);
        put_length(out, self.len() as u16);
        put(out, 0x80, &self.svid);
        if let Some(d) = &self.dat_set {
            put(out, 0x81, d);
        }
        put(out, 0x82, &self.smp_cnt.to_be_bytes());
        put(out, 0x83, &self.conf_rev.to_be_bytes());
        if let Some(t) = &self.refr_tm {
            put(out, 0x84, t);
        }
        put(out, 0x85, &[self.smp_synch]);
        if let Some(r) = self.smp_rate {
            put(out, 0x86, &r.to_be_bytes());
        }
        put(out, 0x87, &self.data);
        if let Some(m) = self.smp_mod {
            put(out, 0x88, &m.to_be_bytes());
        }
        if let Some(g) = &self.gm_identity {
            put(out, 0x89, g);
        }
    }
}

impl FrameSpec {
    /// The frame's bytes, from the destination MAC to the last byte before the check sequence, padded to 60 bytes.
    pub fn build(&self) -> Result<Vec<u8>, BuildError> {
        let count = u16::try_from(self.asdus.len()).ok().filter(|n| *n > 0);
        let count = count.ok_or(BuildError::AsduCount(self.asdus.len()))?;
        if let Some(a) = self.asdus.iter().find(|a| !(1..=MAX_SVID).contains(&a.svid.len())) {
            return Err(BuildError::Svid(String::from_utf8_lossy(&a.svid).into_owned()));
        }
        // noASDU is a BER INTEGER, thus signed: 128 and more need a leading zero.
        let count = match count {
            0..=0x7f => vec![count as u8],
            0x80..=0x7fff => count.to_be_bytes().to_vec(),
            _ => [&[0][..], &count.to_be_bytes()].concat(),
        };
        let seq: usize = self.asdus.iter().map(|a| element_len(a.len())).sum();
        let inside = element_len(count.len()) + element_len(seq);
        let length = 8 + element_len(inside);
        let header = 14 + 4 * self.tags.len();
        let length16 = u16::try_from(length).map_err(|_| BuildError::TooLong(header + length))?;

        let mut out = Vec::with_capacity((header + length).max(MIN_FRAME));
        out.extend(self.dst);
        out.extend(self.src);
        for tag in &self.tags {
            out.extend(tag.tpid.to_be_bytes());
            out.extend(tag.tci.to_be_bytes());
        }
        out.extend(ETHERTYPE.to_be_bytes());
        out.extend(self.appid.to_be_bytes());
        out.extend(length16.to_be_bytes());
        out.extend([if self.simulated { 0x80 } else { 0 }, 0, 0, 0]);
        out.push(0x60);
        put_length(&mut out, inside as u16);
        put(&mut out, 0x80, &count);
        out.push(0xa2);
        put_length(&mut out, seq as u16);
        for asdu in &self.asdus {
            asdu.put(&mut out);
        }
        out.resize(out.len().max(MIN_FRAME), 0);
        Ok(out)
    }
}
