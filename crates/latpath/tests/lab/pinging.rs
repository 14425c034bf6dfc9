//! `latpath ping` between two linked NICs: a reflector on the right NIC, sessions from the left one, and checks of
//! their results.

use crate::linked::{plain, Linked, ADDRESSES};
use anyhow::{bail, ensure, Context, Result};
use latpath_ping::document::{EmitDocument, SessionDocument, SessionEnd};
use latpath_ping::{figures::RoundTripSegmentFigures, Stamp};
use latpath_testkit::{program, waits::says, Started};
use nix::{
    sys::signal::{kill, Signal},
    unistd::Pid,
};
use std::{fs, process::Command, time::Duration};

/// Time limit of a run, longer than any run takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running reflector; dropping it ends the process.
pub struct Reflector {
    process: Started,
    pid: Pid,
}

/// Adds the option for the NIC's stamps, unless `words` selects the stamps.
fn with_stamps(words: &str) -> String {
    if words.contains("--stamps") || words.contains("--xdp") {
        words.into()
    } else {
        format!("{words} --stamps auto")
    }
}

impl Reflector {
    /// Starts the reflector, and waits until it listens.
    pub fn start(linked: &Linked, words: &str) -> Result<Self> {
        let process = linked.start(1, &format!("ping reflect {}", with_stamps(words)))?;
        let pid = Pid::from_raw(process.pid() as i32);
        Self { process, pid }.wait()
    }

    /// Starts a reflector that appears to be on another machine: with another boot ID, and a CLOCK_MONOTONIC that
    /// is `ahead` seconds ahead.
    pub fn start_elsewhere(linked: &Linked, ahead: u32, words: &str) -> Result<Self> {
        const ID: &str = "11111111-2222-3333-4444-555555555555";
        let file = "/run/latpath-lab-boot-id";
        let id = format!("echo {ID} > {file} && mount --bind {file} /proc/sys/kernel/random/boot_id");
        let words = with_stamps(words);
        Self::start_apart(linked, ahead, &format!("{id} && exec {} ping reflect {words}", program().display()))
    }

    /// Starts a reflector on this machine, in a time namespace whose CLOCK_MONOTONIC is `ahead` seconds ahead.
    pub fn start_in_time_namespace(linked: &Linked, ahead: u32, words: &str) -> Result<Self> {
        let words = with_stamps(words);
        Self::start_apart(linked, ahead, &format!("exec {} ping reflect {words}", program().display()))
    }

    fn start_apart(linked: &Linked, ahead: u32, script: &str) -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--time", "--monotonic", &ahead.to_string(), "--fork", "--kill-child"]);
        command.args(["sh", "-c", script]);
        let process = linked.start_command(1, command)?;
        let unshare = Pid::from_raw(process.pid() as i32);
        let mut reflector = Self { process, pid: unshare }.wait()?;
        // unshare forwards no signals: signal its child.
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"))?;
        reflector.pid = Pid::from_raw(children.trim().parse().context("no child of unshare")?);
        Ok(reflector)
    }

    fn wait(mut self) -> Result<Self> {
        says(&mut self.process, "reflecting at").map_err(plain)?;
        Ok(self)
    }

    /// Stops the reflector with SIGINT; returns its output.
    pub fn end(self) -> Result<String> {
        kill(self.pid, Signal::SIGINT)?;
        let ended = self.process.finish(PATIENCE).map_err(plain)?;
        ensure!(ended.code == Some(0), "the reflector ended with {:?}: {}", ended.code, ended.stderr.trim());
        Ok(ended.stdout)
    }
}

/// Result of a session of `latpath ping emit`.
#[derive(Debug)]
pub struct Session(pub SessionDocument);

/// A logged transaction: its stamps by name (e.g. `t1_nic`), each in the time of its own clock, ns.
pub struct Logged {
    names: Vec<String>,
    values: Vec<Option<i64>>,
}

impl Logged {
    /// Time from one stamp to another, without conversion between their clocks, ns.
    pub fn between(&self, from: &str, to: &str) -> Result<Option<i64>> {
        let of = |name: &str| {
            let at =
                self.names.iter().position(|n| n == name).with_context(|| format!("no {name} in {:?}", self.names))?;
            anyhow::Ok(self.values[at])
        };
        Ok(of(to)?.zip(of(from)?).map(|(to, from)| to - from))
    }
}

impl Session {
    /// Runs `latpath ping emit WORDS…` from the left NIC to completion; it must succeed.
    pub fn run(linked: &Linked, words: &str) -> Result<Self> {
        Self::run_to(linked, &ADDRESSES[1].to_string(), words)
    }

    /// Like [`Session::run`], to another address.
    pub fn run_to(linked: &Linked, target: &str, words: &str) -> Result<Self> {
        Self::of(Self::start_to(linked, target, words)?)
    }

    /// Starts `latpath ping emit WORDS…` from the left NIC.
    pub fn start(linked: &Linked, words: &str) -> Result<Started> {
        Self::start_to(linked, &ADDRESSES[1].to_string(), words)
    }

    fn start_to(linked: &Linked, target: &str, words: &str) -> Result<Started> {
        let words = with_stamps(words);
        linked.start(0, &format!("ping emit {target} --json --worst 1000 --lost-after 2s {words}"))
    }

    /// Waits for the end of a session and reads its result.
    pub fn of(running: Started) -> Result<Self> {
        let all: EmitDocument = running.finish(PATIENCE).and_then(|ended| ended.json()).map_err(plain)?;
        let session = all.sessions.into_iter().next().context("no session")?;
        ensure!(session.ended == SessionEnd::Done, "it ended {:?}: {:?}", session.ended, session.error);
        Ok(Self(session))
    }

    /// Expects this number of probes to be sent and answered.
    pub fn expect_answered(&self, probes: u64) -> Result<()> {
        let counts = &self.0.report.counts;
        let expected = (counts.sent, counts.answered, counts.lost) == (probes, probes, 0);
        ensure!(expected, "not {probes} answers: {counts:?}");
        Ok(())
    }

    /// One of the seven parts, such as `wire there`.
    pub fn part(&self, name: &str) -> Result<&RoundTripSegmentFigures> {
        let parts = &self.0.report.segments;
        let names = || parts.iter().map(|part| &part.name).collect::<Vec<_>>();
        parts.iter().find(|part| part.name == name).with_context(|| format!("no {name} in {:?}", names()))
    }

    /// Minimum, maximum and error bound of a part, ns.
    pub fn extremes(&self, name: &str) -> Result<(i64, i64, i64)> {
        let part = self.part(name)?;
        let bound = part.error_bound_ns.with_context(|| format!("no error bound of {name}"))?;
        Ok((part.times.min_ns, part.times.max_ns, bound))
    }

    /// Expects both wires to take `wire_ns` within their error bounds; returns the greater bound.
    pub fn expect_wires(&self, wire_ns: i64) -> Result<i64> {
        let mut largest = 0;
        for name in ["wire there", "wire back"] {
            let (min, max, bound) = self.extremes(name)?;
            let within = min >= wire_ns - bound && max <= wire_ns + bound;
            ensure!(
                within,
                "{name} takes {wire_ns} ns, and is said to take {min} to {max} ns, wrong by {bound} ns at most"
            );
            largest = largest.max(bound);
        }
        Ok(largest)
    }

    /// Expects the parts of each complete transaction to add up to its round trip.
    pub fn expect_parts_to_add_up(&self) -> Result<()> {
        let report = &self.0.report;
        ensure!(!report.worst.is_empty(), "no transactions");
        let mut lacking = 0;
        for one in &report.worst {
            match one.segments_ns.iter().copied().sum::<Option<i64>>() {
                Some(sum) => ensure!(sum == one.round_trip_ns, "the parts do not add up: {one:?}"),
                None => lacking += 1,
            }
        }
        // A part has no time if one of its stamps is missing, or if a stamp's clock was set or stopped.
        let known = report.counts.incomplete + report.unplaced;
        ensure!(known >= lacking, "{lacking} lack a stamp, {known} by its own account");
        Ok(())
    }

    /// Number of missing stamps of one kind.
    pub fn missing(&self, stamp: Stamp) -> u64 {
        self.0.report.missing.iter().find(|missing| missing.stamp == stamp).map_or(0, |missing| missing.count)
    }

    /// Expects that the session reports no disturbances.
    pub fn expect_undisturbed(&self) -> Result<()> {
        ensure!(self.0.report.disturbed == 0, "it says: {:?}", self.0.report.disturbances);
        Ok(())
    }

    /// The first reported disturbance that contains `words`: its time in CLOCK_MONOTONIC, and its text.
    pub fn disturbed_by(&self, words: &str) -> Result<(i64, String)> {
        let all = &self.0.report.disturbances;
        let found = all.iter().find(|disturbance| disturbance.what.contains(words));
        let found = found.with_context(|| format!("no {words:?} in {all:?}"))?;
        Ok((found.at_ns, found.what.clone()))
    }
}

/// Reads a log of transactions (`--log FILE.csv`).
pub fn logged(text: &str) -> Result<Vec<Logged>> {
    let mut lines = text.lines();
    let head = lines.next().context("an empty log")?;
    let names: Vec<String> = head.split(',').map(|n| n.trim_end_matches("_ns").to_owned()).collect();
    let mut all = Vec::new();
    for line in lines {
        let values: Vec<Option<i64>> = line.split(',').map(|v| v.parse().ok()).collect();
        if values.len() != names.len() {
            bail!("{line:?} does not fit {head:?}");
        }
        all.push(Logged { names: names.clone(), values });
    }
    Ok(all)
}
