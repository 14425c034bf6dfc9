//! Streams: how the user names a stream, how the kernel recognises it, and how a packet's key is read.
//!
//! ```text
//! svid:MU01                      Sampled Values with this svID; key: smpCnt of its first ASDU in the frame
//! svid:MU01,appid=0x4000,vlan=7,mac=01:0c:cd:04:00:01
//! goose:IED1LD0/LLN0.gcb01       GOOSE with this goID; key: stNum and sqNum
//! ptp:sync,source=001122.fffe.334455-1        PTP Sync of this port, over Ethernet or UDP; key: sequenceId
//! udp:10.0.0.2:5000              UDP to this address and port; key: hash of the first 32 payload bytes
//! udp:10.0.0.1:7000>10.0.0.2:5000,seq=4:4     key: big-endian number, 4 bytes at payload offset 4
//! ether:0x8892,hash=0:46         any ethertype; key: hash of 46 payload bytes from offset 0
//! ```
//! In a name, a comma is written `\,`, a backslash `\\`, and any byte can be written with two hexadecimal digits, e.g.
//! `\x1b`. The payload begins after the last ethertype; that of UDP begins after the UDP header.

use crate::options::{bad, number_u16, split_options, BadStream, Options};
use crate::protocol::{FrameLink, Order};
use crate::reaction::{ReactionRule, ARROW};
use crate::{Matcher, ProtocolId, Tag};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Index of a stream, in the order in which the user named them.
pub type StreamId = u16;

/// Maximum number of streams followed at once.
pub const MAX_STREAMS: usize = 256;
/// Maximum number of bytes that are hashed.
pub const MAX_HASH_LEN: u16 = 128;
/// End of the part of the payload that keys are read from, bytes.
pub const MAX_KEY_END: u16 = 1500;
/// Default number of bytes that are hashed, from the payload's start.
pub const DEFAULT_HASH_LEN: u16 = 32;

/// Filters on the Ethernet header, for any protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkFilter {
    /// Destination MAC; `None` for any.
    pub dst: Option<[u8; 6]>,
    /// VLAN identifier (802.1Q VID); 0 for untagged frames, `None` for any.
    pub vlan: Option<u16>,
}

/// How a packet's key is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyRule {
    /// From the protocol's own field.
    Own(ProtocolId),
    /// A big-endian number of `len` bytes at `offset` of the payload.
    Seq {
        /// Offset in the payload, bytes.
        offset: u16,
        /// Length in bytes: 1, 2 or 4.
        len: u16,
    },
    /// A 32-bit hash of `len` bytes at `offset` of the payload.
    Hash {
        /// Offset in the payload, bytes.
        offset: u16,
        /// Length in bytes, 1 to [`MAX_HASH_LEN`].
        len: u16,
    },
}

impl KeyRule {
    /// smpCnt of the stream's first ASDU in the frame.
    pub const SMP_CNT: Self = Self::Own(ProtocolId::Sv);

    /// The default rule of a protocol's streams.
    pub fn default_of(protocol: ProtocolId) -> Self {
        match protocol.info().key {
            Some(_) => Self::Own(protocol),
            None => Self::Hash { offset: 0, len: DEFAULT_HASH_LEN },
        }
    }

    /// The order of keys; `None` for hashes.
    pub fn order(self) -> Option<Order> {
        match self {
            Self::Own(protocol) => protocol.info().key.map(|key| key.order),
            Self::Seq { len, .. } => Some(Order::Counter { range: 1 << (8 * len.min(4)) }),
            Self::Hash { .. } => None,
        }
    }

    /// Name of the field from which the key is read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own(protocol) => protocol.info().key.map_or("key", |key| key.name),
            Self::Seq { .. } => "seq",
            Self::Hash { .. } => "hash",
        }
    }

    /// Formats a key for display.
    pub fn text(self, key: u32) -> String {
        match self {
            Self::Own(protocol) => protocol.info().key.map_or_else(|| key.to_string(), |own| (own.text)(key)),
            Self::Seq { .. } => key.to_string(),
            Self::Hash { .. } => format!("{key:#010x}"),
        }
    }

    /// Reads a key in the format of [`text`](Self::text), or as a decimal or `0x…` number.
    pub fn read(self, text: &str) -> Option<u32> {
        let own = match self {
            Self::Own(protocol) => protocol.info().key.and_then(|own| (own.read)(text)),
            _ => None,
        };
        own.or_else(|| match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        })
    }
}

/// A stream, as specified by the user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamSpec {
    /// The rule that identifies the stream's frames.
    pub matcher: Matcher,
    /// Filters on the Ethernet header.
    pub link: LinkFilter,
    /// The rule that reads a packet's key. Keys have 32 bits: the kernel programs, the agent's protocol and runs store
    /// them as `u32`.
    pub key: KeyRule,
    /// The rule, if the stream's packets are reactions: a reaction has the key of its incoming packet, and the other
    /// fields are those of the incoming stream.
    pub reaction: Option<Box<ReactionRule>>,
}

/// Lists the forms of a stream: `svid:ID, goose:GOID or …`.
pub fn forms() -> String {
    listed(ProtocolId::ALL.iter().map(|protocol| protocol.info().form))
}

/// Lists an example of each protocol's streams: `svid:MU01, … or …`.
pub fn examples() -> String {
    listed(ProtocolId::ALL.iter().map(|protocol| protocol.info().example))
}

/// Lists an example of a stream for each protocol whose frames name their streams: `svid:MU01, … or …`.
pub fn listed_examples() -> String {
    listed(ProtocolId::listed().into_iter().map(|protocol| protocol.info().example))
}

/// Lists the titles of protocols whose frames name their streams: `Sampled Values, … or …`.
pub fn listed_titles() -> String {
    listed(ProtocolId::listed().into_iter().map(|protocol| protocol.info().title))
}

/// Lists the protocols' own keys: `smpCnt of svid, …`.
pub fn own_keys() -> String {
    let own = ProtocolId::ALL.iter().filter_map(|p| Some(format!("{} of {}", p.info().key?.name, p.info().prefix)));
    own.collect::<Vec<_>>().join(", ")
}

fn listed(items: impl Iterator<Item = &'static str>) -> String {
    let items: Vec<_> = items.collect();
    match items.split_last() {
        Some((last, [])) => (*last).into(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

impl StreamSpec {
    /// A stream of this matcher, without filters.
    pub fn new(matcher: Matcher) -> Self {
        let key = KeyRule::default_of(matcher.protocol());
        Self { matcher, link: LinkFilter::default(), key, reaction: None }
    }

    /// The stream of the reactions of a rule.
    pub fn of_reactions(rule: ReactionRule) -> Self {
        let StreamSpec { matcher, link, key, .. } = rule.input.clone();
        Self { matcher, link, key, reaction: Some(Box::new(rule)) }
    }

    /// The Sampled Values stream with this svID, without filters.
    pub fn svid(id: &str) -> Self {
        Self::new(Matcher::Sv(crate::sv::Sv { svid: id.as_bytes().to_vec(), appid: None }))
    }

    /// Creates the stream of a frame, as exact as possible. `vlan`: the VLAN of the innermost tag, if any.
    pub fn exact(matcher: Matcher, dst: [u8; 6], vlan: Option<u16>) -> Self {
        Self { link: LinkFilter { dst: Some(dst), vlan: Some(vlan.unwrap_or(0)) }, ..Self::new(matcher) }
    }

    /// Whether this stream, which may leave fields open, includes an [exact](Self::exact) one.
    pub fn includes(&self, exact: &Self) -> bool {
        self.matcher.includes(&exact.matcher)
            && self.link.dst.is_none_or(|dst| Some(dst) == exact.link.dst)
            && self.link.vlan.is_none_or(|vlan| Some(vlan) == exact.link.vlan)
    }

    /// Replaces the key rule with `hash:OFFSET:LEN` or `seq:OFFSET:LEN` (the value of `--match`).
    ///
    /// # Errors
    /// The rule is malformed, or its bytes are out of range.
    pub fn with_match(mut self, rule: &str) -> Result<Self, BadStream> {
        let (kind, at) = rule.split_once(':').unwrap_or((rule, ""));
        self.key = match (kind, at) {
            ("hash", "") => KeyRule::Hash { offset: 0, len: DEFAULT_HASH_LEN },
            ("hash" | "seq", at) => key_rule(kind, at, rule)?,
            _ => return Err(bad(rule, "write hash[:OFFSET:LEN] or seq:OFFSET:LEN")),
        };
        Ok(self)
    }

    /// Builds a frame that belongs to this stream and has this key. Fields that depend on neither have arbitrary
    /// values.
    ///
    /// # Errors
    /// Why the frame cannot be built, as a sentence.
    pub fn rebuild(&self, key: u32) -> Result<Vec<u8>, String> {
        if self.reaction.is_some() {
            return Err("a reaction is two packets, which their own streams have".into());
        }
        let tag = |vlan: u16| Tag::new(vlan, 4);
        let tags = self.link.vlan.filter(|vlan| *vlan > 0).map(tag).into_iter().collect();
        let link = FrameLink { dst: self.link.dst, tags, ..FrameLink::default() };
        let frame = match self.key {
            KeyRule::Own(_) => self.matcher.rebuild(&link, key),
            KeyRule::Seq { .. } | KeyRule::Hash { .. } => None,
        };
        frame.unwrap_or_else(|| Err("its key is computed from payload bytes, which are not kept".into()))
    }

    /// A short name for tables: the svID or goID, or the full text of streams without a name.
    pub fn short(&self) -> String {
        self.matcher.short().filter(|_| self.reaction.is_none()).unwrap_or_else(|| self.to_string())
    }
}

/// Whether this text of a stream is a reaction rule: only such texts contain an arrow.
pub fn is_of_reactions(text: &str) -> bool {
    text.contains(ARROW)
}

/// Parses `OFFSET:LEN` of a key rule of this `kind`; `whole` is the option, for errors.
fn key_rule(kind: &str, at: &str, whole: &str) -> Result<KeyRule, BadStream> {
    let (offset, len) = at.split_once(':').ok_or_else(|| bad(whole, "write OFFSET:LEN, both in bytes"))?;
    let number = |s: &str| s.parse::<u16>().map_err(|_| bad(whole, "offset and length are whole numbers of bytes"));
    let (offset, len) = (number(offset)?, number(len)?);
    if offset.checked_add(len).is_none_or(|end| end > MAX_KEY_END) {
        return Err(bad(whole, "the key must be within the first 1500 bytes of the payload"));
    }
    match kind {
        "hash" if (1..=MAX_HASH_LEN).contains(&len) => Ok(KeyRule::Hash { offset, len }),
        "hash" => Err(bad(whole, "a hash covers 1 to 128 bytes")),
        _ if matches!(len, 1 | 2 | 4) => Ok(KeyRule::Seq { offset, len }),
        _ => Err(bad(whole, "a sequence number has 1, 2 or 4 bytes")),
    }
}

/// Parses `01:0c:cd:04:00:01`.
pub fn parse_mac(s: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = s.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next().filter(|p| (1..=2).contains(&p.len()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// Formats a MAC as `01:0c:cd:04:00:01`.
pub fn format_mac(mac: &[u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

impl FromStr for StreamSpec {
    type Err = BadStream;

    fn from_str(s: &str) -> Result<Self, BadStream> {
        let form = || BadStream::Form { text: s.into(), forms: forms() };
        let (prefix, rest) = s.split_once(':').ok_or_else(form)?;
        let protocol = *ProtocolId::ALL.iter().find(|p| p.info().prefix == prefix).ok_or_else(form)?;
        let (name, options) = split_options(rest);
        let mut options = Options::new(options)?;
        let vlan = |v: &str| number_u16(v).filter(|v| *v < 4095);
        let link = LinkFilter {
            vlan: options.take("vlan", "a VLAN is 0 to 4094", vlan)?,
            dst: options.take("mac", "write a MAC as 01:0c:cd:04:00:01", parse_mac)?,
        };
        let mut key = KeyRule::default_of(protocol);
        for (kind, at, whole) in options.left.extract_if(.., |(name, ..)| matches!(*name, "seq" | "hash")) {
            key = key_rule(kind, at, whole)?;
        }
        let matcher = protocol.parse(name, &mut options)?;
        match options.left.first() {
            None => Ok(Self { matcher, link, key, reaction: None }),
            Some((_, _, whole)) => {
                let own: String = protocol.info().options.iter().map(|o| format!("{o}, ")).collect();
                Err(bad(whole, format!("options of {prefix} are {own}vlan, mac, seq, hash")))
            }
        }
    }
}

impl fmt::Display for StreamSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rule) = &self.reaction {
            return rule.fmt(f);
        }
        write!(f, "{}:", self.matcher.protocol().info().prefix)?;
        // A stream's name must not read as a reaction rule, so an arrow in it is escaped.
        let name = NameOf(&self.matcher).to_string();
        f.write_str(&name.replace(ARROW, "\\x20-> "))?;
        if let Some(v) = self.link.vlan {
            write!(f, ",vlan={v}")?;
        }
        if let Some(m) = self.link.dst {
            write!(f, ",mac={}", format_mac(&m))?;
        }
        match self.key {
            KeyRule::Own(_) => Ok(()),
            KeyRule::Seq { offset, len } => write!(f, ",seq={offset}:{len}"),
            KeyRule::Hash { offset, len } => write!(f, ",hash={offset}:{len}"),
        }
    }
}

/// The part of a stream's text after its prefix.
struct NameOf<'a>(&'a Matcher);

impl fmt::Display for NameOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f)
    }
}

impl Serialize for StreamSpec {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StreamSpec {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        // Arrows in names are escaped, so a text with an arrow is a reaction rule.
        match text.contains(ARROW).then(|| text.parse::<ReactionRule>()) {
            Some(Ok(rule)) => Ok(Self::of_reactions(rule)),
            _ => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::InFrame;
    use crate::FrameError;
    use proptest::prelude::*;
    use serde::de::value::Error as Unread;

    #[test]
    fn every_form_in_the_docs_reads_back_the_same() {
        for text in [
            "svid:MU01",
            "svid:MU01,appid=0x4000,vlan=7,mac=01:0c:cd:04:00:01",
            "svid:a\\,b\\\\c",
            "svid:BAD\\xff\\x1b[2J",
            "udp:10.0.0.1:7000>10.0.0.2:5000,seq=4:4",
            "udp:[fe80::1]:5000,hash=0:32",
            "udp::5000,hash=0:32",
            "goose:IED1LD0/LLN0.gcb01",
            "goose:a\\,b,appid=0x0001,vlan=7",
            "ptp:sync",
            "ptp:pdelay_resp,source=001122.fffe.334455-1,domain=24",
            "ether:0x88b8,hash=0:46",
        ] {
            assert_eq!(text.parse::<StreamSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_stream_of_reactions_is_stored_by_its_rule_and_no_other_stream_reads_as_one() {
        let read =
            |text: &str| StreamSpec::deserialize(serde::de::value::StrDeserializer::<Unread>::new(text)).unwrap();
        let text = "svid:MU01[|Ia|] > 1500A -> goose:TRIP,within=20ms";
        let stream = StreamSpec::of_reactions(text.parse().unwrap());
        assert_eq!((read(text), stream.to_string(), stream.short()), (stream.clone(), text.into(), text.into()));
        assert!(stream.rebuild(7).is_err());
        let odd = StreamSpec::svid("a -> goose:b");
        assert_eq!(odd.to_string(), "svid:a\\x20-> goose:b");
        assert_eq!(read(&odd.to_string()), odd);
    }

    #[test]
    fn texts_that_name_no_stream_are_refused() {
        for text in [
            "MU01",
            "svid:",
            "svid:x,appid=70000",
            "svid:x,vlan=4095",
            "udp:nobody",
            "ether:0x10",
            "ether:8100",
            "ether:88ba",
            "ether:34984",
            "svid:x,hash=0:0",
            "goose:",
            "ptp:announce",
            "ptp:sync,source=1-2",
            "udp::5000,appid=1",
        ] {
            assert!(text.parse::<StreamSpec>().is_err(), "{text}");
        }
        assert!(format!("svid:{}", "x".repeat(130)).parse::<StreamSpec>().is_err());
        assert!("ether:0x88b8,hash=65000:1000".parse::<StreamSpec>().is_err());
    }

    #[test]
    fn every_protocol_reads_its_own_example_and_no_two_share_a_prefix() {
        for (i, protocol) in ProtocolId::ALL.iter().enumerate() {
            let info = protocol.info();
            assert_eq!(info.example.parse::<StreamSpec>().unwrap().matcher.protocol(), *protocol);
            assert_eq!(*protocol as usize, i);
            assert!(ProtocolId::ALL[..i].iter().all(|p| p.info().prefix != info.prefix));
            assert!("x".parse::<StreamSpec>().unwrap_err().to_string().contains(info.form));
            if let Some(own) = info.key {
                assert!([0, 1, 65_536, u32::MAX].iter().all(|k| (own.read)(&(own.text)(*k)) == Some(*k)));
            }
        }
    }

    #[test]
    fn a_key_reads_as_its_protocol_writes_it() {
        let goose = "goose:A".parse::<StreamSpec>().unwrap().key;
        assert_eq!(
            (goose.text(0x1_0002), goose.read("1:2"), goose.read("65538")),
            ("1:2".into(), Some(0x1_0002), Some(65_538))
        );
        assert_eq!((goose.read("1:70000"), goose.order()), (None, Some(Order::States)));
        assert_eq!(
            (KeyRule::SMP_CNT.text(7), KeyRule::SMP_CNT.order()),
            ("7".into(), Some(Order::Counter { range: 65_536 }))
        );
    }

    #[test]
    fn a_rebuilt_frame_has_the_stream_and_key_of_the_original() {
        let examples = ProtocolId::listed().into_iter().map(|protocol| (protocol.info().example, 0xff02));
        for (text, key) in examples.chain([
            ("svid:MU01", 4095),
            ("svid:a\\,b,appid=0x4001,vlan=7,mac=01:0c:cd:04:00:09", 0),
            ("goose:IED1LD0/LLN0.gcb01,vlan=3", 0x7_0102),
            ("ptp:pdelay_resp,source=001122.fffe.334455-1,domain=24", 65_535),
        ]) {
            let stream: StreamSpec = text.parse().unwrap();
            let (header, found) = Matcher::read(&stream.rebuild(key).unwrap()).unwrap();
            let vlan = header.tags().first().map(|tag| tag.vlan());
            assert_eq!((found.len(), found[0].key), (1, key), "{text}");
            assert!(stream.includes(&StreamSpec::exact(found[0].stream.clone(), header.dst, vlan)), "{text}");
        }
        for text in ["udp::5000", "ether:0x8892,seq=0:2", "svid:MU01,hash=0:32"] {
            assert!(text.parse::<StreamSpec>().unwrap().rebuild(1).unwrap_err().contains("not kept"), "{text}");
        }
    }

    /// From a truncated frame, the key is read correctly or not at all: a key that is read from the end of the frame
    /// must not be read from the end of the capture.
    #[test]
    fn a_frame_that_a_capture_cut_has_its_key_or_is_refused() {
        for protocol in ProtocolId::listed() {
            let stream: StreamSpec = protocol.info().example.parse().unwrap();
            let frame = stream.rebuild(0x1_0203).unwrap();
            let (_, whole) = Matcher::read(&frame).unwrap();
            let key = whole.iter().find(|found| stream.matcher.includes(&found.stream)).expect("the stream").key;
            assert_eq!(stream.key.text(key), stream.key.text(0x1_0203 & key_bits(stream.key)), "{stream}");
            for kept in 0..frame.len() {
                match Matcher::read_captured(&frame[..kept], frame.len()) {
                    Ok((_, found)) => {
                        let keys = |found: &[InFrame<Matcher>]| -> Vec<(Matcher, u32)> {
                            found.iter().map(|one| (one.stream.clone(), one.key)).collect()
                        };
                        assert_eq!(keys(&found), keys(&whole), "{stream}: {kept} bytes");
                    }
                    Err(FrameError::CutOff { at, .. }) => assert!(at <= frame.len(), "{stream}: {kept} bytes"),
                    Err(other) => panic!("{stream}: {kept} bytes: {other}"),
                }
            }
        }
    }

    /// The bits that a key of the protocol's own field can have.
    fn key_bits(rule: KeyRule) -> u32 {
        match rule.order() {
            Some(Order::Counter { range }) => (range - 1) as u32,
            Some(Order::States) | None => u32::MAX,
        }
    }

    #[test]
    fn a_match_option_replaces_the_key() {
        let spec = StreamSpec::svid("A").with_match("hash:10:64").unwrap();
        assert_eq!(spec.key, KeyRule::Hash { offset: 10, len: 64 });
        assert!(StreamSpec::svid("A").with_match("crc").is_err());
    }

    proptest! {
        #[test]
        fn any_svid_survives_being_written(id in "[ -~]{1,129}") {
            let spec = StreamSpec::svid(&id);
            prop_assert_eq!(spec.to_string().parse::<StreamSpec>().unwrap(), spec);
        }

        #[test]
        fn no_text_makes_the_parser_panic(s in ".{0,64}") {
            let _ = s.parse::<StreamSpec>();
        }
    }
}
