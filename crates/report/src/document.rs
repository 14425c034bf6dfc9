//! Reports as documents to archive and sign, in HTML, Markdown and AsciiDoc; all are written from the same blocks.

mod asciidoc;
mod charts;
mod html;
mod markdown;

use crate::cpu_map;
use crate::explain::Head;
use crate::page::{Block, Page, Picture, Style};
use crate::{
    clocks, explain, header, intervals, lans, paths, patterns, quality, segments, settings, streams, without, worst,
};
use latpath_analysis::{explain::ExplainedRun, weaknesses, Charts, Chosen, LimitVerdict};
use latpath_run::Run;
use latpath_stats::figures::{longest_row, packets};
use latpath_stats::text::{short_stream, Table};
use latpath_stats::units::{share, CharacterSet};
use latpath_stats::Summary;

pub use asciidoc::asciidoc;
pub(crate) use asciidoc::asciidoc_of;
pub(crate) use charts::{flat, without_markup};
pub use html::html;
pub(crate) use html::{escaped, sheet, Sheet};
pub use markdown::markdown;

/// Content of a document.
#[derive(Clone, Copy, Debug)]
pub struct Findings<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its figures.
    pub summary: &'a Summary,
    /// The user's options.
    pub chosen: &'a Chosen,
    /// Verdicts on the user's limits.
    pub limits: &'a [LimitVerdict],
    /// Data of its charts.
    pub charts: &'a Charts,
    /// Causes of the late packets; `None` if the run has no captures.
    pub explained: Option<&'a ExplainedRun>,
    /// The run's [`digest`](latpath_analysis::digest), hexadecimal.
    pub sha256: &'a str,
}

impl Findings<'_> {
    /// The title chosen by the user, or else `latpath report: RUN`.
    fn title(&self, page: &Page) -> String {
        let title = self.chosen.title.clone();
        page.clean(&title.unwrap_or_else(|| format!("latpath report: {}", header::name(self.run))))
    }

    /// Reasons why the verdict on the limits is weak.
    fn weaknesses(&self) -> Vec<String> {
        weaknesses(self.summary, Some(self.run), self.chosen.part())
    }

    /// Title and blocks of the document, with at most `drawn` of the worst packets. With `html`, it includes
    /// placeholders of charts, and digits are grouped.
    fn blocks(&self, html: bool, drawn: usize) -> (String, Vec<Block>) {
        let mut page = Page::new(Style { is_for_people: html, ..CharacterSet::Unicode.into() });
        let summary = self.summary;
        header::first_lines(&mut page, self.run);
        let weak = if self.limits.is_empty() { Vec::new() } else { self.weaknesses() };
        verdict(&mut page, self, &weak);
        quality::write(&mut page, summary, &weak);
        clocks::write(&mut page, summary);
        patterns::write(&mut page, summary, Some(self.run.manifest().time_of_day()));
        segments::document(&mut page, summary);
        if html {
            charts::write(&mut page, self);
        }
        intervals::write(&mut page, summary, &[]);
        without::write(&mut page, summary);
        paths::write(&mut page, summary);
        if let Some(ExplainedRun { explainer, files }) = self.explained {
            let head = Head { run: self.run, files };
            explain::document(&mut page, &head, &explainer.explanation(), explainer.context());
        }
        quality::losses(&mut page, summary);
        lans::write(&mut page, summary);
        streams::write(&mut page, summary);
        streams::pacing(&mut page, summary);
        worst::document(&mut page, summary, self.charts.typical.as_ref(), drawn);
        words(&mut page);
        header::route(&mut page, summary);
        if self.run.manifest().imported.is_empty() {
            quality::tool(&mut page, summary);
        }
        quality::footnotes(&mut page, &summary.footnotes);
        cpu_map::document(&mut page, self.run);
        settings::document(&mut page, self.run, html);
        page.heading("Run, host and options");
        header::write(&mut page, self.run, &header::name(self.run));
        self.chosen.part().iter().for_each(|part| page.item("covers", &page.clean(part)));
        for (name, value) in self.chosen.options() {
            page.item(name, &page.clean(&value));
        }
        page.item("SHA-256", self.sha256);
        page.item("report", &format!("latpath {}", env!("CARGO_PKG_VERSION")));
        (self.title(&page), page.into_blocks())
    }
}

/// Writes explanations of the signs and words in the tables.
fn words(page: &mut Page) {
    page.heading("Signs and words");
    let bound = page.letters.plus_minus();
    for (sign, meaning) in [
        ("-", "nothing was measured, or too few packets lie beyond the percentile: the maximum says as much"),
        ("<", "the time is shorter than the error bound between its two clocks, which is shown in its place"),
        (bound, "error bound: a time between two machines may be wrong by so much"),
        ("1→4", "from the route's first point to its fourth; a point off the route has no number"),
        ("late", "over the threshold"),
        ("lost", "not seen at the route's last point"),
        ("disord.", "another packet overtook it"),
        ("unseen", "sequence numbers that no point saw"),
        ("usual", "the median of the step, of the packet's stream"),
    ] {
        page.item(&page.clean(sign), meaning);
    }
}

/// Writes the key figures and the verdict on limits.
fn verdict(page: &mut Page, findings: &Findings, weaknesses: &[String]) {
    let Findings { summary, limits, .. } = *findings;
    page.heading("Verdict");
    if limits.is_empty() {
        page.line("No limit was set (latpath report --limit): the figures stand without a verdict.");
    }
    limits_table(page, limits);
    what_weakens(page, limits, weaknesses);
    for (name, value) in &findings.chosen.notes {
        page.item(&page.clean(name), &page.clean(value));
    }
    findings.chosen.part().iter().for_each(|part| page.item("covers", &page.clean(part)));
    let lost = packets(&summary.lost);
    page.item("packets", &page.count(summary.journeys));
    match summary.durations_alone {
        true => page.item("lost", quality::NOT_KNOWN),
        false => page.item("lost", &format!("{} ({})", page.count(lost), share(lost, summary.journeys))),
    }
    let over = page.duration(summary.threshold_ns);
    for s in segments::most_telling(summary) {
        let times = &s.times;
        let text = format!(
            "median {}, 99.9 % {}, max {}; {} over {over} ({})",
            segments::percentile(page, s, "p50"),
            segments::percentile(page, s, "p99.9"),
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

/// Writes the reasons why the verdict is weak, if there are limits.
pub(crate) fn what_weakens(page: &mut Page, limits: &[LimitVerdict], weaknesses: &[String]) {
    if !weaknesses.is_empty() && !limits.is_empty() {
        page.line("What weakens this verdict:");
        weaknesses.iter().for_each(|why| page.warning(why));
    }
}

/// Writes the verdict on all limits, and a row for each.
pub(crate) fn limits_table(page: &mut Page, limits: &[LimitVerdict]) {
    let so_many = |word: &str| limits.iter().filter(|limit| limit.word() == word).count();
    match (limits.len(), so_many("broken"), so_many(LimitVerdict::CANNOT_BE_JUDGED)) {
        (0, ..) => return,
        (1, 0, 0) => page.line("The limit is kept."),
        (all, 0, 0) => page.line(format!("All {all} limits are kept.")),
        (all, broken, 0) => page.warning(&format!("{broken} of {all} limits broken")),
        (all, 0, open) => page.warning(&format!("{open} of {all} limits cannot be judged")),
        (all, broken, open) => page.warning(&format!("{broken} of {all} limits broken, {open} cannot be judged")),
    }
    let has_names = limits.iter().any(|limit| limit.about.is_some());
    let heads = ["<limit", "measured", "<verdict", "<for", "<source"];
    let columns = if has_names { heads.len() } else { 3 };
    let mut table = Table::new(&heads[..columns]);
    for limit in limits {
        // The text of a broken limit would only repeat the measured figure in the same row.
        let verdict = match limit.cannot_be_judged.as_ref().filter(|_| limit.broken.is_none()) {
            Some(why) => format!("{}: {}", LimitVerdict::CANNOT_BE_JUDGED, page.clean(why)),
            None => limit.word().into(),
        };
        let measured = limit.measured.as_ref().map_or("-".into(), |measured| page.clean(measured));
        let about = limit.about.iter().flat_map(|about| [page.clean(&about.name), page.clean(&about.source)]);
        let mut row: Vec<String> = [page.clean(&limit.limit), measured, verdict].into_iter().chain(about).collect();
        row.resize(columns, String::new());
        table.row(row);
    }
    page.whole_table(&table);
}

/// Syntax of a plain-text format.
struct Markup {
    /// Prefix of the title; repeated for each lower level of headings.
    heading: &'static str,
    /// Prefix of a list entry.
    bullet: &'static str,
    escaped: fn(&str) -> String,
    /// Formats a warning whose text is already escaped.
    warning: fn(&str) -> String,
    /// Formats a block of commands, which are not escaped.
    code: fn(&[&str]) -> String,
    table: fn(&Table) -> String,
    picture: fn(&Picture) -> String,
}

impl Markup {
    fn write(&self, findings: &Findings) -> String {
        let (title, blocks) = findings.blocks(false, usize::MAX);
        self.write_blocks(&title, &blocks)
    }

    fn write_blocks(&self, title: &str, blocks: &[Block]) -> String {
        let Self { heading, escaped, code, table: written, .. } = *self;
        let mut out = format!("{heading} {}\n", escaped(title));
        for blocks in runs_of_one_kind(blocks) {
            for block in blocks {
                match block {
                    Block::Heading(text) => out += &format!("\n{} {}\n", heading.repeat(2), escaped(text)),
                    Block::Subheading(text) => out += &format!("\n{} {}\n", heading.repeat(3), escaped(text)),
                    Block::Table(table) | Block::Steps(table, _) => out += &format!("\n{}", written(table)),
                    Block::Picture(picture) => out += &format!("\n{}", (self.picture)(picture)),
                    _ => {}
                }
            }
            let commands: Vec<&str> = blocks.iter().filter_map(Block::command).collect();
            if !commands.is_empty() {
                out += &format!("\n{}", code(&commands));
            }
            let list = self.list(blocks);
            if !list.is_empty() {
                out += &format!("\n{}\n", list.join("\n").trim_end());
            }
        }
        out
    }

    /// Formats consecutive blocks of one kind as list entries.
    fn list(&self, blocks: &[Block]) -> Vec<String> {
        let Self { bullet, escaped, warning, .. } = *self;
        let item = |block: &Block| match block {
            Block::Item(name, value) if name.is_empty() => Some(format!("{bullet} {}", escaped(value))),
            Block::Item(name, value) => Some(format!("{bullet} {}: {}", escaped(name), escaped(value))),
            _ => None,
        };
        match &blocks[0] {
            Block::Line(_) => lines(blocks).map(|text| format!("{bullet} {}", escaped(text))).collect(),
            Block::Warning(_) => lines(blocks).map(|text| warning(&escaped(text))).collect(),
            _ => blocks.iter().filter_map(item).collect(),
        }
    }
}

/// Groups consecutive blocks of one kind: lines form a list, items a list of names and values.
fn runs_of_one_kind(blocks: &[Block]) -> impl Iterator<Item = &[Block]> {
    blocks.chunk_by(|a, b| std::mem::discriminant(a) == std::mem::discriminant(b))
}

/// The lines of a list, without empty lines.
fn lines(blocks: &[Block]) -> impl Iterator<Item = &str> {
    blocks.iter().filter_map(|block| match block {
        Block::Line(text) | Block::Warning(text) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    })
}
