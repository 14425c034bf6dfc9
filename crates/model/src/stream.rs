//! Streams: how the user names one, how the kernel recognises it, how a packet's key is read.
//!
//! ```text
//! svid:MU01                      Sampled Values with this svID; key: smpCnt of its first ASDU in the frame
//! svid:MU01,appid=0x4000,vlan=7,mac=01:0c:cd:04:00:01
//! udp:10.0.0.2:5000              UDP to this address and port; key: hash of the first 32 payload bytes
//! udp:10.0.0.1:7000>10.0.0.2:5000,seq=4:4     key: big-endian number, 4 bytes at payload offset 4
//! ether:0x88b8,hash=0:46         any ethertype; key: hash of 46 payload bytes from offset 0
//! ```
//! A comma in an svID is written `\,`, a backslash `\\`.

use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr, str::FromStr};

/// A stream's index in the order in which the user named them.
pub type StreamId = u16;

/// Streams that can be followed at once.
pub const MAX_STREAMS: usize = 256;
/// Longest svID: IEC 61850-9-2 Ed. 2.1, VisibleString129.
pub const MAX_SVID: usize = 129;
/// Most bytes that a hash may cover.
pub const MAX_HASH_LEN: u16 = 128;
/// Last byte of the payload, exclusive, that a key may be read from.
pub const MAX_KEY_END: u16 = 1500;
/// Hash that a stream without a sequence number uses by default: this many bytes from the payload's start.
pub const DEFAULT_HASH_LEN: u16 = 32;

/// How a stream's packets are recognised.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Matcher {
    /// IEC 61850 Sampled Values with this svID in any ASDU of the frame.
    Sv {
        /// The svID's bytes, 1 to [`MAX_SVID`].
        svid: Vec<u8>,
        /// APPID, where it matters.
        appid: Option<u16>,
        /// Link filters.
        link: LinkFilter,
    },
    /// A UDP flow.
    Udp {
        /// Source address and port, `None` or 0 for any.
        src: Option<IpAddr>,
        /// Source port, 0 for any.
        src_port: u16,
        /// Destination address.
        dst: Option<IpAddr>,
        /// Destination port, 0 for any.
        dst_port: u16,
        /// Link filters.
        link: LinkFilter,
    },
    /// Every frame of an ethertype.
    Ether {
        /// The ethertype after any 802.1Q tag.
        ethertype: u16,
        /// Link filters.
        link: LinkFilter,
    },
}

/// Filters on the Ethernet header, for any matcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkFilter {
    /// Destination MAC.
    pub mac: Option<[u8; 6]>,
    /// VLAN identifier (802.1Q VID).
    pub vlan: Option<u16>,
}

/// How a packet's key is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyRule {
    /// smpCnt of the stream's first ASDU in the frame.
    SmpCnt,
    /// Big-endian number of `len` (1, 2 or 4) bytes at `offset` of the payload.
    Seq {
        /// Bytes from the payload's start.
        offset: u16,
        /// 1, 2 or 4.
        len: u16,
    },
    /// 32-bit hash over `len` bytes at `offset` of the payload.
    Hash {
        /// Bytes from the payload's start.
        offset: u16,
        /// 1 to [`MAX_HASH_LEN`].
        len: u16,
    },
}

/// One stream as the user named it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamSpec {
    /// How its packets are recognised.
    pub matcher: Matcher,
    /// How a key is read.
    pub key: KeyRule,
}

/// Why a text names no stream.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadStream {
    /// The part before `:` is unknown.
    #[error("{0:?}: not a stream; write svid:ID, udp:[SRC>]DST:PORT or ether:0xTYPE")]
    Form(String),
    /// The svID is empty or too long.
    #[error("{0:?}: an svID has 1 to 129 bytes")]
    Svid(String),
    /// An option after a comma is unknown or its value is out of range.
    #[error("{option:?} in a stream: {why}")]
    Option {
        /// The option as written.
        option: String,
        /// What is wrong, and what would be right.
        why: &'static str,
    },
}

fn bad(option: &str, why: &'static str) -> BadStream {
    BadStream::Option { option: option.into(), why }
}

impl StreamSpec {
    /// The stream of this svID, nothing else asked.
    pub fn svid(id: &str) -> Self {
        Self {
            matcher: Matcher::Sv { svid: id.as_bytes().to_vec(), appid: None, link: LinkFilter::default() },
            key: KeyRule::SmpCnt,
        }
    }

    /// The Ethernet filters.
    pub fn link(&self) -> LinkFilter {
        match &self.matcher {
            Matcher::Sv { link, .. } | Matcher::Udp { link, .. } | Matcher::Ether { link, .. } => *link,
        }
    }

    /// Replaces the key rule by a `hash:OFFSET:LEN` or `seq:OFFSET:LEN` (the value of `--match`).
    pub fn with_match(mut self, rule: &str) -> Result<Self, BadStream> {
        let (kind, at) = rule.split_once(':').unwrap_or((rule, ""));
        self.key = match (kind, at) {
            ("hash", "") => KeyRule::Hash { offset: 0, len: DEFAULT_HASH_LEN },
            ("hash" | "seq", at) => key_rule(kind, at, rule)?,
            _ => return Err(bad(rule, "write hash[:OFFSET:LEN] or seq:OFFSET:LEN")),
        };
        Ok(self)
    }

    /// A short name for tables: the svID, or the whole text for other streams.
    pub fn short(&self) -> String {
        match &self.matcher {
            Matcher::Sv { svid, .. } => String::from_utf8_lossy(svid).into_owned(),
            _ => self.to_string(),
        }
    }
}

/// Reads `OFFSET:LEN` of a key rule named `kind`; `whole` is the option for the error.
fn key_rule(kind: &str, at: &str, whole: &str) -> Result<KeyRule, BadStream> {
    let (offset, len) = at.split_once(':').ok_or_else(|| bad(whole, "write OFFSET:LEN, both in bytes"))?;
    let number = |s: &str| s.parse::<u16>().map_err(|_| bad(whole, "offset and length are whole numbers of bytes"));
    let (offset, len) = (number(offset)?, number(len)?);
    if offset.checked_add(len).is_none_or(|end| end > MAX_KEY_END) {
        return Err(bad(whole, "the key must lie in the first 1500 bytes of the payload"));
    }
    match kind {
        "hash" if (1..=MAX_HASH_LEN).contains(&len) => Ok(KeyRule::Hash { offset, len }),
        "hash" => Err(bad(whole, "a hash covers 1 to 128 bytes")),
        _ if matches!(len, 1 | 2 | 4) => Ok(KeyRule::Seq { offset, len }),
        _ => Err(bad(whole, "a sequence number has 1, 2 or 4 bytes")),
    }
}

/// Splits at commas that no backslash protects, and takes the backslashes off the first part.
fn split_options(s: &str) -> (String, Vec<&str>) {
    let mut first = String::new();
    let mut chars = s.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => first.extend(chars.next().map(|(_, c)| c)),
            ',' => return (first, s[i + 1..].split(',').collect()),
            c => first.push(c),
        }
    }
    (first, Vec::new())
}

/// Reads a number, decimal or `0x…`.
fn number_u16(s: &str) -> Option<u16> {
    match s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => s.parse().ok(),
    }
}

/// Reads `01:0c:cd:04:00:01`.
pub fn parse_mac(s: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = s.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next().filter(|p| (1..=2).contains(&p.len()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// Writes a MAC as `01:0c:cd:04:00:01`.
pub fn format_mac(mac: &[u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

/// Reads `ADDR:PORT`, `[V6]:PORT`, `ADDR`, `:PORT` or `*`.
fn parse_end(s: &str) -> Option<(Option<IpAddr>, u16)> {
    if s == "*" {
        return Some((None, 0));
    }
    if let Some(port) = s.strip_prefix(':').filter(|p| !p.contains(':')) {
        return Some((None, port.parse().ok()?));
    }
    if let Ok(addr) = s.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Some((Some(addr), 0));
    }
    let sock: std::net::SocketAddr = s.parse().ok()?;
    Some((Some(sock.ip()), sock.port()))
}

impl FromStr for StreamSpec {
    type Err = BadStream;

    fn from_str(s: &str) -> Result<Self, BadStream> {
        let form = || BadStream::Form(s.into());
        let (kind, rest) = s.split_once(':').ok_or_else(form)?;
        let (name, options) = split_options(rest);
        let mut key = match kind {
            "svid" => KeyRule::SmpCnt,
            _ => KeyRule::Hash { offset: 0, len: DEFAULT_HASH_LEN },
        };
        let (mut link, mut appid) = (LinkFilter::default(), None);
        for option in options {
            let (k, v) = option.split_once('=').ok_or_else(|| bad(option, "write name=value"))?;
            match k {
                "appid" if kind == "svid" => {
                    appid = Some(number_u16(v).ok_or_else(|| bad(option, "an APPID is 0 to 0xffff"))?);
                }
                "vlan" => {
                    let vid = number_u16(v).filter(|v| *v < 4095);
                    link.vlan = Some(vid.ok_or_else(|| bad(option, "a VLAN is 0 to 4094"))?);
                }
                "mac" => {
                    let mac = parse_mac(v).ok_or_else(|| bad(option, "write a MAC as 01:0c:cd:04:00:01"))?;
                    link.mac = Some(mac);
                }
                "seq" | "hash" => key = key_rule(k, v, option)?,
                _ => return Err(bad(option, "options are appid (svid only), vlan, mac, seq, hash")),
            }
        }
        let matcher = match kind {
            "svid" => {
                if name.is_empty() || name.len() > MAX_SVID {
                    return Err(BadStream::Svid(name));
                }
                Matcher::Sv { svid: name.into_bytes(), appid, link }
            }
            "udp" => {
                let (src, dst) = name.split_once('>').unwrap_or(("*", &name));
                let why = "an end is ADDR:PORT, [V6]:PORT, ADDR, :PORT or *";
                let (src, src_port) = parse_end(src).ok_or_else(|| bad(src, why))?;
                let (dst, dst_port) = parse_end(dst).ok_or_else(|| bad(dst, why))?;
                if matches!((src, dst), (Some(a), Some(b)) if a.is_ipv4() != b.is_ipv4()) {
                    return Err(bad(&name, "both ends of a flow are IPv4, or both IPv6"));
                }
                Matcher::Udp { src, src_port, dst, dst_port, link }
            }
            "ether" => {
                let why = "an ethertype is 0x0600 to 0xffff";
                let ethertype = number_u16(&name).filter(|t| *t >= 0x600).ok_or_else(|| bad(&name, why))?;
                Matcher::Ether { ethertype, link }
            }
            _ => return Err(form()),
        };
        Ok(Self { matcher, key })
    }
}

impl fmt::Display for StreamSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |addr: &Option<IpAddr>, port: u16| match (addr, port) {
            (None, 0) => "*".to_string(),
            (None, p) => format!(":{p}"),
            (Some(a), 0) => a.to_string(),
            (Some(a), p) => std::net::SocketAddr::new(*a, p).to_string(),
        };
        match &self.matcher {
            Matcher::Sv { svid, appid, .. } => {
                let id = String::from_utf8_lossy(svid).replace('\\', "\\\\").replace(',', "\\,");
                write!(f, "svid:{id}")?;
                if let Some(a) = appid {
                    write!(f, ",appid={a:#06x}")?;
                }
            }
            Matcher::Udp { src, src_port, dst, dst_port, .. } => {
                write!(f, "udp:")?;
                if src.is_some() || *src_port != 0 {
                    write!(f, "{}>", end(src, *src_port))?;
                }
                write!(f, "{}", end(dst, *dst_port))?;
            }
            Matcher::Ether { ethertype, .. } => write!(f, "ether:{ethertype:#06x}")?,
        }
        let link = self.link();
        if let Some(v) = link.vlan {
            write!(f, ",vlan={v}")?;
        }
        if let Some(m) = link.mac {
            write!(f, ",mac={}", format_mac(&m))?;
        }
        match self.key {
            KeyRule::SmpCnt => Ok(()),
            KeyRule::Seq { offset, len } => write!(f, ",seq={offset}:{len}"),
            KeyRule::Hash { offset, len } => write!(f, ",hash={offset}:{len}"),
        }
    }
}

impl Serialize for StreamSpec {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StreamSpec {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_in_the_docs_reads_back_the_same() {
        for text in [
            "svid:MU01",
            "svid:MU01,appid=0x4000,vlan=7,mac=01:0c:cd:04:00:01",
            "svid:a\\,b\\\\c",
            "udp:10.0.0.1:7000>10.0.0.2:5000,seq=4:4",
            "udp:[fe80::1]:5000,hash=0:32",
            "udp::5000,hash=0:32",
            "ether:0x88b8,hash=0:46",
        ] {
            assert_eq!(text.parse::<StreamSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_names_no_stream_is_refused() {
        for text in
            ["MU01", "svid:", "svid:x,appid=70000", "svid:x,vlan=4095", "udp:nobody", "ether:0x10", "svid:x,hash=0:0"]
        {
            assert!(text.parse::<StreamSpec>().is_err(), "{text}");
        }
        assert!(format!("svid:{}", "x".repeat(130)).parse::<StreamSpec>().is_err());
        assert!("ether:0x88b8,hash=65000:1000".parse::<StreamSpec>().is_err());
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
