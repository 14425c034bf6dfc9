//! The layout of the screen.

use crate::{
    header, histogram,
    lines::{below, put, top},
    model::{DisplayedFigures, Model, View},
    names::Path,
    overlay, panels, streams, table,
};
use ratatui::{buffer::Buffer, layout::Rect, text::Line};

/// Minimum number of rows of a useful histogram: title, axis and five rows of bars.
const HISTOGRAM_ROWS: usize = 7;
/// Number of table rows, including the head, that are kept when other parts need room.
const TABLE_ROWS: usize = 6;

/// Draws the screen.
pub fn render(model: &Model, area: Rect, buf: &mut Buffer) {
    if area.width == 0 || area.height == 0 {
        return;
    }
    let Some(shown) = model.shown() else {
        put(&[Line::raw(" latpath live: waiting for the first figures (q quits)")], area, buf);
        return;
    };
    if area.width < 50 || area.height < 12 {
        small(model, &shown, area, buf);
    } else if area.width >= 132 && area.height >= 32 {
        wide(model, &shown, area, buf);
    } else {
        tall(model, &shown, area, buf);
    }
    overlay::draw(model, &shown, area, buf);
}

/// Draws a very small screen: state, troubles, the segments that fit, and other parts below them if there is room.
fn small(model: &Model, shown: &DisplayedFigures<'_>, area: Rect, buf: &mut Buffer) {
    let width = usize::from(area.width);
    let rest = put(&[header::header(model, shown, width)], area, buf);
    let rest = put(&header::alerts(model, shown, width, 1), rest, buf);
    if model.view == View::Streams {
        return streams::draw(model, shown, rest, buf);
    }
    let room = usize::from(rest.height);
    let spare = room.saturating_sub(table::height(shown));
    let mut foot = panels::losses(model, shown, width, 1);
    foot.extend(panels::late(model, shown, width, 1));
    foot.push(panels::packets(model, shown, width));
    foot.extend(panels::notes(model, shown, width, 1));
    foot.truncate(spare.saturating_sub(1));
    foot.extend((spare > 0).then(|| panels::keys(model, width)));
    table::draw(model, shown, top(rest, room - foot.len()), buf);
    put(&foot, below(rest, room - foot.len()), buf);
}

/// Draws the parts above one another.
fn tall(model: &Model, shown: &DisplayedFigures<'_>, area: Rect, buf: &mut Buffer) {
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    // Each flexible part gets one line. Spare lines are then granted to each in turn, while the table and the histogram
    // keep their minimum height.
    let middle = table::height(shown).min(TABLE_ROWS.max(height / 3)) + HISTOGRAM_ROWS;
    let has_notes = usize::from(!shown.summary.notes.is_empty());
    let has_paths = usize::from(!shown.paths().is_empty());
    let late = panels::late_lines(shown);
    let fixed = 1 + 1 + 1 + 4 + has_paths + late.min(1) + has_notes + 1;
    let mut spare = height.saturating_sub(fixed + middle);
    let mut grant = |requested: usize| {
        let more = requested.saturating_sub(1).min(spare);
        spare -= more;
        1 + more
    };
    let alerts = header::alerts(model, shown, width, 3);
    let alerts = header::alerts(model, shown, width, grant(alerts.len()));
    let path = header::path(model, shown, width, 3);
    let path = header::path(model, shown, width, grant(path.len()));
    let losses = match shown.losses().len() {
        0 => 1,
        n => grant(n + 1),
    };
    let late = if late > 0 { grant(late) } else { 0 };
    let clocks = grant(shown.summary.machines.len());
    let notes = if has_notes > 0 { grant(shown.summary.notes.len().min(6)) } else { 0 };

    let rest = put(&[header::header(model, shown, width)], area, buf);
    let rest = put(&alerts, rest, buf);
    let rest = put(&path, rest, buf);

    let mut foot = panels::losses(model, shown, width, losses);
    foot.extend(panels::late(model, shown, width, late));
    foot.extend(panels::paths(model, shown, width));
    foot.push(panels::packets(model, shown, width));
    foot.extend(panels::clocks(model, shown, width, clocks));
    foot.push(panels::tool(model, shown, width));
    foot.extend(panels::notes(model, shown, width, notes));
    foot.push(panels::keys(model, width));
    let room = usize::from(rest.height).saturating_sub(foot.len());
    centre(model, shown, top(rest, room), buf);
    put(&foot, below(rest, room), buf);
}

/// Draws the segments and the histogram; the selected view determines how the room is divided.
fn centre(model: &Model, shown: &DisplayedFigures<'_>, area: Rect, buf: &mut Buffer) {
    let (room, want) = (usize::from(area.height), table::height(shown));
    let rows = match model.view {
        View::Streams => return streams::draw(model, shown, area, buf),
        View::Table => room,
        View::Histogram => 2,
        View::Both if room < 3 + HISTOGRAM_ROWS => room,
        View::Both => want.min(room - HISTOGRAM_ROWS),
    };
    table::draw(model, shown, top(area, rows), buf);
    one_histogram(model, shown, below(area, rows), buf);
}

fn one_histogram(model: &Model, shown: &DisplayedFigures<'_>, area: Rect, buf: &mut Buffer) {
    let rows = model.rows(shown);
    let Some(segment) = rows.get(model.selected(&rows)) else { return };
    let name = Path(shown.summary).segment(segment, &model.theme, 40);
    histogram::draw(segment, &name, shown.summary.threshold_ns, &model.theme, area, buf);
}

/// Draws the screen for a large terminal: the table across the whole width, below it the histogram, and everything else
/// beside the histogram.
fn wide(model: &Model, shown: &DisplayedFigures<'_>, area: Rect, buf: &mut Buffer) {
    let width = usize::from(area.width);
    let rest = put(&[header::header(model, shown, width)], area, buf);
    let rest = put(&header::alerts(model, shown, width, 3), rest, buf);
    let rest = put(&header::path(model, shown, width, 3), rest, buf);
    let room = usize::from(rest.height) - 1;
    put(&[panels::keys(model, width)], below(rest, room), buf);
    let rest = top(rest, room);

    if model.view == View::Table {
        return table::draw(model, shown, rest, buf);
    }
    let rows = match model.view {
        View::Histogram => 2,
        _ => table::height(shown).min(room / 2),
    };
    table::draw(model, shown, top(rest, rows), buf);
    // Leave an empty row below the table.
    let rest = below(rest, rows + 1);
    let side = (rest.width * 2 / 5).clamp(58, 90);
    let left = Rect { width: rest.width - side - 1, ..rest };
    let right = Rect { x: rest.x + rest.width - side, width: side, ..rest };
    one_histogram(model, shown, left, buf);

    let side = usize::from(side);
    let many = shown.summary.streams.len() > 1;
    let mut lines = panels::losses(model, shown, side, 8);
    lines.extend(panels::late(model, shown, side, 6));
    lines.extend(panels::paths(model, shown, side));
    lines.push(panels::packets(model, shown, side));
    lines.extend(panels::clocks(model, shown, side, 6));
    lines.push(panels::tool(model, shown, side));
    lines.extend(panels::notes(model, shown, side, 8));
    let rest = put(&lines, right, buf);
    if many {
        streams::draw(model, shown, below(rest, 1), buf);
    }
}
