//! Finds a device in other network namespaces, for error messages.

use crate::{interfaces, Netns};
use latpath_linux::net::device_list;
use latpath_model::text::{printable, quoted};

/// Maximum number of namespaces named in an error message.
const NAMED: usize = 3;

/// Lists, for an error message, the devices of this namespace and the other namespaces that have a device of this name:
/// `lo, pa; hin is in network namespace nw-hv: ip netns exec nw-hv latpath …`.
pub fn devices_here_and_elsewhere(device: &str) -> String {
    let own = Netns::own().map_or(0, |own| own.inode());
    let has = |netns: &Netns| interfaces(netns).is_ok_and(|all| all.iter().any(|one| one.name == device));
    let all = Netns::all();
    let elsewhere = all.values().filter(|netns| netns.inode() != own && has(netns));
    let places: Vec<String> = elsewhere.take(NAMED).map(place).collect();
    let here = device_list();
    match places.is_empty() {
        true => here,
        false => format!("{here}; {} is in {}", printable(device), places.join(", and in ")),
    }
}

/// `network namespace nw-hv: ip netns exec nw-hv latpath …`
fn place(netns: &Netns) -> String {
    match (netns.name(), netns.path()) {
        (Some(name), _) => {
            format!("network namespace {}: ip netns exec {} latpath …", printable(name), printable(&quoted(name)))
        }
        (None, Some(path)) => {
            let path = path.display().to_string();
            format!("another network namespace: nsenter --net={} latpath …", printable(&quoted(&path)))
        }
        (None, None) => format!("network namespace {}", netns.inode()),
    }
}
