//! `latpath ping` as users run it.

mod breach_context;
mod caps;
mod ends;
mod keys;
mod link;
mod outside;
mod relay;
mod talks;
mod wrong;

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
        breach_context::tests(),
    ];
    latpath_testkit::main(files.into_iter().flatten().collect())
}
