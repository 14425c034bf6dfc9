//! GOOSE, IEC 61850-8-1: events of a substation's devices, repeated at growing intervals.
//!
//! ```text
//! dst(6) src(6) [802.1Q tag(4)]{0,2} 88B8 APPID(2) length(2) reserved(2+2)
//! 61 goosePdu { 80 gocbRef, 81 timeAllowedtoLive, 82 datSet, 83 goID?, 84 t, 85 stNum, 86 sqNum, 87 simulation?, 88 confRev,
//!               89 ndsCom?, 8A numDatSetEntries, AB allData }
//! ```
//! A frame without goID is named by its gocbRef, which is the default of goID (IEC 61850-7-2). stNum counts events, sqNum the
//! repetitions of one, from 0. A packet's key has the low 16 bits of either; it is unique for as long as the joiner looks back, and a
//! jump in it is no loss.

use crate::named;
use crate::protocol::{Info, KernelMatch, Order, OwnKey, Protocol};
use crate::stream::{BadStream, Options};
use std::fmt;

/// The ethertype of GOOSE.
pub const ETHERTYPE: u16 = 0x88B8;
/// Longest goID: IEC 61850-8-1 Ed. 2.1, VisibleString129.
pub const MAX_GOID: usize = 129;

/// A stream of GOOSE.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Goose {
    /// goID, 1 to [`MAX_GOID`] bytes.
    pub goid: Vec<u8>,
    /// APPID, where it matters.
    pub appid: Option<u16>,
}

/// The key of a packet.
pub fn key(st_num: u32, sq_num: u32) -> u32 {
    st_num << 16 | sq_num & 0xffff
}

impl Protocol for Goose {
    const INFO: Info = Info {
        prefix: "goose",
        title: "GOOSE",
        form: "goose:GOID",
        example: "goose:IED1LD0/LLN0.gcb01",
        options: &["appid"],
        ethertypes: &[ETHERTYPE],
        key: Some(OwnKey {
            name: "stNum:sqNum",
            order: Order::States,
            text: |key| format!("{}:{}", key >> 16, key & 0xffff),
            read: |text| {
                let (st_num, sq_num) = text.split_once(':')?;
                Some(key(st_num.parse::<u16>().ok()?.into(), sq_num.parse::<u16>().ok()?.into()))
            },
        }),
    };

    fn parse(name: &str, options: &mut Options<'_>) -> Result<Self, BadStream> {
        named::parse(name, "a goID", MAX_GOID, options).map(|(goid, appid)| Self { goid, appid })
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        named::write(f, &self.goid, self.appid)
    }

    fn short(&self) -> Option<String> {
        Some(String::from_utf8_lossy(&self.goid).into_owned())
    }

    fn kernel(&self) -> KernelMatch {
        named::kernel(&self.goid, self.appid)
    }
}
