//! The probe: kernel programs that turn packets into sightings.
//!
//! [`Probe::attach`] loads the programs (bpf/) for a set of streams and attaches them to the kernel's tracepoints. It is a
//! [`latpath_model::Source`] of sightings.

mod attach;
mod config;
mod fentry;
mod hooks;
mod kernel;
mod layout;
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

pub use attach::{AttachError, Because, Options};
pub use config::{BadStreams, Table};
pub use fentry::attach as attach_program;
pub use kernel::{abilities, able, release, Abilities, Unable};
pub use layout::{bytes_of, from_bytes, Plain, StreamConf, SvidShort, RECORD_BYTES};
pub use maps::Mapped;
pub use names::{namespaces, Functions, Reasons};
pub use probe::{Never, Probe};
pub use refusal::{last_words, listen};
