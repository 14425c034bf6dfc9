//! `latpath report --json`: the summary with facts about the run. docs/json.md is its schema.

use crate::settings::Settings;
use latpath_analysis::{weaknesses, Chosen, LimitVerdict};
use latpath_model::{Ns, StreamSpec};
use latpath_run::{facts::HostFacts, Condition, Mark, Run, Stamp};
use latpath_stats::Summary;
use schemars::{generate::SchemaSettings, JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Facts about the run: the key `run` of a report's JSON.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunHead<'a> {
    /// The run's directory, as given by the user.
    pub path: String,
    /// `finished`, `recording`, `interrupted` or `killed`.
    pub state: Cow<'static, str>,
    /// Reason for an interruption; null in other states.
    pub interrupted_by: Option<Cow<'a, str>>,
    /// Version of latpath that recorded the run.
    pub latpath: Cow<'a, str>,
    /// Command line of the recording.
    pub command: Cow<'a, [String]>,
    /// Start, by all clocks.
    pub start: Cow<'a, Stamp>,
    /// End, by all clocks; null if the recording was killed or is in progress.
    pub end: Option<Cow<'a, Stamp>>,
    /// Recorded streams.
    #[schemars(with = "Vec<String>")]
    pub streams: Cow<'a, [StreamSpec]>,
    /// Facts about the host.
    pub host: Cow<'a, HostFacts>,
    /// Marks that users set during the run.
    pub marks: Vec<MarkHead<'a>>,
}

/// A mark of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MarkHead<'a> {
    /// Time since the run's start, ns.
    pub since_start_ns: Ns,
    /// Time, ns since 1970 UTC.
    pub utc_ns: Ns,
    /// Text of the mark.
    pub text: Cow<'a, str>,
}

impl<'a> RunHead<'a> {
    /// Collects the facts about a run.
    pub fn of(run: &'a Run) -> Self {
        let manifest = run.manifest();
        let (state, interrupted_by) = match run.condition() {
            Condition::Finished => ("finished", None),
            Condition::Recording => ("recording", None),
            Condition::Interrupted(why) => ("interrupted", Some(why.into())),
            Condition::Killed => ("killed", None),
        };
        let time_of_day = manifest.time_of_day();
        let mark = |mark: &'a Mark| MarkHead {
            since_start_ns: mark.t_ns.saturating_sub(manifest.start.monotonic_ns),
            utc_ns: time_of_day.utc(mark.t_ns),
            text: (&mark.text).into(),
        };
        Self {
            path: run.path().display().to_string(),
            state: state.into(),
            interrupted_by,
            latpath: (&manifest.latpath).into(),
            command: (&manifest.command).into(),
            start: Cow::Borrowed(&manifest.start),
            end: manifest.end.as_ref().map(Cow::Borrowed),
            streams: (&manifest.streams).into(),
            host: Cow::Borrowed(&manifest.host),
            marks: run.marks().iter().map(mark).collect(),
        }
    }
}

/// A report: the run and its figures.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report<'a> {
    /// The run.
    pub run: RunHead<'a>,
    /// The user's options.
    pub chosen: Cow<'a, Chosen>,
    /// Verdicts on the user's limits.
    pub limits: Cow<'a, [LimitVerdict]>,
    /// Reasons why the verdict on limits is weak, starting with those for which limits cannot be judged; empty if there
    /// are no limits.
    pub weaknesses: Vec<String>,
    /// The machines' settings, and their changes.
    pub settings: Settings<'a>,
    /// The figures.
    #[serde(flatten)]
    pub summary: Cow<'a, Summary>,
}

/// Formats a report as JSON.
///
/// # Errors
/// If the figures cannot be serialised.
pub fn report_json(
    summary: &Summary,
    run: &Run,
    chosen: &Chosen,
    limits: &[LimitVerdict],
) -> serde_json::Result<String> {
    let weaknesses = if limits.is_empty() { Vec::new() } else { weaknesses(summary, Some(run), chosen.part()) };
    let settings = Settings::of(run);
    let whole = Report {
        run: RunHead::of(run),
        chosen: Cow::Borrowed(chosen),
        limits: limits.into(),
        weaknesses,
        settings,
        summary: Cow::Borrowed(summary),
    };
    if !summary.durations_alone {
        return serde_json::to_string(&whole);
    }
    let mut whole = serde_json::to_value(&whole)?;
    remove_unknown(&mut whole);
    whole["streams"].as_array_mut().into_iter().flatten().for_each(remove_unknown);
    serde_json::to_string(&whole)
}

/// Removes the keys whose values are unknown if only durations were imported: readers would mistake the zeros for
/// figures.
fn remove_unknown(figures: &mut serde_json::Value) {
    const UNKNOWN: [&str; 8] =
        ["complete", "incomplete", "lost", "duplicates", "out_of_order", "never_seen", "malformed", "consecutive"];
    if let Some(figures) = figures.as_object_mut() {
        figures.retain(|key, _| !UNKNOWN.contains(&key.as_str()));
    }
}

/// Returns the JSON Schema (draft 2020-12) of the output of `latpath report --json`.
pub fn report_schema() -> Schema {
    schema::<Report>("latpath report --json")
}

/// Returns the JSON Schema (draft 2020-12) of each object that `latpath live --json` prints.
pub fn live_schema() -> Schema {
    schema::<Summary>("latpath live --json")
}

/// Returns the JSON Schema (draft 2020-12) of the output of a command that prints a `T`.
pub fn schema<T: JsonSchema>(title: &str) -> Schema {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    schema.insert("title".into(), title.into());
    schema
}
