//! Parts shared by all crates' tests: what a test requires of the machine, its tier, a testbed of network namespaces,
//! and waits.
//!
//! A test program has `harness = false`, because Rust's own harness cannot skip tests at run time:
//!
//! ```text
//! fn main() -> ExitCode {
//!     latpath_testkit::main(vec![
//!         trial("a_file_is_read", &[], read),
//!         trial("frames_sent_decode_in_tshark", &[need_tool("tshark")], decode),
//!         trial("a_hog_is_blamed", &[need_lab(), need_btf()], hog).in_lab(),
//!     ])
//! }
//! ```

pub mod busy;
pub mod machine_folder;
pub mod machine_nics;
pub mod names;
mod needs;
mod noise;
pub mod pages;
mod points;
mod ptp_daemon;
mod schema;
mod space;
pub mod stripped;
mod testbed;
mod tiers;
pub mod trace_processor;
pub mod waits;
pub mod wire;

pub use libtest_mimic::Failed;
pub use needs::{
    igb_device, need_btf, need_guest, need_igb, need_lab, need_python, need_root, need_tool, python, Lack,
};
pub use noise::Noise;
pub use points::point;
pub use ptp_daemon::{PtpDaemon, PtpScript};
pub use schema::misfits;
pub use space::Space;
pub use testbed::{bench, boot, latpath, program, start, start_on_terminal, Bench, Finished, Started, PROGRAM};
pub use tiers::{arguments, main, retried, runs, trial, Tier, Trial};

/// Checks that two values are equal.
///
/// # Errors
/// If the values differ.
pub fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Result<(), Failed> {
    match got == want {
        true => Ok(()),
        false => Err(format!("{what}: {got:?}, should be {want:?}").into()),
    }
}
