//! Charts: their placeholders in a document, and the data from which the script draws them.

use super::Findings;
use crate::page::{Block, ChartPlace, Page};
use crate::segments::{label, percentile};
use base64::{engine::general_purpose::STANDARD, Engine};
use latpath_analysis::ChartedSegment;
use latpath_model::{Ns, SegmentKind};
use latpath_stats::text::{date_time, short_stream};
use latpath_stats::{Bucket, PacketAt, Pattern, SegmentFigures, Slot};
use serde_json::{json, Value};

/// Writes the placeholders of the charts.
pub(super) fn write(page: &mut Page, findings: &Findings) {
    let (summary, segments) = (findings.summary, &findings.charts.segments);
    if segments.is_empty() {
        return;
    }
    page.heading("Charts");
    let left_out = summary.segments.iter().filter(|s| s.times.count > 0).count().saturating_sub(segments.len());
    if left_out > 0 {
        page.line(format!("Charts show {} segments; the tables have {left_out} more.", segments.len()));
    }
    let stack = stack(findings);
    if stack.len() > 1 {
        page.block(Block::Subheading("Steps of the route over time".into()));
        let caption = "The mean time of each step of the route, stacked, over the time of the run.".into();
        let name = "Steps of the route over time".into();
        page.block(Block::Chart(ChartPlace { kind: "stack", segment: 0, parts: stack, name, caption }));
    }
    for (segment, charted) in segments.iter().enumerate() {
        let Some(figures) = summary.segments.get(charted.figures) else { continue };
        let label = label(page, summary, figures);
        page.block(Block::Subheading(label.clone()));
        let mut chart = |kind, name: &str, caption: &dyn Fn(&Page) -> String| {
            let (name, caption) = (format!("{label}: {name}"), caption(page));
            page.block(Block::Chart(ChartPlace { kind, segment, parts: Vec::new(), name, caption }));
        };
        chart("time", "times over the run", &|page| over_time(page, figures));
        chart("histogram", "how often each time occurs", &|page| {
            up_to(page, figures, "How often each time occurs, both axes logarithmic", &["p50", "p99.9"])
        });
        chart("ccdf", "share of packets that take no longer", &|page| {
            up_to(page, figures, "Share of packets that take no longer", &["p99.99", "p99.9999"])
        });
    }
}

/// Indexes of the charted segments between neighbouring points of the route.
fn stack(findings: &Findings) -> Vec<usize> {
    let (summary, charted) = (findings.summary, &findings.charts.segments);
    let is = |charted: &ChartedSegment, from: &str, to: &str| {
        let figures = summary.segments.get(charted.figures);
        figures.is_some_and(|s| s.from == from && s.to == to && s.kind != SegmentKind::Tupcall)
    };
    let points: Vec<String> = summary.points.iter().map(ToString::to_string).collect();
    points.windows(2).filter_map(|two| charted.iter().position(|c| is(c, &two[0], &two[1]))).collect()
}

fn over_time(page: &Page, s: &SegmentFigures) -> String {
    let at =
        |packet: &Option<PacketAt>| packet.as_ref().map_or(String::new(), |p| format!(" ({})", packet_at(page, p)));
    let (min, max) = (page.time(s, s.times.min_ns), page.time(s, s.times.max_ns));
    format!("Least, mean and greatest time over the run: from {min}{} to {max}{}.", at(&s.min_at), at(&s.max_at))
}

/// Caption of a chart: `what`, and those of the named percentiles that enough packets support.
fn up_to(page: &Page, s: &SegmentFigures, what: &str, names: &[&str]) -> String {
    let text = |name: &&str| match percentile(page, s, name) {
        none if none == "-" => None,
        time => Some(format!("{} % take up to {time}", name.trim_start_matches('p'))),
    };
    let texts: Vec<String> = names.iter().filter_map(text).collect();
    match texts.is_empty() {
        true => format!("{what}."),
        false => format!("{what}: {}.", texts.join(", ")),
    }
}

/// Formats a packet: `MU01, key 2375, 2026-01-02 03:04:05.593750006`.
fn packet_at(page: &Page, packet: &PacketAt) -> String {
    format!("{}, key {}, {}", page.clean(&short_stream(&packet.stream)), packet.key, date_time(packet.time_ns))
}

/// Returns the data of all charts, as JSON without characters that HTML or XML would parse as markup.
pub(super) fn data(findings: &Findings) -> String {
    let page = Page::new(latpath_stats::units::CharacterSet::Unicode);
    let (summary, charts) = (findings.summary, findings.charts);
    let segment = |charted: &ChartedSegment| {
        let label = summary.segments.get(charted.figures).map_or(String::new(), |s| label(&page, summary, s));
        let causes = findings.explained.map_or(Vec::new(), |e| e.explainer.first_causes(charted.histograms.segment));
        let value = |time: fn(&Slot) -> f32| {
            let values = charted.slots.iter().map(|slot| if slot.count > 0 { time(slot) } else { f32::NAN });
            STANDARD.encode(values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
        };
        let name = summary.segments.get(charted.figures).map(|s| &s.name);
        let limits = findings.limits.iter().filter(|limit| limit.segment.as_ref() == name);
        let limits = limits.filter_map(|limit| Some(json!([page.clean(&limit.limit), limit.most_ns?])));
        json!({
            "label": label,
            "limits": limits.collect::<Vec<_>>(),
            "count": value(|slot| slot.count as f32),
            "min": value(|slot| slot.min as f32),
            "mean": value(|slot| slot.mean().unwrap_or(0.0) as f32),
            "max": value(|slot| slot.max as f32),
            "all": flat(&charted.histograms.all),
            "paths": charted.histograms.by_path.iter().map(|(path, of)| json!([path, flat(of)])).collect::<Vec<_>>(),
            "causes": causes.iter().map(|(cause, of)| json!([cause, flat(of)])).collect::<Vec<_>>(),
        })
    };
    let data = json!({
        "begin_ms": charts.begin_utc_ns as f64 / 1e6,
        "slot_ns": charts.slot_ns,
        "slots": charts.segments.first().map_or(0, |s| s.slots.len()),
        "threshold_ns": summary.threshold_ns,
        "segments": charts.segments.iter().map(segment).collect::<Vec<_>>(),
        "patterns": patterns(findings),
        "marks": marks(findings),
    });
    without_markup(&data)
}

/// Converts data to JSON without characters that HTML or XML would parse as markup.
pub(crate) fn without_markup(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Returns the occurrences of each pattern, ns since the start of the first slot, and the charted segments that show
/// it. A pattern without segments is shown in all charts.
fn patterns(findings: &Findings) -> Vec<Value> {
    let (summary, charts) = (findings.summary, findings.charts);
    let since = |t: Ns| t.saturating_sub(charts.begin_ns);
    let shows = |pattern: &Pattern, charted: &ChartedSegment| {
        let figures = summary.segments.get(charted.figures);
        figures.is_some_and(|s| pattern.segments.contains(&s.name))
    };
    let of = |(number, pattern): (usize, &Pattern)| {
        let charted = charts.segments.iter().enumerate().filter(|(_, charted)| shows(pattern, charted));
        json!({
            "number": number,
            "kind": pattern.kind.name(),
            "segments": charted.map(|(at, _)| at).collect::<Vec<_>>(),
            "spans": pattern.occurrences.iter().map(|o| [since(o.from_ns), since(o.to_ns)]).collect::<Vec<_>>(),
        })
    };
    (1..).zip(&summary.patterns).map(of).collect()
}

/// Returns the marks of the run: time in ns since the start of the first slot, and text.
fn marks(findings: &Findings) -> Vec<Value> {
    let page = Page::new(latpath_stats::units::CharacterSet::Unicode);
    let since = |t: Ns| t.saturating_sub(findings.charts.begin_ns);
    findings.run.marks().iter().map(|mark| json!([since(mark.t_ns), page.clean(&mark.text)])).collect()
}

pub(crate) fn flat(buckets: &[Bucket]) -> Value {
    buckets.iter().flat_map(|b| [json!(b.from_ns), json!(b.to_ns), json!(b.count)]).collect()
}
