//! Tiers of tests: `make check` runs tests without requirements; `make test` also runs those that need root; `make lab`
//! runs those that boot guests or inject long faults.

use crate::Lack;
use libtest_mimic::{Arguments, Failed};
use std::{
    env,
    panic::resume_unwind,
    process::ExitCode,
    sync::{PoisonError, RwLock},
    thread,
};

/// Environment variable that selects the tier to run: `check`, `test` or `lab`.
const TIER: &str = "LATPATH_TIER";

/// Environment variable with which scripts/test selects tests when it runs several programs at the same time:
/// `together` skips tests that must run alone, and `alone` runs only those. If it is unset or has another value, the
/// program runs all tests.
const TURN_OF: &str = "LATPATH_TURN";

/// The tier of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Runs in `make check` and `make test`; has no requirements.
    Check,
    /// Runs in `make test`.
    Test,
    /// Runs in `make lab`.
    Lab,
}

type Test = Box<dyn FnOnce() -> Result<(), Failed> + Send>;

/// A test with its requirements and tier.
pub struct Trial {
    name: String,
    test: Test,
    tier: Tier,
    lack: Lack,
    side_by_side: bool,
}

/// A test that runs alone. If a requirement is not met, it is skipped, and the first such requirement is reported. A
/// test without requirements belongs to `make check`.
pub fn trial(name: &str, needs: &[Lack], test: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    let lack = needs.iter().flatten().next().cloned();
    let tier = if needs.is_empty() { Tier::Check } else { Tier::Test };
    Trial { name: name.into(), test: Box::new(test), tier, lack, side_by_side: false }
}

impl Trial {
    /// Moves the test to `make lab`, because it boots a guest or takes a long time.
    pub fn in_lab(self) -> Self {
        Self { tier: Tier::Lab, ..self }
    }

    /// Allows the test to run at the same time as other such tests. It must have its own namespaces and names, change
    /// no shared state, and spend most of its time waiting for packets.
    pub fn side_by_side(self) -> Self {
        Self { side_by_side: true, ..self }
    }

    fn into_mimic(self) -> libtest_mimic::Trial {
        let Self { name, test, lack, side_by_side, .. } = self;
        // Run on a separate thread: changes that a test makes to its thread (CPUs, priority, namespaces) then end with
        // it.
        let test = move || thread::spawn(test).join().unwrap_or_else(|panic| resume_unwind(panic));
        let test = move || match side_by_side {
            true => {
                let _others_too = TURN.read().unwrap_or_else(PoisonError::into_inner);
                test()
            }
            false => {
                let _alone = TURN.write().unwrap_or_else(PoisonError::into_inner);
                test()
            }
        };
        libtest_mimic::Trial::test(name, test).with_ignored_flag(lack.is_some())
    }
}

/// Lock held for writing by a test that runs alone, and for reading by the others.
static TURN: RwLock<()> = RwLock::new(());

/// Maximum number of tests that run side by side. They share about two CPUs, and use them only for a part of the time.
const AT_ONCE: usize = 3;

/// The command line of this test program.
pub fn arguments() -> Arguments {
    Arguments::from_args()
}

/// Whether to run a test: whether the command line selects it, and it belongs to the requested tier. Without a tier,
/// tests of the lab run only if the command line has a filter.
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

/// Runs the tests of the tier: first those that may run side by side, then the others one after another. Prints the
/// number of tests that belong to other tiers.
pub fn main(tests: Vec<Trial>) -> ExitCode {
    let mut arguments = arguments();
    let (mut now, others): (Vec<Trial>, _) =
        tests.into_iter().partition(|test| runs(&arguments, &test.name, test.tier));
    let turn = env::var(TURN_OF).unwrap_or_default();
    match turn.as_str() {
        "together" => {
            let alone = now.iter().filter(|test| !test.side_by_side).count();
            if alone > 0 {
                // scripts/test runs the program again if it finds this line.
                println!("left to run alone: {alone}");
            }
            now.retain(|test| test.side_by_side);
        }
        "alone" => now.retain(|test| !test.side_by_side),
        _ => now.sort_by_key(|test| !test.side_by_side),
    }
    let at_once = if now.first().is_some_and(|test| test.side_by_side) { AT_ONCE } else { 1 };
    arguments.test_threads.get_or_insert(at_once);
    for (test, lack) in now.iter().filter_map(|test| Some((test, test.lack.as_ref()?))) {
        eprintln!("{}: skipped, {lack}", test.name);
    }
    let conclusion = libtest_mimic::run(&arguments, now.into_iter().map(Trial::into_mimic).collect());
    if arguments.filter.is_none() && !others.is_empty() && turn != "alone" {
        // scripts/test adds up these numbers.
        println!("left to other tiers: {}\n", others.len());
    }
    conclusion.exit_code()
}

/// Prints that a test is retried, and why. scripts/test counts these lines.
pub fn retried(name: &str, why: &str) {
    eprintln!("test {name} ... RETRIED: {why}");
}
