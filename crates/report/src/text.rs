//! The text of `latpath report`.

use crate::{
    clocks,
    document::{limits_table, what_weakens},
    header, histogram, intervals, lans, late,
    page::{Page, Style},
    paths, patterns, quality, segments, settings, streams, without, worst,
};
use latpath_analysis::{weaknesses, LimitVerdict};
use latpath_model::text::quoted;
use latpath_run::Run;
use latpath_stats::Summary;

/// Optional parts of the text.
#[derive(Clone, Debug)]
pub struct Options {
    /// Capabilities of the output.
    pub style: Style,
    /// Segments whose histograms are drawn; if empty, `total` or the last segment.
    pub histograms: Vec<String>,
    /// The covered part of the run, unless it is the whole run: [`latpath_analysis::Chosen::part`].
    pub covers: Option<String>,
    /// Verdicts on the user's limits.
    pub limits: Vec<LimitVerdict>,
}

/// Formats the whole report as text, in lines no longer than the style allows. `run`: the run of the figures; `None`
/// for a live measurement.
pub fn text(summary: &Summary, run: Option<&Run>, options: &Options) -> String {
    let mut page = Page::new(options.style);
    if let Some(run) = run {
        header::write(&mut page, run, &run.path().display().to_string());
        options.covers.iter().for_each(|part| page.item("covers", &page.clean(part)));
        settings::write(&mut page, run);
    }
    let mut weak = Vec::new();
    if !options.limits.is_empty() {
        page.heading("Limits");
        limits_table(&mut page, &options.limits);
        weak = weaknesses(summary, run, options.covers.clone());
        what_weakens(&mut page, &options.limits, &weak);
    }
    header::route(&mut page, summary);
    quality::write(&mut page, summary, &weak);
    clocks::write(&mut page, summary);
    patterns::write(&mut page, summary, None);
    segments::write(&mut page, summary);
    without::write(&mut page, summary);
    paths::write(&mut page, summary);
    for segment in histogram::chosen(summary, &options.histograms) {
        histogram::write(&mut page, segment, summary.threshold_ns);
    }
    intervals::write(&mut page, summary, &options.histograms);
    quality::losses(&mut page, summary);
    lans::write(&mut page, summary);
    streams::write(&mut page, summary);
    worst::write(&mut page, summary);
    let path = run.map(|run| quoted(&run.path().display().to_string()));
    late::write(&mut page, summary, path.as_deref());
    if run.is_none_or(|run| run.manifest().imported.is_empty()) {
        quality::tool(&mut page, summary);
    }
    quality::footnotes(&mut page, &summary.footnotes);
    page.finish()
}
