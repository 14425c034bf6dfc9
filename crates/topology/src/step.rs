//! The objects that a topology makes and the settings that it changes, as recorded in the journal.

use crate::file::{Topology, XdpMode};
use latpath_net::Inode;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A line of a topology's entry in the journal. Each line is written and synced before the change that it describes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The topology itself, for `status`. This step changes nothing.
    Topology(Box<Topology>),
    /// The object is about to be made; no object with its name exists.
    Make(Object),
    /// The object was made.
    Made(Object, Identity),
    /// A property of an existing device is about to be changed.
    Set(Setting),
    /// A setting of Open vSwitch is about to be changed.
    SetOvs(OvsSetting),
    /// The topology is complete.
    Complete,
}

/// An object that a topology makes. Its files are in latpath's own directories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Object {
    /// The directory of the topology's sockets and logs, below latpath's run directory.
    Directory,
    /// A network namespace.
    Namespace {
        /// Its name in `ip netns`.
        name: String,
    },
    /// A network device.
    Device {
        /// Its namespace.
        netns: Inode,
        /// Its name.
        name: String,
        /// Its link kind, e.g. `bridge`, `veth`, `vlan`, `tun` or `macvtap`.
        kind: String,
    },
    /// A macvtap's character device, if /dev lacks it.
    Node {
        /// The macvtap.
        device: String,
        /// Its index.
        ifindex: u32,
    },
    /// The bpffs mount, in which XDP programs outlive the command.
    Bpffs,
    /// The directory of the topology's pinned programs.
    Pins,
    /// An XDP program's pinned attachment.
    Xdp {
        /// The device that it is attached to.
        device: String,
        /// The namespace of the device.
        netns: Inode,
        /// How it handles frames, for messages.
        does: String,
    },
    /// A guest's QEMU.
    Guest {
        /// The guest's name.
        name: String,
        /// The program that runs the guest.
        program: String,
    },
    /// A bridge of Open vSwitch, with its ports.
    OvsBridge {
        /// The bridge's name.
        name: String,
        /// The database; `None` for the machine's default one.
        database: Option<String>,
    },
    /// A port of a bridge of Open vSwitch.
    OvsPort {
        /// The port's name.
        name: String,
        /// The bridge.
        bridge: String,
        /// The database; `None` for the machine's default one.
        database: Option<String>,
    },
}

/// Identity that distinguishes an object from a later one with the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    /// The name identifies the object, because it is in latpath's own directory.
    Name,
    /// Index of a device in its namespace.
    Ifindex(u32),
    /// Inode number of a namespace or a file.
    Inode(u64),
    /// Process ID, and start time in clock ticks since boot.
    Process {
        /// The process ID.
        pid: u32,
        /// The start time, clock ticks since boot.
        start_ticks: u64,
    },
    /// ID of a BPF link, and where its program runs.
    Link {
        /// The ID.
        id: u32,
        /// Where the program runs.
        mode: XdpMode,
    },
    /// UUID of a row in Open vSwitch's database.
    Uuid(String),
}

/// A change of an existing device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The device's namespace.
    pub netns: Inode,
    /// Its name.
    pub device: String,
    /// Its index.
    pub ifindex: u32,
    /// The old value.
    pub before: Value,
    /// The new value, of the same property.
    pub set: Value,
}

/// A change in Open vSwitch's `other_config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OvsSetting {
    /// The database; `None` for the machine's default one.
    pub database: Option<String>,
    /// The key.
    pub key: String,
    /// The old value; `None` if it was not set.
    pub before: Option<String>,
    /// The new value.
    pub set: String,
}

/// A property of a device, with a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// Whether it is up.
    Up(bool),
    /// Its MTU, bytes.
    Mtu(u32),
    /// Whether it is promiscuous, i.e. receives frames for all addresses.
    Promiscuous(bool),
    /// The bridge of which it is a port.
    Master(Option<String>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up(up) => f.write_str(if *up { "up" } else { "down" }),
            Self::Mtu(bytes) => write!(f, "MTU {bytes}"),
            Self::Promiscuous(on) => write!(f, "promiscuous {}", if *on { "on" } else { "off" }),
            Self::Master(Some(bridge)) => write!(f, "port of {bridge}"),
            Self::Master(None) => f.write_str("port of no bridge"),
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory => f.write_str("directory of sockets and logs"),
            Self::Namespace { name } => write!(f, "network namespace {name}"),
            Self::Device { name, kind, .. } => {
                write!(f, "{} {name}", if kind == "tun" { "tap" } else { kind })
            }
            Self::Node { device, .. } => write!(f, "character device of {device}"),
            Self::Bpffs => f.write_str("mount of bpffs"),
            Self::Pins => f.write_str("directory of pinned programs"),
            Self::Xdp { device, does, .. } => write!(f, "XDP program on {device} ({does})"),
            Self::Guest { name, program } => write!(f, "guest {name} ({program})"),
            Self::OvsBridge { name, .. } => write!(f, "Open vSwitch bridge {name}"),
            Self::OvsPort { name, bridge, .. } => write!(f, "port {name} of {bridge}"),
        }
    }
}
