//! Tests of latpath on a whole hypervisor: Open vSwitch or a bridge, vhost, and a guest under KVM, on the kernels of
//! the lab's matrix. docs/lab.md describes how to run and write them.
//!
//! This program has two roles. Outside (outside.rs) it boots a virtual machine for each kernel and passes the tests
//! to it, one at a time. Inside, called with [`INSIDE`] and the name of a test, it runs that test and reports the
//! result.
//!
//! It also contains the tests of causes that need no virtual machine (causes/).

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

/// Argument that tells the program to run inside the virtual machine.
const INSIDE: &str = "--inside";
/// Argument after the test's name that requests the full length.
const WHOLE: &str = "--whole";

/// Result of a test.
type Outcome = anyhow::Result<()>;

/// A test. Each has its own file in tests/.
struct Test {
    name: &'static str,
    /// Whether the test also runs in `make test`, on the oldest kernel.
    smoke: bool,
    /// Whether the test runs only in `make lab`, not when requested by name.
    only_whole: bool,
    /// Time limit, s; longer than the test takes on a busy machine.
    seconds: u64,
    run: fn(&Scale) -> Outcome,
}

/// Requirements of tests besides the hypervisor.
#[derive(Clone, Copy)]
enum Need {
    Nothing,
    /// The kernel's driver for redundant networks (HSR, PRP), a module that not all kernels have.
    Hsr,
    /// The lab's own NICs, whose true stamps are known to the test (stamping.rs).
    StampingNics,
    /// Idle states with a slow exit (the lab's own module).
    SlowIdle,
    /// Two igb NICs instead of two e1000e.
    Igb,
    /// A third CPU, which the kernel isolates for a guest.
    Isolation,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "tests that need the kernel alone",
            Self::Hsr => "tests with the kernel's hsr driver",
            Self::StampingNics => "tests with stamping NICs",
            Self::SlowIdle => "tests with idle states",
            Self::Igb => "tests with igb",
            Self::Isolation => "tests with an isolated CPU",
        })
    }
}

/// How thoroughly to test.
struct Scale {
    whole: bool,
}

impl Scale {
    /// Frames to send: `few` when the test is requested by name, `many` in `make lab`.
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
