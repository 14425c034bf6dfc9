//! `latpath report --json`: the summary, and beside it what the run was. docs/json.md is its schema.

use latpath_model::StreamSpec;
use latpath_run::{facts::HostFacts, Condition, Run, Stamp};
use latpath_stats::Summary;
use serde::Serialize;

/// What the run was: the key `run` of a report's JSON.
#[derive(Clone, Debug, Serialize)]
pub struct RunHead<'a> {
    /// The run's directory, as it was named.
    pub path: String,
    /// `finished`, `recording`, `interrupted` or `killed`.
    pub state: &'static str,
    pub interrupted_by: Option<&'a str>,
    pub latpath: &'a str,
    pub command: &'a [String],
    /// When it began, in all clocks.
    pub start: &'a Stamp,
    /// When it ended; null if it was killed or goes on.
    pub end: Option<&'a Stamp>,
    pub streams: &'a [StreamSpec],
    pub host: &'a HostFacts,
}

impl<'a> RunHead<'a> {
    pub fn of(run: &'a Run) -> Self {
        let manifest = run.manifest();
        let (state, interrupted_by) = match run.condition() {
            Condition::Finished => ("finished", None),
            Condition::Recording => ("recording", None),
            Condition::Interrupted(why) => ("interrupted", Some(why.as_str())),
            Condition::Killed => ("killed", None),
        };
        Self {
            path: run.path().display().to_string(),
            state,
            interrupted_by,
            latpath: &manifest.latpath,
            command: &manifest.command,
            start: &manifest.start,
            end: manifest.end.as_ref(),
            streams: &manifest.streams,
            host: &manifest.host,
        }
    }
}

/// The JSON of a report, on one line.
pub fn report_json(summary: &Summary, run: &Run) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Whole<'a> {
        run: RunHead<'a>,
        #[serde(flatten)]
        summary: &'a Summary,
    }
    serde_json::to_string(&Whole { run: RunHead::of(run), summary })
}
