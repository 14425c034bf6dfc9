//! What the kernel itself counts, in whatever network namespace it does: the measure against which losses that latpath
//! sees are checked, and the words for where they happened.
//!
//! ```no_run
//! use latpath_counters::{place_of_drop, Snapshot};
//! let before = Snapshot::everywhere();
//! // … the measurement …
//! let counted = Snapshot::everywhere().since(&before);
//! let place = place_of_drop("tun_net_xmit", "FULL_RING");
//! let (netns, ifindex) = (4_026_531_840, 7);
//! println!("{place}: the kernel counted {:?}", place.counted(&counted, netns, ifindex));
//! ```
//!
//! A namespace is named by its inode number (`/proc/PID/ns/net`), as in latpath's points. It is entered by a thread of its own;
//! the caller's thread stays where it is. Nothing is changed, and no module is loaded.

mod datapath;
mod error;
mod interface;
mod netlink;
mod netns;
mod place;
mod qdisc;
mod snapshot;
mod sockets;
mod softnet;

pub use datapath::{datapaths, Datapath};
pub use error::{Error, Result};
pub use interface::{interfaces, Interface, Statistics};
pub use netns::{Inode, Netns};
pub use place::{place_of_drop, Place};
pub use qdisc::Queueing;
pub use snapshot::{Device, DeviceCounters, Difference, Namespace, Snapshot, Which};
pub use sockets::{PacketSocket, Sockets};
pub use softnet::{Softnet, SoftnetCpu};
