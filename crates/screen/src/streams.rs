//! The table of streams: their rates, and the slowest packet of each.

use crate::{
    lines,
    model::{DisplayedFigures, Model},
    names,
    table::List,
    theme::Theme,
    trouble,
    watch::Flowing,
};
use latpath_stats::figures::packets;
use latpath_stats::{SegmentFigures, StreamFigures};
use ratatui::{buffer::Buffer, layout::Rect, style::Style};
use unicode_width::UnicodeWidthStr;

/// Columns: title, width, and the minimum screen width at which the column is shown.
const COLUMNS: [(&str, usize, usize); 8] = [
    ("rate/s", 9, 0),
    ("journeys", 13, 84),
    ("lost", 8, 0),
    ("p50", 9, 66),
    ("p99", 9, 56),
    ("p99.9", 9, 76),
    ("max", 9, 0),
    ("over", 8, 50),
];

/// Draws one row per stream, with times of the whole route.
pub fn draw(model: &Model, shown: &DisplayedFigures<'_>, area: Rect, buf: &mut Buffer) {
    let theme = &model.theme;
    let streams = &shown.summary.streams;
    if area.height == 0 || area.width < 20 {
        return;
    }
    let width = usize::from(area.width);
    let used: Vec<_> = COLUMNS.iter().filter(|c| c.2 <= width).collect();
    let figures: usize = used.iter().map(|c| c.1).sum();
    let natural = streams.iter().map(|s| names::stream(&s.stream, theme).width()).max().unwrap_or(0).clamp(12, 40);
    let name = width.saturating_sub(figures + 1).min(natural);
    let chosen = shown.stream.and_then(|s| streams.iter().position(|o| std::ptr::eq(o, s)));
    let heads = used.iter().map(|(title, width, _)| (*title, *width, theme.faint()));
    let list = List { what: "stream", count: streams.len(), name, heads: heads.collect() };
    let out = list.lines(theme, chosen, usize::from(area.height), |i| {
        let cells = used.iter().map(|(title, width, _)| cell(title, &streams[i], model, width - 1));
        (theme.cut(&names::stream(&streams[i].stream, theme), name), cells.collect())
    });
    lines::put(&out, area, buf);
}

fn cell(title: &str, stream: &StreamFigures, model: &Model, width: usize) -> (String, Style) {
    let theme = &model.theme;
    let whole = stream.segments.iter().find(|s| s.kind.is_whole()).or(stream.segments.first());
    let time = |of: fn(&SegmentFigures) -> i64, theme: &Theme| {
        (whole.filter(|s| s.times.count > 0).map_or_else(|| "-".into(), |s| theme.cell(of(s))), Style::new())
    };
    let bad = |n: u64| {
        let style = if n > 0 { theme.bad() } else { Style::new() };
        (theme.count_within(n, width), style)
    };
    match title {
        "rate/s" => match model.watch.streams.get(&stream.stream).map(|f| (f.flowing(model.now), f.rate_hz())) {
            Some((Flowing::Yes, hz)) => (theme.cut(&theme.rate(hz), width), Style::new()),
            Some((Flowing::Silent(d), _)) => (theme.cut(&format!("0 {}", trouble::span(d)), width), theme.alarm()),
            Some((Flowing::Waiting(_), _)) => ("waiting".into(), theme.warn()),
            None => ("-".into(), theme.faint()),
        },
        "journeys" => (theme.count_within(stream.journeys, width), Style::new()),
        "lost" => bad(packets(&stream.lost)),
        "p50" => time(|s| s.times.p50_ns, theme),
        "p99" => time(|s| s.times.p99_ns, theme),
        "p99.9" => time(|s| s.times.p99_9_ns, theme),
        "max" => time(|s| s.times.max_ns, theme),
        _ => bad(whole.map_or(0, |s| s.over_threshold)),
    }
}
