//! Devices as the user names them: `vnet0`, or `eth0%NAMESPACE`.

use crate::options::Device;
use nix::net::if_::if_nameindex;
use nix::sched::{setns, CloneFlags};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Why a text names no device.
#[derive(Debug, thiserror::Error)]
pub enum NoDevice {
    /// Nowhere.
    #[error("{name}: no such device (devices here: {here}{others})")]
    Missing {
        /// As given.
        name: String,
        /// Devices of this namespace.
        here: String,
        /// What was looked at besides.
        others: &'static str,
    },
    /// The part behind `%`.
    #[error("{name}: no such network namespace (named ones: {named})")]
    Namespace {
        /// As given.
        name: String,
        /// Those in /run/netns.
        named: String,
    },
}

/// The named network namespaces, and where they stand.
fn named() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect();
    all.sort();
    all
}

fn devices_here() -> Vec<String> {
    let list = if_nameindex();
    let names = list.iter().flat_map(|l| l.iter().map(|i| i.name().to_string_lossy().into_owned()));
    names.collect()
}

/// The devices of another namespace. A thread of its own goes there, and ends there.
fn devices_of(namespace: &PathBuf) -> Vec<String> {
    let Ok(file) = File::open(namespace) else { return Vec::new() };
    let there = move || setns(file, CloneFlags::CLONE_NEWNET).map(|()| devices_here()).unwrap_or_default();
    std::thread::spawn(there).join().unwrap_or_default()
}

/// Finds a device in this namespace or in any named one; behind `%`, in the namespace of that name or inode number.
///
/// # Errors
/// Where there is none.
pub fn find_device(text: &str) -> Result<Device, NoDevice> {
    let (name, within) = text.split_once('%').map_or((text, None), |(name, ns)| (name, Some(ns)));
    let missing = |here: Vec<String>, others| NoDevice::Missing { name: text.into(), here: here.join(", "), others };
    let device = |netns| Device { name: name.into(), netns };
    if let Some(number) = within.and_then(|ns| ns.parse::<u32>().ok()) {
        return Ok(device(Some(number)));
    }
    if let Some(namespace) = within {
        let all = named();
        let Some((_, path)) = all.iter().find(|(n, _)| n == namespace) else {
            let named = all.into_iter().map(|(n, _)| n).collect::<Vec<_>>().join(", ");
            return Err(NoDevice::Namespace { name: namespace.into(), named });
        };
        let there = devices_of(path);
        let inode = fs::metadata(path).ok().map(|m| m.ino() as u32);
        return if there.iter().any(|d| d == name) { Ok(device(inode)) } else { Err(missing(there, "")) };
    }
    let here = devices_here();
    if here.iter().any(|d| d == name) || named().iter().any(|(_, path)| devices_of(path).iter().any(|d| d == name)) {
        return Ok(device(None));
    }
    Err(missing(here, "; nor is it in a named network namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_there_and_nonsense_is_not() {
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
