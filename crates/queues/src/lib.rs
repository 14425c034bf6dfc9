//! Counts the traffic of virtqueues: buffers posted and used, bytes, batches, kicks and interrupts (sent and
//! suppressed), the fill level of the rings, and the time for which the device holds each buffer.
//!
//! It observes two [`Side`]s: virtio's drivers in a guest, and vhost in its host; both if this machine is both. eBPF
//! programs count in the kernel, and no events are sent to user space. Each count of buffers comes with the distance
//! that the ring's own index moved: if the two differ, buffers passed unseen ([`Ring::difference`]).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let watch = latpath_queues::Watch::start(false)?;
//! std::thread::sleep(Duration::from_secs(10));
//! for queue in watch.end(|| ()).0.queues {
//!     println!("{}: {} buffers posted, {} used", queue.name, queue.posted, queue.counts.used_buffers);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Times are `CLOCK_MONOTONIC`, in ns.

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
pub use figures::{Directions, Queue, QueueCounts, Queues, Ring, Side, VIRTIO_NET};
pub use watch::Watch;
