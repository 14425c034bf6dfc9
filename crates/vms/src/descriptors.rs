//! Open descriptors of a process: KVM, taps, vhost and VFIO devices.

use latpath_linux::proc::Root;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::FileTypeExt,
};

/// Maximum number of descriptors read per process; QEMU has a few hundred.
const MAX: usize = 1 << 16;

/// The relevant descriptors of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    /// Descriptors of KVM virtual machines.
    pub kvm: Vec<u32>,
    /// vCPU number by descriptor of the KVM vCPU.
    pub vcpus: BTreeMap<u32, u32>,
    /// Descriptors of each tap and macvtap.
    pub taps: BTreeMap<Opened, Vec<u32>>,
    pub vhost_net: Vec<u32>,
    pub vhost_vsock: Vec<u32>,
    /// IOMMU groups of passed-through devices (`/dev/vfio/N`).
    pub vfio_groups: BTreeSet<u32>,
    /// Names, `vfioN`, of passed-through devices opened without their group (iommufd, `/dev/vfio/devices/vfioN`).
    pub vfio_devices: BTreeSet<String>,
}

/// A tap or macvtap, as identified by a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Opened {
    /// Name of the tap.
    Tap(String),
    /// Device index of a macvtap or ipvtap.
    Macvtap(u32),
}

impl Descriptors {
    /// Reads the descriptors of a process.
    ///
    /// # Errors
    /// The process has ended, or this user may not read its descriptors.
    pub fn read(root: &Root, pid: u32) -> io::Result<Self> {
        let mut found = Self::default();
        for fd in root.numbers(&format!("proc/{pid}/fd"), MAX)? {
            // The descriptor was closed meanwhile.
            let Ok(target) = root.link(&format!("proc/{pid}/fd/{fd}")) else { continue };
            found.note(root, pid, fd, &target);
        }
        Ok(found)
    }

    fn note(&mut self, root: &Root, pid: u32, fd: u32, target: &str) {
        if let Some(kind) = target.strip_prefix("anon_inode:") {
            // virt/kvm/kvm_main.c: "kvm-vm", "kvm-vcpu:%d"
            if kind == "kvm-vm" {
                self.kvm.push(fd);
            } else if let Some(number) = kind.strip_prefix("kvm-vcpu:").and_then(|n| n.parse().ok()) {
                self.vcpus.insert(fd, number);
            }
            return;
        }
        if let Some(path) = target.strip_prefix("/dev/vfio/") {
            match path.strip_prefix("devices/") {
                Some(device) => drop(self.vfio_devices.insert(device.to_owned())),
                // `vfio`, the container of all groups, is not a number and so is left out.
                None => self.vfio_groups.extend(path.trim_start_matches("noiommu-").parse::<u32>()),
            }
            return;
        }
        let Some(name) = target.strip_prefix('/').and_then(|path| path.rsplit('/').next()) else { return };
        let is_device = || {
            let meta = fs::metadata(root.path(&format!("proc/{pid}/fd/{fd}")));
            // Files that cannot be examined, e.g. in the record of another machine, are accepted.
            meta.map_or(true, |meta| meta.file_type().is_char_device())
        };
        match name {
            // Of these devices, only tun names its interface in fdinfo (drivers/net/tun.c, tun_chr_show_fdinfo).
            "tun" => {
                let info = root.text(&format!("proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
                let device = info.lines().find_map(|line| line.strip_prefix("iff:")).map(str::trim);
                if let Some(device) = device.filter(|d| !d.is_empty()) {
                    self.taps.entry(Opened::Tap(device.to_owned())).or_default().push(fd);
                }
            }
            "vhost-net" if is_device() => self.vhost_net.push(fd),
            "vhost-vsock" if is_device() => self.vhost_vsock.push(fd),
            _ => {
                let index = name.strip_prefix("tap").and_then(|n| n.parse().ok());
                if let Some(index) = index.filter(|_| is_device()) {
                    self.taps.entry(Opened::Macvtap(index)).or_default().push(fd);
                }
            }
        }
    }
}
