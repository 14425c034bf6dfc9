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
    let tests = trials::trials(&needs).into_iter().chain(refused::trials());
    // Interrupted studies run alone: their loads use all CPUs for minutes.
    let tests = tests.map(Trial::side_by_side).chain(interrupted::trials(&needs));
    latpath_testkit::main(tests.collect())
}
