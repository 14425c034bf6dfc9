//! `latpath publish`, `subscribe` and `streams` from end to end: real frames over a veth pair, judged by tshark.
//!
//! Needs root for namespaces and packet sockets, and tshark and tcpdump; what is not there makes tests count as skipped.

mod bench;
mod files;
mod receives;
mod refuses;
mod sends;

use latpath_testkit::{trial, Failed};
use std::process::ExitCode;

/// What a test needs that may not be there.
#[derive(Clone, Copy)]
enum Needs {
    /// Nothing.
    Nothing,
    /// tshark, without any rights.
    Tshark,
    /// Namespaces and packet sockets.
    Root,
    /// Both, and tcpdump.
    Capture,
    /// The shared captures.
    Shared,
    /// All of it.
    CaptureShared,
}

/// A test and what it needs.
type Test = (&'static str, Needs, fn() -> Result<(), Failed>);

fn main() -> ExitCode {
    let root = bench::why_no_namespaces();
    let tshark = bench::why_no_tool("tshark");
    let tools = [&tshark, &bench::why_no_tool("tcpdump")].into_iter().flatten().next().cloned();
    let shared = bench::why_not_shared();
    let tests = [files::TESTS, sends::TESTS, receives::TESTS, refuses::TESTS].concat();
    let trials = tests.into_iter().map(|(name, needs, test)| match needs {
        Needs::Nothing => trial(name, &[], test),
        Needs::Tshark => trial(name, std::slice::from_ref(&tshark), test),
        Needs::Root => trial(name, std::slice::from_ref(&root), test),
        Needs::Shared => trial(name, std::slice::from_ref(&shared), test),
        Needs::Capture => trial(name, &[root.clone(), tools.clone()], test),
        Needs::CaptureShared => trial(name, &[root.clone(), tools.clone(), shared.clone()], test),
    });
    latpath_testkit::main(trials.collect())
}
