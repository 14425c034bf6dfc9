//! Finds virtual machines on this host by their properties rather than by names: processes that hold a KVM virtual
//! machine or execute QEMU; taps and macvtaps by descriptors; vhost workers by kernel flags and their owner; vCPU
//! threads by the system call that runs them.
//!
//! ```no_run
//! let found = latpath_vms::find()?;
//! for vm in &found.vms {
//!     println!("{} is process {} with {} taps", vm.name, vm.pid, vm.taps.len());
//! }
//! # Ok::<(), latpath_vms::Error>(())
//! ```
//!
//! The length of other processes' texts (names, arguments) is limited, and control codes are removed from them.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod by_machine;
mod command_line;
mod debugfs;
mod descriptors;
mod error;
pub mod exit_reason;
mod find;
mod libvirt;
mod neighbours;
mod ovsdb;
mod passthrough;
mod peers;
#[cfg(test)]
mod recorded;
mod taps;
mod text;
mod threads;
mod vm;

pub use by_machine::VmsByMachine;
pub use command_line::qemu_options;
pub use debugfs::kvm_folders;
pub use error::Error;
pub use find::{find, Guests};
pub use libvirt::{cputune, Cputune};
pub use ovsdb::{ovs_config, OvsConfig};
pub use passthrough::{DeviceInterrupt, FunctionCounts, FunctionOf, Passthrough, PostedInterrupts};
pub use vm::{Accel, Bridge, FoundBy, Isolated, Peer, Policy, Role, Tap, TapKind, Thread, VhostUser, Vm};
