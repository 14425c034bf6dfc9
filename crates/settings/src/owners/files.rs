//! Files that programs read at boot, when a module is loaded, or when a device appears.

use super::{Owner, Subject};
use crate::setting::Setting;
use latpath_linux::proc::Root;
use std::collections::BTreeMap;

/// Configuration directories, in order of ascending precedence: a file replaces a file of the same name in an earlier
/// directory.
const FOLDERS: [&str; 4] = ["usr/lib", "usr/local/lib", "run", "etc"];
/// Maximum number of files read from a directory.
const MAX: usize = 1024;

/// Configuration files of one kind, sorted by name: the order in which they take effect.
fn files(root: &Root, kind: &str, extension: &str) -> BTreeMap<String, (String, String)> {
    let mut all = BTreeMap::new();
    for folder in FOLDERS {
        let folder = format!("{folder}/{kind}");
        for name in root.names(&folder, MAX).into_iter().filter(|name| name.ends_with(extension)) {
            let path = format!("{folder}/{name}");
            if let Some(text) = root.text(&path) {
                all.insert(name, (format!("/{path}"), text));
            }
        }
    }
    all
}

/// The lines of a text without empty lines and comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']))
}

pub(super) fn claims(root: &Root) -> Vec<(Subject, Owner)> {
    [sysctl(root), tmpfiles(root), modprobe(root), udev(root), links(root)].concat()
}

fn owner(program: &str, file: &str, value: &str, note: String) -> Owner {
    Owner { program: program.into(), file: Some(file.into()), value: Some(value.into()), note }
}

/// sysctl.d(5)
fn sysctl(root: &Root) -> Vec<(Subject, Owner)> {
    let mut all: Vec<(String, String)> = files(root, "sysctl.d", ".conf").into_values().collect();
    all.extend(root.text("etc/sysctl.conf").map(|text| ("/etc/sysctl.conf".into(), text)));
    let mut claims = Vec::new();
    for (path, text) in &all {
        for (key, value) in lines(text).filter_map(|line| line.trim_start_matches('-').split_once('=')) {
            let note = format!("the start of the machine sets it by {path}: change it there too");
            claims.push((Subject::Sysctl(key.trim().replace('/', ".")), owner("sysctl.d", path, value.trim(), note)));
        }
    }
    claims
}

/// tmpfiles.d(5): `w /sys/kernel/mm/ksm/run - - - - 0`
fn tmpfiles(root: &Root) -> Vec<(Subject, Owner)> {
    let mut claims = Vec::new();
    for (path, text) in files(root, "tmpfiles.d", ".conf").values() {
        for line in lines(text).filter(|line| line.starts_with('w')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, file, _, _, _, _, value @ ..] = words.as_slice() {
                let note = format!("systemd-tmpfiles sets it when the machine starts, by {path}: change it there too");
                let file = file.trim_start_matches('/').to_owned();
                claims.push((Subject::File(file), owner("tmpfiles.d", path, &value.join(" "), note)));
            }
        }
    }
    claims
}

/// modprobe.d(5): `options kvm_intel ple_gap=0`
fn modprobe(root: &Root) -> Vec<(Subject, Owner)> {
    let mut claims = Vec::new();
    for (path, text) in files(root, "modprobe.d", ".conf").values() {
        for line in lines(text) {
            let mut words = line.split_whitespace();
            let (Some("options"), Some(module)) = (words.next(), words.next()) else { continue };
            for (name, value) in words.filter_map(|word| word.split_once('=')) {
                let note = format!("modprobe sets it when {module} is loaded, by {path}: change it there too");
                let subject = Subject::Module(module.replace('-', "_"), name.into());
                claims.push((subject, owner("modprobe.d", path, value, note)));
            }
        }
    }
    claims
}

/// udev(7) rules that set a file of a network device: `ATTR{queues/rx-0/rps_cpus}="f"`.
fn udev(root: &Root) -> Vec<(Subject, Owner)> {
    let mut claims = Vec::new();
    for (path, text) in files(root, "udev/rules.d", ".rules").values() {
        // The distributions' own rules in /usr/lib affect no setting of the table.
        if path.starts_with("/usr/lib") {
            continue;
        }
        for line in lines(text) {
            for part in line.split("ATTR{").skip(1) {
                let Some((file, rest)) = part.split_once('}') else { continue };
                // `==` would be a condition rather than an assignment.
                let Some(value) = rest.strip_prefix("=\"").and_then(|rest| rest.split('"').next()) else { continue };
                let note = format!("udev sets it when the device appears, by {path}: change it there too");
                claims.push((Subject::File(format!("sys/*/{file}")), owner("udev", path, value, note)));
            }
        }
    }
    claims
}

/// Keys of systemd.link(5), and the settings that they affect.
const OF_LINK: [(&str, &[Setting]); 14] = [
    ("MTUBytes", &[Setting::DeviceMtu]),
    ("TransmitQueueLength", &[Setting::DeviceQueueLength]),
    ("RxBufferSize", &[Setting::DeviceRings]),
    ("TxBufferSize", &[Setting::DeviceRings]),
    ("RxChannels", &[Setting::DeviceChannels]),
    ("CombinedChannels", &[Setting::DeviceChannels]),
    ("RxCoalesceSec", &[Setting::DeviceCoalescing]),
    ("RxMaxCoalescedFrames", &[Setting::DeviceCoalescing]),
    ("RxFlowControl", &[Setting::DevicePause]),
    ("TxFlowControl", &[Setting::DevicePause]),
    ("GenericReceiveOffload", &[Setting::DeviceGro]),
    ("LargeReceiveOffload", &[Setting::DeviceLro]),
    ("ReceivePacketSteeringCPUMask", &[Setting::DeviceRps]),
    ("IRQAffinityPolicy", &[Setting::IrqAffinity]),
];

/// systemd.link(5). Apart from `OriginalName=`, the conditions by which a file matches devices are not evaluated.
fn links(root: &Root) -> Vec<(Subject, Owner)> {
    let mut claims = Vec::new();
    for (path, text) in files(root, "systemd/network", ".link").values() {
        let pairs = || lines(text).filter_map(|line| line.split_once('='));
        let name = pairs().find(|(key, _)| *key == "OriginalName").map_or("", |(_, value)| value);
        let device = name.split(['*', ' ']).next().unwrap_or_default();
        for (key, value) in pairs() {
            for setting in OF_LINK.iter().filter(|(known, _)| *known == key).flat_map(|(_, settings)| *settings) {
                let note = format!("systemd-udevd sets it when the device appears, by {path}: change it there too");
                let owner = owner("systemd", path, &format!("{key}={value}"), note);
                claims.push((Subject::Setting(*setting, device.into()), owner));
            }
        }
    }
    claims
}
