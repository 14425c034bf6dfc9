//! `latpath record` and `latpath live` from the command line, on a path with a bridge, with a publisher and an
//! application that count independently.

mod breaks;
mod clocks;
mod exchanged;
mod guest;
mod live;
mod planned;
mod reactions;
mod record;
mod redundant;
mod restarts;
mod sampling;
mod spikes;
mod traced;

use latpath_lab::{APPLICATION, PUBLISHER};
use latpath_report::Report;
use latpath_run::Run;
use latpath_testkit::names::own;
use latpath_testkit::waits::{delivered, listens, until, LIMIT};
use latpath_testkit::{equal, latpath, need_btf, need_guest, need_lab, need_root, Bench, Started};
use latpath_testkit::{Failed, Trial};
use latpath_traffic::document::PublishDocument;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    latpath_testkit::busy::run_if_asked();
    let needs = [need_root(), need_btf(), need_lab()];
    let mut tests = record::trials(&needs);
    tests.extend(live::trials(&needs));
    tests.extend(sampling::trials(&needs));
    tests.extend(planned::trials(&needs));
    tests.extend(reactions::trials(&needs));
    tests.extend(breaks::trials(&needs));
    tests.extend(spikes::trials(&needs));
    tests.extend(exchanged::trials(&needs));
    tests.extend(redundant::trials(&needs));
    tests.extend(restarts::trials(&needs));
    tests.extend(clocks::trials(&needs));
    let mut tests: Vec<Trial> = tests.into_iter().map(Trial::side_by_side).collect();
    // Not side by side with other tests, since perf records the activity of all processes.
    tests.extend(traced::trials(&needs));
    let mut in_guest = needs.to_vec();
    in_guest.push(need_guest());
    tests.extend(guest::trials(&in_guest).into_iter().map(Trial::in_lab));
    latpath_testkit::main(tests)
}

/// For tests that are not about late packets: a window longer than any delay of a process on a busy machine, with an
/// smpCnt that does not wrap within it.
const PATIENT: &str = "--window 4s";
const LONG_WRAP: &str = "--wrap 65536";

/// A running recorder.
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
        Self::start_with(bench, run, words, &[])
    }

    /// Like [`Self::start`], with further arguments, which may contain spaces.
    fn start_with(bench: &Bench, run: PathBuf, words: &str, more: &[&str]) -> Result<Self, Failed> {
        let mut command = latpath(&format!("record {words} -o {}", run.display()));
        command.args(more);
        let mut process = bench.start(&bench.path.hypervisor, command)?;
        until("the recording begins", || Run::open(&run).is_ok() || !process.runs())?;
        match Run::open(&run) {
            Ok(_) => Ok(Self { process, run }),
            Err(error) => Err(format!("{error}; record said: {}", process.said()).into()),
        }
    }

    /// Waits until `journeys` finished journeys are on disk.
    fn has(&self, journeys: u64) -> Result<(), Failed> {
        let stored = || Run::open(&self.run).map_or(0, |run| run.journeys());
        let waited = until(&format!("{journeys} journeys are on the disk"), || stored() >= journeys);
        waited.map_err(|e| format!("{}; {} are; it said: {}", said(&e), stored(), self.process.said()).into())
    }

    /// Stops the recorder with SIGINT; returns the run's path.
    fn end(self) -> Result<PathBuf, Failed> {
        self.process.interrupt();
        let ended = self.process.finish(LIMIT)?;
        match ended.code {
            Some(0) => Ok(self.run),
            code => Err(format!("record ended with {code:?}: {}", ended.stderr).into()),
        }
    }
}

fn said(failed: &Failed) -> &str {
    failed.message().unwrap_or("it failed")
}

/// Starts the application, which counts the packets that it receives.
fn subscribe(bench: &Bench, svid: &str) -> Result<Started, Failed> {
    let command = latpath(&format!("subscribe -i {APPLICATION} --stream svid:{svid} --json"));
    let mut application = bench.start(bench.application(), command)?;
    listens(&mut application)?;
    Ok(application)
}

/// Runs `latpath publish` until it ends; returns its summary.
fn publish(bench: &Bench, words: &str) -> Result<PublishDocument, Failed> {
    let command = latpath(&format!("publish -i {PUBLISHER} --json {words}"));
    let published = bench.run(&bench.path.publisher, command, LIMIT)?.json()?;
    delivered()?;
    Ok(published)
}

/// Runs `latpath report RUN --json` and parses its output.
fn report(run: &Path, words: &str) -> Result<Report<'static>, Failed> {
    let output = latpath(&format!("report {} --json {words}", run.display())).output()?;
    if !output.status.success() {
        return Err(format!("report: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
