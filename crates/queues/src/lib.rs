//! What passes virtqueues: buffers posted and used, bytes, batches, kicks and interrupts with those that were
//! suppressed, how full the rings were, and how long the device had each buffer.
//!
//! Two [`Side`]s are seen: virtio's drivers, in a guest, and vhost, in its host; both where this machine is both.
//! eBPF programs count in the kernel while it happens, and nothing is sent to user space. Each count of buffers comes
//! with how far the ring's own index moved: where both differ, buffers passed unseen ([`Ring::difference`]).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let watch = latpath_queues::Watch::start(false)?;
//! std::thread::sleep(Duration::from_secs(10));
//! for queue in watch.end(|| ()).0.queues {
//!     println!("{}: {} buffers posted, {} used", queue.name, queue.posted, queue.used);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Times are of `CLOCK_MONOTONIC`, in ns.

mod devices;
mod figures;
mod hooks;
mod layout;
#[cfg(test)]
mod ring_index;
mod watch;
mod skel {
    #![allow(unused_imports)]
    include!(concat!(env!("OUT_DIR"), "/queues.skel.rs"));
}

pub use devices::VirtioDevice;
pub use figures::{Directions, Queue, Queues, Ring, Side, VIRTIO_NET};
pub use watch::Watch;
