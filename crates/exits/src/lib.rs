//! Reasons and durations of VM exits, and the time of vCPU threads by state.
//!
//! eBPF programs aggregate in the kernel (bpf/vcpu_time.h): each event of a vCPU's thread ends one [`VcpuState`] and
//! begins the next at the same moment, so that the times of all states in a window add up to the wall clock, to the
//! nanosecond. No events are sent to user space, so none can be lost on the way.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let watch = latpath_exits::Watch::start(&latpath_vms::find()?.vms, latpath_exits::Options::default())?;
//! std::thread::sleep(Duration::from_secs(10));
//! for vcpu in watch.end(|| ()).0.vcpus {
//!     println!("{} left its guest {} times", vcpu.tid, vcpu.exits);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Times are in ns of `CLOCK_MONOTONIC`.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod counters;
mod events;
mod figures;
mod hooks;
mod layout;
#[cfg(test)]
mod state_machine;
mod traffic;
mod watch;
mod skel {
    #![allow(unused_imports)]
    include!(concat!(env!("OUT_DIR"), "/exits.skel.rs"));
}
mod events_skel {
    #![allow(unused_imports)]
    include!(concat!(env!("OUT_DIR"), "/events.skel.rs"));
}

pub use counters::KvmCounters;
pub use figures::{Events, Exits, Interrupts, Reason, Vcpu, VcpuState, VcpuTimes};
pub use traffic::Traffic;
pub use watch::{Options, Watch};
