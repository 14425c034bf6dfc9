//! Running programs that set settings: irqbalance, libvirt, systemd, NetworkManager.

use super::{Owner, Subject};
use crate::setting::Setting;
use latpath_linux::proc::Root;
use latpath_linux::Cpus;
use latpath_vms::Vm;

/// Files with the options of irqbalance, on Debian and on Fedora.
const OPTIONS: [&str; 2] = ["etc/default/irqbalance", "etc/sysconfig/irqbalance"];
/// Maximum number of files read from a directory.
const MAX: usize = 1024;

/// A running irqbalance, and the CPUs that it avoids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Irqbalance {
    /// The file with its options, if there is one.
    pub file: Option<String>,
    /// The CPUs to which it assigns no interrupts.
    pub banned: Cpus,
    /// Whether the file names these CPUs; otherwise irqbalance avoids isolated and `nohz_full` CPUs by default.
    pub is_explicit: bool,
}

impl Irqbalance {
    pub(super) fn read(root: &Root, running: &dyn Fn(&str) -> bool) -> Option<Self> {
        if !running("irqbalance") {
            return None;
        }
        let file = OPTIONS.iter().find_map(|file| Some((format!("/{file}"), root.text(file)?)));
        let value = |name: &str| {
            let text = &file.as_ref()?.1;
            let value =
                text.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('=')).next_back()?;
            Some(value.trim_matches(['"', '\'', ' ']).to_owned()).filter(|value| !value.is_empty())
        };
        let list = value("IRQBALANCE_BANNED_CPULIST").and_then(|list| list.parse::<Cpus>().ok());
        let banned = list.or_else(|| value("IRQBALANCE_BANNED_CPUS").and_then(|text| Cpus::of_mask(&text)));
        let is_explicit = banned.is_some();
        Some(Self {
            banned: banned.unwrap_or_else(|| root.isolated_cpus()),
            is_explicit,
            file: file.map(|(path, _)| path),
        })
    }
}

pub(super) fn claims(root: &Root, running: &dyn Fn(&str) -> bool, vms: &[Vm]) -> Vec<(Subject, Owner)> {
    let mut claims = systemd(root);
    if running("irqbalance") {
        claims.push((Subject::Setting(Setting::IrqAffinity, String::new()), irqbalance()));
    }
    if running("NetworkManager") {
        claims.extend(network_manager(root));
    }
    for vm in vms.iter().filter(|vm| vm.libvirt) {
        claims.extend(libvirt(vm));
    }
    claims
}

fn irqbalance() -> Owner {
    Owner {
        program: "irqbalance".into(),
        file: None,
        value: None,
        note: "irqbalance moves interrupts every 10 s, except those of banned CPUs: IRQBALANCE_BANNED_CPULIST or \
               --banirq in its options"
            .into(),
    }
}

/// libvirt sets the CPUs and priorities of a guest's threads at each start of the guest.
fn libvirt(vm: &Vm) -> Vec<(Subject, Owner)> {
    let owner = Owner {
        program: "libvirt".into(),
        file: Some(format!("/etc/libvirt/qemu/{}.xml", vm.name)),
        value: None,
        note: format!("libvirt sets it at each start of {0}: virsh edit {0}", vm.name),
    };
    let threads = [Setting::ThreadPriority, Setting::ThreadCpus].map(|setting| (setting, format!("{} ", vm.name)));
    let of_vm = Setting::ALL.iter().filter(|setting| setting.id().starts_with("vm-"));
    let of_vm = of_vm.map(|setting| (*setting, vm.name.clone()));
    let groups = [Setting::CgroupCpus, Setting::CgroupQuota, Setting::CgroupWeight, Setting::CgroupMemory];
    let groups = groups.map(|setting| (setting, "/machine.slice/machine-".to_owned()));
    threads.into_iter().chain(of_vm).chain(groups).map(|(s, at)| (Subject::Setting(s, at), owner.clone())).collect()
}

/// NetworkManager sets properties of the devices that it manages when it activates a connection. Its files, which say
/// which properties, are readable only by root.
fn network_manager(root: &Root) -> Vec<(Subject, Owner)> {
    const FOLDER: &str = "etc/NetworkManager/system-connections";
    let mut claims = Vec::new();
    for name in root.names(FOLDER, MAX) {
        let path = format!("{FOLDER}/{name}");
        let Some(text) = root.text(&path) else { continue };
        let pairs: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
        let Some((_, device)) = pairs.iter().find(|(key, _)| *key == "interface-name") else { continue };
        for (key, value) in &pairs {
            let setting = match *key {
                "mtu" => Setting::DeviceMtu,
                "master" | "controller" => Setting::DeviceMaster,
                key if key.starts_with("ring-") => Setting::DeviceRings,
                key if key.starts_with("coalesce-") => Setting::DeviceCoalescing,
                key if key.starts_with("channels-") => Setting::DeviceChannels,
                key if key.starts_with("pause-") => Setting::DevicePause,
                "feature-gro" => Setting::DeviceGro,
                "feature-lro" => Setting::DeviceLro,
                "feature-tso" => Setting::DeviceTso,
                "feature-gso" => Setting::DeviceGso,
                _ => continue,
            };
            let owner = Owner {
                program: "NetworkManager".into(),
                file: Some(format!("/{path}")),
                value: Some(format!("{key}={value}")),
                note: format!("NetworkManager sets it when {device} is activated: nmcli connection modify"),
            };
            claims.push((Subject::Setting(setting, (*device).to_owned()), owner));
        }
    }
    claims
}

/// CPUs of systemd units (systemd.resource-control(5)), from unit files, their drop-ins, and `systemctl set-property`.
fn systemd(root: &Root) -> Vec<(Subject, Owner)> {
    const FOLDERS: [&str; 5] = [
        "usr/lib/systemd/system",
        "etc/systemd/system",
        "etc/systemd/system.control",
        "run/systemd/system",
        "run/systemd/system.control",
    ];
    let is_group = |name: &str| [".slice", ".scope", ".service"].iter().any(|end| name.ends_with(end));
    let mut claims = Vec::new();
    for folder in FOLDERS {
        for entry in root.names(folder, MAX) {
            let unit = entry.strip_suffix(".d").unwrap_or(&entry);
            // There can be thousands of services. Read only slices and units with drop-ins; no other group affects
            // packets.
            if !is_group(unit) || (unit == entry && !unit.ends_with(".slice")) {
                continue;
            }
            let mut files = vec![format!("{folder}/{entry}")];
            if unit != entry {
                files = root.names(&files[0], MAX).iter().map(|name| format!("{folder}/{entry}/{name}")).collect();
                files.sort();
            }
            for file in files {
                claims.extend(of_unit(unit, &file, &root.text(&file).unwrap_or_default()));
            }
        }
    }
    claims
}

fn of_unit(unit: &str, file: &str, text: &str) -> Vec<(Subject, Owner)> {
    let one = |(key, value): (&str, &str)| {
        let setting = match key {
            "AllowedCPUs" => Setting::CgroupCpus,
            "CPUQuota" => Setting::CgroupQuota,
            "CPUWeight" => Setting::CgroupWeight,
            "MemoryMax" => Setting::CgroupMemory,
            _ => return None,
        };
        let owner = Owner {
            program: "systemd".into(),
            file: Some(format!("/{file}")),
            value: Some(format!("{key}={value}")),
            note: format!("systemd sets it when {unit} starts: systemctl set-property {unit} {key}=…"),
        };
        Some((Subject::Setting(setting, format!("/{unit}")), owner))
    };
    text.lines().filter_map(|line| line.trim().split_once('=')).filter_map(one).collect()
}
