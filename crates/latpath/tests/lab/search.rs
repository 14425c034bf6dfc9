//! `latpath path` in the hypervisor, and its results.

use crate::stage::{plain, Stage};
use anyhow::{ensure, Context, Result};
use latpath_testkit::{waits::says, Started};
use serde_json::Value;
use std::time::Duration;

/// Time limit for attaching and detaching, more than the slowest kind of program takes.
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
    pub fn end(self) -> Result<SearchOutput> {
        self.process.interrupt();
        let ended = self.process.finish(PATIENCE).map_err(plain)?;
        ensure!(ended.code == Some(0), "latpath path ended with {:?}: {}", ended.code, ended.stderr.trim());
        let all: Value = serde_json::from_str(&ended.stdout).context("read the JSON of latpath path")?;
        let lost = &all["lost"];
        for kind in ["events", "copies"] {
            ensure!(lost[kind] == 0, "{kind} were lost: {lost}");
        }
        eprintln!("{}", ended.stderr.lines().find(|l| l.contains("attached to")).unwrap_or(""));
        Ok(SearchOutput { all })
    }
}

/// Result of a search.
pub struct SearchOutput {
    pub all: Value,
}

impl SearchOutput {
    /// Steps of each packet.
    pub fn packets(&self) -> Vec<&Vec<Value>> {
        self.all["packets"].as_array().into_iter().flatten().filter_map(|p| p["steps"].as_array()).collect()
    }

    /// Points of all routes.
    pub fn points(&self) -> Vec<&str> {
        self.all["points"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
}

/// Name of a step.
pub fn name(step: &Value) -> &str {
    step["name"].as_str().unwrap_or("?")
}

/// Expects steps of these names in this order, with any others between them.
pub fn in_order(steps: &[Value], names: &[&str]) -> Result<()> {
    let mut left = steps.iter();
    for expected in names {
        let have = || steps.iter().map(name).collect::<Vec<_>>();
        ensure!(left.any(|s| name(s) == *expected), "{expected} is not where it should be in {:?}", have());
    }
    Ok(())
}
