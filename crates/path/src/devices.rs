//! Devices named by the user: `vnet0`, or `eth0%NAMESPACE`.

use crate::options::Device;
use latpath_net::{interfaces, namespace_names, Netns};

/// Why a device was not found.
#[derive(Debug, thiserror::Error)]
pub enum NoDevice {
    /// No device has this name in the searched namespaces.
    #[error("{name}: no such device (devices here: {here}{others})")]
    Missing {
        /// The name.
        name: String,
        /// Devices of this namespace.
        here: String,
        /// Where else the device was searched for.
        others: &'static str,
    },
    /// No namespace has the name after `%`.
    #[error("{name}: no such network namespace (named ones: {named})")]
    Namespace {
        /// The name.
        name: String,
        /// The namespaces in /run/netns.
        named: String,
    },
}

/// The devices of a network namespace, by its inode number.
fn devices_of(netns: u32) -> Vec<String> {
    let devices = Netns::find(netns).and_then(|netns| interfaces(&netns)).unwrap_or_default();
    devices.into_iter().map(|device| device.name).collect()
}

/// Finds a device in this namespace or in any named one; with `%`, in the namespace with that name or inode number.
/// Does not check whether the device exists if an inode number is given.
///
/// # Errors
/// If the device or namespace does not exist.
pub fn find_device(text: &str) -> Result<Device, NoDevice> {
    let (name, within) = text.split_once('%').map_or((text, None), |(name, ns)| (name, Some(ns)));
    let missing = |here: Vec<String>, others| NoDevice::Missing { name: text.into(), here: here.join(", "), others };
    let device = |netns| Device { name: name.into(), netns };
    let has = |devices: &[String]| devices.iter().any(|device| device == name);
    if let Some(number) = within.and_then(|ns| ns.parse::<u32>().ok()) {
        return Ok(device(Some(number)));
    }
    let all = namespace_names();
    if let Some(namespace) = within {
        let Ok(netns) = Netns::named(namespace) else {
            let mut named: Vec<String> = all.into_values().filter(|name| !name.is_empty()).collect();
            named.sort();
            return Err(NoDevice::Namespace { name: namespace.into(), named: named.join(", ") });
        };
        let there = devices_of(netns.inode());
        return if has(&there) { Ok(device(Some(netns.inode()))) } else { Err(missing(there, "")) };
    }
    let here = all.iter().find(|(_, name)| name.is_empty()).map_or(Vec::new(), |(own, _)| devices_of(*own));
    if has(&here) || all.keys().any(|netns| has(&devices_of(*netns))) {
        return Ok(device(None));
    }
    Err(missing(here, "; nor is it in a named network namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_exists_and_nonsense_does_not() {
        assert_eq!(find_device("lo").unwrap(), Device { name: "lo".into(), netns: None });
        let error = find_device("lp-none0").unwrap_err().to_string();
        assert!(error.contains("lp-none0: no such device (devices here: ") && error.contains("lo"), "{error}");
        assert!(find_device("lo%lp-none").unwrap_err().to_string().contains("no such network namespace"));
    }

    #[test]
    fn a_number_names_a_namespace() {
        assert_eq!(find_device("x%4026531840").unwrap().netns, Some(4_026_531_840));
    }
}
