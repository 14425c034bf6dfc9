//! The network of this machine, read and changed by netlink: namespaces, devices, addresses, queueing disciplines.
//!
//! ```no_run
//! use latpath_net::{interfaces, Netns};
//! for netns in Netns::all().values() {
//!     let names: Vec<String> = interfaces(netns)?.into_iter().map(|device| device.name).collect();
//!     println!("{}: {}", netns.inode(), names.join(", "));
//! }
//! # Ok::<(), latpath_net::Error>(())
//! ```
//!
//! A namespace is identified by its inode number (`/proc/PID/ns/net`), as in latpath's points. A separate thread enters
//! it; the caller's thread stays in its namespace. Reading changes nothing and loads no kernel module.

mod error;
mod filter;
mod generic;
mod interface;
mod macvtap;
mod napi;
pub mod netlink;
mod netns;
mod qdisc;
mod rtnetlink;
mod virtual_functions;
mod whereabouts;

pub use error::{Error, Result};
pub use filter::{priority_filters, FilterHook, PriorityFilter};
pub use generic::{list_of_family, GENERIC_HEADER};
pub use interface::{interfaces, netns_by_id, Interface, Statistics};
pub use macvtap::macvtap_device_number;
pub use napi::{napis, Napi};
pub use netns::{namespace_name, namespace_names, namespace_owner, owners_of_threads, Inode, Netns};
pub use qdisc::{qdiscs, Gates, Qdisc, Shaping, TrafficClasses, INGRESS, ROOT};
pub use rtnetlink::{Address, Change, Flag, MacvtapMode, Neighbour, NewDevice, Rtnetlink};
pub use virtual_functions::{virtual_functions, FunctionCounters, FunctionLink, VirtualFunction};
pub use whereabouts::devices_here_and_elsewhere;
