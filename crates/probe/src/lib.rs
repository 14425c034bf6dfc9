//! The probe: kernel programs that turn packets into sightings.
//!
//! [`Probe::attach`] loads the programs (bpf/) for a set of streams and attaches them to the kernel's tracepoints. In
//! record mode it is a [`latpath_model::Source`] of sightings; in live mode the kernel itself joins sightings to journeys
//! and counts segment times, and [`Probe::histogram`] and [`Probe::live_streams`] read the results from shared memory.

mod attach;
mod config;
mod fentry;
mod held_up;
mod hooks;
mod kernel;
mod layout;
mod live;
mod maps;
mod names;
mod points;
mod probe;
mod refusal;
mod ring;
mod skel {
    #![allow(unused_imports)]
    include!(concat!(env!("OUT_DIR"), "/probe.skel.rs"));
}

pub use attach::{AttachError, Because, Mode, Options};
pub use config::{BadStreams, Table};
pub use fentry::attach as attach_program;
pub use held_up::HeldUp;
pub use kernel::{abilities, able, release, Abilities, Unable};
pub use layout::{bytes_of, from_bytes, Plain, StreamConf, SvidShort};
pub use live::{KernelHist, LiveJourney, LiveSightings, LiveStream};
pub use maps::Mapped;
pub use names::{namespaces, Functions, Reasons};
pub use probe::{Never, Probe};
pub use refusal::{last_words, listen};
