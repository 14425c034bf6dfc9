//! Sightings of another machine over an authenticated byte stream: ssh, vsock from the host only, a unix socket, a
//! virtio-serial port. Never a network port.
//!
//! * Guest's side: [`listen`] waits for the host, [`serve`] runs the session and forwards the sightings of a
//!   [`Source`](latpath_model::Source).
//! * Host's side: [`Machine::connect`] connects to an agent at an [`Address`]; a [`Machine`] is itself a `Source`, with
//!   times on the host's timeline.
//!
//! Each side treats the other as hostile: every length, index and wait is bounded, and a peer that sends invalid data,
//! stalls or dies causes an error that names it. docs/agent.md describes the protocol.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod address;
mod columns;
mod command;
mod cost;
mod dial;
mod frame;
mod hypervisor;
mod inbox;
mod listen;
mod machine;
mod message;
mod observation;
mod permit;
mod profile;
mod recorder;
mod serve;
mod session;
mod settings;
mod source_notes;
mod stream;
mod vms;
mod windows;
mod work;

pub use address::{Address, BadAddress};
pub use command::CommandNews;
pub use cost::{Cost, Meter};
pub use hypervisor::Hypervisor;
pub use listen::{listen, Listen, ListenError};
#[doc(hidden)]
pub use machine::ScriptedAgent;
pub use machine::{Machine, MachineError, Timeouts};
pub use message::{Facts, StartRequest, VERSION};
pub use observation::{MakeObserver, Observer, MAX_OBSERVATION};
pub use permit::{CommandKey, Commands};
pub use profile::{MakeSampler, Sampler};
pub use serve::{serve, Attached, Ended, FindObserver, ServeError, ServeOptions};
pub use settings::MachineReading;
pub use stream::Stream;
pub use windows::GuestWindow;
