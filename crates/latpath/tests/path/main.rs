//! `latpath path` as users run it, on tracepoints alone, which every kernel has: on a path with a bridge, in namespaces. What
//! needs kprobes is tested on whole kernels (tests/lab).

#[path = "../support/mod.rs"]
mod support;

mod chooses;
mod ends;
mod ways;

use libtest_mimic::Failed;
use serde_json::Value;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::{latpath, need_btf, need_lab, need_root, Bench, Finished, Started};

fn main() -> ExitCode {
    let needs = [need_root(), need_btf(), need_lab()];
    let mut tests = ways::trials(&needs);
    tests.extend(chooses::trials(&needs));
    tests.extend(ends::trials(&needs));
    support::main(tests)
}

/// More than any command here needs.
const LIMIT: Duration = Duration::from_secs(60);

/// An svID that no other test on this machine uses at the same time: the programs see all namespaces.
fn own(name: &str) -> String {
    format!("{name}.{}", std::process::id())
}

/// Starts `latpath path --with tracepoints WORDS… EXPRESSION` in the hypervisor's namespace; returns when it looks.
fn start(bench: &Bench, words: &str, expression: Option<&str>) -> Result<Started, Failed> {
    let mut command = latpath(&format!("path --with tracepoints {words}"));
    command.args(expression);
    let started = bench.start(&bench.path.hypervisor, command)?;
    let limit = Instant::now() + LIMIT;
    while !started.said().contains("attached to") {
        if Instant::now() > limit {
            return Err(format!("not attached after {LIMIT:?}: {}", started.said()).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(started)
}

/// Publishes to the end.
fn publish(bench: &Bench, words: &str) -> Result<Finished, Failed> {
    let command = latpath(&format!("publish -i {} --json {words}", latpath_lab::PUBLISHER));
    bench.run(&bench.path.publisher, command, LIMIT)
}

/// Ends it as Ctrl-C does, and reads what it found.
fn found(started: Started) -> Result<Value, Failed> {
    started.interrupt();
    started.finish(LIMIT)?.json()
}

/// The items of a list.
fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, Failed> {
    value[key].as_array().ok_or_else(|| format!("no list {key:?} in {value}").into())
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Result<(), Failed> {
    if got == want {
        Ok(())
    } else {
        Err(format!("{what}: {got:?}, should be {want:?}").into())
    }
}
