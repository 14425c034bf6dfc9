//! `latpath record` and `latpath live` as users run them: on a path with a bridge, beside a publisher and an application
//! that count for themselves.

#[path = "../support/mod.rs"]
mod support;

mod breaks;
mod guest;
mod live;
mod record;
mod spikes;

use latpath_lab::{APPLICATION, PUBLISHER};
use latpath_run::Run;
use libtest_mimic::Failed;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::{latpath, need_btf, need_guest, need_lab, need_root, Bench, Started};

fn main() -> ExitCode {
    let needs = [need_root(), need_btf(), need_lab()];
    let mut tests = record::trials(&needs);
    tests.extend(live::trials(&needs));
    tests.extend(breaks::trials(&needs));
    tests.extend(spikes::trials(&needs));
    let mut in_guest = needs.to_vec();
    in_guest.push(need_guest());
    tests.extend(guest::trials(&in_guest));
    support::main(tests)
}

/// More than any command here needs.
const LIMIT: Duration = Duration::from_secs(60);

/// An svID that no other test on this machine uses at the same time: probes see all namespaces.
fn own(name: &str) -> String {
    format!("{name}.{}", std::process::id())
}

/// Waits for something that another process does.
fn until(what: &str, mut done: impl FnMut() -> bool) -> Result<(), Failed> {
    let limit = Instant::now() + LIMIT;
    while !done() {
        if Instant::now() > limit {
            return Err(format!("waited for {LIMIT:?}: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A recorder at work.
struct Recorder {
    process: Started,
    run: PathBuf,
}

impl Recorder {
    /// Starts `latpath record` in the hypervisor's namespace; all packets from here on are recorded.
    fn start(bench: &Bench, name: &str, words: &str) -> Result<Self, Failed> {
        let run = bench.lab.folder().join(name);
        Self::start_at(bench, run, words)
    }

    fn start_at(bench: &Bench, run: PathBuf, words: &str) -> Result<Self, Failed> {
        let command = latpath(&format!("record {words} -o {}", run.display()));
        let process = bench.start(&bench.path.hypervisor, command)?;
        until("the recording begins", || Run::open(&run).is_ok())?;
        Ok(Self { process, run })
    }

    /// Ends it as Ctrl-C does.
    fn end(self) -> Result<PathBuf, Failed> {
        // What the kernel handed over last is taken in the recorder's next round.
        self.process.interrupt();
        let ended = self.process.finish(LIMIT)?;
        match ended.code {
            Some(0) => Ok(self.run),
            code => Err(format!("record ended with {code:?}: {}", ended.stderr).into()),
        }
    }
}

/// The application: counts what it receives.
fn subscribe(bench: &Bench, svid: &str) -> Result<Started, Failed> {
    let application = bench
        .start(bench.application(), latpath(&format!("subscribe -i {APPLICATION} --stream svid:{svid} --json")))?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(application)
}

/// Publishes to the end, and returns what the publisher says.
fn publish(bench: &Bench, words: &str) -> Result<Value, Failed> {
    let command = latpath(&format!("publish -i {PUBLISHER} --json {words}"));
    bench.run(&bench.path.publisher, command, LIMIT)?.json()
}

/// `latpath report RUN --json`.
fn report(run: &Path, words: &str) -> Result<Value, Failed> {
    let output = latpath(&format!("report {} --json {words}", run.display())).output()?;
    if !output.status.success() {
        return Err(format!("report: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn number(value: &Value, key: &str) -> Result<u64, Failed> {
    value[key].as_u64().ok_or_else(|| format!("no number {key:?} in {value}").into())
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Result<(), Failed> {
    if got == want {
        Ok(())
    } else {
        Err(format!("{what}: {got:?}, should be {want:?}").into())
    }
}
