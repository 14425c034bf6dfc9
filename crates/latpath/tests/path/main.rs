//! `latpath path` from the command line, with tracepoints only, which every kernel has, on a path with a bridge in
//! namespaces. Tests that need kprobes run on whole kernels (tests/lab).

mod chooses;
mod ends;
mod routes;

use latpath_lab::APPLICATION;
use latpath_path::PathDocument;
use latpath_testkit::names::own;
use latpath_testkit::waits::{listens, says, until, LIMIT};
use latpath_testkit::{equal, latpath, need_btf, need_lab, need_root, Bench, Finished, Started};
use latpath_testkit::{Failed, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    let needs = [need_root(), need_btf(), need_lab()];
    let mut tests = routes::trials(&needs);
    tests.extend(chooses::trials(&needs));
    tests.extend(ends::trials(&needs));
    latpath_testkit::main(tests.into_iter().map(Trial::side_by_side).collect())
}

/// Starts `latpath path --with tracepoints WORDS… EXPRESSION` in the hypervisor's namespace; returns once it is
/// attached. A copy is assigned to its packet however late it arrives.
fn start(bench: &Bench, words: &str, expression: Option<&str>) -> Result<Started, Failed> {
    let mut command = latpath(&format!("path --with tracepoints --same 60s {words}"));
    command.args(expression);
    let mut started = bench.start(&bench.path.hypervisor, command)?;
    says(&mut started, "attached to")?;
    Ok(started)
}

/// Starts an application that ends after reading `frames` frames: by then all of them have reached the end of their
/// route.
fn reader(bench: &Bench, svid: &str, frames: u32) -> Result<Started, Failed> {
    let words = format!("subscribe -i {APPLICATION} --stream svid:{svid} --count {frames} --json");
    let mut reader = bench.start(bench.application(), latpath(&words))?;
    listens(&mut reader)?;
    Ok(reader)
}

/// Runs `latpath publish` to completion.
fn publish(bench: &Bench, words: &str) -> Result<Finished, Failed> {
    let command = latpath(&format!("publish -i {} --json {words}", latpath_lab::PUBLISHER));
    bench.run(&bench.path.publisher, command, LIMIT)
}

/// Stops the search with SIGINT, and reads its result.
fn found(started: Started) -> Result<PathDocument, Failed> {
    started.interrupt();
    started.finish(LIMIT)?.json()
}
