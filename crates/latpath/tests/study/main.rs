//! `latpath study` with plans whose ways are a veth pair and a bridge, set up by the plans' own commands in network
//! namespaces.

mod bench;
mod interrupted;
mod refused;
mod trials;

use latpath_testkit::{need_btf, need_lab, need_root, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    let needs = [need_root(), need_btf(), need_lab()];
    // The longest tests come first.
    let mut tests = interrupted::trials(&needs);
    tests.extend(trials::trials(&needs));
    tests.extend(refused::trials());
    latpath_testkit::main(tests.into_iter().map(Trial::side_by_side).collect())
}
