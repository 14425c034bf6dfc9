//! Tests of latpath on a whole hypervisor: Open vSwitch or a bridge, vhost, and a guest under KVM, on the kernels of the
//! lab's matrix. docs/lab.md says how to run and to write them.
//!
//! This program runs twice. Outside (outside.rs) it boots one virtual machine for each kernel and hands it the tests, one
//! after the other. Inside it is called with [`INSIDE`] and the name of one test, runs that, and says how it went.
//!
//! Beside these it holds the tests of causes that need no virtual machine (causes/).

mod arm64;
mod causes;
mod expect;
mod faults;
mod kernel_trace;
mod linked;
mod module;
mod outside;
mod pinging;
mod search;
mod stage;
mod stamping;
mod tests;
mod xdp;

use causes::{blame, fault, fixed, group, verdict};
use std::{fmt, process::ExitCode};

/// The word by which the program knows that it is inside.
const INSIDE: &str = "--inside";
/// After the test's name: run it at its full length.
const WHOLE: &str = "--whole";

/// How a test ends.
type Outcome = anyhow::Result<()>;

/// One test, written in a file of its own in tests/.
struct Test {
    name: &'static str,
    /// Also in `make test`, on the oldest kernel.
    smoke: bool,
    /// Only in `make lab`, never when it is run by its name alone.
    only_whole: bool,
    /// More than it ever needs on a busy machine, in seconds.
    seconds: u64,
    run: fn(&Scale) -> Outcome,
}

/// What tests need beside the hypervisor.
#[derive(Clone, Copy)]
enum Need {
    Nothing,
    /// The lab's own NICs, whose stamps are known (stamping.rs).
    StampingNics,
    /// Idle states, of which one is slow to leave (the lab's own module).
    SlowIdle,
    /// Two igb instead of two e1000e.
    Igb,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "tests that need the kernel alone",
            Self::StampingNics => "tests with stamping NICs",
            Self::SlowIdle => "tests with idle states",
            Self::Igb => "tests with igb",
        })
    }
}

/// How thoroughly to test.
struct Scale {
    whole: bool,
}

impl Scale {
    /// So many frames where it is run by its name, and so many in `make lab`.
    fn frames(&self, few: u64, many: u64) -> u64 {
        if self.whole {
            many
        } else {
            few
        }
    }
}

fn main() -> ExitCode {
    latpath_testkit::busy::run_if_asked();
    if let Some(code) = fault::main() {
        return code;
    }
    let words: Vec<String> = std::env::args().collect();
    match words.iter().position(|w| w == INSIDE) {
        Some(at) => inside(words.get(at + 1).map_or("", String::as_str), words.iter().any(|w| w == WHOLE)),
        None => outside::main(causes::trials()),
    }
}

fn inside(name: &str, whole: bool) -> ExitCode {
    let Some(test) = tests::ALL.iter().flat_map(|(_, tests)| *tests).find(|t| t.name == name) else {
        eprintln!("{name}: no such test");
        return ExitCode::from(2);
    };
    match (test.run)(&Scale { whole }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}
