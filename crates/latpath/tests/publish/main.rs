//! `latpath publish`, `subscribe` and `streams` from end to end: real frames over a veth pair, checked by tshark.
//!
//! Needs root for namespaces and packet sockets, and tshark and tcpdump; without these, tests count as skipped.

mod bench;
mod copies;
mod files;
mod receives;
mod refuses;
mod sends;
mod talks;
mod trips;

use latpath_testkit::{need_lab, need_tool, trial, Failed, Trial};
use std::process::ExitCode;

/// Requirements of a test.
#[derive(Clone, Copy)]
enum Needs {
    /// Nothing.
    Nothing,
    /// tshark, without privileges.
    Tshark,
    /// Namespaces and packet sockets.
    Root,
    /// tshark, namespaces and packet sockets, and tcpdump.
    Capture,
    /// The shared captures.
    Shared,
    /// All of the above.
    CaptureShared,
}

/// A test and its requirements.
type Test = (&'static str, Needs, fn() -> Result<(), Failed>);

fn main() -> ExitCode {
    let root = need_lab();
    let tshark = need_tool("tshark");
    let tools = tshark.clone().or_else(|| need_tool("tcpdump"));
    let shared = bench::why_not_shared();
    let to_trial = |(name, needs, test): Test| match needs {
        Needs::Nothing => trial(name, &[], test),
        Needs::Tshark => trial(name, std::slice::from_ref(&tshark), test),
        Needs::Root => trial(name, std::slice::from_ref(&root), test),
        Needs::Shared => trial(name, std::slice::from_ref(&shared), test),
        Needs::Capture => trial(name, &[root.clone(), tools.clone()], test),
        Needs::CaptureShared => trial(name, &[root.clone(), tools.clone(), shared.clone()], test),
    };
    let tests =
        [files::TESTS, sends::TESTS, copies::TESTS, receives::TESTS, refuses::TESTS, talks::TESTS, trips::TESTS]
            .concat();
    let mut trials: Vec<Trial> = tests.into_iter().map(to_trial).map(Trial::side_by_side).collect();
    trials.extend(receives::ALONE.iter().copied().map(to_trial));
    latpath_testkit::main(trials)
}
