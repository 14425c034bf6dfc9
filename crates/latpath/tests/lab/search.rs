//! Runs `latpath path` in the hypervisor, and reads its results.

use crate::stage::{plain, Stage};
use anyhow::{ensure, Context, Result};
use latpath_path::{document::StepDocument, PathDocument};
use latpath_testkit::{waits::says, Started};
use std::time::Duration;

/// Time limit for attaching and detaching, longer than the slowest kind of program takes.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running search.
pub struct Search {
    process: Started,
}

impl Search {
    /// Starts `latpath path WORDS…` in the hypervisor's namespace; returns once it is attached.
    pub fn start(stage: &Stage, words: &str, expression: &str) -> Result<Self> {
        let mut command = latpath_testkit::latpath(&format!("path --json {words}"));
        command.args(Some(expression).filter(|e| !e.is_empty()));
        let mut process = stage.start_command(&stage.path().hypervisor, command)?;
        says(&mut process, "latpath: attached to").map_err(plain).with_context(|| format!("latpath path {words}"))?;
        Ok(Self { process })
    }

    /// Stops the search with SIGINT and reads its result. Lost events fail the test.
    pub fn end(self) -> Result<PathDocument> {
        self.process.interrupt();
        let ended = self.process.finish(PATIENCE).map_err(plain)?;
        ensure!(ended.code == Some(0), "latpath path ended with {:?}: {}", ended.code, ended.stderr.trim());
        let all: PathDocument = serde_json::from_str(&ended.stdout).context("read the JSON of latpath path")?;
        ensure!(all.lost.events == 0 && all.lost.copies == 0, "events or copies were lost: {:?}", all.lost);
        eprintln!("{}", ended.stderr.lines().find(|l| l.contains("attached to")).unwrap_or(""));
        Ok(all)
    }
}

/// Expects steps with these names in this order; other steps may be between them.
pub fn in_order(steps: &[StepDocument], names: &[&str]) -> Result<()> {
    let mut left = steps.iter();
    for expected in names {
        let have = || steps.iter().map(|s| &s.name).collect::<Vec<_>>();
        ensure!(left.any(|s| s.name == *expected), "{expected} is not where it should be in {:?}", have());
    }
    Ok(())
}
