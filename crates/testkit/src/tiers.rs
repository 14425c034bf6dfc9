//! Which tests run: `make check` runs those that need nothing, `make test` also those that need root, and `make lab` those that
//! boot guests or inject faults for long.

use crate::Lack;
use libtest_mimic::{Arguments, Failed};
use std::{env, panic::resume_unwind, process::ExitCode, thread};

/// Names the tier that is to run: `check`, `test` or `lab`.
const TIER: &str = "LATPATH_TIER";

/// When a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// In `make check` and `make test`: it needs nothing.
    Check,
    /// In `make test`.
    Test,
    /// In `make lab`.
    Lab,
}

pub struct Trial {
    trial: libtest_mimic::Trial,
    tier: Tier,
    lack: Lack,
}

/// A test that runs when nothing is lacking, and is skipped with the first reason otherwise. One that needs nothing is a part of
/// `make check`.
pub fn trial(name: &str, needs: &[Lack], test: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    let lack = needs.iter().flatten().next().cloned();
    let tier = if needs.is_empty() { Tier::Check } else { Tier::Test };
    // What a test does to its thread (CPUs, priority, namespaces) ends with it.
    let test = move || thread::spawn(test).join().unwrap_or_else(|panic| resume_unwind(panic));
    Trial { trial: libtest_mimic::Trial::test(name, test).with_ignored_flag(lack.is_some()), tier, lack }
}

impl Trial {
    /// The same test, left to `make lab`: it boots a guest, or takes long.
    pub fn in_lab(self) -> Self {
        Self { tier: Tier::Lab, ..self }
    }
}

/// The command line of this test program.
pub fn arguments() -> Arguments {
    Arguments::from_args()
}

/// Whether a test is to run: it belongs to the tier that is asked for, or to any where the command line names tests.
pub fn runs(arguments: &Arguments, name: &str, tier: Tier) -> bool {
    let fits = |pattern: &str| if arguments.exact { name == pattern } else { name.contains(pattern) };
    let named = arguments.filter.as_deref().is_none_or(fits) && !arguments.skip.iter().any(|s| fits(s));
    named
        && match env::var(TIER).as_deref() {
            Ok("check") => tier == Tier::Check,
            Ok("test") => tier != Tier::Lab,
            Ok("lab") => tier == Tier::Lab,
            _ => tier != Tier::Lab || arguments.filter.is_some(),
        }
}

/// Runs the tests of the tier, one after another: they share two or so CPUs. Says how many are left to other tiers.
pub fn main(tests: Vec<Trial>) -> ExitCode {
    let mut arguments = arguments();
    arguments.test_threads.get_or_insert(1);
    let (now, others): (Vec<Trial>, _) =
        tests.into_iter().partition(|test| runs(&arguments, test.trial.name(), test.tier));
    for (test, lack) in now.iter().filter_map(|test| Some((test, test.lack.as_ref()?))) {
        eprintln!("{}: skipped, {lack}", test.trial.name());
    }
    let conclusion = libtest_mimic::run(&arguments, now.into_iter().map(|test| test.trial).collect());
    if arguments.filter.is_none() && !others.is_empty() {
        // scripts/test adds these up.
        println!("left to other tiers: {}\n", others.len());
    }
    conclusion.exit_code()
}

/// Says that a test is tried again, and why. scripts/test counts these lines.
pub fn retried(name: &str, why: &str) {
    eprintln!("test {name} ... RETRIED: {why}");
}
