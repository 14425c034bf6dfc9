//! `latpath report --json`: the summary, and beside it what the run was. docs/json.md is its schema.

use crate::settings::Settings;
use latpath_analysis::{weaknesses, Chosen, LimitVerdict};
use latpath_model::{Ns, StreamSpec};
use latpath_run::{facts::HostFacts, Condition, Mark, Run, Stamp};
use latpath_stats::Summary;
use schemars::{generate::SchemaSettings, JsonSchema, Schema};
use serde::Serialize;

/// What the run was: the key `run` of a report's JSON.
#[derive(Clone, Debug, Serialize, JsonSchema)]
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
    #[schemars(with = "Vec<String>")]
    pub streams: &'a [StreamSpec],
    pub host: &'a HostFacts,
    /// What somebody noted about moments of it.
    pub marks: Vec<MarkHead<'a>>,
}

/// A mark of a run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct MarkHead<'a> {
    /// Since the run's start.
    pub since_start_ns: Ns,
    /// UTC.
    pub utc_ns: Ns,
    pub text: &'a str,
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
        let time_of_day = manifest.time_of_day();
        let mark = |mark: &'a Mark| MarkHead {
            since_start_ns: mark.t_ns.saturating_sub(manifest.start.monotonic_ns),
            utc_ns: time_of_day.utc(mark.t_ns),
            text: &mark.text,
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
            marks: run.marks().iter().map(mark).collect(),
        }
    }
}

/// A report: the run, and its figures.
#[derive(Serialize, JsonSchema)]
struct Whole<'a> {
    run: RunHead<'a>,
    /// What the user chose of it.
    chosen: &'a Chosen,
    /// What became of the limits that the user set.
    limits: &'a [LimitVerdict],
    /// What weakens the verdict on limits, first what keeps limits from being judged; empty where no limit was set.
    weaknesses: Vec<String>,
    /// The machines' settings, and which of them changed.
    settings: Settings<'a>,
    #[serde(flatten)]
    summary: &'a Summary,
}

pub fn report_json(
    summary: &Summary,
    run: &Run,
    chosen: &Chosen,
    limits: &[LimitVerdict],
) -> serde_json::Result<String> {
    let weaknesses = if limits.is_empty() { Vec::new() } else { weaknesses(summary, Some(run), chosen.part()) };
    let settings = Settings::of(run);
    let whole = Whole { run: RunHead::of(run), chosen, limits, weaknesses, settings, summary };
    if !summary.durations_alone {
        return serde_json::to_string(&whole);
    }
    let mut whole = serde_json::to_value(&whole)?;
    remove_unknown(&mut whole);
    whole["streams"].as_array_mut().into_iter().flatten().for_each(remove_unknown);
    serde_json::to_string(&whole)
}

/// Removes the keys that say nothing where durations alone were imported: 0 would be taken for a figure.
fn remove_unknown(figures: &mut serde_json::Value) {
    const UNKNOWN: [&str; 8] =
        ["complete", "incomplete", "lost", "duplicates", "out_of_order", "never_seen", "malformed", "consecutive"];
    if let Some(figures) = figures.as_object_mut() {
        figures.retain(|key, _| !UNKNOWN.contains(&key.as_str()));
    }
}

/// The JSON Schema (draft 2020-12) of what `latpath report --json` prints.
pub fn report_schema() -> Schema {
    schema::<Whole>("latpath report --json")
}

/// The JSON Schema (draft 2020-12) of each object that `latpath live --json` prints.
pub fn live_schema() -> Schema {
    schema::<Summary>("latpath live --json")
}

/// The JSON Schema (draft 2020-12) of what a command prints as a `T`.
pub fn schema<T: JsonSchema>(title: &str) -> Schema {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    schema.insert("title".into(), title.into());
    schema
}
