//! Settings of network devices, each read in the device's network namespace.

use super::{interrupts, PlacedValue, Source};
use crate::address::Address;
use crate::ethtool;
use crate::identity::DeviceIdentity;
use crate::network;
use crate::nic::{Nic, Refusal, Written};
use crate::setting::{Read, Setting};
use latpath_linux::proc::Root;
use latpath_linux::sysfs_of_own_netns;
use latpath_model::{PointInfo, HOST};
use latpath_net::{qdiscs, Inode, Netns, INGRESS, ROOT};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Maximum number of network devices per namespace whose settings are read.
const MAX: usize = 128;
/// Maximum number of devices of a namespace that are examined in the search for one.
const MAX_DEVICES: usize = 1 << 16;
/// Maximum number of queues read per device and direction.
const MAX_QUEUES: usize = 256;

/// A network device to read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// The inode number of its network namespace; 0 for the caller's.
    pub netns: Inode,
    /// Suffix that distinguishes it from other devices of the same name: `%lab`.
    pub suffix: String,
}

impl Device {
    /// The host's devices at which packets were observed.
    pub fn of_points(points: &[PointInfo]) -> Vec<Self> {
        let here = points.iter().filter(|info| info.point.machine == HOST && info.ifindex != 0);
        let one = |info: &PointInfo| {
            let name = info.point.device_name();
            let suffix = info.point.device.strip_prefix(name).unwrap_or_default();
            Self { name: name.into(), netns: info.netns, suffix: suffix.into() }
        };
        let mut all: Vec<Self> = here.map(one).collect();
        all.sort();
        all.dedup();
        all
    }
}

/// Settings, and notes on settings that could not be read.
type Values = (BTreeMap<Setting, Vec<PlacedValue>>, Vec<String>);

/// Reads the settings of these devices, of the virtual machines' devices, and of this namespace's hardware and bridges.
pub(super) fn read(
    source: &Source,
    devices: &[Device],
    found: &mut BTreeMap<Setting, Vec<PlacedValue>>,
    notes: &mut Vec<String>,
) {
    let own = if source.is_live { Netns::own().map_or(0, |own| own.inode()) } else { 0 };
    let mut all: BTreeMap<Inode, BTreeMap<String, String>> = BTreeMap::from([(own, BTreeMap::new())]);
    let taps = source.vms.iter().flat_map(|vm| &vm.taps);
    let taps = taps.map(|tap| (tap.netns.unwrap_or(own), tap.device.clone(), String::new()));
    let named = devices.iter().map(|device| (device.netns, device.name.clone(), device.suffix.clone()));
    for (netns, name, suffix) in taps.chain(named) {
        let netns = if netns == 0 || !source.is_live { own } else { netns };
        // A tap of a VM may also be the device of a point: use the point's suffix in both cases.
        let known = all.entry(netns).or_default().entry(name).or_default();
        if known.is_empty() {
            *known = suffix;
        }
    }
    for (netns, devices) in all {
        match within(source, netns, true, |namespace| namespace.read(devices, netns == own)) {
            Ok(Some((of_devices, new_notes))) => {
                notes.extend(new_notes);
                of_devices.into_iter().for_each(|(setting, values)| found.entry(setting).or_default().extend(values));
            }
            Ok(None) => notes.push(format!("devices of network namespace {netns}: only root reads their settings")),
            Err(error) => notes.push(format!("settings of devices: {error}")),
        }
    }
}

/// Calls a function with a network namespace (0 is the caller's own), on a thread that has entered it. Returns `None`
/// if it is another namespace and its /sys cannot be mounted.
fn within<T: Send>(
    source: &Source,
    netns: Inode,
    with_qdiscs: bool,
    call: impl FnOnce(Namespace) -> T + Send,
) -> Result<Option<T>, latpath_net::Error> {
    let root = &source.root;
    if !source.is_live {
        let sysfs = Root::of(&root.path("sys"));
        return Ok(Some(call(Namespace { root, netns, sysfs, live: None })));
    }
    let own = Netns::own()?.inode();
    let netns = if netns == 0 { own } else { netns };
    let entered = Netns::find(netns)?;
    let kinds = if with_qdiscs { qdisc_kinds(&entered) } else { HashMap::new() };
    let live = Live { netns: entered.clone(), kinds };
    entered.inside(|| {
        let mounted = sysfs_of_own_netns();
        // Without permission to mount, use the existing /sys for latpath's own namespace: it usually shows that one.
        let sysfs = match &mounted {
            Ok(sysfs) => Some(PathBuf::from(format!("/proc/self/fd/{}", sysfs.as_raw_fd()))),
            Err(_) => (netns == own).then(|| root.path("sys")),
        };
        sysfs.map(|sysfs| call(Namespace { root, netns, sysfs: Root::of(&sysfs), live: Some(live) }))
    })
}

/// One setting of a device; if it is a setting of queues, the value for each queue.
pub(crate) fn of_device(
    source: &Source,
    setting: Setting,
    netns: Inode,
    name: &str,
) -> Result<Vec<PlacedValue>, latpath_net::Error> {
    let is_qdisc = matches!(setting.info().read, Read::Qdisc);
    let found = within(source, netns, is_qdisc, |namespace| {
        let is_asleep = namespace.is_asleep(name);
        let nic = namespace.nic(name);
        let awake = nic.as_ref().filter(|_| !is_asleep);
        let features = match setting.info().read {
            Read::Feature(_) => awake.map(ethtool::features).unwrap_or_default(),
            _ => BTreeMap::new(),
        };
        namespace.setting(setting, (name, name), (nic.as_ref(), &features, is_asleep))
    })?;
    Ok(found.unwrap_or_default())
}

/// The identity of a device; `None` if it does not exist.
pub(crate) fn identity(source: &Source, netns: Inode, name: &str) -> Option<DeviceIdentity> {
    within(source, netns, false, |namespace| namespace.identity(name)).ok().flatten().flatten()
}

/// The current name and namespace of a device: looked up by its old name and namespace, else in all namespaces. A
/// software device is recognised by its name and index, which it keeps when moved to a namespace created for it.
pub(crate) fn locate(source: &Source, device: &DeviceIdentity, name: &str, netns: Inode) -> Option<(String, Inode)> {
    let is_it = |found: &DeviceIdentity| match &device.path {
        Some(path) => found.path.as_ref() == Some(path),
        None => found.path.is_none() && found.ifindex == device.ifindex,
    };
    if identity(source, netns, name).as_ref().is_some_and(is_it) {
        return Some((name.to_owned(), netns));
    }
    let all: Vec<Inode> = if source.is_live { Netns::all().into_keys().collect() } else { vec![0] };
    all.into_iter().find_map(|netns| {
        let found = within(source, netns, false, |namespace| {
            let names = namespace.sysfs.names("class/net", MAX_DEVICES);
            let may_be = |found: &String| device.path.is_some() || found == name;
            names.into_iter().find(|name| may_be(name) && namespace.identity(name).as_ref().is_some_and(is_it))
        });
        Some((found.ok().flatten().flatten()?, netns))
    })
}

/// Changes a setting of a device by a request to the device.
pub(crate) fn request(
    source: &Source,
    netns: Inode,
    name: &str,
    request: impl FnOnce(&Nic) -> Written + Send,
) -> Written {
    let made = within(source, netns, false, |namespace| match namespace.nic(name) {
        Some(nic) => request(&nic),
        None => Err(Refusal::Failed(format!("{name}: no device can have this name"))),
    });
    let unreachable = || Refusal::Failed(format!("{name}: its /sys cannot be mounted without root"));
    made.map_err(|e| Refusal::Failed(e.to_string()))?.unwrap_or_else(|| Err(unreachable()))
}

/// The IRQ numbers of a device.
pub(crate) fn interrupts_of(source: &Source, netns: Inode, name: &str) -> Vec<u32> {
    let found = within(source, netns, false, |namespace| interrupts::of_device(namespace.root, &namespace.sysfs, name));
    found.ok().flatten().unwrap_or_default()
}

/// The kinds of queueing disciplines by device index, the root's first; each kind is listed once per device.
pub(crate) fn qdisc_kinds(netns: &Netns) -> HashMap<u32, Vec<String>> {
    let mut kinds: HashMap<u32, Vec<String>> = HashMap::new();
    let mut all = qdiscs(netns).unwrap_or_default();
    all.retain(|qdisc| qdisc.parent != INGRESS);
    all.sort_by_key(|qdisc| qdisc.parent != ROOT);
    for qdisc in all {
        let known = kinds.entry(qdisc.ifindex).or_default();
        if !known.contains(&qdisc.kind) {
            known.push(qdisc.kind);
        }
    }
    kinds
}

/// A network namespace, as seen by a thread that has entered it.
struct Namespace<'a> {
    root: &'a Root,
    netns: Inode,
    /// Its own /sys.
    sysfs: Root,
    /// `None` for a machine that is a directory tree.
    live: Option<Live>,
}

/// Values that only a running kernel reports.
struct Live {
    netns: Netns,
    /// Kinds of queueing disciplines by device index.
    kinds: HashMap<u32, Vec<String>>,
}

impl Namespace<'_> {
    /// Reads the settings of these devices (name and suffix) and of the devices that belong to them.
    fn read(&self, devices: BTreeMap<String, String>, is_own: bool) -> Values {
        let (mut found, mut notes): Values = Default::default();
        let mut waiting: Vec<(String, String, bool)> =
            devices.into_iter().map(|(name, suffix)| (name, suffix, true)).collect();
        if is_own {
            let mut names = self.sysfs.names("class/net", usize::from(u16::MAX));
            names.sort();
            names.retain(|name| self.is_hardware_or_bridge(name));
            waiting.extend(names.into_iter().map(|name| (name, String::new(), false)));
        }
        waiting.reverse();
        let mut known = BTreeSet::new();
        while let Some((name, suffix, follow)) = waiting.pop() {
            if !self.has(&name, "ifindex") || !known.insert(name.clone()) {
                continue;
            }
            if known.len() > MAX {
                notes.push(format!("only {MAX} network devices of a namespace have their settings read"));
                break;
            }
            self.device(&name, &format!("{name}{suffix}"), &mut found, &mut notes);
            let mut also = |name: Option<String>| waiting.extend(name.map(|name| (name, suffix.clone(), false)));
            also(self.master(&name));
            if follow && !self.has(&name, "bridge") {
                let below = self.sysfs.names(&format!("class/net/{name}"), 256).into_iter();
                below.filter_map(|link| link.strip_prefix("lower_").map(str::to_owned)).for_each(|one| also(Some(one)));
            }
        }
        (found, notes)
    }

    fn identity(&self, name: &str) -> Option<DeviceIdentity> {
        let ifindex = self.line(name, "ifindex")?.parse().ok()?;
        let last = |link: String| link.rsplit('/').next().map(str::to_owned);
        let driver = self.sysfs.link(&format!("class/net/{name}/device/driver")).ok().and_then(last);
        // E.g. `../../devices/pci0000:00/0000:00:03.0/net/eth0`. The path after `../` is the same in every namespace's
        // /sys.
        let link = self.sysfs.link(&format!("class/net/{name}")).unwrap_or_default();
        let path = link.trim_start_matches("../").strip_suffix(name).and_then(|path| path.strip_suffix("/net/"));
        let path = path.filter(|path| *path != "devices/virtual").map(str::to_owned);
        Some(DeviceIdentity { path, driver, ifindex })
    }

    fn has(&self, device: &str, file: &str) -> bool {
        self.sysfs.path(&format!("class/net/{device}/{file}")).exists()
    }

    fn is_hardware_or_bridge(&self, device: &str) -> bool {
        ["device", "bridge", "bonding"].iter().any(|file| self.has(device, file))
    }

    fn line(&self, device: &str, file: &str) -> Option<String> {
        let text = self.sysfs.text(&format!("class/net/{device}/{file}"))?;
        Some(text.trim().to_owned()).filter(|line| !line.is_empty())
    }

    fn master(&self, device: &str) -> Option<String> {
        let link = self.sysfs.link(&format!("class/net/{device}/master")).ok()?;
        link.rsplit('/').next().map(str::to_owned)
    }

    /// The device, in a form that answers requests.
    fn nic(&self, name: &str) -> Option<Nic> {
        match &self.live {
            Some(live) => Nic::of_kernel(name, &live.netns, &self.sysfs).ok(),
            None => Some(Nic::of_folder(name, self.root)),
        }
    }

    fn is_asleep(&self, name: &str) -> bool {
        self.line(name, "device/power/runtime_status").is_some_and(|status| status == "suspended")
    }

    fn device(
        &self,
        name: &str,
        label: &str,
        found: &mut BTreeMap<Setting, Vec<PlacedValue>>,
        notes: &mut Vec<String>,
    ) {
        let is_asleep = self.is_asleep(name);
        if is_asleep {
            notes.push(format!(
                "{label} is suspended: settings that only the device knows are not read, since the request would wake it"
            ));
        }
        let nic = self.nic(name);
        let awake = nic.as_ref().filter(|_| !is_asleep);
        let features = awake.map(ethtool::features).unwrap_or_default();
        for setting in Setting::ALL.iter().copied().filter(|setting| setting.is_of_device()) {
            let values = self.setting(setting, (name, label), (nic.as_ref(), &features, is_asleep));
            found.entry(setting).or_default().extend(values);
        }
        interrupts::read(self.root, &self.sysfs, (name, label), found);
    }

    /// The values of one setting of a device.
    fn setting(
        &self,
        setting: Setting,
        (name, label): (&str, &str),
        (nic, features, is_asleep): (Option<&Nic>, &BTreeMap<String, bool>, bool),
    ) -> Vec<PlacedValue> {
        let one = |value: Option<String>| -> Vec<PlacedValue> {
            let at = (label != name).then(|| name.to_owned());
            let address = Address::Device { name: name.into(), netns: self.netns };
            value.into_iter().map(|value| PlacedValue::named(label, at.clone(), address.clone(), value)).collect()
        };
        match setting.info().read {
            Read::Device("speed") if is_asleep => Vec::new(),
            Read::Device(file) => one(self.line(name, file)),
            Read::DeviceLink(_) => one(Some(self.master(name).unwrap_or_else(|| "none".into()))),
            Read::Queue(queue, file) => self.queues(name, label, (queue, file)),
            Read::Feature(feature) => one(features.get(feature).map(|on| if *on { "on" } else { "off" }.into())),
            Read::Ethtool(_, ask) => one(nic.filter(|_| !is_asleep).and_then(ask)),
            Read::Request(_, ask) => one(nic.and_then(ask)),
            Read::DeviceSysctl(sysctl) => one(nic.and_then(|nic| network::sysctl(nic, sysctl))),
            Read::Qdisc => match self.live {
                Some(_) => one(self.qdiscs(name)),
                None => one(nic.and_then(network::qdisc)),
            },
            _ => Vec::new(),
        }
    }

    /// The values of a file in each queue's directory. A mask's leading zeros depend on the number of CPUs and are
    /// removed.
    fn queues(&self, name: &str, label: &str, (queue, file): (&str, &str)) -> Vec<PlacedValue> {
        let one = |n: usize| {
            let value = self.line(name, &format!("queues/{queue}-{n}/{file}"))?;
            let is_mask = file.ends_with("cpus");
            let short = value.trim_start_matches(['0', ',']);
            let value = match short {
                _ if !is_mask => value,
                "" => "0".into(),
                short => short.into(),
            };
            let (queue, at) = (format!("{queue}-{n}"), format!("{name}/queues/{queue}-{n}"));
            let target = format!("{label} {queue}");
            let address = Address::Queue { device: name.into(), netns: self.netns, queue };
            Some(PlacedValue::named(target, Some(at), address, value))
        };
        (0..MAX_QUEUES)
            .map_while(|n| self.has(name, &format!("queues/{queue}-{n}")).then(|| one(n)))
            .flatten()
            .collect()
    }

    fn qdiscs(&self, name: &str) -> Option<String> {
        let index: u32 = self.line(name, "ifindex")?.parse().ok()?;
        let kinds = self.live.as_ref()?.kinds.get(&index).map_or(&[][..], Vec::as_slice);
        Some(if kinds.is_empty() { "noqueue".into() } else { kinds.join(", ") })
    }
}
