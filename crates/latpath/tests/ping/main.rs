//! `latpath ping` from the command line.

mod breach_context;
mod caps;
mod ends;
mod keys;
mod link;
mod logs;
mod outside;
mod relay;
mod sweeps;
mod talks;
mod wrong;

use latpath_testkit::Trial;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files = [
        caps::tests(),
        talks::tests(),
        wrong::tests(),
        ends::tests(),
        link::tests(),
        outside::tests(),
        keys::tests(),
        logs::tests(),
        sweeps::tests(),
    ];
    let tests = files.into_iter().flatten().map(Trial::side_by_side);
    latpath_testkit::main(tests.chain(breach_context::tests()).collect())
}
