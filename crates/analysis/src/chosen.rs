//! The options that the user gave for a report: if a page covers only a part of a run, it names that part.

use crate::SummaryOptions;
use latpath_model::{text::printable, Ns};
use latpath_run::Run;
use latpath_stats::text::short_stream;
use latpath_stats::{units::duration, PatternKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The options of a report, and its author's title and notes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Chosen {
    /// Start of the covered part, ns since the run's start; null for the first journey.
    pub from_ns: Option<Ns>,
    /// End of the covered part (exclusive), ns since the run's start; null for the last journey.
    pub to_ns: Option<Ns>,
    /// Length of the run, from the first packet to the last, ns.
    pub of_ns: Ns,
    /// Covered streams; empty for all.
    pub streams: Vec<String>,
    /// Threshold of late packets, ns; null for the recording's own.
    pub threshold_ns: Option<Ns>,
    /// The user's segments, `NAME=FROM..TO`.
    pub segments: Vec<String>,
    /// Kinds of patterns: the figures are also shown without the packets that belong to them.
    pub exclude: Vec<PatternKind>,
    /// Name of the profile of limits.
    pub profile: Option<String>,
    /// Title given by the author.
    pub title: Option<String>,
    /// The author's notes, each with a name: test number, serial number of the device, signatory.
    pub notes: Vec<(String, String)>,
}

impl Chosen {
    /// The choices in `options`, without title, notes and profile.
    pub fn of(run: &Run, options: &SummaryOptions) -> Self {
        let select = &options.select;
        let since = |t: Ns| t.saturating_sub(run.manifest().start.monotonic_ns);
        let stream = |id: &u16| run.manifest().streams.get(usize::from(*id)).map(ToString::to_string);
        Self {
            from_ns: (select.from_ns > Ns::MIN).then(|| since(select.from_ns)),
            to_ns: (select.to_ns < Ns::MAX).then(|| since(select.to_ns)),
            of_ns: run.times().map_or(0, |(first, last)| last.saturating_sub(first)),
            streams: select.streams.iter().flatten().filter_map(stream).collect(),
            threshold_ns: options.threshold_ns,
            segments: options.segments.clone(),
            exclude: options.exclude.clone(),
            ..Self::default()
        }
    }

    /// The covered part: `2.000 s to 3.000 s of 10.00 s, of MU01`; `None` for the whole run.
    pub fn part(&self) -> Option<String> {
        let time = (self.from_ns.is_some() || self.to_ns.is_some()).then(|| {
            let (from, of) = (duration(self.from_ns.unwrap_or(0)), duration(self.of_ns));
            format!("{from} to {} of {of}", self.to_ns.map_or("the end".into(), duration))
        });
        let names: Vec<String> = self.streams.iter().map(|s| short_stream(s)).collect();
        let streams = (!names.is_empty()).then(|| format!("of {} alone", names.join(", ")));
        let parts: Vec<String> = time.into_iter().chain(streams).collect();
        (!parts.is_empty()).then(|| printable(&parts.join(", ")))
    }

    /// The other options, each with its name.
    pub fn options(&self) -> Vec<(&'static str, String)> {
        let some = |name, value: String| (!value.is_empty()).then_some((name, value));
        let threshold = self.threshold_ns.map_or(String::new(), duration);
        [
            some("threshold", threshold),
            some("segments", self.segments.join(", ")),
            some("exclude", self.exclude.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")),
            some("profile", self.profile.clone().unwrap_or_default()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
