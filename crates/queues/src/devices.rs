//! Names of virtio devices, from sysfs.

use latpath_linux::proc::Root;
use std::path::Path;

/// Driver and names of a virtio device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtioDevice {
    /// The driver, e.g. `virtio_net`.
    pub driver: Option<String>,
    /// Names known to users, e.g. `eth0`, `vda`, `vport1p1`.
    pub names: Vec<String>,
    /// Index of a NIC in the current network namespace.
    pub ifindex: Option<u32>,
}

/// Device classes used by virtio drivers, as names of directories below the device.
const CLASSES: [&str; 4] = ["net", "block", "virtio-ports", "tty"];
/// Maximum number of names per class.
const MAX_NAMES: usize = 8;

impl VirtioDevice {
    /// Looks up `virtioN`; the result is empty if the device no longer exists.
    pub fn find(number: u32) -> Self {
        Self::at(Path::new("/"), number)
    }

    fn at(root: &Path, number: u32) -> Self {
        let folder = format!("sys/bus/virtio/devices/virtio{number}");
        let last = |path: String| path.rsplit('/').next().map(str::to_owned);
        let driver = Root::of(root).link(&format!("{folder}/driver")).ok().and_then(last);
        let mut names = Vec::new();
        for class in CLASSES {
            let found = std::fs::read_dir(root.join(&folder).join(class)).into_iter().flatten().flatten();
            names.extend(found.take(MAX_NAMES).map(|entry| entry.file_name().to_string_lossy().into_owned()));
        }
        names.sort();
        let ifindex = |name: &String| Root::of(root).text(&format!("{folder}/net/{name}/ifindex"))?.trim().parse().ok();
        let ifindex = names.iter().find_map(ifindex);
        Self { driver, names, ifindex }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_device_is_known_by_what_its_driver_made() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/virtio/devices/virtio3");
        fs::create_dir_all(device.join("net/eth1")).unwrap();
        fs::write(device.join("net/eth1/ifindex"), "4\n").unwrap();
        std::os::unix::fs::symlink("../../bus/virtio/drivers/virtio_net", device.join("driver")).unwrap();
        let found = VirtioDevice::at(root.path(), 3);
        assert_eq!(
            found,
            VirtioDevice { driver: Some("virtio_net".into()), names: vec!["eth1".into()], ifindex: Some(4) }
        );
        assert_eq!(VirtioDevice::at(root.path(), 4), VirtioDevice::default(), "it is gone");
    }
}
