//! The wire format of Sampled Values (IEC 61850-9-2): a parser, a builder, and common profiles.
//!
//! ```text
//! dst(6) src(6) [802.1Q tag(4)]{0,2} 88BA APPID(2) length(2) reserved(2+2)
//! 60 savPdu { 80 noASDU, 81 security?, A2 { 30 ASDU { 80 svID, 81 datSet?, 82 smpCnt, 83 confRev, 84 refrTm?, 85 smpSynch,
//!                                                     86 smpRate?, 87 samples, 88 smpMod?, 89 gmIdentity? } … } }
//! ```
//! `length` counts from APPID to the end of savPdu; any bytes after it are padding. BER lengths are in the short form
//! or in the long form with one or two bytes (`81 xx`, `82 xx xx`); indefinite and longer ones are rejected.
//!
//! The parser neither copies nor allocates, and no input makes it panic or read out of bounds.

mod build;
mod channel;
mod parse;
mod profile;
mod samples;

use crate::{escape, named};
use crate::protocol::{Contents, Details, Field, FrameLink, InFrame, Info, KernelMatch, OwnKey, Protocol, Value};
use crate::options::{BadStream, Options};
use crate::{FrameError, Header};
use std::fmt;

pub use build::{AsduSpec, FrameSpec};
pub use channel::Channel;
pub use parse::{Asdu, Asdus, Frame};
pub use profile::{Profile, UnknownProfile, SAMPLE_RATES};
pub use samples::{Waveform, PHSMEAS1_LEN};

/// The ethertype of Sampled Values.
pub const ETHERTYPE: u16 = 0x88BA;
/// Maximum length of svID, bytes: IEC 61850-9-2 Ed. 2.1, VisibleString129.
pub const MAX_SVID: usize = 129;
/// Default multicast address. IEC 61850-9-2 annex B recommends addresses from 01-0C-CD-04-00-00 for Sampled Values;
/// publishers start at the next one.
pub const FIRST_GROUP: [u8; 6] = [0x01, 0x0c, 0xcd, 0x04, 0x00, 0x01];
/// APPID of an unconfigured stream (9-2LE, 6.2).
pub const DEFAULT_APPID: u16 = 0x4000;

/// A stream of Sampled Values: the frames with this svID in any ASDU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sv {
    /// svID, 1 to [`MAX_SVID`] bytes.
    pub svid: Vec<u8>,
    /// APPID; `None` for any.
    pub appid: Option<u16>,
}

impl Protocol for Sv {
    const INFO: Info = Info {
        prefix: "svid",
        title: "Sampled Values",
        form: "svid:ID",
        example: "svid:MU01",
        about: &[
            [
                "`svid:MU01`",
                "Sampled Values with this svID in any ASDU of the frame, tagged or not",
                "smpCnt of the first such ASDU",
            ],
            [
                "`svid:MU01,appid=0x4000,vlan=7,mac=01:0c:cd:04:00:01`",
                "only those with this APPID, VLAN, destination",
                "the same",
            ],
        ],
        options: &["appid"],
        ethertypes: &[ETHERTYPE],
        udp_ports: &[],
        is_listed: true,
        contents: Contents::Samples,
        key: Some(OwnKey::counter16("smpCnt")),
    };

    fn parse(name: &str, options: &mut Options<'_>) -> Result<Self, BadStream> {
        named::parse(name, "an svID", MAX_SVID, options).map(|(svid, appid)| Self { svid, appid })
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        named::write(f, &self.svid, self.appid)
    }

    fn short(&self) -> Option<String> {
        Some(escape::text(&self.svid))
    }

    fn by_name(&self) -> Self {
        Self { appid: None, ..self.clone() }
    }

    fn kernel(&self) -> KernelMatch {
        named::kernel(&self.svid, self.appid)
    }

    fn read(frame: &[u8], len: usize, _: &Header) -> Result<Vec<InFrame<Self>>, FrameError> {
        let frame = Frame::parse_captured(frame, len)?;
        let mut found: Vec<InFrame<Self>> = Vec::with_capacity(1);
        for asdu in frame.asdus() {
            if found.iter().all(|known| known.stream.svid != asdu.svid) {
                found.push(InFrame {
                    stream: Self { svid: asdu.svid.to_vec(), appid: Some(frame.link.appid) },
                    key: asdu.smp_cnt.into(),
                    step: frame.samples_of(asdu.svid).unwrap_or(0),
                    // 255 encodes "absent" in the kernel programs, which keep smpSynch in one byte.
                    synch: asdu.smp_synch.filter(|synch| *synch < u8::MAX),
                });
            }
        }
        Ok(found)
    }

    fn includes(&self, found: &Self) -> bool {
        self.svid == found.svid && self.appid.is_none_or(|appid| Some(appid) == found.appid)
    }

    fn rebuild(&self, link: &FrameLink, key: u32) -> Option<Result<Vec<u8>, String>> {
        let asdu = AsduSpec { svid: self.svid.clone(), smp_cnt: key as u16, ..AsduSpec::default() };
        let appid = self.appid.unwrap_or(DEFAULT_APPID);
        let frame = FrameSpec { link: link.clone(), appid, asdus: vec![asdu], ..FrameSpec::default() };
        Some(frame.build().map_err(|e| e.to_string()))
    }

    fn each_sample(&self, frame: &[u8], each: &mut dyn FnMut(u16, &[u8])) {
        let Ok(frame) = Frame::parse(frame) else { return };
        for asdu in frame.asdus().filter(|asdu| asdu.svid == self.svid) {
            asdu.data.into_iter().for_each(|data| each(asdu.smp_cnt, data));
        }
    }

    fn details(&self, frame: &[u8]) -> Details {
        // The frame was parsed before, so its captured length does not matter here.
        let frame = Frame::parse_captured(frame, usize::MAX).ok();
        let newest = frame.and_then(|frame| frame.asdus().find(|asdu| asdu.svid == self.svid)).unwrap_or_default();
        let asdus = frame.and_then(|frame| frame.samples_of(&self.svid));
        Details {
            name: named::fields("svID", "svid", &self.svid, self.appid),
            newest: vec![
                Field { title: "ASDUs", json: "asdus", value: Value::optional(asdus) },
                Field { title: "samples/s", json: "samples_per_s", value: asdus.map_or(Value::Unknown, Value::PerFrame) },
                Field { title: "smpSynch", json: "smp_synch", value: Value::optional(newest.smp_synch) },
                Field { title: "confRev", json: "conf_rev", value: Value::optional(newest.conf_rev) },
            ],
        }
    }
}
