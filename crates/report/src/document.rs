//! A report as a document that people keep and sign: HTML, Markdown, AsciiDoc. All three are written from the same blocks.

mod asciidoc;
mod digest;
mod html;
mod markdown;

use crate::page::{share, Block, Page, Style};
use crate::{header, paths, quality, segments, streams, worst};
use latpath_run::Run;
use latpath_stats::figures::{longest_row, packets};
use latpath_stats::text::{short_stream, Table};
use latpath_stats::units::Letters;
use latpath_stats::Summary;

pub use asciidoc::asciidoc;
pub use digest::digest;
pub use html::html;
pub use markdown::markdown;

/// Whether a limit was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitVerdict {
    /// The limit, as the user wrote it.
    pub limit: String,
    /// The figure that breaks it, or why it cannot be kept; `None` if it is kept.
    pub broken: Option<String>,
}

/// What a document shows.
#[derive(Clone, Copy, Debug)]
pub struct Findings<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its figures.
    pub summary: &'a Summary,
    /// The limits that the user set.
    pub limits: &'a [LimitVerdict],
    /// The run's [`digest`].
    pub sha256: &'a str,
}

impl Findings<'_> {
    /// `latpath report: RUN`
    fn title(&self, page: &Page) -> String {
        let path = self.run.path();
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        format!("latpath report: {}", page.clean(&name))
    }

    /// The document's title and blocks. Digits stand in groups where `is_for_people`.
    fn blocks(&self, is_for_people: bool) -> (String, Vec<Block>) {
        let mut page = Page::new(Style { is_for_people, ..Letters::Unicode.into() });
        let summary = self.summary;
        verdict(&mut page, self);
        quality::write(&mut page, summary);
        segments::document(&mut page, summary);
        paths::write(&mut page, summary);
        quality::losses(&mut page, summary);
        streams::write(&mut page, summary);
        worst::document(&mut page, summary);
        header::route(&mut page, summary);
        quality::tool(&mut page, summary);
        page.heading("Run, host and options");
        header::write(&mut page, self.run);
        page.item("SHA-256", self.sha256);
        page.item("report", &format!("latpath {}", env!("CARGO_PKG_VERSION")));
        (self.title(&page), page.into_blocks())
    }
}

/// The figures that people look for first.
fn verdict(page: &mut Page, findings: &Findings) {
    let Findings { summary, limits, .. } = *findings;
    page.heading("Verdict");
    let broken = limits.iter().filter(|limit| limit.broken.is_some()).count();
    match (limits.len(), broken) {
        (0, _) => page.line("No limit was set (latpath report --limit): the figures stand without a verdict."),
        (1, 0) => page.line("The limit is kept."),
        (all, 0) => page.line(format!("All {all} limits are kept.")),
        (all, broken) => page.warning(&format!("{broken} of {all} limits broken")),
    }
    if !limits.is_empty() {
        let mut table = Table::new(&["<limit", "<verdict"]);
        for LimitVerdict { limit, broken } in limits {
            let verdict = broken.as_ref().map_or("kept".into(), |why| format!("broken: {why}"));
            table.row(vec![page.clean(limit), verdict]);
        }
        page.table(&table);
    }
    let lost = packets(&summary.lost);
    page.item("packets", &page.count(summary.journeys));
    page.item("lost", &format!("{} ({})", page.count(lost), share(lost, summary.journeys)));
    let over = page.duration(summary.threshold_ns);
    for s in segments::most_telling(summary) {
        let times = &s.times;
        let text = format!(
            "median {}, 99.9 % {}, max {}; {} over {over} ({})",
            page.time(s, times.p50_ns),
            page.time(s, times.p99_9_ns),
            page.time(s, times.max_ns),
            page.count(s.over_threshold),
            share(s.over_threshold, times.count)
        );
        page.item(&segments::label(page, summary, s), &text);
    }
    if let Some((stream, row)) = longest_row(summary) {
        let stream = page.clean(&short_stream(&stream.stream));
        page.item("in a row", &format!("{} packets late or missing, of {stream}", page.count(row.packets)));
    }
}

/// Blocks of one kind that follow each other: lines make a list, items a list of names and values.
fn runs_of_one_kind(blocks: &[Block]) -> impl Iterator<Item = &[Block]> {
    blocks.chunk_by(|a, b| std::mem::discriminant(a) == std::mem::discriminant(b))
}

/// The lines of a list, without those that only make a gap.
fn lines(blocks: &[Block]) -> impl Iterator<Item = &str> {
    blocks.iter().filter_map(|block| match block {
        Block::Line(text) | Block::Warning(text) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    })
}
