//! The table of the user's streams for the kernel programs (include/streams.h).

use crate::constants::{
    FILTER_MAC, FILTER_VLAN, KEY_HASH, KEY_OWN, KEY_SEQ, MAX_CHAIN, MAX_ETHERTYPES, MAX_PROTOCOLS, MAX_SCANNED,
    MAX_STREAMS, NAME_LONG, NAME_PLACES, NAME_PROBES, NAME_SHORT, NONE, OFF_MASK,
};
use crate::maps::bytes_of;
pub use crate::skel::types::{
    name_short as NameShort, selection as Selection, stream_conf as StreamConf, stream_range as StreamRange,
};
use latpath_protocols::stream::{LinkFilter, StreamId};
use latpath_protocols::{KeyRule, ProtocolId, StreamSpec};
use libbpf_rs::{MapCore, MapFlags};
use std::collections::{BTreeSet, HashMap};

crate::plain!(NameShort, Selection, StreamConf);

const _: () = assert!(latpath_protocols::protocol::PROTOCOL_BYTES == crate::constants::PROTOCOL_BYTES);
const _: () = assert!(latpath_protocols::stream::MAX_STREAMS == MAX_STREAMS);
const _: () = assert!(ProtocolId::ALL.len() <= MAX_PROTOCOLS);
const _: () = assert!(*ProtocolId::ALL.first().expect("there are protocols") as usize == 0);

/// Why the kernel programs cannot follow these streams together.
#[derive(Debug, thiserror::Error)]
pub enum BadStreams {
    /// No stream.
    #[error("no stream given: name one with --stream, e.g. --stream svid:MU01 (latpath streams lists them)")]
    None,
    /// More streams than the kernel's table holds.
    #[error("{0} streams: at most {MAX_STREAMS} can be followed at once")]
    TooMany(usize),
    /// Too many streams with the same name.
    #[error("{0} is named more than {MAX_CHAIN} times")]
    Chain(String),
    /// Too many streams without a name.
    #[error("{1} streams {0}:…: at most {MAX_SCANNED} can be followed at once")]
    Scanned(&'static str, usize),
    /// No free slot for a name in the open-addressing table.
    #[error("{0:?} collides with too many other names: name fewer streams at once")]
    Crowded(String),
    /// A stream is given twice.
    #[error("stream {0} is named twice")]
    Twice(String),
}

/// The streams in the order of the kernel's table, by protocol.
#[derive(Debug, Default)]
pub struct Table {
    /// Entries of the kernel's table.
    pub streams: Vec<StreamConf>,
    /// The user's stream for each entry.
    pub user: Vec<StreamId>,
    /// Occupied slots of the open-addressing table of short names.
    pub short: HashMap<usize, NameShort>,
    /// First stream of each long name; the key is a `struct name_long`.
    pub long: HashMap<[u8; NAME_LONG + 2], u32>,
    /// Constants of the programs.
    pub selection: Selection,
}

/// A name as padded words, as stored in `names_short`.
fn words(name: &[u8]) -> [u64; 4] {
    let mut bytes = [0; NAME_SHORT];
    bytes[..name.len()].copy_from_slice(name);
    let mut word = [0; 4];
    for (w, b) in word.iter_mut().zip(bytes.chunks_exact(8)) {
        *w = u64::from_ne_bytes(b.try_into().expect("eight bytes"));
    }
    word
}

/// Slot at which the search for a name starts; same as `name_place` in include/streams.h.
fn place_of(word: &[u64; 4], len: usize) -> usize {
    let mut h = word[0].wrapping_add(len as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if len > 8 {
        h = (h ^ h >> 32 ^ word[1]).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
    if len > 16 {
        h = (h ^ h >> 32 ^ word[2]).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h = (h ^ h >> 32 ^ word[3]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (h >> 53) as usize
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn conf(spec: &StreamSpec) -> StreamConf {
    let LinkFilter { dst, vlan } = spec.link;
    let (rule, key_off, key_len) = match spec.key {
        KeyRule::Own(_) => (KEY_OWN, 0, 0),
        KeyRule::Seq { offset, len } => (KEY_SEQ, offset, len),
        KeyRule::Hash { offset, len } => (KEY_HASH, offset, len),
    };
    let filters = dst.map_or(0, |_| FILTER_MAC) | vlan.map_or(0, |_| FILTER_VLAN);
    StreamConf {
        rule: rule as u8,
        filters: filters as u8,
        dst: dst.unwrap_or_default(),
        key_off,
        key_len,
        vlan: vlan.unwrap_or_default(),
        next: NONE as u16,
        protocol_bytes: spec.matcher.kernel().protocol_bytes.bytes(),
    }
}

/// Number of bytes of a frame that the programs may need to read for a stream: if it has a name, which may be anywhere,
/// as many as they can; otherwise the headers, the protocol's header and the key.
fn reach(spec: &StreamSpec) -> u16 {
    /// Maximum size of headers, bytes: Ethernet with two tags, IPv6 with a fragment header or IPv4 with options, UDP.
    const HEADERS: u16 = 22 + 60 + 8;
    const OWN_HEADER: u16 = 64;
    match spec.key {
        _ if spec.matcher.kernel().name.is_some() => OFF_MASK as u16,
        KeyRule::Own(_) => HEADERS + OWN_HEADER,
        KeyRule::Seq { offset, len } | KeyRule::Hash { offset, len } => HEADERS + (offset + len).max(OWN_HEADER),
    }
}

impl Table {
    /// Builds the table.
    ///
    /// # Errors
    /// If the programs cannot follow these streams together.
    pub fn new(specs: &[StreamSpec]) -> Result<Self, BadStreams> {
        if specs.is_empty() {
            return Err(BadStreams::None);
        }
        if specs.len() > MAX_STREAMS {
            return Err(BadStreams::TooMany(specs.len()));
        }
        if let Some(i) = (1..specs.len()).find(|i| specs[..*i].contains(&specs[*i])) {
            return Err(BadStreams::Twice(specs[i].to_string()));
        }
        let mut table = Self::default();
        for protocol in ProtocolId::ALL {
            let first = table.streams.len();
            let mut chains: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
            let mut scanned = 0;
            for (i, spec) in specs.iter().enumerate().filter(|(_, spec)| spec.matcher.protocol() == *protocol) {
                let at = table.streams.len();
                table.streams.push(conf(spec));
                table.user.push(i as StreamId);
                match spec.matcher.kernel().name {
                    Some(name) => chains.entry(name).or_default().push(at),
                    None => scanned += 1,
                }
            }
            if scanned > MAX_SCANNED {
                return Err(BadStreams::Scanned(protocol.info().prefix, scanned));
            }
            for (name, chain) in &chains {
                table.add_name(*protocol, name, chain)?;
            }
            let count = (table.streams.len() - first) as u16;
            table.selection.streams[*protocol as usize] = StreamRange { first: first as u16, count };
        }
        table.select(specs);
        Ok(table)
    }

    /// Adds the streams that share this name to the name tables.
    fn add_name(&mut self, protocol: ProtocolId, name: &[u8], chain: &[usize]) -> Result<(), BadStreams> {
        if chain.len() > MAX_CHAIN {
            return Err(BadStreams::Chain(format!("{}:{}", protocol.info().prefix, lossy(name))));
        }
        for pair in chain.windows(2) {
            self.streams[pair[0]].next = pair[1] as u16;
        }
        let first = chain[0];
        if name.len() > NAME_SHORT {
            let mut key = [0; NAME_LONG + 2];
            (key[0], key[1]) = (protocol as u8, name.len() as u8);
            key[2..2 + name.len()].copy_from_slice(name);
            self.long.insert(key, first as u32);
            return Ok(());
        }
        let word = words(name);
        let place = place_of(&word, name.len());
        let free = (0..NAME_PROBES).map(|i| (place + i) % NAME_PLACES).find(|at| !self.short.contains_key(at));
        let at = free.ok_or_else(|| BadStreams::Crowded(lossy(name)))?;
        let stream = &self.streams[first];
        let filtered = stream.filters != 0 || stream.protocol_bytes.iter().any(|b| *b != 0);
        let simple = chain.len() == 1 && !filtered && usize::from(stream.rule) == KEY_OWN;
        let protocol_len = (protocol as u16) << 8 | name.len() as u16;
        let name =
            NameShort { word, protocol_len, simple: simple.into(), first: first as u32 + 1, ..Default::default() };
        self.short.insert(at, name);
        Ok(())
    }

    /// Sets the constants that determine which frames, and how much of them, the programs read.
    fn select(&mut self, specs: &[StreamSpec]) {
        let of = |specs: &mut dyn Iterator<Item = &StreamSpec>| specs.flat_map(|s| s.matcher.ethertypes()).collect();
        let ethertypes: BTreeSet<u16> = of(&mut specs.iter());
        // Frames of the first protocol take the fast path, unless a stream of another protocol may include the same
        // frames.
        let fast = ProtocolId::ALL[0];
        let others: BTreeSet<u16> = of(&mut specs.iter().filter(|s| s.matcher.protocol() != fast));
        let selection = &mut self.selection;
        selection.any_ethertype = (ethertypes.len() > MAX_ETHERTYPES).into();
        for (to, ethertype) in selection.ethertypes.iter_mut().zip(&ethertypes) {
            *to = ethertype.to_be();
        }
        selection.long_names = (!self.long.is_empty()).into();
        let shared = fast.info().ethertypes.iter().any(|e| others.contains(e));
        selection.fast_path = (selection.streams[fast as usize].count > 0 && !shared).into();
        selection.over_ip = [0x0800, 0x86dd].iter().any(|ip| ethertypes.contains(ip)).into();
        let is_over_ip = |s: &&StreamSpec| s.matcher.ethertypes().iter().any(|e| [0x0800, 0x86dd].contains(e));
        let most = |reaches: &mut dyn Iterator<Item = u16>| reaches.max().unwrap_or_default();
        selection.reach_ip = most(&mut specs.iter().filter(is_over_ip).map(reach));
        selection.reach = most(&mut specs.iter().map(reach));
    }

    /// Whether any stream is carried over IP, so that UDP readers matter.
    pub fn is_over_ip(&self) -> bool {
        self.selection.over_ip != 0
    }

    /// Writes the streams to the maps of loaded programs.
    ///
    /// # Errors
    /// If a map cannot be written.
    pub fn load(&self, streams: &impl MapCore, names_long: &impl MapCore) -> libbpf_rs::Result<()> {
        for (i, conf) in self.streams.iter().enumerate() {
            streams.update(&(i as u32).to_ne_bytes(), bytes_of(conf), MapFlags::ANY)?;
        }
        for (name, first) in &self.long {
            names_long.update(name, &first.to_ne_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(texts: &[&str]) -> Vec<StreamSpec> {
        texts.iter().map(|t| t.parse().unwrap()).collect()
    }

    #[test]
    fn streams_stand_by_protocol_and_keep_the_users_numbers() {
        let t = Table::new(&specs(&["udp:10.0.0.1:5", "svid:A", "ether:0x88b8", "svid:B", "goose:A"])).unwrap();
        assert_eq!(t.user, [1, 3, 4, 0, 2]);
        let ranges = t.selection.streams.map(|r| (r.first, r.count));
        assert_eq!(ranges[..5], [(0, 2), (2, 1), (3, 0), (3, 1), (4, 1)]);
        assert_eq!(t.short.len(), 3, "one name in two protocols is two names");
    }

    #[test]
    fn only_frames_that_a_stream_may_have_are_read() {
        let selected = |texts: &[&str]| {
            let s = Table::new(&specs(texts)).unwrap().selection;
            let ethertypes: Vec<_> = s.ethertypes.iter().map(|e| u16::from_be(*e)).filter(|e| *e != 0).collect();
            (ethertypes, s.fast_path, s.over_ip)
        };
        assert_eq!(selected(&["svid:A"]), (vec![0x88ba], 1, 0));
        assert_eq!(selected(&["svid:A", "ether:0x8892", "goose:B"]), (vec![0x8892, 0x88b8, 0x88ba], 1, 0));
        assert_eq!(selected(&["svid:A", "ether:0x88ba"]), (vec![0x88ba], 0, 0), "one frame may be in both");
        assert_eq!(selected(&["goose:A"]), (vec![0x88b8], 0, 0));
        assert_eq!(selected(&["ptp:sync"]), (vec![0x0800, 0x86dd, 0x88f7], 0, 1));
        let many: Vec<_> = (0..9).map(|i| format!("ether:{:#x}", 0x9000 + i)).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(Table::new(&specs(&many)).unwrap().selection.any_ethertype, 1);
    }

    #[test]
    fn streams_of_one_name_hang_together() {
        let t = Table::new(&specs(&["svid:A,vlan=1", "svid:B", "svid:A,vlan=2"])).unwrap();
        assert_eq!(t.short.len(), 2);
        assert_eq!(t.streams.iter().map(|s| usize::from(s.next)).collect::<Vec<_>>(), [2, NONE, NONE]);
        assert_eq!(t.short.values().map(|s| s.simple).sum::<u16>(), 1);
    }

    #[test]
    fn a_long_name_takes_the_long_map() {
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
        let scanned: Vec<_> = (0..65).map(|i| format!("udp::{}", 5000 + i).parse().unwrap()).collect();
        assert!(matches!(Table::new(&scanned), Err(BadStreams::Scanned("udp", 65))));
    }
}
