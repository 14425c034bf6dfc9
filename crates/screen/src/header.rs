//! The top of the screen: state, troubles, and the path.

use crate::{
    lines::{fit, part, wrap},
    model::{DisplayedFigures, Model},
    names::{self, Path},
    trouble::{self, troubles, Level, ALARM_LINES},
    watch::Flowing,
};
use latpath_stats::units;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

/// The first line: state, rate, journeys, stream, time.
pub fn header(model: &Model, shown: &DisplayedFigures<'_>, width: usize) -> Line<'static> {
    let theme = &model.theme;
    let flow = shown.flow(&model.watch);
    let flowing = flow.flowing(model.now);
    let badge = match (model.paused_at, flowing) {
        (Some(at), _) => {
            let span = trouble::span(model.now.saturating_sub(at));
            Span::styled(format!(" PAUSED {span}, still measuring "), theme.warn())
        }
        (None, Flowing::Waiting(_)) => Span::styled(" WAITING for the stream ", theme.warn()),
        (None, Flowing::Silent(d)) => Span::styled(format!(" NO PACKETS for {} ", trouble::span(d)), theme.alarm()),
        (None, Flowing::Yes) => Span::styled(" RECEIVING ", theme.good().patch(theme.strong())),
    };
    let streams = &shown.summary.streams;
    let which = match (shown.stream, streams.as_slice()) {
        (Some(s), all) => {
            let at = all.iter().position(|o| std::ptr::eq(o, s)).map_or(0, |i| i + 1);
            format!("{} ({at} of {})", theme.cut(&names::stream(&s.stream, theme), 24), all.len())
        }
        (None, []) => String::new(),
        (None, [one]) => theme.cut(&names::stream(&one.stream, theme), 24),
        (None, all) => format!("all {} streams", all.len()),
    };
    let mut parts = vec![part(0, badge)];
    if matches!(flowing, Flowing::Yes) {
        parts.push(part(1, Span::styled(format!("{}/s", theme.rate(flow.rate_hz())), theme.strong())));
    }
    parts.push(part(4, theme.number_of(shown.journeys(), "journey")));
    if !which.is_empty() {
        parts.push(part(3, Span::styled(which, theme.strong())));
    }
    parts.push(part(2, units::elapsed(shown.summary.elapsed_ns)));
    parts.push(part(5, format!("since {}", model.since)));
    fit(parts, "  ", width, theme)
}

/// The troubles, on at most `lines` lines (current ones may take two). If there are none, one line reports that; the
/// line is empty if no packets arrive.
pub fn alerts(model: &Model, shown: &DisplayedFigures<'_>, width: usize, lines: usize) -> Vec<Line<'static>> {
    let theme = &model.theme;
    let is_in_header =
        model.paused_at.is_none() && matches!(shown.flow(&model.watch).flowing(model.now), Flowing::Silent(_));
    let troubles = |summary| troubles(summary, &model.watch, model.now, theme, !is_in_header);
    let list = model.latest().map(troubles).unwrap_or_default();
    let now: usize = list.iter().filter(|t| t.level == Level::Alarm).map(|t| t.text.width() + 3).sum();
    let lines = lines.max(if now + 4 > width { ALARM_LINES } else { 1 });
    if list.is_empty() {
        let text = match model.watch.all.flowing(model.now) {
            Flowing::Yes => Span::styled(" no loss, no drops, clocks well", theme.good()),
            _ => Span::raw(""),
        };
        return vec![Line::from(text)];
    }
    let spans = list.into_iter().map(|t| Span::styled(format!(" {} ", t.text), t.level.style(theme))).collect();
    wrap(spans, " ", width, lines, theme)
}

/// The points in the order in which packets pass, on at most `lines` lines.
pub fn path(model: &Model, shown: &DisplayedFigures<'_>, width: usize, lines: usize) -> Vec<Line<'static>> {
    let theme = &model.theme;
    let pieces = Path(shown.summary).pieces(theme);
    if pieces.is_empty() {
        return vec![Line::styled(" no point has seen a packet yet", theme.faint())];
    }
    let mut spans = Vec::new();
    for (i, (machine, point)) in pieces.into_iter().enumerate() {
        let arrow = if i == 0 { " ".to_string() } else { format!("{} ", theme.letters.arrow()) };
        let machine = machine.map_or(String::new(), |m| format!("{m}: "));
        spans.push(Span::raw(format!("{arrow}{machine}{point}")));
    }
    wrap(spans, " ", width, lines, theme)
}
