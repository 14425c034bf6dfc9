//! VMs' taps that disappear and return. libvirt gives a VM's tap a new name at each start of the VM (`vnet8` after
//! `vnet7`), but always the same MAC address: that of the guest's NIC, with `fe` as its first byte. A tap whose MAC
//! address was not set by a program is identified by its name.

use latpath_model::stream::format_mac;
use latpath_model::{Link, PointInfo};

/// Maximum number of remembered taps; further ones are identified by the names of their devices.
const MAX_TAPS: usize = 4096;
/// Maximum number of taps in notes.
const NAMED: usize = 8;

/// A tap's device, as the programs find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// Inode number of its network namespace.
    pub netns: u32,
    pub ifindex: u32,
    pub name: String,
    /// The MAC address that a program has set; `None` for a random one.
    pub mac: Option<[u8; 6]>,
}

impl Device {
    fn has_mac_of(&self, other: &Self) -> bool {
        self.mac.is_some() && self.mac == other.mac
    }

    /// Whether the two are the same device, of which either the name or the MAC address may have changed since.
    fn is(&self, other: &Self) -> bool {
        self.ifindex == other.ifindex && (self.name == other.name || self.has_mac_of(other))
    }
}

/// A tap, which may have had several devices one after another.
struct Tap {
    /// Its name in points: that of its first device.
    name: String,
    /// Its latest device.
    device: Device,
    /// Number of times that it returned under another name.
    returns: u64,
}

/// The taps seen so far, the one with the newest device last.
#[derive(Default)]
pub(crate) struct Taps(Vec<Tap>);

impl Taps {
    /// Returns the name of a device's tap, and the index of the former device if this one replaces it. A tap whose
    /// device still exists is never given to another device. `is_gone`: whether the device with this index no longer
    /// exists in the namespace.
    pub fn find(&mut self, device: &Device, mut is_gone: impl FnMut(u32) -> bool) -> (String, Option<u32>) {
        let here = |tap: &Tap| tap.device.netns == device.netns;
        if let Some(tap) = self.0.iter_mut().find(|tap| here(tap) && tap.device.is(device)) {
            tap.device = device.clone();
            return (tap.name.clone(), None);
        }
        let is_same = |tap: &Tap| here(tap) && tap.device.has_mac_of(device);
        // The device ended before its first packet was read, and a packet of its successor was read first: successors
        // have higher indexes.
        let later = self.0.iter().rposition(|tap| is_same(tap) && tap.device.ifindex > device.ifindex);
        if let Some(later) = later.filter(|_| is_gone(device.ifindex)) {
            return (self.0[later].name.clone(), None);
        }
        let returned = self.0.iter().rposition(|tap| is_same(tap) && is_gone(tap.device.ifindex));
        let namesake = self.0.iter().position(|tap| here(tap) && tap.name == device.name);
        // Two devices of a namespace cannot have the same name at the same time, so the former device of this name is
        // gone.
        let mut is_free = |tap: &Tap| tap.device.name == device.name || is_gone(tap.device.ifindex);
        let mut name = device.name.clone();
        let continued = match (returned, namesake) {
            (Some(returned), _) => Some(returned),
            (None, Some(namesake)) if is_free(&self.0[namesake]) => Some(namesake),
            (None, Some(_)) => {
                name += &format!("%{}", device.ifindex);
                None
            }
            (None, None) => None,
        };
        let Some(at) = continued else {
            if self.0.len() < MAX_TAPS {
                self.0.push(Tap { name: name.clone(), device: device.clone(), returns: 0 });
            }
            return (name, None);
        };
        let mut tap = self.0.remove(at);
        let former = std::mem::replace(&mut tap.device, device.clone());
        tap.returns += u64::from(former.name != device.name);
        let name = tap.name.clone();
        self.0.push(tap);
        (name, Some(former.ifindex))
    }

    /// Notes on taps of these points that returned under other names.
    pub fn notes(&self, points: &[PointInfo]) -> Vec<String> {
        let note = |tap: &Tap| {
            let Device { netns, ifindex, name, mac } = &tap.device;
            let at = |info: &&PointInfo| (info.link, info.netns, info.ifindex) == (Link::Tap, *netns, *ifindex);
            let mut points = points.iter().filter(at);
            let point = points.clone().find(|info| info.point.copies().is_none()).or(points.next())?;
            let (known, mac) = (&point.point.device, format_mac(&(*mac)?));
            let what = match tap.returns {
                0 => return None,
                1 => format!("the tap {name} continues {known} (same MAC address {mac})"),
                n => format!("taps with the MAC address of {known} ({mac}) continued it {n} times, lastly {name}"),
            };
            Some(format!(
                "{what}: its guest has restarted or was migrated; packets that came while it had no tap are counted as \
                 lost"
            ))
        };
        let mut notes: Vec<String> = self.0.iter().rev().filter_map(note).collect();
        if notes.len() > NAMED {
            let more = notes.split_off(NAMED).len();
            notes.push(format!("further taps that others with the same MAC addresses continued: {more}"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_model::Point;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, HashMap};

    const NETNS: u32 = 7;

    fn mac(n: u8) -> Option<[u8; 6]> {
        Some([0xfe, 0x54, 0, 0x12, 0x34, n])
    }

    fn device(ifindex: u32, name: &str, mac: Option<[u8; 6]>) -> Device {
        Device { netns: NETNS, ifindex, name: name.into(), mac }
    }

    fn points(device: &str, ifindex: u32) -> [PointInfo; 1] {
        let point: Point = format!("host/tx@{device}").parse().unwrap();
        [PointInfo { link: Link::Tap, netns: NETNS, ifindex, ..point.into() }]
    }

    #[test]
    fn a_tap_that_returns_under_another_name_keeps_its_name_in_points() {
        let mut taps = Taps::default();
        assert_eq!(taps.find(&device(10, "vnet7", mac(1)), |_| unreachable!()), ("vnet7".into(), None));
        let second = device(11, "vnet8", mac(1));
        assert_eq!(taps.find(&second, |former| former == 10), ("vnet7".into(), Some(10)));
        assert_eq!(taps.find(&second, |_| unreachable!()), ("vnet7".into(), None), "the next point of the device");
        let rest =
            ": its guest has restarted or was migrated; packets that came while it had no tap are counted as lost";
        let notes = taps.notes(&points("vnet7%lab", 11));
        assert_eq!(notes, [format!("the tap vnet8 continues vnet7%lab (same MAC address fe:54:00:12:34:01){rest}")]);
        for n in 12..111 {
            let again = device(n, &format!("vnet{}", n - 3), mac(1));
            assert_eq!(taps.find(&again, |former| former == n - 1), ("vnet7".into(), Some(n - 1)));
        }
        let notes = taps.notes(&points("vnet7", 110));
        let many = "taps with the MAC address of vnet7 (fe:54:00:12:34:01) continued it 100 times, lastly vnet107";
        assert_eq!(notes, [format!("{many}{rest}")]);
        assert_eq!(taps.0.len(), 1);
        assert!(taps.notes(&points("vnet7", 10)).is_empty(), "no point of it is followed");
    }

    #[test]
    fn a_tap_beside_one_with_the_same_address_is_another_until_that_is_gone() {
        let mut taps = Taps::default();
        taps.find(&device(10, "vnet7", mac(1)), |_| false);
        assert_eq!(taps.find(&device(11, "vnet8", mac(1)), |_| false), ("vnet8".into(), None));
        let third = device(12, "vnet9", mac(1));
        assert_eq!(taps.find(&third, |former| former == 10), ("vnet7".into(), Some(10)));
        let elsewhere = Device { netns: NETNS + 1, ..device(13, "vnet10", mac(1)) };
        assert_eq!(taps.find(&elsewhere, |_| true), ("vnet10".into(), None));
    }

    #[test]
    fn a_device_that_ended_before_it_was_known_is_its_tap_too() {
        let mut taps = Taps::default();
        taps.find(&device(10, "vnet7", mac(1)), |_| false);
        taps.find(&device(12, "vnet9", mac(1)), |former| former != 12);
        assert_eq!(taps.find(&device(11, "vnet8", mac(1)), |former| former != 12), ("vnet7".into(), None));
        assert_eq!(taps.find(&device(12, "vnet9", mac(1)), |_| false), ("vnet7".into(), None));
        assert_eq!(taps.find(&device(13, "vnet10", mac(1)), |former| former != 13), ("vnet7".into(), Some(12)));
    }

    #[test]
    fn a_tap_without_an_address_of_its_own_is_known_by_its_name() {
        let mut taps = Taps::default();
        taps.find(&device(10, "vm0", None), |_| false);
        assert_eq!(taps.find(&device(11, "vm1", None), |_| true), ("vm1".into(), None));
        assert_eq!(taps.find(&device(12, "vm0", None), |_| unreachable!()), ("vm0".into(), Some(10)));
        assert!(taps.notes(&points("vm0", 12)).is_empty());
    }

    /// Old versions of libvirt give a new tap the lowest free number.
    #[test]
    fn the_address_decides_where_two_taps_exchange_their_names() {
        let mut taps = Taps::default();
        taps.find(&device(10, "vnet0", mac(1)), |_| false);
        taps.find(&device(11, "vnet1", mac(2)), |_| false);
        assert_eq!(taps.find(&device(12, "vnet0", mac(2)), |_| true), ("vnet1".into(), Some(11)));
        assert_eq!(taps.find(&device(13, "vnet1", mac(1)), |former| former == 10), ("vnet0".into(), Some(10)));
        // A third VM's tap gets the device name by which points know the tap of another VM, which is still running.
        taps.find(&device(14, "vnet5", mac(2)), |former| former == 12);
        assert_eq!(taps.find(&device(15, "vnet1", mac(3)), |former| former == 13), ("vnet1%15".into(), None));
    }

    #[test]
    fn notes_are_bounded() {
        let mut taps = Taps::default();
        let mut all = Vec::new();
        for n in 0..20 {
            taps.find(&device(100 + n, &format!("vnet{n}"), mac(n as u8)), |_| false);
            taps.find(&device(200 + n, &format!("vnet{}", 20 + n), mac(n as u8)), |_| true);
            all.extend(points(&format!("vnet{n}"), 200 + n));
        }
        let notes = taps.notes(&all);
        assert_eq!(notes.len(), NAMED + 1);
        assert_eq!(notes[NAMED], "further taps that others with the same MAC addresses continued: 12");
    }

    #[test]
    fn endless_taps_do_not_fill_the_memory() {
        let mut taps = Taps::default();
        for n in 0..MAX_TAPS as u32 + 10 {
            assert_eq!(taps.find(&device(n, &format!("t{n}"), None), |_| false).0, format!("t{n}"));
        }
        assert_eq!(taps.0.len(), MAX_TAPS);
    }

    /// An event of a VM, which has one NIC.
    #[derive(Clone, Debug)]
    enum Step {
        /// The VM starts, and its tap gets the next name or the lowest free one; with `beside` even while its old
        /// instance still exists.
        Start {
            vm: u8,
            lowest_name: bool,
            beside: bool,
        },
        Stop(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let start = (0..6_u8, any::<bool>(), prop::bool::weighted(0.1));
        prop_oneof![
            start.prop_map(|(vm, lowest_name, beside)| Step::Start { vm, lowest_name, beside }),
            (0..6_u8).prop_map(Step::Stop),
        ]
    }

    proptest! {
        /// Devices that exist at the same time have different names in points. A VM that never runs twice at the same
        /// time, and whose device names are never reused, keeps one name. VM 0 has random addresses.
        #[test]
        fn taps_that_exist_are_never_taken_for_each_other(steps in prop::collection::vec(step(), 0..80)) {
            let mut taps = Taps::default();
            let mut devices: BTreeMap<u32, (u8, String)> = BTreeMap::new();
            let mut names_of_points: HashMap<u32, String> = HashMap::new();
            let mut own_names: HashMap<u8, Vec<String>> = HashMap::new();
            let mut next = 10;
            let is_special = |step: &Step| matches!(step, Step::Start { lowest_name, beside, .. } if *lowest_name || *beside);
            let is_plain = !steps.iter().any(is_special);
            for step in steps {
                match step {
                    Step::Stop(vm) => devices.retain(|_, (other, _)| *other != vm),
                    Step::Start { vm, beside, .. } if !beside && devices.values().any(|(other, _)| *other == vm) => {}
                    Step::Start { vm, lowest_name, .. } => {
                        next += 1;
                        let is_free = |n: &u32| devices.values().all(|(_, name)| *name != format!("vnet{n}"));
                        let number = if lowest_name { (0..).find(is_free).unwrap() } else { next };
                        let found = device(next, &format!("vnet{number}"), mac(vm).filter(|_| vm > 0));
                        let (name, former) = taps.find(&found, |former| !devices.contains_key(&former));
                        prop_assert!(former.is_none_or(|former| !devices.contains_key(&former)));
                        devices.insert(next, (vm, found.name.clone()));
                        names_of_points.insert(next, name.clone());
                        own_names.entry(vm).or_default().push(name.clone());
                        prop_assert_eq!(taps.find(&found, |_| true), (name, None));
                    }
                }
                let mut alive: Vec<&String> = devices.keys().map(|ifindex| &names_of_points[ifindex]).collect();
                alive.sort();
                prop_assert!(alive.windows(2).all(|two| two[0] != two[1]), "{alive:?}");
            }
            for (vm, mut names) in own_names.into_iter().filter(|(vm, _)| is_plain && *vm > 0) {
                names.dedup();
                prop_assert_eq!(names.len(), 1, "VM {}: {:?}", vm, names);
            }
        }
    }
}
