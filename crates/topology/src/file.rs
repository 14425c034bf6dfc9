//! The topology file: its keys and their values.

use crate::{Error, Result};
use latpath_net::MacvtapMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs,
    io::Read,
    path::{Path, PathBuf},
};

/// Maximum size of a topology file, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// A way from the wire into a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The kernel's bridge, with a tap for each guest.
    Bridge,
    /// A macvtap on the uplink for each guest.
    Macvtap,
    /// XDP programs that redirect frames between the uplink and the tap of one guest.
    Xdp,
    /// Open vSwitch on the kernel's datapath, with a tap for each guest.
    Ovs,
    /// Open vSwitch's datapath in user space, with AF_XDP at the uplink.
    OvsAfxdp,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 5] = [Self::Bridge, Self::Macvtap, Self::Xdp, Self::Ovs, Self::OvsAfxdp];

    /// The way's name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Macvtap => "macvtap",
            Self::Xdp => "xdp",
            Self::Ovs => "ovs",
            Self::OvsAfxdp => "ovs-afxdp",
        }
    }

    /// The name of the table with this way's options.
    pub(crate) fn table(self) -> &'static str {
        match self {
            Self::OvsAfxdp => "ovs",
            other => other.name(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A topology: an uplink, a way, and guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The name, by which it is removed.
    pub name: String,
    /// The way.
    pub way: Way,
    /// Network namespace (`ip netns`) of the host's side, made if it does not exist; `None` for latpath's own.
    pub namespace: Option<String>,
    /// MTU of all devices, bytes; `None` for the uplink's.
    pub mtu: Option<u32>,
    /// The device towards the wire.
    pub uplink: Uplink,
    /// The VLAN of the guests' frames on the wire; `None` if all frames pass unchanged.
    pub vlan: Option<Vlan>,
    /// Options of [`Way::Bridge`].
    pub bridge: Option<BridgeOptions>,
    /// Options of [`Way::Macvtap`].
    pub macvtap: Option<MacvtapOptions>,
    /// Options of [`Way::Xdp`].
    pub xdp: Option<XdpOptions>,
    /// Options of [`Way::Ovs`] and [`Way::OvsAfxdp`].
    pub ovs: Option<OvsOptions>,
    /// The guests.
    #[serde(rename = "guest", default)]
    pub guests: Vec<Guest>,
}

/// The device towards the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// Name of an existing NIC, or of the host's end of the cable.
    pub device: String,
    /// Makes the device as one end of a veth, for tests without a NIC.
    pub cable: Option<Cable>,
    /// Whether the device may have IP addresses, although the host cannot use them while the device belongs to the way.
    #[serde(default)]
    pub keep_addresses: bool,
}

/// The other end of a veth that replaces a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cable {
    /// Network namespace of the other end, made if it does not exist.
    pub namespace: String,
    /// Name of the other end.
    pub device: String,
}

/// A VLAN on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vlan {
    /// VLAN id, 1 to 4094.
    pub id: u16,
    /// The side that adds and removes the tag.
    pub tagged_by: TaggedBy,
}

/// The side that adds and removes a VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaggedBy {
    /// The guest: its frames are tagged.
    Guest,
    /// The host: the guest's frames are untagged.
    Host,
}

/// Options of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BridgeOptions {
    /// The bridge's name; `None` for `br-NAME`.
    pub name: Option<String>,
    /// Whether multicast is forwarded only to ports that have joined the group.
    pub multicast_snooping: bool,
    /// Whether it runs the spanning tree protocol.
    pub spanning_tree: bool,
}

/// Options of macvtaps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MacvtapOptions {
    /// The mode.
    pub mode: MacvtapMode,
}

/// Options of XDP programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct XdpOptions {
    /// Where they run.
    pub mode: XdpMode,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum XdpMode {
    /// In the driver if it supports XDP, otherwise in the stack.
    #[default]
    Auto,
    /// In the driver, before the kernel allocates an skb for the frame.
    Native,
    /// In the stack, for any device.
    Generic,
}

/// Options of Open vSwitch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OvsOptions {
    /// The bridge's name; `None` for `br-NAME`.
    pub bridge: Option<String>,
    /// The database, as in ovs-vsctl's `--db`; `None` for the machine's default one.
    pub database: Option<String>,
    /// CPUs for the poll threads of the user-space datapath, as a hexadecimal mask (`pmd-cpu-mask`).
    pub pmd_cpu_mask: Option<String>,
    /// Number of the uplink's receive queues to poll (`n_rxq`).
    pub n_rxq: Option<u32>,
    /// How AF_XDP attaches: `best-effort`, `native-with-zerocopy`, `native`, `generic` (`xdp-mode`).
    pub xdp_mode: Option<String>,
    /// Kind of the guests' ports in the user-space datapath.
    pub guest_port: GuestPort,
}

/// A guest's port in Open vSwitch's user-space datapath.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestPort {
    /// A socket over which QEMU shares the guest's memory with Open vSwitch; requires Open vSwitch built with DPDK.
    #[default]
    VhostUser,
    /// A tap.
    Tap,
}

/// A guest's NIC, and the program that runs the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// The guest's name.
    pub name: String,
    /// The tap's or macvtap's name; `None` for `tap-NAME`.
    pub tap: Option<String>,
    /// Number of queues of the tap or macvtap.
    #[serde(default = "one")]
    pub queues: u32,
    /// MAC address of the guest's NIC; `None` for one derived from its name.
    pub mac: Option<String>,
    /// Options for starting the guest with QEMU; `None` if latpath does not start it.
    pub qemu: Option<Qemu>,
    /// A libvirt domain whose tap is used while it runs.
    pub domain: Option<String>,
}

fn one() -> u32 {
    1
}

/// Options of a guest that latpath starts with QEMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Qemu {
    /// The program.
    pub program: String,
    /// Accelerator: `kvm` or `tcg`.
    pub acceleration: String,
    /// Number of vCPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mib: u32,
    /// Linux kernel to boot.
    pub kernel: Option<PathBuf>,
    /// Initial RAM disk for the kernel.
    pub initrd: Option<PathBuf>,
    /// Command line for the kernel.
    pub append: Option<String>,
    /// Image of its disk.
    pub disk: Option<PathBuf>,
    /// Format of the disk image.
    pub disk_format: String,
    /// Whether the kernel's vhost, rather than QEMU, carries the packets.
    pub vhost: bool,
    /// Descriptors per queue; `None` for QEMU's default.
    pub queue_size: Option<u32>,
    /// Interrupt vectors of the NIC; `None` for QEMU's default.
    pub vectors: Option<u32>,
    /// Further arguments for the program.
    pub arguments: Vec<String>,
}

impl Default for Qemu {
    fn default() -> Self {
        Self {
            program: format!("qemu-system-{}", std::env::consts::ARCH),
            acceleration: "kvm".into(),
            cpus: 1,
            memory_mib: 1024,
            kernel: None,
            initrd: None,
            append: None,
            disk: None,
            disk_format: "raw".into(),
            vhost: true,
            queue_size: None,
            vectors: None,
            arguments: Vec::new(),
        }
    }
}

impl Guest {
    /// Name of its tap or macvtap.
    pub fn tap(&self) -> String {
        self.tap.clone().unwrap_or_else(|| format!("tap-{}", self.name))
    }

    /// MAC address of its NIC: the configured one, or a locally administered one derived from the guest's name.
    pub fn mac(&self) -> [u8; 6] {
        self.mac.as_deref().and_then(mac).unwrap_or_else(|| {
            // FNV-1a, 64 bits, so that the address is the same on every start.
            let hash = self
                .name
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
            let [a, b, c, ..] = hash.to_be_bytes();
            [0x52, 0x54, 0x00, a, b, c]
        })
    }
}

/// Parses a unicast MAC address, e.g. `52:54:00:01:02:03`.
pub(crate) fn mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<_>>()?;
    let well_formed = text.len() == 17 && bytes.first().is_some_and(|first| first & 1 == 0);
    bytes.try_into().ok().filter(|_| well_formed)
}

impl Topology {
    /// Reads a topology file.
    ///
    /// # Errors
    /// The file cannot be read, or has an unknown key or an invalid value; the error includes the line.
    pub fn read(path: &Path) -> Result<Self> {
        let unreadable = |source| Error::Unreadable { path: path.into(), source };
        let mut text = String::new();
        fs::File::open(path).map_err(unreadable)?.take(MAX_BYTES).read_to_string(&mut text).map_err(unreadable)?;
        Self::parse(path, &text)
    }

    /// Parses the text of a topology file; `path` names it in errors.
    ///
    /// # Errors
    /// As for [`Topology::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let topology: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
            Error::File { path: path.into(), line, why: error.message().replace('\n', ", ") }
        })?;
        topology.check()?;
        Ok(topology)
    }

    /// Name of the bridge, for the ways that have one.
    pub fn bridge_name(&self) -> Option<String> {
        let given = match self.way {
            Way::Bridge => self.bridge.as_ref().and_then(|bridge| bridge.name.clone()),
            Way::Ovs | Way::OvsAfxdp => self.ovs.as_ref().and_then(|ovs| ovs.bridge.clone()),
            Way::Macvtap | Way::Xdp => return None,
        };
        Some(given.unwrap_or_else(|| format!("br-{}", self.name)))
    }

    /// Whether the guests' ports are vhost-user sockets.
    pub fn has_vhost_user(&self) -> bool {
        self.way == Way::OvsAfxdp && self.ovs.clone().unwrap_or_default().guest_port == GuestPort::VhostUser
    }

    /// Name and VLAN id of the VLAN device between the uplink and the way; `None` unless the host adds and removes the
    /// tag with such a device.
    pub(crate) fn vlan_device(&self) -> Option<(String, u16)> {
        let vlan = self.vlan.filter(|vlan| vlan.tagged_by == TaggedBy::Host)?;
        matches!(self.way, Way::Bridge | Way::Macvtap).then(|| (format!("{}.{}", self.uplink.device, vlan.id), vlan.id))
    }
}

#[cfg(test)]
mod tests;
