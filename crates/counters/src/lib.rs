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
mod error;
mod interface;
mod netlink;
mod netns;
mod qdisc;
mod snapshot;
mod sockets;
mod softnet;
mod whereabouts;

pub use datapath::{datapaths, Datapath};
pub use error::{Error, Result};
pub use interface::{interfaces, netns_by_id, since, statistics, DeviceStatistics, Interface, Statistics};
pub use netns::{Inode, Netns};
pub use qdisc::Queueing;
pub use snapshot::{DeviceCounters, Difference, Namespace, Snapshot};
pub use sockets::{PacketSocket, Sockets};
pub use softnet::{Softnet, SoftnetCpu};
pub use whereabouts::devices_here_and_elsewhere;
