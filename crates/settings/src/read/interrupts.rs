//! Interrupts of network devices, and the threads that serve them.

use super::{scheduling, PlacedValue, Source};
use crate::address::Address;
use crate::setting::{Read, Setting};
use latpath_linux::proc::Root;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of interrupts read per device.
const MAX: usize = 512;
/// Maximum number of interrupts to search for those of a virtio device.
const MAX_OF_MACHINE: usize = 1 << 16;
/// Maximum number of interrupts of a machine whose settings are read.
const MAX_READ: usize = 4096;

/// Files in an interrupt's directory; the other entries are the names of the interrupt's handlers.
const FILES: [&str; 7] = [
    "affinity_hint",
    "effective_affinity",
    "effective_affinity_list",
    "node",
    "smp_affinity",
    "smp_affinity_list",
    "spurious",
];

/// The IRQ numbers of a device.
pub(super) fn of_device(root: &Root, sysfs: &Root, device: &str) -> Vec<u32> {
    let folder = format!("class/net/{device}/device");
    let messages = sysfs.numbers(&format!("{folder}/msi_irqs"), MAX).unwrap_or_default();
    if !messages.is_empty() {
        return messages;
    }
    let line = sysfs.text(&format!("{folder}/irq")).and_then(|line| line.trim().parse().ok());
    if let Some(number) = line.filter(|n| *n > 0) {
        return vec![number];
    }
    // A virtio device's interrupts belong to its PCI function, so find them by the device's name: `virtio0-input.0`.
    let Ok(link) = sysfs.link(&folder) else { return Vec::new() };
    let Some(virtio) = link.rsplit('/').next().filter(|name| name.starts_with("virtio")) else { return Vec::new() };
    let is_its = |n: &u32| names(root, *n).iter().any(|name| name.split('-').next() == Some(virtio));
    root.numbers("proc/irq", MAX_OF_MACHINE).unwrap_or_default().into_iter().filter(is_its).take(MAX).collect()
}

/// The names of an interrupt's handlers.
pub(crate) fn names(root: &Root, number: u32) -> Vec<String> {
    let names = root.names(&format!("proc/irq/{number}"), 64);
    let mut names: Vec<String> = names.into_iter().filter(|name| !FILES.contains(&name.as_str())).collect();
    names.sort();
    names
}

/// All IRQ numbers.
pub(crate) fn all(root: &Root) -> Vec<u32> {
    root.numbers("proc/irq", MAX_OF_MACHINE).unwrap_or_default()
}

/// An interrupt's name, which unlike its number stays the same after a reboot; `None` if it has no handler.
fn name(root: &Root, device: &str, number: u32) -> Option<String> {
    // Without a name there is no handler.
    let name = names(root, number).into_iter().next()?;
    Some(if name.contains(device) { name } else { format!("{device} {name}") })
}

/// Reads the settings of a device's interrupts.
pub(super) fn read(
    root: &Root,
    sysfs: &Root,
    (device, label): (&str, &str),
    found: &mut BTreeMap<Setting, Vec<PlacedValue>>,
) {
    for number in of_device(root, sysfs, device) {
        let Some(name) = name(root, label, number) else { continue };
        settings(root, number, &name, found);
    }
}

/// Reads the settings of interrupts that do not belong to a network device already read: disks, timers, USB.
pub(super) fn others(root: &Root, found: &mut BTreeMap<Setting, Vec<PlacedValue>>) {
    let read = found.get(&Setting::IrqAffinity).into_iter().flatten().filter_map(|one| one.at.clone());
    let read: BTreeSet<String> = read.collect();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for number in all(root).into_iter().take(MAX_READ) {
        if read.contains(&number.to_string()) {
            continue;
        }
        let Some(name) = names(root, number).into_iter().next() else { continue };
        let count = known.entry(name.clone()).or_default();
        *count += 1;
        let name = if *count == 1 { name } else { format!("{name} #{count}") };
        settings(root, number, &name, found);
    }
}

fn settings(root: &Root, number: u32, name: &str, found: &mut BTreeMap<Setting, Vec<PlacedValue>>) {
    for setting in Setting::ALL {
        let Read::Interrupt(file) = setting.info().read else { continue };
        let value = root.text(&format!("proc/irq/{number}/{file}")).map(|text| text.trim().to_owned());
        let value = value.filter(|value| !value.is_empty());
        let one =
            value.map(|value| PlacedValue::named(name, Some(number.to_string()), Address::Interrupt { number }, value));
        found.entry(*setting).or_default().extend(one);
    }
}

/// The interrupt threads of all devices, e.g. `irq/45-eth0-rx-0`. Disks matter too: packets wait if their threads have
/// a higher priority than those of network devices.
pub(super) fn threads(source: &Source) -> Vec<PlacedValue> {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let mut one = |(tid, stat): &(u32, latpath_linux::proc::Stat)| {
        let (number, name) = stat.comm.strip_prefix("irq/")?.split_once('-')?;
        number.parse::<u32>().ok()?;
        // The kernel truncates names, so several threads may have the same one.
        let count = known.entry(name.to_owned()).or_default();
        *count += 1;
        let name = if *count == 1 { name.to_owned() } else { format!("{name} #{count}") };
        Some(PlacedValue::named(name, Some(tid.to_string()), source.thread_address(*tid), scheduling(stat)))
    };
    source.kernel_threads().iter().filter_map(&mut one).collect()
}
