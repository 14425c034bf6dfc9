//! What the kernel itself counts, in every network namespace: latpath checks the losses that it sees against it.
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
//! A namespace is named by its inode number (`/proc/PID/ns/net`), as in latpath's points. It is entered by a thread of its own;
//! the caller's thread stays where it is. Nothing is changed, and no module is loaded.

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
