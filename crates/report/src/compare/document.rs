//! Comparisons as HTML: the tables of the text output, and charts with the times of all groups on common axes.

use super::page::{label, write, write_study};
use crate::document::{flat, limits_table, sheet, without_markup, Sheet};
use crate::page::{Block, ChartPlace, Page, Style};
use latpath_analysis::LimitVerdict;
use latpath_compare::{Comparison, Study};
use latpath_model::Ns;
use latpath_stats::units::{number_of, CharacterSet};
use latpath_stats::Bucket;
use serde_json::{json, Value};

/// Curves of a chart: the name and the times of each group.
type Groups<'a> = Vec<(String, &'a [Bucket])>;

/// Writes a comparison as an HTML page. `digests`: paths of the recordings, and their SHA-256.
pub fn comparison_html(comparison: &Comparison, limits: &[LimitVerdict], digests: &[(String, String)]) -> String {
    let mut page = new_page();
    if !limits.is_empty() {
        page.heading("Verdict");
        limits_table(&mut page, limits);
    }
    let labels: Vec<String> = comparison.segments.iter().map(|segment| label(&page, segment)).collect();
    write(&mut page, comparison, usize::MAX, |page, at| charts(page, at, &labels[at]));
    let (a, b) = (page.clean(&comparison.a.name), page.clean(&comparison.b.name));
    let groups = |at: usize| {
        let segment = &comparison.segments[at];
        vec![(a.clone(), &segment.a_histogram[..]), (b.clone(), &segment.b_histogram[..])]
    };
    let drawn: Vec<_> = labels.iter().enumerate().map(|(at, label)| drawn(label, &groups(at))).collect();
    finish(page, format!("{a} against {b}"), (comparison.threshold_ns, drawn), limits, digests)
}

/// Writes a study as an HTML page. `digests`: paths of the recordings, and their SHA-256.
pub fn study_html(study: &Study, digests: &[(String, String)]) -> String {
    let mut page = new_page();
    write_study(&mut page, study);
    let segment = page.clean(&study.segment);
    charts(&mut page, 0, &segment);
    let name = |row: &latpath_compare::StudyRow| match row.load.as_str() {
        "" => page.clean(&row.configuration),
        load => page.clean(&format!("{}/{load}", row.configuration)),
    };
    let groups: Groups = study.rows.iter().map(|row| (name(row), &row.histogram[..])).collect();
    let drawn = drawn(&segment, &groups);
    finish(page, format!("times of {segment}"), (study.threshold_ns, vec![drawn]), &[], digests)
}

fn new_page() -> Page {
    Page::new(Style { is_for_people: true, ..CharacterSet::Unicode.into() })
}

/// Adds the placeholders of a segment's charts.
fn charts(page: &mut Page, segment: usize, label: &str) {
    for (kind, name, caption) in [
        ("overlay", "how often each time occurs", "Share of each group's packets, both axes logarithmic."),
        ("ccdf", "share of packets that take no longer", "Share of each group's packets that take no longer."),
    ] {
        let (name, caption) = (format!("{label}: {name}"), caption.into());
        page.block(Block::Chart(ChartPlace { kind, segment, parts: Vec::new(), name, caption }));
    }
}

/// Returns the data of a segment's charts, for the script.
fn drawn(label: &str, groups: &Groups) -> Value {
    let mut all: Vec<&Bucket> = groups.iter().flat_map(|(_, buckets)| buckets.iter()).collect();
    all.sort_by_key(|bucket| bucket.from_ns);
    let ends: Vec<Bucket> = all.first().into_iter().chain(all.last()).map(|bucket| **bucket).collect();
    let groups: Vec<Value> = groups.iter().map(|(name, buckets)| json!([name, flat(buckets)])).collect();
    json!({ "label": label, "all": flat(&ends), "paths": [], "causes": [], "groups": groups })
}

fn finish(
    mut page: Page,
    what: String,
    (threshold_ns, segments): (Ns, Vec<Value>),
    limits: &[LimitVerdict],
    digests: &[(String, String)],
) -> String {
    page.heading("Recordings");
    for (path, digest) in digests {
        let path = page.clean(path);
        page.item(&path, &format!("SHA-256 {digest}"));
    }
    page.item("compared by", &format!("latpath {}", env!("CARGO_PKG_VERSION")));
    let data = json!({ "begin_ms": 0, "slot_ns": 1, "slots": 0, "threshold_ns": threshold_ns, "segments": segments });
    sheet(&Sheet {
        title: format!("latpath compare: {what}"),
        blocks: page.into_blocks(),
        limits,
        is_weak: false,
        data: without_markup(&data),
        source: number_of(digests.len() as u64, "recording"),
    })
}
