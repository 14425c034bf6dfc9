//! Remarks of the programs on streams, in addition to sightings: senders, fragments, and packets that changed on the
//! route.

use crate::layout::{constants, Remark as Value, RemarkKey};
use latpath_bpf::from_bytes;
use latpath_model::stream::format_mac;
use latpath_model::text::{of_field, printable};
use latpath_model::{KeyRule, Ns, PointKind, Sender, SourceNote, SourceNoteKind, StreamId, StreamSpec};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Interval at which the programs' table is read, ns.
const EVERY: Ns = 500_000_000;
/// Number of recent packets of a stream that are compared with possibly changed ones, and the maximum time between two
/// packets that are compared (`NEAR`), ns.
const RECENT: usize = 4096;
const NEAR: Ns = 1_000_000_000;
/// Maximum number of senders, and of devices, listed in a note.
const NAMED: usize = 3;

/// Kind of remark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemarkKind {
    /// A sender of the stream.
    Sender(Sender),
    /// Packets in several fragments.
    Fragments,
    /// Frames that differ from the stream only in their VLAN; 0: untagged.
    OtherVlan(u16),
    /// Frames that differ from the stream only in their destination MAC.
    OtherMac([u8; 6]),
    /// Packets that differ from the stream only in source address or port. The value is their source address.
    OtherSource(IpAddr),
    /// Packets that differ from the stream only in destination address or port. The value is their destination address.
    OtherDestination(IpAddr),
}

/// A remark on packets of a stream that enter or leave a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The stream to which the packets are similar.
    pub stream: StreamId,
    /// [`PointKind::Tx`] or [`PointKind::NicRx`].
    pub kind: PointKind,
    /// Name of the device.
    pub device: String,
    /// Index of the device in its namespace.
    pub ifindex: u32,
    /// Inode number of the device's network namespace.
    pub netns: u32,
    /// Property of the packets.
    pub what: RemarkKind,
    /// Number of examined packets; for senders, a sample of all packets.
    pub count: u64,
    /// Time of the first packet, `CLOCK_MONOTONIC` ns.
    pub first: Ns,
    /// Time of the last packet, `CLOCK_MONOTONIC` ns.
    pub last: Ns,
    /// Key of the last packet.
    pub key: u32,
}

fn address(len: usize, value: &[u8; 16]) -> IpAddr {
    match value.first_chunk::<4>().filter(|_| len == 4) {
        Some(v4) => Ipv4Addr::from(*v4).into(),
        None => Ipv6Addr::from(*value).into(),
    }
}

fn mac(value: &[u8; 16]) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = *value;
    [a, b, c, d, e, f]
}

fn read(user: &[StreamId], key: &RemarkKey, value: &Value) -> Option<Remark> {
    let len = usize::from(key.len);
    let what = match usize::from(key.what) {
        constants::REMARK_SENDER_MAC => RemarkKind::Sender(Sender::Mac(mac(&key.value))),
        constants::REMARK_SENDER_IP4 => RemarkKind::Sender(Sender::Ip(address(4, &key.value))),
        constants::REMARK_SENDER_IP6 => RemarkKind::Sender(Sender::Ip(address(16, &key.value))),
        constants::REMARK_FRAGMENT => RemarkKind::Fragments,
        constants::REMARK_OTHER_VLAN => RemarkKind::OtherVlan(u16::from_ne_bytes([key.value[0], key.value[1]])),
        constants::REMARK_OTHER_MAC => RemarkKind::OtherMac(mac(&key.value)),
        constants::REMARK_OTHER_SOURCE => RemarkKind::OtherSource(address(len, &key.value)),
        constants::REMARK_OTHER_DESTINATION => RemarkKind::OtherDestination(address(len, &key.value)),
        _ => return None,
    };
    Some(Remark {
        stream: user.get(usize::from(key.stream)).copied()?,
        kind: PointKind::from_number(key.kind)?,
        device: printable(&of_field(&value.name)),
        ifindex: key.device as u32,
        netns: value.netns,
        what,
        count: value.count,
        first: value.first as Ns,
        last: value.last as Ns,
        key: value.key,
    })
}

/// User space's copy of the programs' remarks.
pub(crate) struct Remarks {
    table: MapHandle,
    read: Ns,
    known: Vec<Remark>,
    /// Recent packets (key and time) of streams with possibly changed packets.
    recent: BTreeMap<StreamId, VecDeque<(u32, Ns)>>,
    /// Confirmed changes, i.e. the changed packet has the key of a recent packet of the stream: stream, device index
    /// and namespace.
    confirmed: BTreeSet<(StreamId, u32, u32)>,
}

impl Remarks {
    pub fn new(table: MapHandle) -> Self {
        Self { table, read: 0, known: Vec::new(), recent: BTreeMap::new(), confirmed: BTreeSet::new() }
    }

    /// Whether packets of any stream must be compared.
    pub fn compares(&self) -> bool {
        !self.recent.is_empty()
    }

    /// Adds a packet of a stream.
    pub fn see(&mut self, stream: StreamId, key: u32, t: Ns) {
        let Some(recent) = self.recent.get_mut(&stream) else { return };
        if recent.back().is_some_and(|(last, _)| *last == key) {
            return;
        }
        recent.push_back((key, t));
        if recent.len() > RECENT {
            recent.pop_front();
        }
    }

    /// Reads the programs' table if due. `user`: the user's stream for each stream of the programs.
    pub fn update(&mut self, user: &[StreamId], now: Ns, is_last: bool) {
        if now < self.read + EVERY && !is_last {
            return;
        }
        self.read = now;
        let entries = self.table.lookup_batch(constants::MAX_REMARKS as u32, MapFlags::ANY, MapFlags::ANY);
        let entries = match entries {
            Ok(entries) => entries,
            Err(e) => {
                tracing::debug!("remarks: {e}");
                return;
            }
        };
        let remark = |(key, value): (Vec<u8>, Vec<u8>)| read(user, &from_bytes(&key)?, &from_bytes(&value)?);
        self.known = entries.filter_map(remark).collect();
        self.known.sort_by(|a, b| (a.stream, a.first, &a.device).cmp(&(b.stream, b.first, &b.device)));
        for remark in self.known.iter().filter(|remark| remark.is_change()) {
            let recent = self.recent.entry(remark.stream).or_default();
            let is_it = |(key, t): &(u32, Ns)| *key == remark.key && (remark.last - t).abs() < NEAR;
            if recent.iter().any(is_it) {
                self.confirmed.insert((remark.stream, remark.ifindex, remark.netns));
            }
        }
    }

    /// All remarks, by stream and time.
    pub fn known(&self) -> &[Remark] {
        &self.known
    }

    /// Notes for the user on the remarks, one line each.
    pub fn notes(&self, streams: &[StreamSpec]) -> Vec<SourceNote> {
        let mut notes = Vec::new();
        for (id, spec) in (0..).zip(streams) {
            let own: Vec<&Remark> = self.known.iter().filter(|remark| remark.stream == id).collect();
            let mut add = |kind, text: Option<String>| notes.extend(text.map(|text| SourceNote::new(kind, text)));
            add(SourceNoteKind::SendersMeet, note_of_senders(spec, &own));
            add(SourceNoteKind::Fragments, note_of_fragments(spec, &own));
            let changed = own.into_iter().filter(|r| self.confirmed.contains(&(r.stream, r.ifindex, r.netns)));
            add(SourceNoteKind::Changed, note_of_changes(spec, &changed.filter(|r| r.is_change()).collect::<Vec<_>>()));
        }
        notes
    }
}

impl Remark {
    /// Whether the remark concerns possibly changed packets of the stream.
    fn is_change(&self) -> bool {
        match self.what {
            RemarkKind::Sender(_) | RemarkKind::Fragments => false,
            RemarkKind::OtherVlan(_) | RemarkKind::OtherMac(_) => true,
            RemarkKind::OtherSource(_) | RemarkKind::OtherDestination(_) => true,
        }
    }

    fn place(&self) -> String {
        format!("{}@{}", self.kind, self.device)
    }
}

/// Lists the places of remarks, up to a maximum.
fn places<'a>(remarks: impl Iterator<Item = &'a Remark>) -> String {
    let mut places: Vec<String> = Vec::new();
    for place in remarks.map(Remark::place) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let more = places.len().saturating_sub(NAMED);
    places.truncate(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    places.join(", ") + &more
}

/// Returns a note on senders whose packets meet at a device, and may have equal keys unless the keys are hashes. The
/// joiner separates senders whose packets never meet.
fn note_of_senders(spec: &StreamSpec, remarks: &[&Remark]) -> Option<String> {
    if matches!(spec.key, KeyRule::Hash { .. }) {
        return None;
    }
    let mut senders: BTreeMap<Sender, Vec<&Remark>> = BTreeMap::new();
    let mut at_device: BTreeMap<_, BTreeSet<Sender>> = BTreeMap::new();
    for remark in remarks {
        if let RemarkKind::Sender(sender) = remark.what {
            senders.entry(sender).or_default().push(remark);
            at_device.entry((remark.kind, remark.ifindex, remark.netns)).or_default().insert(sender);
        }
    }
    let meeting = at_device.into_values().max_by_key(BTreeSet::len).filter(|senders| senders.len() > 1)?;
    let of = |sender: &Sender| format!("{sender} ({})", places(senders[sender].iter().copied()));
    let mut each: Vec<String> = meeting.iter().take(NAMED).map(of).collect();
    if meeting.len() > NAMED {
        each.push(format!("{} more", meeting.len() - NAMED));
    }
    Some(format!(
        "{} senders of {spec} meet, {}: their packets with the same {} may be joined into one; --points leaves one sender's points out",
        meeting.len(),
        each.join(", "),
        spec.key.name()
    ))
}

fn note_of_fragments(spec: &StreamSpec, remarks: &[&Remark]) -> Option<String> {
    let fragments = remarks.iter().filter(|remark| remark.what == RemarkKind::Fragments);
    let most = fragments.max_by_key(|remark| remark.count)?;
    Some(format!(
        "{spec}: {} of its packets passed {} in fragments: latpath follows the first fragment of each, and does not know whether the \
         others arrived",
        most.count,
        most.place()
    ))
}

/// Returns a note on packets whose VLAN or address changes on the route, so that they match the stream on only one side
/// of the change.
fn note_of_changes(spec: &StreamSpec, remarks: &[&Remark]) -> Option<String> {
    let first = remarks.first()?;
    let (what, less) = match first.what {
        RemarkKind::OtherVlan(vlan) => {
            let mut less = spec.clone();
            less.link.vlan = None;
            let what = match vlan {
                0 => "without a VLAN tag".into(),
                vlan => format!("in VLAN {vlan}"),
            };
            (what, Some(less))
        }
        RemarkKind::OtherMac(mac) => {
            let mut less = spec.clone();
            less.link.dst = None;
            (format!("to {}", format_mac(&mac)), Some(less))
        }
        RemarkKind::OtherSource(address) => (format!("with another source ({address})"), None),
        RemarkKind::OtherDestination(address) => (format!("to another destination ({address})"), None),
        RemarkKind::Sender(_) | RemarkKind::Fragments => return None,
    };
    let same = remarks.iter().copied().filter(|remark| remark.what == first.what);
    let advice = less.map_or_else(
        || "name the stream by what does not change, or follow both forms as two streams".into(),
        |less| format!("name the stream {less} to follow it there"),
    );
    Some(format!(
        "{spec}: packets with its numbers pass {} {what}: they are not in this stream there, so its route ends or begins before; {advice}",
        places(same)
    ))
}
