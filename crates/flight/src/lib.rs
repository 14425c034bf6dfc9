//! The flight recorder: the latest events of each CPU, kept in the kernel and read without stopping it.
//!
//! [`Recorder::start`] loads the programs (bpf/flight.bpf.c) and attaches those that this kernel supports: to thread
//! switches and wakeups, entries and exits of interrupts and softirqs, timers, polls of devices, idle states, work
//! items, entries to and exits from guests, upcalls. Each writes one [`Event`] of 32 bytes into its CPU's ring, which
//! overwrites itself. Hooks that the kernel lacks are determined before anything is attached, and are reported together
//! with the events that are therefore not recorded ([`Recorder::missing`]).
//!
//! [`Recorder::window`] copies the events of an interval from the rings, while the kernel continues to write. For each
//! CPU it reports the time from which the events are complete, and the numbers of overwritten and unfinished events
//! ([`CpuRecord`]). [`Timeline`] converts the events into contiguous tiles: for a CPU its thread, what interrupted the
//! thread, or its idle state ([`CpuTile`]); for a thread whether it ran, was ready (since which event, and for which
//! CPU), or slept (how, and which thread woke it) ([`ThreadTile`]). Unknown times are `Unknown`. The conversion
//! consists of pure functions of the events, so that guests' events and files are handled by the same code.
//!
//! [`Upcall`]s, which are also part of a [`Snapshot`], record which packets found no flow in a datapath of Open
//! vSwitch, the history of that flow, and when ovs-vswitchd read the packet and replied (bpf/upcalls.bpf.c). Flows may
//! be removed long before a window, so all changes to them are kept in user space, not in the rings.
//!
//! [`Names`] contains the names of threads, interrupts, functions and idle states. latpath's own threads are recorded
//! like all others: the tool itself may have delayed a packet.
//!
//! Everything ends with the [`Recorder`], even after kill -9: nothing is pinned.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod attach;
mod budget;
mod cpu;
mod event;
mod gaps;
mod hooks;
mod idle;
mod keeper;
mod layout;
mod learnt;
mod names;
pub mod packed;
mod recorder;
mod recorder_thread;
mod snapshot;
mod tail;
mod thread;
mod transfer;
mod unit;
mod upcalls;
mod window;
mod skel {
    #![allow(unused_imports)]
    include!(concat!(env!("OUT_DIR"), "/flight.skel.rs"));
}
mod upcalls_skel {
    #![allow(unused_imports)]
    include!(concat!(env!("OUT_DIR"), "/upcalls.skel.rs"));
}

pub use budget::{Ppm, DEFAULT_BUDGET};
pub use cpu::{CpuTile, CpuTimeline, Doing, Running, Share};
pub use event::{softirq_name, Class, Event, EventKind, Left, Sleep, Vector};
pub use hooks::Scope;
pub use idle::IdleStates;
pub use latpath_bpf::Missing;
pub use latpath_bpf::StartError;
pub use names::{Names, Thread};
pub use recorder::{Figures, ProgramCost, Recorder};
pub use recorder_thread::{NoSnapshot, Record, RecorderThread};
pub use snapshot::{BadSnapshot, Snapshot, SnapshotLimits, MAX_ENCODED};
pub use tail::{Tail, Tailed, SETTLED};
pub use thread::{Since, State, ThreadTile, Timeline, Waker};
pub use transfer::Transfer;
pub use upcalls::{FlowLimits, FlowState, Removal, Upcall};
pub use window::{CpuRecord, Window};
