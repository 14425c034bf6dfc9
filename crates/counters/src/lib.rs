//! What the kernel itself counts, in whatever network namespace it does: the measure against which losses that latpath
//! sees are checked.
//!
//! A namespace is named by its inode number (`/proc/PID/ns/net`), as in [`latpath-words`' points](../latpath_words). It is
//! entered by a thread of its own; the caller's thread stays where it is.

mod error;
mod interface;
mod netlink;
mod netns;

pub use error::{Error, Result};
pub use interface::{interfaces, Interface, Statistics};
pub use netns::{Inode, Netns};
