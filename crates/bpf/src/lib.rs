//! Shared parts of latpath's eBPF programs and their loaders: the headers in `include` and `protocols`, the build of
//! programs, the table of streams, maps in shared memory, errors, and names for the kernel's numbers.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

#[cfg(feature = "build")]
mod compile;
#[cfg(feature = "build")]
pub use compile::{compile, compile_for_user_space};

#[cfg(feature = "loader")]
mod fentry;
#[cfg(feature = "loader")]
pub mod floor;
#[cfg(feature = "loader")]
mod hooks;
#[cfg(feature = "loader")]
mod kernel;
#[cfg(feature = "loader")]
mod maps;
#[cfg(feature = "loader")]
mod names;
#[cfg(feature = "loader")]
mod refusal;
#[cfg(feature = "loader")]
mod skeleton;
#[cfg(feature = "loader")]
mod start;
#[cfg(feature = "loader")]
mod streams;
#[cfg(feature = "loader")]
pub mod trial;

#[cfg(feature = "loader")]
mod skel {
    #![allow(unused_imports, missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/streams.skel.rs"));
}
#[cfg(feature = "loader")]
mod constants {
    #![allow(missing_docs)] // the headers describe them
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

#[cfg(feature = "loader")]
pub use loader::*;
#[cfg(feature = "loader")]
mod loader {
    pub use crate::constants::{
        BUCKETS, DIFFERENCE_DESTINATION, DIFFERENCE_MAC, DIFFERENCE_SOURCE, DIFFERENCE_VLAN, SCRATCHES, SMALL_BITS,
        STEP_BITS,
    };
    pub use crate::fentry::{attach as attach_program, works as fentry_works};
    pub use crate::hooks::{
        function_hook, hook, irq_vectors, joined, module_hook, optional, or, AttachedProgram, Hook, Hooks, Missing,
        Programs,
    };
    pub use crate::kernel::{able, is_xdp_loaded, measure, program_info, release, Unable};
    pub use crate::maps::{bytes_of, convert, entries, from_bytes, Mapped, Plain};
    pub use crate::names::{interrupts, Functions, Reasons};
    pub use crate::refusal::{accused, last_words, listen, with_last_words};
    pub use crate::skeleton::{Loaded, Opened};
    pub use crate::start::{begin_window, end_window, Purpose, StartError, Window};
    pub use crate::streams::{BadStreams, Table};
}
