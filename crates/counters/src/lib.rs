//! The kernel's own counters in every network namespace, against which latpath checks the losses that it observes.
//!
//! ```no_run
//! use latpath_counters::Snapshot;
//! let before = Snapshot::everywhere();
//! // … the measurement …
//! let counted = Snapshot::everywhere().since(&before);
//! let (netns, ifindex) = (4_026_531_840, 7);
//! println!("the kernel counted {:?}", counted.device(netns, ifindex));
//! ```
//!
//! A namespace is identified by its inode number (`/proc/PID/ns/net`), as in latpath's points. A separate thread enters
//! the namespace; the caller's thread stays in its own. Reading changes nothing and loads no kernel module.

mod datapath;
mod qdisc;
mod snapshot;
mod sockets;
mod softnet;
mod statistics;

pub use datapath::{datapaths, Datapath};
pub use latpath_net::{Error, Inode, Result, Statistics};
pub use qdisc::Queueing;
pub use snapshot::{DeviceCounters, Difference, Namespace, Snapshot};
pub use sockets::{PacketSocket, Sockets};
pub use softnet::{Softnet, SoftnetCpu};
pub use statistics::{since, statistics, DeviceStatistics};
