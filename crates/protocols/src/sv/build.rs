//! Builds Sampled Values frames with the layout that merging units use.

use super::{DEFAULT_APPID, ETHERTYPE, FIRST_GROUP, MAX_SVID};
use crate::ber::{put, put_unsigned};
use crate::ethernet::put_iec61850;
use crate::protocol::FrameLink;
use crate::BuildError;

/// A Sampled Values frame to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSpec {
    /// The link layer.
    pub link: FrameLink,
    /// APPID.
    pub appid: u16,
    /// The bit S of the first reserved field: the frame is simulated.
    pub simulated: bool,
    /// The ASDUs, at least one.
    pub asdus: Vec<AsduSpec>,
}

/// An ASDU to be built; the fields are those of [`super::Asdu`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsduSpec {
    /// svID: 1 to 129 bytes.
    pub svid: Vec<u8>,
    /// datSet, the reference of the data set.
    pub dat_set: Option<Vec<u8>>,
    /// smpCnt.
    pub smp_cnt: u16,
    /// confRev: revision of the data set's configuration.
    pub conf_rev: u32,
    /// refrTm: a UtcTime.
    pub refr_tm: Option<[u8; 8]>,
    /// smpSynch: 0 none, 1 local, 2 global, 5 to 254 a local area clock.
    pub smp_synch: u8,
    /// smpRate.
    pub smp_rate: Option<u16>,
    /// The samples.
    pub data: Vec<u8>,
    /// smpMod: 0 samples per period, 1 samples per second, 2 seconds per sample.
    pub smp_mod: Option<u16>,
    /// gmIdentity of the clock.
    pub gm_identity: Option<[u8; 8]>,
}

impl Default for FrameSpec {
    fn default() -> Self {
        Self { link: FrameLink::default(), appid: DEFAULT_APPID, simulated: false, asdus: Vec::new() }
    }
}

impl AsduSpec {
    fn put(&self, asdus: &mut Vec<u8>) {
        let mut inside = Vec::new();
        let out = &mut inside;
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
        put(asdus, 0x30, &inside);
    }
}

impl FrameSpec {
    /// Builds the frame, from the destination MAC to the last byte before the check sequence, padded to 60 bytes.
    ///
    /// # Errors
    /// A name is empty or too long, the number of ASDUs is out of range, or the frame exceeds its length field.
    pub fn build(&self) -> Result<Vec<u8>, BuildError> {
        let count = u16::try_from(self.asdus.len()).ok().filter(|n| *n > 0);
        let count = count.ok_or(BuildError::AsduCount(self.asdus.len()))?;
        self.asdus.iter().try_for_each(|a| BuildError::check_name("svID", &a.svid, MAX_SVID))?;
        let (mut inside, mut asdus) = (Vec::new(), Vec::new());
        put_unsigned(&mut inside, 0x80, count.into());
        self.asdus.iter().for_each(|asdu| asdu.put(&mut asdus));
        put(&mut inside, 0xa2, &asdus);
        let mut out = self.link.header(FIRST_GROUP, ETHERTYPE);
        put_iec61850(&mut out, self.appid, self.simulated, 0x60, &inside)?;
        Ok(out)
    }
}
