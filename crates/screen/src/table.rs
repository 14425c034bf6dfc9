//! The table of segments: as many columns as fit, the important ones first.

use crate::{
    lines,
    model::{DisplayedFigures, Model, Sort},
    names::Path,
    theme::Theme,
};
use latpath_model::Ns;
use latpath_stats::text::{pad, right};
use latpath_stats::SegmentFigures;
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

struct Column {
    title: &'static str,
    width: usize,
    /// Columns with the highest rank are dropped first. Those of rank [`EXTRA`] or higher are shown only if no name has
    /// to be cut.
    rank: u8,
    sort: Option<Sort>,
    cell: fn(&SegmentFigures, &Theme, usize) -> (String, Style),
}

/// Minimum rank of columns that are dropped rather than cut names.
const EXTRA: u8 = 8;

fn time(ns: Ns, segment: &SegmentFigures, theme: &Theme) -> (String, Style) {
    if segment.times.count == 0 {
        return ("-".into(), theme.faint());
    }
    let text = theme.cell(ns);
    if ns < 0 {
        (text, theme.bad())
    } else if ns < segment.error_bound_ns {
        // The time is below the clocks' error bound.
        let text = if text.width() < 8 { format!("~{text}") } else { text };
        (text, theme.faint())
    } else {
        (text, Style::new())
    }
}

/// All columns in their order; `wide` makes them wider.
fn all_columns(wide: bool, bounds: bool, negatives: bool) -> Vec<Column> {
    let t = if wide { 9 } else { 8 };
    let count = if wide { 13 } else { 7 };
    let column = |title, width, rank, cell| Column { title, width, rank, sort: None, cell };
    let mut list = vec![
        column("count", count, 7, |s, theme, w| (theme.count_within(s.times.count, w), Style::new())),
        column("rate/s", if wide { 9 } else { 7 }, EXTRA, |s, theme, w| {
            (rate_within(s.rate_hz, theme, w), Style::new())
        }),
        column("min", if negatives { t.max(9) } else { t }, 6, |s, theme, _| time(s.times.min_ns, s, theme)),
        column("mean", t, 5, |s, theme, _| time(s.times.mean_ns, s, theme)),
        column("stddev", t, EXTRA + 2, |s, theme, _| time(s.times.stddev_ns, s, theme)),
        column("p50", t, 2, |s, theme, _| time(s.times.p50_ns, s, theme)),
        column("p90", t, EXTRA + 3, |s, theme, _| time(s.times.p90_ns, s, theme)),
        Column { sort: Some(Sort::P99), ..column("p99", t, 1, |s, theme, _| time(s.times.p99_ns, s, theme)) },
        column("p99.9", t, 3, |s, theme, _| time(s.times.p99_9_ns, s, theme)),
        column("p99.99", t, EXTRA + 1, |s, theme, _| time(s.times.p99_99_ns, s, theme)),
        Column { sort: Some(Sort::Max), ..column("max", t, 0, |s, theme, _| time(s.times.max_ns, s, theme)) },
        Column {
            sort: Some(Sort::Over),
            ..column("over", if wide { 9 } else { 6 }, 4, |s, theme, w| {
                let style = if s.over_threshold > 0 { theme.bad() } else { Style::new() };
                (theme.count_within(s.over_threshold, w), style)
            })
        },
    ];
    if bounds {
        list.push(column("bound", 10, EXTRA + 1, |s, theme, _| match s.error_bound_ns {
            0 => (String::new(), Style::new()),
            ns => (format!("{}{}", theme.letters.plus_minus(), theme.cell(ns)), Style::new()),
        }));
    }
    if negatives {
        list.push(column("negative", 9, EXTRA, |s, theme, w| match s.times.negative {
            0 => (String::new(), Style::new()),
            n => (theme.count_within(n, w), theme.bad()),
        }));
    }
    list
}

fn rate_within(hz: f64, theme: &Theme, width: usize) -> String {
    let text = theme.rate(hz);
    if text.width() <= width {
        text
    } else {
        latpath_stats::units::count_short(hz as u64)
    }
}

/// Height of the whole table including its head, rows.
pub fn height(shown: &DisplayedFigures<'_>) -> usize {
    shown.segments().len().max(1) + 1
}

/// Draws the table; moving the selection scrolls it.
pub fn draw(model: &Model, shown: &DisplayedFigures<'_>, area: Rect, buf: &mut Buffer) {
    let theme = &model.theme;
    let rows = model.rows(shown);
    let path = Path(shown.summary);
    let width = usize::from(area.width).saturating_sub(1);
    if area.height == 0 || width == 0 {
        return;
    }
    let natural = rows.iter().map(|s| path.segment(s, theme, 60).width()).max().unwrap_or(0).max(12);
    let bounds = rows.iter().any(|s| s.error_bound_ns != 0);
    let negatives = rows.iter().any(|s| s.times.negative > 0);
    let chosen = choose(all_columns(width >= 110, bounds, negatives), width, natural);
    let figures: usize = chosen.iter().map(|c| c.width).sum();
    let name = width.saturating_sub(figures).min(natural);

    let heads = chosen.iter().map(|column| {
        let sorted = column.sort == Some(model.sort);
        (column.title, column.width, if sorted { theme.strong() } else { theme.faint() })
    });
    let list = List { what: "segment", count: rows.len(), name, heads: heads.collect() };
    let selected = (!rows.is_empty()).then(|| model.selected(&rows));
    let mut out = list.lines(theme, selected, usize::from(area.height), |i| {
        let cells = chosen.iter().map(|column| (column.cell)(rows[i], theme, column.width - 1));
        (path.segment(rows[i], theme, name), cells.collect())
    });
    if rows.is_empty() {
        out.push(Line::styled("  no segment yet: it takes two points that see the stream", theme.faint()));
    }
    lines::put(&out, area, buf);
}

/// A list of names and cells, scrolled to the selected row.
pub struct List {
    pub what: &'static str,
    pub count: usize,
    pub name: usize,
    /// Title, width and style of each column.
    pub heads: Vec<(&'static str, usize, Style)>,
}

impl List {
    /// At most `height` lines, the heads first; `row` returns the name and the cells of a row.
    pub fn lines(
        &self,
        theme: &Theme,
        selected: Option<usize>,
        height: usize,
        row: impl Fn(usize) -> (String, Vec<(String, Style)>),
    ) -> Vec<Line<'static>> {
        let Self { what, count, name, heads } = self;
        let room = height - 1;
        let from = selected.unwrap_or(0).saturating_sub(room.saturating_sub(1)).min(count.saturating_sub(room));
        let to = from.saturating_add(room).min(*count);
        let title = match *count > room && room > 0 {
            true => format!("{what} {}-{to}/{count}", from + 1),
            false => (*what).into(),
        };
        let mut head = vec![Span::raw(format!(" {}", pad(&theme.cut(&title, *name), *name)))];
        head.extend(heads.iter().map(|(text, width, style)| Span::styled(right(text, *width), *style)));
        let line = |i| {
            let (mark, style) = if selected == Some(i) { (theme.mark(), theme.strong()) } else { (" ", Style::new()) };
            let (text, cells) = row(i);
            let mut spans = vec![Span::styled(format!("{mark}{}", pad(&text, *name)), style)];
            let cells = cells.into_iter().zip(heads);
            spans.extend(cells.map(|((text, own), head)| Span::styled(right(&text, head.1), style.patch(own))));
            Line::from(spans)
        };
        std::iter::once(Line::from(head)).chain((from..to).map(line)).collect()
    }
}

/// The columns that fit, in their order.
fn choose(all: Vec<Column>, width: usize, natural: usize) -> Vec<Column> {
    let mut keep = vec![false; all.len()];
    let mut used = 0;
    let mut by_rank: Vec<usize> = (0..all.len()).collect();
    by_rank.sort_by_key(|i| all[*i].rank);
    for i in by_rank {
        let name = match all[i].rank {
            0..EXTRA if width < 60 => 6,
            0..EXTRA => 15,
            _ => natural.min(30),
        };
        if used + all[i].width + name <= width {
            (keep[i], used) = (true, used + all[i].width);
        }
    }
    all.into_iter().zip(keep).filter_map(|(c, keep)| keep.then_some(c)).collect()
}
