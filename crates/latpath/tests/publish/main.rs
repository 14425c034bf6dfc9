//! `latpath publish`, `subscribe` and `streams` from end to end: real frames over a veth pair, judged by tshark.
//!
//! Needs root for namespaces and packet sockets, and tshark and tcpdump; what is not there makes tests count as skipped.

mod bench;
mod files;
mod receives;
mod refuses;
mod sends;

use libtest_mimic::{Arguments, Failed, Trial};

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

fn main() {
    let args = Arguments::from_args();
    let no_root = bench::why_no_namespaces();
    let no_tools = ["tshark", "tcpdump"].into_iter().find_map(bench::why_no_tool);
    let no_tshark = bench::why_no_tool("tshark");
    let no_shared = bench::why_not_shared();
    for why in [&no_shared, &no_root, &no_tools, &no_tshark].into_iter().flatten() {
        eprintln!("skipping what needs it: {why}");
    }
    let tests = [files::TESTS, sends::TESTS, receives::TESTS, refuses::TESTS].concat();
    let trials = tests.into_iter().map(|(name, needs, test)| {
        let missing = match needs {
            Needs::Nothing => false,
            Needs::Tshark => no_tshark.is_some(),
            Needs::Root => no_root.is_some(),
            Needs::Capture => no_root.is_some() || no_tools.is_some(),
            Needs::Shared => no_shared.is_some(),
            Needs::CaptureShared => no_root.is_some() || no_tools.is_some() || no_shared.is_some(),
        };
        Trial::test(name, test).with_ignored_flag(missing)
    });
    libtest_mimic::run(&args, trials.collect()).exit();
}
