//! The user's streams as the kernel programs want them.

use crate::layout::{StreamConf, SvidShort, NONE, SVID_LONG, SVID_PLACES, SVID_PROBES, SVID_SHORT};
use latpath_model::stream::LinkFilter;
use latpath_model::{KeyRule, Matcher, StreamId, StreamSpec};
use latpath_protocols::{ether::Ether, sv::Sv, udp::Udp};
use std::{collections::HashMap, net::IpAddr};

const FILTER_APPID: u8 = 1;
const FILTER_MAC: u8 = 2;
const FILTER_VLAN: u8 = 4;
const FILTER_SRC: u8 = 8;
const FILTER_DST: u8 = 16;
const KIND_SV: u8 = 0;
const KIND_UDP: u8 = 1;
const KIND_ETHER: u8 = 2;
const RULE_SMPCNT: u8 = 0;
const RULE_SEQ: u8 = 1;
/// Keys that tell nothing of order.
pub const RULE_HASH: u8 = 2;
/// Streams of one svID that differ by filters only; `add_chain` in bpf/match.h stops there.
const MAX_CHAIN: usize = 8;
/// Streams that are not SV; `match_other` in bpf/match.h stops there.
const MAX_OTHER: usize = 64;

/// What cannot be asked of the kernel programs.
#[derive(Debug, thiserror::Error)]
pub enum BadStreams {
    /// Nothing to follow.
    #[error("no stream given: name one with --stream, as in --stream svid:MU01 (latpath streams -i IF lists them)")]
    None,
    /// Too many.
    #[error("{0} streams: at most {max} can be followed at once", max = latpath_model::stream::MAX_STREAMS)]
    TooMany(usize),
    /// Too many with one svID.
    #[error("svID {0:?} is named more than {MAX_CHAIN} times")]
    Chain(String),
    /// Too many that are not SV.
    #[error("{0} streams that are not SV: at most {MAX_OTHER} can be followed at once")]
    Other(usize),
    /// No place left for an svID in the open table.
    #[error("svID {0:?} collides with too many others: name fewer streams at once")]
    Crowded(String),
    /// The same stream twice.
    #[error("stream {0} is named twice")]
    Twice(String),
}

/// Streams in the order of the kernel's table: SV first.
#[derive(Debug, Default)]
pub struct Table {
    /// The table.
    pub streams: Vec<StreamConf>,
    /// The user's stream of each entry.
    pub user: Vec<StreamId>,
    /// The open table of svIDs: its filled places.
    pub short: HashMap<u32, SvidShort>,
    /// First stream of each longer svID, by length and bytes.
    pub long: HashMap<[u8; SVID_LONG + 1], u32>,
    /// Index of the first stream that is not SV.
    pub first_other: u32,
    /// Whether any stream is SV, UDP, of an ethertype.
    pub wants: [bool; 3],
}

/// Puts an svID into the open table, where `lookup_words` in bpf/match.h looks for it.
fn place(table: &mut HashMap<u32, SvidShort>, svid: &[u8], first: u32) -> Result<(), BadStreams> {
    let mut bytes = [0; SVID_SHORT];
    bytes[..svid.len()].copy_from_slice(svid);
    let mut word = [0; 4];
    for (w, b) in word.iter_mut().zip(bytes.chunks_exact(8)) {
        *w = u64::from_ne_bytes(b.try_into().expect("eight bytes"));
    }
    let len = svid.len() as u16;
    let mut h = word[0].wrapping_add(u64::from(len)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if len > 8 {
        h = (h ^ h >> 32 ^ word[1]).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
    if len > 16 {
        h = (h ^ h >> 32 ^ word[2]).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h = (h ^ h >> 32 ^ word[3]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    let place = (h >> 53) as u32;
    let free = (0..SVID_PROBES).map(|i| (place + i) % SVID_PLACES).find(|at| !table.contains_key(at));
    let at = free.ok_or_else(|| BadStreams::Crowded(String::from_utf8_lossy(svid).into_owned()))?;
    table.insert(at, SvidShort { word, len, simple: 0, first: first + 1, pad: [0; 3] });
    Ok(())
}

fn svid_key<const N: usize>(svid: &[u8]) -> [u8; N] {
    let mut key = [0; N];
    key[0] = svid.len() as u8;
    key[1..=svid.len()].copy_from_slice(svid);
    key
}

fn address(addr: Option<IpAddr>) -> [u8; 16] {
    let mut bytes = [0; 16];
    match addr {
        Some(IpAddr::V4(a)) => bytes[..4].copy_from_slice(&a.octets()),
        Some(IpAddr::V6(a)) => bytes = a.octets(),
        None => {}
    }
    bytes
}

fn conf(spec: &StreamSpec) -> StreamConf {
    let LinkFilter { mac, vlan } = spec.link;
    let (rule, key_off, key_len) = match spec.key {
        KeyRule::Own(_) => (RULE_SMPCNT, 0, 0),
        KeyRule::Seq { offset, len } => (RULE_SEQ, offset, len),
        KeyRule::Hash { offset, len } => (RULE_HASH, offset, len),
    };
    let mut c = StreamConf { rule, key_off, key_len, next: NONE, ..Default::default() };
    if let Some(mac) = mac {
        (c.mac, c.filters) = (mac, FILTER_MAC);
    }
    if let Some(vlan) = vlan {
        (c.vlan, c.filters) = (vlan, c.filters | FILTER_VLAN);
    }
    match &spec.matcher {
        Matcher::Sv(Sv { appid, .. }) => {
            c.kind = KIND_SV;
            if let Some(appid) = appid {
                (c.appid, c.filters) = (*appid, c.filters | FILTER_APPID);
            }
        }
        Matcher::Goose(_) | Matcher::Ptp(_) => c.kind = KIND_ETHER,
        Matcher::Udp(Udp { src, src_port, dst, dst_port }) => {
            c.kind = KIND_UDP;
            (c.src_port, c.dst_port) = (*src_port, *dst_port);
            (c.src, c.dst) = (address(*src), address(*dst));
            c.filters |= src.map_or(0, |_| FILTER_SRC) | dst.map_or(0, |_| FILTER_DST);
            c.ip_version = dst.or(*src).map_or(0, |a| if a.is_ipv4() { 4 } else { 6 });
        }
        Matcher::Ether(Ether { ethertype }) => (c.kind, c.ethertype) = (KIND_ETHER, *ethertype),
    }
    c
}

impl Table {
    /// Builds the table.
    ///
    /// # Errors
    /// Too many streams, none at all, or one twice.
    pub fn new(specs: &[StreamSpec]) -> Result<Self, BadStreams> {
        if specs.is_empty() {
            return Err(BadStreams::None);
        }
        if specs.len() > latpath_model::stream::MAX_STREAMS {
            return Err(BadStreams::TooMany(specs.len()));
        }
        if let Some(i) = (1..specs.len()).find(|i| specs[..*i].contains(&specs[*i])) {
            return Err(BadStreams::Twice(specs[i].to_string()));
        }
        let is_sv = |s: &StreamSpec| matches!(s.matcher, Matcher::Sv(_));
        let mut order: Vec<usize> = (0..specs.len()).collect();
        order.sort_by_key(|i| !is_sv(&specs[*i]));
        let mut table = Self::default();
        let mut chains: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for i in order {
            let at = table.streams.len();
            let c = conf(&specs[i]);
            table.wants[usize::from(c.kind)] = true;
            if let Matcher::Sv(Sv { svid, .. }) = &specs[i].matcher {
                let chain = chains.entry(svid).or_default();
                match chain.last() {
                    Some(last) => table.streams[*last].next = at as u16,
                    None if svid.len() <= SVID_SHORT => place(&mut table.short, svid, at as u32)?,
                    None => drop(table.long.insert(svid_key(svid), at as u32)),
                }
                chain.push(at);
                if chain.len() > MAX_CHAIN {
                    return Err(BadStreams::Chain(String::from_utf8_lossy(svid).into_owned()));
                }
                table.first_other = at as u32 + 1;
            }
            table.streams.push(c);
            table.user.push(i as StreamId);
        }
        for svid in table.short.values_mut() {
            let first = &table.streams[svid.first as usize - 1];
            svid.simple = (first.next == NONE && first.filters == 0 && first.rule == RULE_SMPCNT).into();
        }
        let others = table.streams.len() - table.first_other as usize;
        if others > MAX_OTHER {
            return Err(BadStreams::Other(others));
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(texts: &[&str]) -> Vec<StreamSpec> {
        texts.iter().map(|t| t.parse().unwrap()).collect()
    }

    #[test]
    fn sv_streams_come_first_and_keep_the_users_numbers() {
        let t = Table::new(&specs(&["udp:10.0.0.1:5", "svid:A", "ether:0x88b8", "svid:B"])).unwrap();
        assert_eq!(t.user, [1, 3, 0, 2]);
        assert_eq!(t.first_other, 2);
        assert_eq!(t.wants, [true; 3]);
    }

    #[test]
    fn streams_of_one_svid_hang_together() {
        let t = Table::new(&specs(&["svid:A,vlan=1", "svid:B", "svid:A,vlan=2"])).unwrap();
        assert_eq!(t.short.len(), 2);
        assert_eq!(t.streams.iter().map(|s| s.next).collect::<Vec<_>>(), [2, NONE, NONE]);
    }

    #[test]
    fn a_long_svid_takes_the_long_map() {
        let t = Table::new(&[StreamSpec::svid(&"x".repeat(129))]).unwrap();
        assert_eq!((t.short.len(), t.long.len()), (0, 1));
    }

    #[test]
    fn impossible_wishes_are_refused() {
        assert!(matches!(Table::new(&[]), Err(BadStreams::None)));
        assert!(matches!(Table::new(&specs(&["svid:A", "svid:A"])), Err(BadStreams::Twice(_))));
        let many: Vec<_> = (0..300).map(|i| StreamSpec::svid(&format!("S{i}"))).collect();
        assert!(matches!(Table::new(&many), Err(BadStreams::TooMany(300))));
        let same: Vec<_> = (0..9).map(|i| format!("svid:A,vlan={i}").parse().unwrap()).collect();
        assert!(matches!(Table::new(&same), Err(BadStreams::Chain(_))));
    }
}
