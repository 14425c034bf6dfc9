//! Ways from the wire into VMs, built from a topology file: the kernel's bridge, macvtap, XDP, Open vSwitch on the
//! kernel's datapath, Open vSwitch in user space with AF_XDP.
//!
//! ```no_run
//! use latpath_topology::{down, status, up, Topology};
//!
//! let topology = Topology::read("relay.toml".as_ref())?;
//! up(&topology, &mut |_event| (), &|| false)?;
//! for gap in status(&topology.name)?.gaps {
//!     println!("not seen: {}: {}", gap.what, gap.why);
//! }
//! down(&topology.name)?;
//! # Ok::<(), latpath_topology::Error>(())
//! ```
//!
//! A topology outlives the process that made it. Each object is recorded in the journal before it is made, so that
//! [`down`] removes exactly what [`up`] made, even after a kill at any step. The next latpath that root starts removes
//! an unfinished topology.
#![warn(missing_docs, clippy::missing_errors_doc)]
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod builder;
mod check;
mod devices;
mod error;
mod example;
mod file;
mod guest;
mod libvirt;
mod ovs;
mod points;
mod status;
mod step;
mod undo;
mod up;
mod xdp;

pub use builder::Event;
pub use error::{Error, Result};
pub use example::example;
pub use file::{
    BridgeOptions, Cable, Guest, GuestPort, MacvtapOptions, OvsOptions, Qemu, TaggedBy, Topology, Uplink, Vlan, Way,
    XdpMode, XdpOptions,
};
pub use libvirt::interface_xml;
pub use points::{Direction, Gap, PointOnWay};
pub use status::{status, ObjectStatus, Presence, Status};
pub use step::{Identity, Object, OvsSetting, Setting, Step, Value};
pub use undo::Topologies;
pub use up::{down, names, up, Down, Up};

use latpath_linux::RUN_DIRECTORY;
use std::path::{Path, PathBuf};

/// Directory of a topology's sockets and logs.
pub fn directory(topology: &str) -> PathBuf {
    Path::new(RUN_DIRECTORY).join("topology").join(topology)
}
