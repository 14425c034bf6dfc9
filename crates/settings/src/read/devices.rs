//! Settings of network devices, each read in its own network namespace.

use super::{interrupts, Found, Source};
use crate::ethtool;
use crate::nic::Nic;
use crate::setting::{Read, Setting};
use latpath_linux::proc::Root;
use latpath_linux::sysfs_of_own_netns;
use latpath_model::{PointInfo, HOST};
use latpath_net::{qdiscs, Inode, Netns, INGRESS, ROOT};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Maximum number of network devices that are read per namespace.
const MOST: usize = 128;
/// Maximum number of a device's queues that are read per direction.
const MOST_QUEUES: usize = 256;

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
type Values = (BTreeMap<Setting, Vec<Found>>, Vec<String>);

/// Reads the settings of these devices, of the virtual machines' devices, and of this namespace's hardware and bridges.
pub(super) fn read(
    source: &Source,
    devices: &[Device],
    found: &mut BTreeMap<Setting, Vec<Found>>,
    notes: &mut Vec<String>,
) {
    let own = if source.is_live { Netns::own().map_or(0, |own| own.inode()) } else { 0 };
    let mut all: BTreeMap<Inode, BTreeMap<String, String>> = BTreeMap::from([(own, BTreeMap::new())]);
    let taps = source.vms.iter().flat_map(|vm| &vm.taps);
    let taps = taps.map(|tap| (tap.netns.unwrap_or(own), tap.device.clone(), String::new()));
    let named = devices.iter().map(|device| (device.netns, device.name.clone(), device.suffix.clone()));
    for (netns, name, suffix) in taps.chain(named) {
        let netns = if netns == 0 || !source.is_live { own } else { netns };
        // A point's device has its suffix everywhere.
        let known = all.entry(netns).or_default().entry(name).or_default();
        if known.is_empty() {
            *known = suffix;
        }
    }
    for (netns, devices) in all {
        let (root, is_own) = (&source.root, netns == own);
        let read = if source.is_live {
            Netns::find(netns).and_then(|netns| {
                let kinds = qdisc_kinds(&netns);
                netns.inside(|| {
                    let mounted = sysfs_of_own_netns();
                    // Without permission to mount, /sys is usually that of this namespace.
                    let sysfs = match &mounted {
                        Ok(sysfs) => Some(PathBuf::from(format!("/proc/self/fd/{}", sysfs.as_raw_fd()))),
                        Err(_) => is_own.then(|| root.path("sys")),
                    };
                    sysfs.map(|sysfs| {
                        Namespace { root, sysfs: Root::of(&sysfs), kinds: Some(kinds) }.read(devices, is_own)
                    })
                })
            })
        } else {
            Ok(Some(Namespace { root, sysfs: Root::of(&root.path("sys")), kinds: None }.read(devices, is_own)))
        };
        match read {
            Ok(Some((of_devices, new_notes))) => {
                notes.extend(new_notes);
                of_devices.into_iter().for_each(|(setting, values)| found.entry(setting).or_default().extend(values));
            }
            Ok(None) => notes.push(format!("devices of network namespace {netns}: only root reads their settings")),
            Err(error) => notes.push(format!("settings of devices: {error}")),
        }
    }
}

/// The kinds of each device's queueing disciplines, by device index: the root's first, each kind once.
fn qdisc_kinds(netns: &Netns) -> HashMap<u32, Vec<String>> {
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

/// A network namespace, for the thread that has entered it.
struct Namespace<'a> {
    root: &'a Root,
    /// Its own /sys.
    sysfs: Root,
    /// Kinds of queueing disciplines by device index; `None` for a machine in a folder, which has no kernel to query.
    kinds: Option<HashMap<u32, Vec<String>>>,
}

impl Namespace<'_> {
    /// Reads these devices, by name and suffix, and those that belong to them.
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
            if known.len() > MOST {
                notes.push(format!("only {MOST} network devices of a namespace have their settings read"));
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

    fn device(&self, name: &str, label: &str, found: &mut BTreeMap<Setting, Vec<Found>>, notes: &mut Vec<String>) {
        let is_asleep = self.line(name, "device/power/runtime_status").is_some_and(|status| status == "suspended");
        if is_asleep {
            notes.push(format!(
                "{label} is suspended: settings that only the device knows are not read, since the request would wake it"
            ));
        }
        let nic = match self.kinds {
            Some(_) => Nic::of_kernel(name, &self.sysfs).ok(),
            None => Some(Nic::of_folder(name, &self.sysfs)),
        };
        let awake = nic.as_ref().filter(|_| !is_asleep);
        let features = awake.map(ethtool::features).unwrap_or_default();
        let at = (label != name).then(|| name.to_owned());
        for setting in Setting::ALL.iter().copied().filter(|setting| setting.is_of_device()) {
            let one = |value: Option<String>| -> Vec<Found> {
                value.into_iter().map(|value| Found::named(label, at.clone(), value)).collect()
            };
            let values = match setting.info().read {
                Read::Device("speed") if is_asleep => Vec::new(),
                Read::Device(file) => one(self.line(name, file)),
                Read::DeviceLink(_) => one(Some(self.master(name).unwrap_or_else(|| "none".into()))),
                Read::Queue(queue, file) => self.queues(name, label, (queue, file)),
                Read::Feature(feature) => one(features.get(feature).map(|on| if *on { "on" } else { "off" }.into())),
                Read::Ethtool(_, ask) => one(awake.and_then(ask)),
                Read::Qdisc => one(self.qdiscs(name)),
                _ => Vec::new(),
            };
            found.entry(setting).or_default().extend(values);
        }
        interrupts::read(self.root, &self.sysfs, (name, label), found);
    }

    /// A file of each queue. Leading zeros of a mask, which depend on the number of CPUs, are removed.
    fn queues(&self, name: &str, label: &str, (queue, file): (&str, &str)) -> Vec<Found> {
        let one = |n: usize| {
            let value = self.line(name, &format!("queues/{queue}-{n}/{file}"))?;
            let is_mask = file.ends_with("cpus");
            let short = value.trim_start_matches(['0', ',']);
            let value = match short {
                _ if !is_mask => value,
                "" => "0".into(),
                short => short.into(),
            };
            Some(Found::named(format!("{label} {queue}-{n}"), Some(format!("{name}/queues/{queue}-{n}")), value))
        };
        (0..MOST_QUEUES)
            .map_while(|n| self.has(name, &format!("queues/{queue}-{n}")).then(|| one(n)))
            .flatten()
            .collect()
    }

    fn qdiscs(&self, name: &str) -> Option<String> {
        let index: u32 = self.line(name, "ifindex")?.parse().ok()?;
        let kinds = self.kinds.as_ref()?.get(&index).map_or(&[][..], Vec::as_slice);
        Some(if kinds.is_empty() { "noqueue".into() } else { kinds.join(", ") })
    }
}
