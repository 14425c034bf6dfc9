//! Fits fragments into lines: drops the least important ones, or wraps them. Cuts are always marked.

use crate::theme::Theme;
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// A fragment of a line; fragments with higher rank are dropped first.
pub struct Fragment {
    pub rank: u8,
    pub span: Span<'static>,
}

pub fn part(rank: u8, span: impl Into<Span<'static>>) -> Fragment {
    Fragment { rank, span: span.into() }
}

/// The fragments that fit, in their order, separated by `gap`.
pub fn fit(mut parts: Vec<Fragment>, gap: &'static str, width: usize, theme: &Theme) -> Line<'static> {
    let gap_width = gap.width();
    loop {
        let wide: usize = parts.iter().map(|p| p.span.width() + gap_width).sum();
        if wide.saturating_sub(gap_width) <= width || parts.len() <= 1 {
            break;
        }
        let worst = parts.iter().map(|p| p.rank).max().unwrap_or(0);
        let at = parts.iter().rposition(|p| p.rank == worst).unwrap_or(0);
        parts.remove(at);
    }
    let mut spans = Vec::new();
    for (i, part) in parts.into_iter().enumerate() {
        if i > 0 {
            spans.push(Span::raw(gap));
        }
        let text = theme.cut(&part.span.content, width);
        spans.push(Span::styled(text, part.span.style));
    }
    Line::from(spans)
}

/// Distributes spans over at most `lines` lines; the last line ends in `+N` if some do not fit.
pub fn wrap(
    spans: Vec<Span<'static>>,
    gap: &'static str,
    width: usize,
    lines: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let gap_width = gap.width();
    let mut out: Vec<Line<'static>> = Vec::new();
    let (mut line, mut used) = (Vec::new(), 0);
    let total = spans.len();
    for (i, span) in spans.into_iter().enumerate() {
        let span = Span::styled(theme.cut(&span.content, width), span.style);
        let last_line = out.len() + 1 == lines.max(1);
        let more = total - i - 1;
        // Room for `+N`, in case the remaining spans do not fit.
        let kept = if last_line && more > 0 { 4 } else { 0 };
        let need = span.width() + if line.is_empty() { 0 } else { gap_width };
        if !line.is_empty() && used + need + kept > width {
            if last_line {
                line.push(Span::styled(format!(" +{}", more + 1), theme.strong()));
                break;
            }
            out.push(Line::from(std::mem::take(&mut line)));
            used = 0;
        }
        if !line.is_empty() {
            line.push(Span::raw(gap));
            used += gap_width;
        }
        used += span.width();
        line.push(span);
    }
    out.push(Line::from(line));
    out
}

/// Draws lines from the top of an area, as many as fit. Returns the area below.
pub fn put(lines: &[Line<'_>], area: Rect, buf: &mut Buffer) -> Rect {
    let shown = lines.len().min(usize::from(area.height));
    for (row, line) in (area.y..).zip(&lines[..shown]) {
        buf.set_line(area.x, row, line, area.width);
    }
    below(area, shown)
}

/// The part of an area below its first `rows` rows.
pub fn below(area: Rect, rows: usize) -> Rect {
    let rows = u16::try_from(rows).unwrap_or(u16::MAX).min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// The first `rows` rows of an area.
pub fn top(area: Rect, rows: usize) -> Rect {
    Rect { height: u16::try_from(rows).unwrap_or(u16::MAX).min(area.height), ..area }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_stats::units::CharacterSet;

    fn theme() -> Theme {
        Theme::of(CharacterSet::Ascii, "xterm", "")
    }

    #[test]
    fn the_least_important_part_goes_first() {
        let parts = || vec![part(0, "state"), part(2, "since"), part(1, "rate")];
        assert_eq!(fit(parts(), " ", 30, &theme()).to_string(), "state since rate");
        assert_eq!(fit(parts(), " ", 12, &theme()).to_string(), "state rate");
        assert_eq!(fit(parts(), " ", 4, &theme()).to_string(), "sta~");
    }

    #[test]
    fn what_does_not_fit_in_the_last_line_is_counted() {
        let spans = || ["one", "two", "three", "four"].map(Span::raw).to_vec();
        let text =
            |lines| -> Vec<String> { wrap(spans(), " ", 12, lines, &theme()).iter().map(Line::to_string).collect() };
        assert_eq!(text(1), ["one two +2"]);
        assert_eq!(text(2), ["one two", "three four"]);
        assert_eq!(text(9), ["one two", "three four"]);
    }
}
