//! GOOSE (IEC 61850-8-1): events of a substation's devices, repeated at growing intervals.
//!
//! ```text
//! dst(6) src(6) [802.1Q tag(4)]{0,2} 88B8 APPID(2) length(2) reserved(2+2)
//! 61 goosePdu { 80 gocbRef, 81 timeAllowedtoLive, 82 datSet, 83 goID?, 84 t, 85 stNum, 86 sqNum, 87 simulation?,
//!               88 confRev, 89 ndsCom?, 8A numDatSetEntries, AB allData }
//! ```
//! A frame without goID is named by its gocbRef, which is the default of goID (IEC 61850-7-2). stNum counts events;
//! sqNum counts the repetitions of an event, from 0. A packet's key consists of the low 16 bits of each; it is unique
//! for as long as the joiner looks back.

use crate::ber::{put, put_unsigned, Element, Reader};
use crate::ethernet::put_iec61850;
use crate::{escape, named};
use crate::protocol::{Contents, Details, Field, FrameLink, InFrame, Info, KernelMatch, Order, Outgoing, OwnKey, Protocol, Value};
use crate::options::{BadStream, Options};
use crate::{BuildError, FrameError, Header, Iec61850, ValuePath};
use std::fmt;

/// The ethertype of GOOSE.
pub const ETHERTYPE: u16 = 0x88B8;
/// Maximum length of goID, bytes: IEC 61850-8-1 Ed. 2.1, VisibleString129.
pub const MAX_GOID: usize = 129;

/// A stream of GOOSE: the messages with this goID.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Goose {
    /// goID, 1 to [`MAX_GOID`] bytes.
    pub goid: Vec<u8>,
    /// APPID; `None` for any.
    pub appid: Option<u16>,
}

/// Default multicast address. IEC 61850-8-1 annex B recommends addresses from 01-0C-CD-01-00-00 for GOOSE; publishers
/// start at the next one.
pub const FIRST_GROUP: [u8; 6] = [0x01, 0x0c, 0xcd, 0x01, 0x00, 0x01];
/// APPID of an unconfigured control block.
pub const DEFAULT_APPID: u16 = 0x0000;

/// A GOOSE message to be built; borrows its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// APPID.
    pub appid: u16,
    /// gocbRef, the reference of the control block: 1 to [`MAX_GOID`] bytes.
    pub gocb_ref: &'a [u8],
    /// timeAllowedtoLive: maximum time to the next message, ms.
    pub time_allowed_ms: u32,
    /// datSet, the reference of the data set.
    pub dat_set: &'a [u8],
    /// goID: 1 to [`MAX_GOID`] bytes, or absent.
    pub goid: Option<&'a [u8]>,
    /// t, the time of the event: a UtcTime (8.1.3.6).
    pub t: [u8; 8],
    /// stNum: counts events.
    pub st_num: u32,
    /// sqNum: counts the repetitions of an event, from 0.
    pub sq_num: u32,
    /// The values are simulated (test in edition 1).
    pub simulation: bool,
    /// confRev: revision of the data set's configuration.
    pub conf_rev: u32,
    /// ndsCom: the control block needs commissioning.
    pub nds_com: bool,
    /// numDatSetEntries: number of values in `all_data`.
    pub entries: u32,
    /// allData: the values, in BER.
    pub all_data: &'a [u8],
}

impl Default for Frame<'_> {
    fn default() -> Self {
        Self {
            appid: DEFAULT_APPID,
            gocb_ref: b"IED1LD0/LLN0$GO$gcb01",
            time_allowed_ms: 2000,
            dat_set: b"IED1LD0/LLN0$dsGOOSE",
            goid: None,
            t: [0; 8],
            st_num: 1,
            sq_num: 0,
            simulation: false,
            conf_rev: 1,
            nds_com: false,
            entries: 1,
            // A BOOLEAN of MMS (IEC 61850-8-1, table A.3).
            all_data: &[0x83, 1, 0],
        }
    }
}

/// The identifying fields of a received message; borrows its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// APPID.
    pub appid: u16,
    /// gocbRef, the reference of the control block; empty if absent.
    pub gocb_ref: &'a [u8],
    /// goID; `None` if absent or empty.
    pub goid: Option<&'a [u8]>,
    /// stNum: counts events.
    pub st_num: u32,
    /// sqNum: counts the repetitions of an event, from 0.
    pub sq_num: u32,
}

/// Maximum number of fields that are examined up to allData.
const FIELDS_TO_DATA: usize = 16;
/// The tags of allData and of its values (IEC 61850-8-1, table A.3).
const ALL_DATA: u8 = 0xab;
const ARRAY: u8 = 0xa1;
const STRUCTURE: u8 = 0xa2;
const BOOLEAN: u8 = 0x83;

/// Maximum number of fields that are examined up to sqNum: GOOSE_FIELDS of `crates/bpf/protocols/goose.h`.
const FIELDS: usize = 8;

impl<'a> Message<'a> {
    /// Parses a frame with this header, from its destination MAC up to and including sqNum. Later fields are ignored;
    /// earlier ones may come in any order. `len`: length of the frame on the wire, bytes.
    ///
    /// # Errors
    /// [`FrameError::OtherProtocol`] for another ethertype; otherwise the first fault found.
    pub fn parse(frame: &'a [u8], len: usize, header: &Header) -> Result<Self, FrameError> {
        if header.ethertype != ETHERTYPE {
            return Err(FrameError::OtherProtocol { ethertype: header.ethertype });
        }
        let (link, mut reader) = Iec61850::parse(frame, header.payload_at, len)?;
        let pdu = reader.expect(0x61, "goosePdu")?;
        let mut r = reader.inside(&pdu);
        let (mut gocb_ref, mut goid, mut st_num): (&[u8], _, _) = (&[], None, None);
        for _ in 0..FIELDS {
            let e = r.any("a field before sqNum")?;
            match e.tag {
                0x80 => (gocb_ref, goid) = (name(&e, "gocbRef")?, None),
                0x83 if e.len > 0 => goid = Some(name(&e, "goID")?),
                // If a tag occurs more than once, the last one counts, as in the kernel programs.
                0x85 => st_num = Some(e.unsigned(5, "stNum")),
                0x86 => {
                    let sq_num = e.unsigned(5, "sqNum")?;
                    let st_num = st_num.ok_or(FrameError::Missing { what: "stNum" })??;
                    if gocb_ref.is_empty() && goid.is_none() {
                        return Err(FrameError::Missing { what: "gocbRef" });
                    }
                    return Ok(Self { appid: link.appid, gocb_ref, goid, st_num, sq_num });
                }
                _ => {}
            }
        }
        Err(FrameError::Missing { what: "sqNum" })
    }

    /// The name of the stream: goID, or gocbRef if there is no goID.
    pub fn name(&self) -> &'a [u8] {
        self.goid.unwrap_or(self.gocb_ref)
    }
}

fn name<'a>(e: &Element<'a>, what: &'static str) -> Result<&'a [u8], FrameError> {
    match e.len {
        0..=MAX_GOID => e.value(what),
        found => Err(FrameError::BadLength { what, at: e.at, found }),
    }
}

impl Frame<'_> {
    /// Builds the frame, from the destination MAC to the last byte before the check sequence, padded to 60 bytes.
    ///
    /// # Errors
    /// A name is empty or too long, or the frame exceeds its length field.
    pub fn build(&self, link: &FrameLink) -> Result<Vec<u8>, BuildError> {
        for (what, name) in [("gocbRef", Some(self.gocb_ref)), ("goID", self.goid)] {
            name.map_or(Ok(()), |name| BuildError::check_name(what, name, MAX_GOID))?;
        }
        let mut inside = Vec::new();
        put(&mut inside, 0x80, self.gocb_ref);
        put_unsigned(&mut inside, 0x81, self.time_allowed_ms);
        put(&mut inside, 0x82, self.dat_set);
        if let Some(goid) = self.goid {
            put(&mut inside, 0x83, goid);
        }
        put(&mut inside, 0x84, &self.t);
        put_unsigned(&mut inside, 0x85, self.st_num);
        put_unsigned(&mut inside, 0x86, self.sq_num);
        put(&mut inside, 0x87, &[self.simulation.into()]);
        put_unsigned(&mut inside, 0x88, self.conf_rev);
        put(&mut inside, 0x89, &[self.nds_com.into()]);
        put_unsigned(&mut inside, 0x8a, self.entries);
        put(&mut inside, 0xab, self.all_data);
        let mut out = link.header(FIRST_GROUP, ETHERTYPE);
        put_iec61850(&mut out, self.appid, self.simulation, 0x61, &inside)?;
        Ok(out)
    }
}

/// A packet's key: the low 16 bits of stNum, then those of sqNum.
pub fn key(st_num: u32, sq_num: u32) -> u32 {
    st_num << 16 | sq_num & 0xffff
}

/// Returns the BOOLEAN at this position of a message. `len`: length of the frame on the wire, bytes.
///
/// # Errors
/// The frame is not a GOOSE message, is malformed or cut off before the value, or has no BOOLEAN there.
pub fn boolean(frame: &[u8], len: usize, header: &Header, path: &ValuePath) -> Result<bool, FrameError> {
    if header.ethertype != ETHERTYPE {
        return Err(FrameError::OtherProtocol { ethertype: header.ethertype });
    }
    let (_, mut reader) = Iec61850::parse(frame, header.payload_at, len)?;
    let pdu = reader.expect(0x61, "goosePdu")?;
    let mut fields = reader.inside(&pdu);
    for _ in 0..FIELDS_TO_DATA {
        let field = fields.any("allData")?;
        if field.tag == ALL_DATA {
            return at_path(fields.inside(&field), path.numbers());
        }
    }
    Err(FrameError::Missing { what: "allData" })
}

fn at_path(mut values: Reader<'_>, path: &[u16]) -> Result<bool, FrameError> {
    let missing = FrameError::Missing { what: "the value" };
    let Some((number, inner)) = path.split_first() else { return Err(missing) };
    for _ in 1..*number {
        values.any("the value")?;
    }
    let value = values.any("the value")?;
    match (value.tag, inner) {
        (BOOLEAN, []) => value.fixed("the value").map(|[byte]| byte != 0),
        (ARRAY | STRUCTURE, [_, ..]) => at_path(values.inside(&value), inner),
        (found, _) => Err(FrameError::BadTag { expected: "a BOOLEAN", at: value.tag_at, found }),
    }
}

impl Protocol for Goose {
    const INFO: Info = Info {
        prefix: "goose",
        title: "GOOSE",
        form: "goose:GOID",
        example: "goose:IED1LD0/LLN0.gcb01",
        about: &[[
            "`goose:IED1LD0/LLN0.gcb01`, `goose:GOID,appid=3`",
            "GOOSE with this goID, and this APPID. A frame without goID goes by its gocbRef",
            "stNum and sqNum, the low 16 bits of each; shown as `7:12`",
        ]],
        options: &["appid"],
        ethertypes: &[ETHERTYPE],
        udp_ports: &[],
        is_listed: true,
        contents: Contents::Values,
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
        Some(escape::text(&self.goid))
    }

    fn by_name(&self) -> Self {
        Self { appid: None, ..self.clone() }
    }

    fn kernel(&self) -> KernelMatch {
        named::kernel(&self.goid, self.appid)
    }

    fn read(frame: &[u8], len: usize, header: &Header) -> Result<Vec<InFrame<Self>>, FrameError> {
        let message = Message::parse(frame, len, header)?;
        let stream = Self { goid: message.name().to_vec(), appid: Some(message.appid) };
        Ok(vec![InFrame { stream, key: key(message.st_num, message.sq_num), step: 0, synch: None }])
    }

    fn includes(&self, found: &Self) -> bool {
        self.goid == found.goid && self.appid.is_none_or(|appid| Some(appid) == found.appid)
    }

    fn frame(&self, link: &FrameLink, packet: &Outgoing) -> Option<Result<Vec<u8>, String>> {
        // A UtcTime: seconds, a 24-bit fraction, and a quality that states 10 bits of accuracy.
        let (s, ns) = (packet.event_time.div_euclid(1_000_000_000), packet.event_time.rem_euclid(1_000_000_000));
        let mut t = [0, 0, 0, 0, 0, 0, 0, 10];
        t[..4].copy_from_slice(&(s as u32).to_be_bytes());
        t[4..7].copy_from_slice(&(((ns << 24) / 1_000_000_000) as u32).to_be_bytes()[1..]);
        let frame = Frame {
            appid: self.appid.unwrap_or(DEFAULT_APPID),
            goid: Some(&self.goid),
            time_allowed_ms: (packet.next / 500_000).clamp(1, u32::MAX.into()) as u32,
            t,
            st_num: packet.event,
            sq_num: packet.number,
            all_data: &[0x83, 1, if packet.value { 0xff } else { 0 }],
            ..Frame::default()
        };
        Some(frame.build(link).map_err(|e| e.to_string()))
    }

    fn rebuild(&self, link: &FrameLink, key: u32) -> Option<Result<Vec<u8>, String>> {
        self.frame(link, &Outgoing { event: key >> 16, number: key & 0xffff, event_time: 0, next: 0, value: false })
    }

    fn boolean(&self, frame: &[u8], header: &Header, path: &ValuePath) -> Option<bool> {
        boolean(frame, frame.len(), header, path).ok()
    }

    fn details(&self, frame: &[u8]) -> Details {
        // The frame was parsed before, so its captured length does not matter here.
        let message = Header::parse(frame).and_then(|header| Message::parse(frame, usize::MAX, &header)).ok();
        let number = |title, json, read: fn(&Message<'_>) -> u32| {
            let value = Value::Number(message.as_ref().map_or(0, read).into());
            Field { title, json, value }
        };
        let gocb_ref = Value::text(message.as_ref().map_or(&[], |f| f.gocb_ref));
        let mut name = named::fields("goID", "goid", &self.goid, self.appid);
        name.push(Field { title: "gocbRef", json: "gocb_ref", value: gocb_ref });
        Details { name, newest: vec![number("stNum", "st_num", |f| f.st_num), number("sqNum", "sq_num", |f| f.sq_num)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tag;
    use proptest::prelude::*;

    fn built(frame: &Frame<'_>) -> Vec<u8> {
        frame.build(&FrameLink::default()).unwrap()
    }

    #[test]
    fn a_message_is_named_by_its_goid_or_its_control_block() {
        let name = |frame: Frame<'_>| crate::Matcher::read(&built(&frame)).unwrap().1.remove(0).stream.short();
        assert_eq!(name(Frame::default()).as_deref(), Some("IED1LD0/LLN0$GO$gcb01"));
        assert_eq!(name(Frame { goid: Some(b"trip"), ..Frame::default() }).as_deref(), Some("trip"));
    }

    #[test]
    fn a_stream_without_an_appid_means_all() {
        let stream = |text: &str| text.parse::<crate::StreamSpec>().unwrap().matcher;
        let (header, found) = crate::Matcher::read(&built(&Frame { appid: 3, ..Frame::default() })).unwrap();
        assert_eq!((header.ethertype, found[0].key), (ETHERTYPE, 0x1_0000));
        let named = "goose:IED1LD0/LLN0$GO$gcb01";
        assert!(stream(named).includes(&found[0].stream));
        assert!(stream(&format!("{named},appid=3")).includes(&found[0].stream));
        assert!(!stream(&format!("{named},appid=4")).includes(&found[0].stream));
        assert!(!stream("svid:IED1LD0/LLN0$GO$gcb01").includes(&found[0].stream));
    }

    #[test]
    fn a_frame_without_a_name_cannot_be_built() {
        let build = |frame: Frame<'_>| frame.build(&FrameLink::default()).unwrap_err();
        let error = build(Frame { goid: Some(b""), ..Frame::default() }).to_string();
        assert_eq!(error, "goID \"\": has 0 bytes, 1 to 129 are allowed");
        assert!(matches!(build(Frame { all_data: &[0; 90_000], ..Frame::default() }), BuildError::TooLong(_)));
    }

    fn read_boolean(all_data: &[u8], path: &str) -> Result<bool, FrameError> {
        let frame = Frame { all_data, entries: 3, ..Frame::default() }.build(&FrameLink::default()).unwrap();
        boolean(&frame, frame.len(), &Header::parse(&frame).unwrap(), &path.parse().unwrap())
    }

    /// A BOOLEAN, a structure of a bit string and a BOOLEAN, and an INTEGER.
    const DATA: [u8; 16] = [0x83, 1, 0, 0xa2, 8, 0x84, 3, 3, 0, 0, 0x83, 1, 0xff, 0x85, 1, 7];

    #[test]
    fn a_boolean_is_found_by_its_numbers() {
        assert_eq!((read_boolean(&DATA, "1"), read_boolean(&DATA, "2.2")), (Ok(false), Ok(true)));
        for path in ["2", "2.1", "3", "1.1", "2.2.1"] {
            assert!(matches!(read_boolean(&DATA, path), Err(FrameError::BadTag { .. })), "{path}");
        }
        for path in ["4", "2.3"] {
            assert!(matches!(read_boolean(&DATA, path), Err(FrameError::Truncated { .. })), "{path}");
        }
    }

    type Parts = ((Vec<u8>, Option<Vec<u8>>, Vec<u8>), (u16, [u32; 5]), ([u8; 8], bool, bool));

    fn parts() -> impl Strategy<Value = Parts> {
        let name = || prop::collection::vec(any::<u8>(), 1..=MAX_GOID);
        let bytes = (name(), prop::option::of(name()), prop::collection::vec(any::<u8>(), 0..1200));
        (bytes, any::<(u16, [u32; 5])>(), any::<([u8; 8], bool, bool)>())
    }

    fn frame_of(((name, goid, all_data), (appid, numbers), (t, simulation, nds_com)): &Parts) -> Frame<'_> {
        let [time_allowed_ms, st_num, sq_num, conf_rev, entries] = *numbers;
        Frame {
            appid: *appid,
            gocb_ref: name,
            time_allowed_ms,
            dat_set: name,
            goid: goid.as_deref(),
            t: *t,
            st_num,
            sq_num,
            simulation: *simulation,
            conf_rev,
            nds_com: *nds_com,
            entries,
            all_data,
        }
    }

    proptest! {
        #[test]
        fn what_is_built_reads_back(parts in parts(), vlans in prop::collection::vec(0_u16..4095, 0..=2)) {
            let tags: Vec<Tag> = vlans.into_iter().map(|vlan| Tag::new(vlan, 4)).collect();
            let bytes = frame_of(&parts).build(&FrameLink { tags: tags.clone(), ..FrameLink::default() }).unwrap();
            let header = Header::parse(&bytes).unwrap();
            prop_assert_eq!(header.tags(), tags.as_slice());
            let sent = frame_of(&parts);
            let Frame { appid, gocb_ref, goid, st_num, sq_num, .. } = sent;
            let message = Message { appid, gocb_ref, goid, st_num, sq_num };
            prop_assert_eq!(Message::parse(&bytes, bytes.len(), &header).unwrap(), message);
            // A capture must include sqNum, but nothing after it, where simulation and confRev follow.
            let until = bytes.windows(4).rposition(|w| (w[0], w[1], w[3]) == (0x87, 1, 0x88)).unwrap();
            let values = bytes.len() - sent.all_data.len();
            // Other fields may contain the same two bytes; such messages are skipped.
            let places = bytes.windows(2).filter(|w| *w == [0x87, 1]).count();
            prop_assume!(until < values && places == 1 && bytes.len() > 60);
            prop_assert_eq!(Message::parse(&bytes[..until], bytes.len(), &header).unwrap(), message);
            let error = crate::Matcher::read_captured(&bytes[..until - 1], bytes.len()).unwrap_err();
            prop_assert!(matches!(error, FrameError::CutOff { .. }), "{}", error);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(
            parts in parts(),
            cut in any::<prop::sample::Index>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            let mut bytes = built(&frame_of(&parts));
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let _ = crate::Matcher::read(&bytes);
            let _ = crate::Matcher::read(&bytes[..cut.index(bytes.len())]);
        }

        #[test]
        fn no_values_make_it_panic(
            data in prop::collection::vec(any::<u8>(), 0..64),
            path in prop::collection::vec(1_u16..5, 1..=4),
            cut in any::<prop::sample::Index>(),
        ) {
            let path: ValuePath = path.iter().map(u16::to_string).collect::<Vec<_>>().join(".").parse().unwrap();
            let frame = Frame { all_data: &data, ..Frame::default() }.build(&FrameLink::default()).unwrap();
            let header = Header::parse(&frame).unwrap();
            let _ = boolean(&frame, frame.len(), &header, &path);
            let _ = boolean(&frame[..cut.index(frame.len())], frame.len(), &header, &path);
        }
    }
}
