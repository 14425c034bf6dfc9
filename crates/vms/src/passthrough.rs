//! Devices that a guest drives itself (VFIO), as seen by the host: their NIC's counters, their interrupts, and whether
//! hardware delivers these interrupts to the guest.

use crate::{descriptors::Descriptors, text::plain, vm::Vm};
use latpath_linux::{
    interrupts::{lines, InterruptLine},
    proc::Root,
    Cpus,
};
use latpath_net::{virtual_functions, Netns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of devices read per IOMMU group, interrupts per device, and functions per NIC.
const MAX: usize = 4096;
/// Class of network controllers (PCI Code and ID Assignment Specification).
const NETWORK: &str = "0x02";
/// Bit in the capabilities of Intel's IOMMU for posted interrupts (drivers/iommu/intel/iommu.h, `cap_pi_support`).
const INTEL_POSTING: u64 = 1 << 59;
/// Bits in the features of AMD's IOMMU for a virtual APIC for guests (drivers/iommu/amd/amd_iommu_types.h,
/// `FEATURE_GA`, `FEATURE_GAM_VAPIC`).
const AMD_POSTING: u64 = 1 << 7 | 1 << 21;

/// A PCI device that the guest drives itself: its packets do not pass through any network device of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Passthrough {
    /// PCI address, e.g. `0000:03:10.1`.
    pub address: String,
    /// Vendor and device ID, e.g. `8086:1520`.
    pub id: String,
    /// Whether it is a network controller.
    pub is_nic: bool,
    /// IOMMU group; `None` if the process opened the device without one (iommufd).
    pub iommu_group: Option<u32>,
    /// NUMA node; `None` if it has none, or if the node is unknown.
    pub numa_node: Option<u32>,
    /// Its NIC, if the device is a virtual function (SR-IOV).
    pub function_of: Option<FunctionOf>,
    /// Its interrupts on the host.
    pub interrupts: Vec<DeviceInterrupt>,
    /// Whether this CPU and IOMMU can deliver its interrupts to a running vCPU without the host (posted interrupts);
    /// `None` if unknown.
    pub posting: Option<bool>,
}

/// The NIC of a virtual function, and its settings and counters there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionOf {
    /// PCI address of the NIC's physical function.
    pub address: String,
    /// The NIC's network device; `None` if it has none, or if the device is in another namespace.
    pub device: Option<String>,
    /// Index of the virtual function.
    pub number: u32,
    /// MAC address of the guest's NIC, if the host sets it.
    pub guest_mac: Option<String>,
    /// VLAN whose tag the NIC adds and removes.
    pub vlan: Option<u32>,
    /// Packets received, sent and dropped since the function's creation; `None` if the driver does not count them.
    pub counters: Option<FunctionCounts>,
}

/// Counters of a virtual function, packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionCounts {
    /// Received by the guest.
    pub rx_packets: u64,
    /// Sent by the guest.
    pub tx_packets: u64,
    /// Dropped on the way to the guest.
    pub rx_dropped: u64,
    /// Dropped on the way from the guest.
    pub tx_dropped: u64,
}

/// An interrupt of a passed-through device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceInterrupt {
    /// Its number.
    pub number: u32,
    /// Its name, e.g. `vfio-msix[0]`.
    pub name: String,
    /// How often it has interrupted the host since it was set up. A posted interrupt does not interrupt the host.
    pub count: u64,
    /// CPUs to which the host's kernel sends it.
    #[schemars(with = "String")]
    pub cpus: Cpus,
}

/// Interrupts that this host's CPUs have posted to any guest since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PostedInterrupts {
    /// Notifications to a CPU that was not running the vCPU's guest at that moment.
    pub notifications: u64,
    /// Wake-ups of vCPUs that were asleep.
    pub wake_ups: u64,
}

/// The CPUs' counts of posted interrupts; `None` if the CPUs have no such counters (AMD, ARM).
pub fn posted(root: &Root) -> Option<PostedInterrupts> {
    let text = root.text("proc/interrupts")?;
    let of = |name: &str| lines(&text).find(|line| line.label == name).map(|line| line.count);
    Some(PostedInterrupts { notifications: of("PIN")?, wake_ups: of("PIW")? })
}

/// The interrupts of a device that vfio-pci has set up, e.g. `vfio-msix[0](0000:03:10.1)`
/// (drivers/vfio/pci/vfio_pci_intrs.c).
fn interrupts(root: &Root, text: &str, address: &str) -> Vec<DeviceInterrupt> {
    let behind = format!("({address})");
    let of = |InterruptLine { label, count, words }: InterruptLine| {
        let name = words.split_whitespace().last()?.strip_suffix(behind.as_str())?;
        let number: u32 = label.parse().ok()?;
        let mut cpus = ["effective_affinity_list", "smp_affinity_list"].into_iter();
        let cpus = cpus.find_map(|file| root.text(&format!("proc/irq/{number}/{file}"))?.trim().parse().ok());
        name.starts_with("vfio-").then(|| DeviceInterrupt {
            number,
            name: plain(name),
            count,
            cpus: cpus.unwrap_or_default(),
        })
    };
    lines(text).filter_map(of).take(MAX).collect()
}

/// Whether the CPU and the device's IOMMU can post interrupts.
fn posting(root: &Root, address: &str) -> Option<bool> {
    let iommu = root.link(&format!("sys/bus/pci/devices/{address}/iommu")).ok()?;
    let iommu = iommu.rsplit('/').next()?;
    let word = |file: &str| {
        let text = root.text(&format!("sys/class/iommu/{iommu}/{file}"))?;
        // Since Linux 6.7, AMD's file has a second word after a colon.
        u64::from_str_radix(text.trim().split(':').next()?, 16).ok()
    };
    let is_on =
        |parameter: &str| root.text(&format!("sys/module/{parameter}")).map(|text| matches!(text.trim(), "Y" | "1"));
    if let Some(capabilities) = word("intel-iommu/cap") {
        return Some(capabilities & INTEL_POSTING != 0 && is_on("kvm_intel/parameters/enable_apicv")?);
    }
    let features = word("amd-iommu/features")?;
    Some(features & AMD_POSTING == AMD_POSTING && is_on("kvm_amd/parameters/avic")?)
}

/// The NIC to which a virtual function belongs.
fn function_of(root: &Root, address: &str) -> Option<FunctionOf> {
    let last = |target: String| target.rsplit('/').next().map(str::to_owned);
    let nic = last(root.link(&format!("sys/bus/pci/devices/{address}/physfn")).ok()?)?;
    let folder = format!("sys/bus/pci/devices/{nic}");
    let is_it = |name: &String| last(root.link(&format!("{folder}/{name}")).ok()?).filter(|found| found == address);
    let functions = root.names(&folder, MAX).into_iter().filter(|name| name.starts_with("virtfn"));
    let number = functions.filter(|name| is_it(name).is_some()).find_map(|name| name["virtfn".len()..].parse().ok())?;
    let device = root.names(&format!("{folder}/net"), MAX).into_iter().next();
    Some(FunctionOf { address: plain(&nic), device: device.map(|d| plain(&d)), number, ..FunctionOf::default() })
}

fn device(root: &Root, address: &str, group: Option<u32>, interrupts_text: &str) -> Passthrough {
    let file = |name: &str| root.text(&format!("sys/bus/pci/devices/{address}/{name}")).unwrap_or_default();
    let id = |name: &str| file(name).trim().trim_start_matches("0x").to_owned();
    Passthrough {
        id: plain(&format!("{}:{}", id("vendor"), id("device"))),
        is_nic: file("class").starts_with(NETWORK),
        iommu_group: group,
        numa_node: file("numa_node").trim().parse().ok(),
        function_of: function_of(root, address),
        interrupts: interrupts(root, interrupts_text, address),
        posting: posting(root, address),
        address: plain(address),
    }
}

/// Whether a VFIO driver is bound to the device: a group may also contain bridges and unused devices.
fn is_of_vfio(root: &Root, address: &str) -> bool {
    root.link(&format!("sys/bus/pci/devices/{address}/driver"))
        .is_ok_and(|driver| driver.rsplit('/').next().is_some_and(|name| name.contains("vfio")))
}

/// The passed-through devices of a process. `named` are the addresses on its command line: if a group contains some of
/// them, only these belong to the process.
pub fn devices(root: &Root, descriptors: &Descriptors, named: &[String]) -> Vec<Passthrough> {
    let mut found: BTreeMap<String, Option<u32>> = BTreeMap::new();
    for group in &descriptors.vfio_groups {
        let mut members = root.names(&format!("sys/kernel/iommu_groups/{group}/devices"), MAX);
        members.retain(|address| is_of_vfio(root, address));
        if members.iter().any(|address| named.contains(address)) {
            members.retain(|address| named.contains(address));
        }
        found.extend(members.into_iter().map(|address| (address, Some(*group))));
    }
    for name in &descriptors.vfio_devices {
        let target = root.link(&format!("sys/class/vfio-dev/{name}/device")).unwrap_or_default();
        if let Some(address) = target.rsplit('/').next().filter(|address| !address.is_empty()) {
            found.entry(address.to_owned()).or_insert(None);
        }
    }
    if found.is_empty() {
        return Vec::new();
    }
    let text = root.text("proc/interrupts").unwrap_or_default();
    found.into_iter().map(|(address, group)| device(root, &address, group, &text)).collect()
}

/// Adds the settings and counters of virtual functions, queried from the drivers of NICs in this network namespace.
pub fn ask_nics(vms: &mut [Vm]) {
    let functions = vms.iter_mut().flat_map(|vm| &mut vm.passthrough).filter_map(|one| one.function_of.as_mut());
    let Ok(own) = Netns::own() else { return };
    for of in functions {
        let Some(device) = &of.device else { continue };
        let all = virtual_functions(&own, device).unwrap_or_default();
        let Some(function) = all.into_iter().find(|function| function.number == of.number) else { continue };
        of.guest_mac =
            (function.address != [0; 6]).then(|| function.address.map(|byte| format!("{byte:02x}")).join(":"));
        of.vlan = Some(function.vlan).filter(|vlan| *vlan != 0);
        of.counters = function.counters.map(|c| FunctionCounts {
            rx_packets: c.rx_packets,
            tx_packets: c.tx_packets,
            rx_dropped: c.rx_dropped,
            tx_dropped: c.tx_dropped,
        });
    }
}
