//! The points registered by the kernel programs, with names.

use crate::layout::{cached, constants, PerCpu, PointEntry, PointKey, MAX_POINTS, REFUSED_POINT};
use crate::readers::NamedReaders;
use crate::taps::{Device, Taps};
use latpath_bpf::{bytes_of, Mapped};
use latpath_linux::Owner;
use latpath_model::point::Lan;
use latpath_model::text::{of_field, printable};
use latpath_model::{Link, Ns, Passage, Point, PointId, PointInfo, PointKind};
use latpath_net::{interfaces, namespace_names, netns_by_id, owners_of_threads, Interface, Netns};
use libbpf_rs::{Map, MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::AsFd;

/// The kernel's tables of points.
pub(crate) struct PointTable {
    entries: Mapped<PointEntry>,
    index_of: MapHandle,
    free: MapHandle,
    reserved: MapHandle,
    permits: MapHandle,
    /// First index reserved for readers that the user named.
    first_reserved: usize,
    readers: NamedReaders,
}

/// Queues of free indexes: bpf/points.h.
pub(crate) struct IndexQueues<'a> {
    pub free: &'a Map<'a>,
    pub reserved: &'a Map<'a>,
    pub permits: &'a Map<'a>,
    pub first_reserved: usize,
}

impl PointTable {
    /// Maps the table, and frees all its indexes.
    pub fn new(
        points: &Map<'_>,
        index_of: &Map<'_>,
        queues: &IndexQueues<'_>,
        readers: NamedReaders,
    ) -> io::Result<Self> {
        let entries = Mapped::new(&points.as_fd(), MAX_POINTS)?;
        let handle = |map| MapHandle::try_from(map).map_err(io::Error::other);
        let table = Self {
            entries,
            index_of: handle(index_of)?,
            free: handle(queues.free)?,
            reserved: handle(queues.reserved)?,
            permits: handle(queues.permits)?,
            first_reserved: queues.first_reserved,
            readers,
        };
        (0..MAX_POINTS).try_for_each(|index| table.give_back(index)).map_err(io::Error::other)?;
        (0..constants::MAX_OTHER_READERS).try_for_each(|_| table.give_permit()).map_err(io::Error::other)?;
        Ok(table)
    }

    fn give_back(&self, index: usize) -> libbpf_rs::Result<()> {
        let queue = if index < self.first_reserved { &self.free } else { &self.reserved };
        queue.update(&[], &(index as u32).to_ne_bytes(), MapFlags::ANY)
    }

    /// Permits a point for one more reader that the user did not name.
    fn give_permit(&self) -> libbpf_rs::Result<()> {
        self.permits.update(&[], &0u32.to_ne_bytes(), MapFlags::ANY)
    }

    /// Whether the user named this reader.
    fn is_named(&self, key: &PointKey) -> bool {
        self.readers.fits(&key.comm)
    }

    /// Whether this point holds a permit: `needs_permit` of bpf/points.h.
    fn has_permit(&self, key: &PointKey) -> bool {
        PointKind::from_number(key.kind).is_some_and(PointKind::is_named_by_thread) && !self.is_named(key)
    }
}

/// Maximum number of remembered names; further points are not followed.
const MAX_NAMES: usize = 4096;
/// Maximum number of names of reading threads per network namespace; a thread may rename itself at any time.
const MAX_READERS: usize = 16;
/// Time from the release of an index to its reuse, ns: by then no program and no unread record refers to it.
const QUARANTINE: Ns = 2_000_000_000;
/// Maximum number of owners that a note on a reader names.
const NAMED_OWNERS: usize = 4;
/// Number of free indexes below which idle points are released.
const SCARCE: usize = 64;
const IDLE: Ns = 60_000_000_000;

/// MAC address in an entry if no program has set the device's address.
const NO_MAC: [u8; 6] = [0; 6];

/// An index in use.
struct Slot {
    key: PointKey,
    id: Option<PointId>,
    seen: Ns,
    /// Time of the release; the index is returned after the quarantine.
    released: Option<Ns>,
}

/// Identity of a point: it stays the same if the device or thread is created again, or if a VM's tap returns under
/// another name.
#[derive(PartialEq, Eq, Hash)]
struct Identity {
    netns: u32,
    kind: PointKind,
    device: String,
}

/// The points that user space has found, with their IDs.
#[derive(Default)]
pub(crate) struct Points {
    known: Vec<PointInfo>,
    ids: HashMap<Identity, PointId>,
    readers: HashMap<u32, usize>,
    /// Units, containers and pods of the readers.
    owners: Vec<(PointId, Vec<Owner>)>,
    slots: Vec<Option<Slot>>,
    taps: Taps,
    /// Whether a device without a link kind (a NIC) sends packets of a stream.
    pub nic_sends: bool,
    /// Number of points not followed because the maximum number of names, or of readers in a namespace, was reached.
    pub overflow: u64,
    /// Number of sightings at indexes without an entry, which are lost.
    pub unknown: u64,
}

/// The kind of link. `is_tap`: the device is a tap or macvtap of a VM, rather than a tun device of the same link kind,
/// which carries IP packets without Ethernet headers for a VPN.
fn link_of(kind: PointKind, link: &str, is_tap: bool) -> Link {
    match link {
        _ if kind.is_named_by_thread() => Link::Socket,
        "bridge" => Link::Bridge,
        "openvswitch" => Link::OvsInternal,
        "veth" => Link::Veth,
        _ if is_tap => Link::Tap,
        _ => Link::Nic,
    }
}

/// Returns the kind of point as seen by the VM: [`PointKind::VmWrite`] for packets that enter the host through a tap or
/// leave a macvtap, because a VM wrote them.
fn as_vms_see(kind: PointKind, link: &str, is_tap: bool) -> PointKind {
    let info = kind.info();
    let comes_from_vm = match link {
        "tun" => info.passage == Passage::In,
        "macvtap" => info.gives_to_driver,
        _ => false,
    };
    if is_tap && comes_from_vm {
        PointKind::VmWrite
    } else {
        kind
    }
}

/// The LAN of redundant networks that the packets at this point belong to.
fn lan_of(key: &PointKey) -> Option<Lan> {
    match usize::from(key.lan) {
        0 => None,
        lan => Lan::ALL.get(lan - 1).copied(),
    }
}

/// The devices of a namespace; empty if it has ended or cannot be entered.
fn devices_of(netns: u32) -> Vec<Interface> {
    Netns::find(netns).and_then(|netns| interfaces(&netns)).unwrap_or_default()
}

/// Lookups shared by all points of one refresh.
#[derive(Default)]
struct Lookups {
    spaces: Option<HashMap<u32, String>>,
    devices: BTreeMap<u32, Vec<Interface>>,
    /// Inode number of a namespace, by the inode number of another namespace and the ID (nsid) that the latter assigns
    /// to it.
    by_id: HashMap<(u32, i32), u32>,
}

impl Lookups {
    fn devices(&mut self, netns: u32) -> &[Interface] {
        self.devices.entry(netns).or_insert_with(|| devices_of(netns))
    }

    /// Whether a device no longer exists. False if the namespace cannot be read: its list of devices then lacks even
    /// the loopback device.
    fn is_gone(&mut self, netns: u32, ifindex: u32) -> bool {
        let devices = self.devices(netns);
        !devices.is_empty() && !devices.iter().any(|device| device.ifindex == ifindex)
    }

    /// The other end of a veth: its index, and the inode number of its namespace; zeros if unknown.
    fn peer(&mut self, netns: u32, ifindex: u32) -> (u32, u32) {
        let device = self.devices(netns).iter().find(|d| d.ifindex == ifindex);
        let Some((peer, id)) = device.and_then(|d| Some((d.lower?, d.lower_netnsid))) else { return (0, 0) };
        let Some(id) = id else { return (peer, netns) };
        let other = || Netns::find(netns).ok().and_then(|netns| netns_by_id(&netns, id)).unwrap_or(0);
        (peer, *self.by_id.entry((netns, id)).or_insert_with(other))
    }
}

impl Points {
    /// Adds the points registered since the last call. `accept` selects the points to follow.
    pub fn refresh(
        &mut self,
        machine: &str,
        table: &PointTable,
        percpu: &Mapped<PerCpu>,
        now: Ns,
        accept: &dyn Fn(&mut PointInfo) -> bool,
    ) {
        self.slots.resize_with(MAX_POINTS, || None);
        let mut lookups = Lookups::default();
        let free = (0..MAX_POINTS).filter(|index| self.slots[*index].is_none());
        let mut fresh: Vec<(usize, PointEntry)> = free.map(|index| (index, table.entries.get(index))).collect();
        fresh.retain(|(_, entry)| entry.valid != 0);
        // A tap may have been created again several times since the last call, so handle its devices in the order of
        // creation.
        fresh.sort_by_key(|(_, entry)| if entry.mac == NO_MAC { 0 } else { entry.key.ifindex });
        for (index, entry) in fresh {
            let Some(kind) = PointKind::from_number(entry.key.kind) else { continue };
            let is_named = table.is_named(&entry.key);
            let id = self.identify(machine, kind, &entry, is_named, &mut lookups, accept);
            // The device or thread was created again: release the index of the previous one.
            let same = |slot: &Slot| id.is_some() && slot.id == id && slot.released.is_none();
            let before = self.slots.iter().position(|slot| slot.as_ref().is_some_and(same));
            self.slots[index] = Some(Slot { key: entry.key, id, seen: now, released: None });
            if id.is_none() {
                self.release(index, table, percpu, now, true);
            }
            if let Some(before) = before {
                self.release(before, table, percpu, now, false);
            }
        }
    }

    /// The points found so far.
    pub fn known(&self) -> &[PointInfo] {
        &self.known
    }

    /// Raises the error bound of a point's times to at least this one, ns.
    pub fn widen(&mut self, point: PointId, bound: Ns) {
        if let Some(info) = self.known.get_mut(usize::from(point)) {
            info.error_bound_ns = info.error_bound_ns.max(bound);
        }
    }

    /// Returns the ID of a point: that of the known point with this identity, if any; `None` if the point is not
    /// followed. `is_named`: the user named this reader, so it does not count towards `MAX_READERS`.
    fn identify(
        &mut self,
        machine: &str,
        kind: PointKind,
        entry: &PointEntry,
        is_named: bool,
        lookups: &mut Lookups,
        accept: &dyn Fn(&mut PointInfo) -> bool,
    ) -> Option<PointId> {
        let link = of_field(&entry.link);
        let is_tap = matches!(link.as_ref(), "tun" | "macvtap") && entry.no_link == 0;
        let kind = as_vms_see(kind, &link, is_tap);
        let device = of_field(if kind.is_named_by_thread() { &entry.key.comm } else { &entry.device });
        // The creator of a thread or device chooses its name, which may contain control characters.
        let mut device = if device.is_empty() { "-".into() } else { printable(&device) };
        if is_tap {
            device = self.name_of_tap(device, entry, lookups);
        }
        if let Some(lan) = lan_of(&entry.key) {
            device += &format!(":{}", lan.name());
        }
        let netns = entry.netns;
        let identity = Identity { netns, kind, device: device.clone() };
        self.nic_sends |= kind.info().gives_to_driver && link.is_empty();
        if let Some(id) = self.ids.get(&identity) {
            return Some(*id);
        }
        let mut point = Point { machine: machine.into(), kind, device };
        if self.known.iter().any(|k| k.point == point) {
            // The same name exists in another namespace: append the name of this namespace.
            let spaces = lookups.spaces.get_or_insert_with(namespace_names);
            let space = spaces.get(&netns).filter(|n| !n.is_empty());
            point.device += &space.map_or_else(|| format!("%{netns}"), |space| format!("%{space}"));
        }
        let (peer, peer_netns) = match link.as_ref() {
            "veth" => lookups.peer(netns, entry.key.ifindex),
            _ => (0, 0),
        };
        let mut info = PointInfo {
            point,
            link: link_of(kind, &link, is_tap),
            netns,
            ifindex: entry.key.ifindex,
            peer,
            peer_netns,
            error_bound_ns: 0,
            clock: "CLOCK_MONOTONIC".into(),
        };
        if !accept(&mut info) {
            return None;
        }
        let readers = self.readers.entry(netns).or_default();
        let is_other_reader = kind.is_named_by_thread() && !is_named;
        if self.ids.len() >= MAX_NAMES || (is_other_reader && *readers == MAX_READERS) {
            self.overflow += 1;
            return None;
        }
        *readers += usize::from(is_other_reader);
        let id = self.known.len() as PointId;
        if kind.is_named_by_thread() {
            let is_named = |owner: &Owner| !matches!(owner, Owner::Group(_));
            let owners = owners_of_threads(netns, &of_field(&entry.key.comm)).into_iter().filter(is_named);
            self.owners.push((id, owners.collect()));
        }
        self.known.push(info);
        self.ids.insert(identity, id);
        Some(id)
    }

    /// Returns the name of a tap in points. If its device replaces another one, the points move to the new device.
    fn name_of_tap(&mut self, name: String, entry: &PointEntry, lookups: &mut Lookups) -> String {
        let mac = Some(entry.mac).filter(|mac| *mac != NO_MAC);
        let (netns, ifindex) = (entry.netns, entry.key.ifindex);
        let device = Device { netns, ifindex, name, mac };
        let (name, former) = self.taps.find(&device, |former| lookups.is_gone(netns, former));
        if let Some(former) = former {
            let at_former = |info: &&mut PointInfo| (info.link, info.netns, info.ifindex) == (Link::Tap, netns, former);
            self.known.iter_mut().filter(at_former).for_each(|info| info.ifindex = ifindex);
        }
        name
    }

    /// Notes on taps that returned under other names.
    pub fn notes_of_taps(&self) -> Vec<String> {
        self.taps.notes(&self.known)
    }

    /// Notes on the units, containers and pods that the readers belong to.
    pub fn notes_of_readers(&self) -> Vec<String> {
        let note = |(id, owners): &(PointId, Vec<Owner>)| {
            let labels: Vec<String> = owners.iter().take(NAMED_OWNERS).map(Owner::label).collect();
            let last = labels.split_last().map(|(last, others)| match others {
                [] => format!("belongs to {last}"),
                others => format!("has the name of threads of {} and {last}", others.join(", ")),
            })?;
            Some(format!("{}: the reader {last}", self.known[usize::from(*id)].point))
        };
        self.owners.iter().filter_map(note).collect()
    }

    /// The point of a remark, if it is followed.
    pub fn of_device(&self, kind: PointKind, ifindex: u32, netns: u32) -> Option<PointId> {
        let is_kind = |known: PointKind| known == kind || known.info().passage == Passage::FromVm;
        let is_it = |info: &PointInfo| info.netns == netns && info.ifindex == ifindex && is_kind(info.point.kind);
        self.known.iter().position(is_it).map(|id| id as PointId)
    }

    /// Returns the ID of the kernel's point `index`, which has a sighting at `t`. `None` if the point is not followed;
    /// `Err` if it is unknown.
    pub fn id(&mut self, index: usize, t: Ns) -> Result<Option<PointId>, ()> {
        let slot = self.slots.get_mut(index).and_then(Option::as_mut).ok_or(())?;
        slot.seen = slot.seen.max(t);
        Ok(slot.id)
    }

    /// Releases the index of a point. With `refuse`, the programs remember that the point is not followed.
    fn release(&mut self, index: usize, table: &PointTable, percpu: &Mapped<PerCpu>, now: Ns, refuse: bool) {
        let Some(slot) = &self.slots[index] else { return };
        let key = bytes_of(&slot.key);
        let done = match refuse {
            true => table.index_of.update(key, &(REFUSED_POINT as u32).to_ne_bytes(), MapFlags::ANY),
            // The programs may have evicted the entry and assigned another index to the same point, whose entry is
            // kept.
            false if self.slots.iter().flatten().filter(|other| bytes_of(&other.key) == key).count() > 1 => Ok(()),
            false => table.index_of.delete(key),
        };
        if let Err(e) = done {
            tracing::debug!("point {index}: {e}");
        }
        forget(percpu, index);
        table.entries.set_field(index, offset_of!(PointEntry, valid), 0u32);
        self.slots[index].iter_mut().for_each(|slot| slot.released = Some(now));
    }

    /// Releases idle points if free indexes are scarce, and returns released indexes after the quarantine.
    pub fn tidy(&mut self, table: &PointTable, percpu: &Mapped<PerCpu>, now: Ns) {
        let is_over = |slot: &Slot| slot.released.is_some_and(|since| now - since > QUARANTINE);
        for index in 0..self.slots.len() {
            if let Some(slot) = self.slots[index].take_if(|slot| is_over(slot)) {
                let permit = || if table.has_permit(&slot.key) { table.give_permit() } else { Ok(()) };
                if let Err(e) = table.give_back(index).and_then(|()| permit()) {
                    tracing::debug!("point {index}: {e}");
                }
            }
        }
        if self.slots.iter().flatten().count() + SCARCE <= MAX_POINTS {
            return;
        }
        let is_idle = |slot: &Slot| slot.released.is_none() && now - slot.seen > IDLE;
        let idle = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(i, slot)| slot.as_ref().filter(|s| is_idle(s)).map(|s| (s.seen, i)));
        let mut used: Vec<(Ns, usize)> = idle.collect();
        used.sort_unstable();
        used.truncate(SCARCE);
        used.into_iter().for_each(|(_, index)| self.release(index, table, percpu, now, false));
    }
}

/// Removes an index from the caches of all CPUs.
fn forget(percpu: &Mapped<PerCpu>, index: usize) {
    let places = PointKind::ALL.len() * constants::CACHE;
    for cpu in 0..percpu.len() {
        for place in 0..places {
            let at = offset_of!(PerCpu, known) + place * size_of::<cached>();
            let device: u64 = percpu.field(cpu, at + offset_of!(cached, device));
            let with_point: u64 = percpu.field(cpu, at + offset_of!(cached, with_point));
            if (with_point ^ device) == (index as u64) << 56 {
                percpu.set_field(cpu, at + offset_of!(cached, with_point), 0u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_whose_a_reader_is() {
        let info = |name: &str| PointInfo::from(name.parse::<Point>().unwrap());
        let known = ["host/app-read@relay", "host/app-read@mine", "host/app-read@web"].map(info).into();
        let unit = |name: &str| Owner::Unit(name.into());
        let two = vec![unit("a.service"), unit("b.service")];
        let owners = vec![(0, vec![unit("relay.service")]), (1, vec![]), (2, two)];
        let expected = [
            "host/app-read@relay: the reader belongs to unit relay.service",
            "host/app-read@web: the reader has the name of threads of unit a.service and unit b.service",
        ];
        assert_eq!(Points { known, owners, ..Points::default() }.notes_of_readers(), expected);
    }
}
