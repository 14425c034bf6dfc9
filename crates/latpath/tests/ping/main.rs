//! `latpath ping` as users run it.

#[path = "../support/mod.rs"]
mod support;

mod caps;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::main(caps::tests())
}
