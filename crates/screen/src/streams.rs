//! The table of streams: which of them come, and how late the worst of each was.

use crate::{
    lines,
    model::{Model, Shown},
    names,
    theme::Theme,
    trouble,
    watch::Flowing,
};
use latpath_model::SegmentKind;
use latpath_stats::figures::packets;
use latpath_stats::text::{pad, right};
use latpath_stats::{SegmentFigures, StreamFigures};
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Columns: title, width, and how narrow a screen may be to show it.
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

/// Draws a row per stream; the times are those of the whole route.
pub fn draw(model: &Model, shown: &Shown<'_>, area: Rect, buf: &mut Buffer) {
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
    let room = usize::from(area.height) - 1;
    let chosen = shown.stream.and_then(|s| streams.iter().position(|o| std::ptr::eq(o, s)));
    let from = chosen.unwrap_or(0).saturating_sub(room.saturating_sub(1)).min(streams.len().saturating_sub(room));
    let to = from.saturating_add(room).min(streams.len());
    let title = match streams.len() {
        n if n > room && room > 0 => format!("stream {}-{to}/{n}", from + 1),
        _ => "stream".into(),
    };
    let mut head = vec![Span::raw(format!(" {}", pad(&theme.cut(&title, name), name)))];
    head.extend(used.iter().map(|c| Span::styled(right(c.0, c.1), theme.faint())));
    let mut out = vec![Line::from(head)];
    for (i, stream) in streams.iter().enumerate().take(to).skip(from) {
        let (mark, style) = if chosen == Some(i) { (theme.mark(), theme.strong()) } else { (" ", Style::new()) };
        let label = pad(&theme.cut(&names::stream(&stream.stream, theme), name), name);
        let mut spans = vec![Span::styled(format!("{mark}{label}"), style)];
        for (title, width, _) in &used {
            let (text, own) = cell(title, stream, model, width - 1);
            spans.push(Span::styled(right(&text, *width), style.patch(own)));
        }
        out.push(Line::from(spans));
    }
    lines::put(&out, area, buf);
}

fn cell(title: &str, stream: &StreamFigures, model: &Model, width: usize) -> (String, Style) {
    let theme = &model.theme;
    let whole = stream.segments.iter().find(|s| s.kind == SegmentKind::Total).or(stream.segments.first());
    let time = |of: fn(&SegmentFigures) -> i64, theme: &Theme| {
        (whole.filter(|s| s.count > 0).map_or_else(|| "-".into(), |s| theme.cell(of(s))), Style::new())
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
        "p50" => time(|s| s.p50_ns, theme),
        "p99" => time(|s| s.p99_ns, theme),
        "p99.9" => time(|s| s.p99_9_ns, theme),
        "max" => time(|s| s.max_ns, theme),
        _ => bad(whole.map_or(0, |s| s.over_threshold)),
    }
}
