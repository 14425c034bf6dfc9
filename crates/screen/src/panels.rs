//! The lines under the histogram: losses, other faults of the stream, clocks, the tool's own cost, notes.

use crate::{
    lines::{fit, part, wrap, Fragment},
    model::{DisplayedFigures, Model},
    names::{self, Path},
};
use latpath_model::{point::Lan, SegmentKind};
use latpath_stats::lans::lost_on;
use latpath_stats::{text::pad, units, units::share, Loss, MachineFigures, PathFigures};
use ratatui::{
    style::Style,
    text::{Line, Span},
};

/// Width of the labels at the left, columns.
const LABEL: usize = 9;

fn labelled(model: &Model, name: &str, parts: Vec<Fragment>, width: usize) -> Line<'static> {
    let mut line = fit(parts, model.theme.dot(), width.saturating_sub(LABEL), &model.theme);
    line.spans.insert(0, label(model, name));
    line
}

fn label(model: &Model, name: &str) -> Span<'static> {
    Span::styled(pad(&format!(" {name}"), LABEL), model.theme.faint())
}

/// `12 after 3 tx@vnet0: FULL_RING in tun_net_xmit`
fn loss(model: &Model, loss: &Loss, path: &Path<'_>) -> String {
    let theme = &model.theme;
    let reason =
        loss.meaning.as_ref().or(loss.reason.as_ref()).map_or(String::new(), |r| format!(": {}", theme.clean(r)));
    format!("{} after {}{reason}", theme.count(loss.count), path.point(&loss.place, theme))
}

/// Losses: one line in total if `lines` is 1, else one per place.
pub fn losses(model: &Model, shown: &DisplayedFigures<'_>, width: usize, lines: usize) -> Vec<Line<'static>> {
    let (theme, path) = (&model.theme, Path(shown.summary));
    let all = shown.losses();
    let total = shown.lost();
    if total == 0 {
        return vec![labelled(model, "lost", vec![part(0, "none")], width)];
    }
    let sum = Span::styled(theme.count(total), theme.bad());
    let share = format!("{} of {}", share(total, shown.journeys()), theme.count(shown.journeys()));
    if lines <= 1 {
        let mut spans = vec![sum];
        // A fragment too long for a line is cut rather than omitted.
        let longest = width.saturating_sub(LABEL + 16).max(20);
        let places = all.iter().filter(|l| l.count > 0);
        spans.extend(places.map(|one| Span::raw(theme.cut(&loss(model, one, &path), longest))));
        let mut line = wrap(spans, theme.dot(), width.saturating_sub(LABEL), 1, theme).remove(0);
        line.spans.insert(0, label(model, "lost"));
        return vec![line];
    }
    let mut out = vec![labelled(model, "lost", vec![part(0, sum), part(1, share)], width)];
    let room = lines - 1;
    let shown_places = if all.len() > room { room - 1 } else { all.len() };
    for one in all.iter().take(shown_places) {
        out.push(labelled(model, "", vec![part(0, loss(model, one, &path))], width));
    }
    if shown_places < all.len() {
        let rest = format!("and {} more places: press d", all.len() - shown_places);
        out.push(labelled(model, "", vec![part(0, rest)], width));
    }
    out
}

/// The paths through the host, if there are several.
pub fn paths(model: &Model, shown: &DisplayedFigures<'_>, width: usize) -> Option<Line<'static>> {
    let theme = &model.theme;
    let all = shown.paths();
    let one = |(i, path): (usize, &PathFigures)| {
        let share = share(path.journeys, shown.journeys());
        let mut text = format!("{} {} ({share})", theme.clean(&path.path), theme.count(path.journeys));
        let times = path
            .segments
            .iter()
            .find(|s| s.kind == SegmentKind::Thyp)
            .or(path.segments.first())
            .filter(|s| s.times.count > 0);
        if let Some(s) = times {
            let (p50, max) = (theme.duration(s.times.p50_ns), theme.duration(s.times.max_ns));
            text.push_str(&format!(", {} p50 {p50} max {max}", theme.clean(&s.name)));
        }
        // The slow paths (all but the first) are dropped last.
        part(if i == 0 { 1 } else { 0 }, text)
    };
    (!all.is_empty()).then(|| labelled(model, "paths", all.iter().enumerate().map(one).collect(), width))
}

/// Causes of late packets, one line each, the worst first, at most `lines`; then the latest late packet if there is
/// room.
pub fn late(model: &Model, shown: &DisplayedFigures<'_>, width: usize, lines: usize) -> Vec<Line<'static>> {
    let theme = &model.theme;
    let Some(late) = shown.summary.late.as_ref().filter(|late| late.late > 0 && lines > 0) else { return Vec::new() };
    let all = late.causes.len();
    if all == 0 {
        let text = format!("{}, not explained yet", theme.number_of(late.late, "packet"));
        return vec![labelled(model, "late", vec![part(0, text)], width)];
    }
    let mut out = Vec::new();
    // The largest sums by cause and by culprit come first if there is room for more than one line.
    let sums: Vec<String> = [&late.by_cause, &late.by_culprit]
        .iter()
        .filter_map(|sums| sums.first())
        .map(|sum| format!("{} {:.0} %", theme.clean(&sum.name), sum.share_percent))
        .collect();
    if !sums.is_empty() && lines > 1 {
        out.push(labelled(
            model,
            "late",
            vec![part(0, theme.cut(&sums.join(", by "), width.saturating_sub(LABEL)))],
            width,
        ));
    }
    let lines = lines - out.len();
    let named = all.min(lines.saturating_sub(usize::from(late.latest.is_some() && lines > all)));
    for (i, cause) in late.causes.iter().take(named).enumerate() {
        let share = format!("{:.0} %", cause.share_percent);
        let mut parts = vec![
            part(0, Span::styled(theme.clean(&cause.description), theme.bad())),
            part(1, share),
            part(2, theme.clean(&cause.cause)),
            part(3, theme.number_of(cause.first, "packet")),
            part(4, theme.duration(cause.excess_ns)),
        ];
        if let Some(cpu) = cause.cpus.first() {
            parts.push(part(5, format!("{} CPU {cpu}", theme.clean(&cause.machine))));
        }
        if i + 1 == named && all > named {
            parts.push(part(1, format!("+{}: d", all - named)));
        }
        out.push(labelled(model, if out.is_empty() { "late" } else { "" }, parts, width));
    }
    if let Some(latest) = late.latest.as_ref().filter(|_| named < lines) {
        let text = theme.cut(&theme.clean(latest), width.saturating_sub(LABEL));
        out.push(labelled(model, "", vec![part(0, text)], width));
    }
    out
}

/// Number of lines needed for the causes of late packets.
pub fn late_lines(shown: &DisplayedFigures<'_>) -> usize {
    let late = shown.summary.late.as_ref().filter(|late| late.late > 0);
    late.map_or(0, |late| {
        late.causes.len().clamp(1, 4) + usize::from(late.latest.is_some()) + usize::from(!late.by_cause.is_empty())
    })
}

/// Counts of packets: complete, incomplete, duplicate, out of order, never seen, malformed.
pub fn packets(model: &Model, shown: &DisplayedFigures<'_>, width: usize) -> Line<'static> {
    let theme = &model.theme;
    let fault = |rank, n: u64, what: &str| {
        let style = if n > 0 { theme.bad() } else { Style::new() };
        // On a short line, faults that occurred have priority over counts of zero.
        part(if n > 0 { 1 } else { rank }, Span::styled(format!("{} {what}", theme.count(n)), style))
    };
    let lost_by = |lan: Lan| Some(fault(2, lost_on(shown.lans(), lan)?, &format!("not by LAN {}", lan.name())));
    let mut parts = vec![
        part(6, format!("{} complete", theme.count(shown.complete()))),
        fault(7, shown.incomplete(), "incomplete"),
        fault(2, shown.duplicates(), "duplicates"),
        fault(3, shown.out_of_order(), "out of order"),
        fault(5, shown.never_seen(), "never seen"),
        fault(4, shown.summary.malformed, "malformed"),
    ];
    parts.extend(Lan::ALL.into_iter().filter_map(lost_by));
    labelled(model, "packets", parts, width)
}

fn clock(model: &Model, machine: &MachineFigures) -> Vec<Fragment> {
    let theme = &model.theme;
    let mut parts = vec![part(0, theme.clean(&machine.machine))];
    if let Some(fault) = &machine.fault {
        parts.push(part(1, Span::styled(format!(" {} ", theme.clean(fault)), theme.alarm())));
    }
    parts.push(part(2, format!("{}{}", theme.letters.plus_minus(), theme.duration(machine.error_bound_ns))));
    parts.push(part(3, theme.clean(&machine.method)));
    parts.push(part(4, format!("offset {}", theme.duration(machine.offset_ns))));
    parts.push(part(5, format!("drift {} ppb", machine.drift_ppb)));
    parts.push(part(6, format!("{} exchanges", theme.count(machine.exchanges))));
    parts
}

/// The machines' clocks: one line each, at most `lines`.
pub fn clocks(model: &Model, shown: &DisplayedFigures<'_>, width: usize, lines: usize) -> Vec<Line<'static>> {
    let mut machines: Vec<_> = shown.summary.machines.iter().collect();
    // If not all fit, faulty clocks come first, then those with the largest error bounds.
    machines.sort_by_key(|m| (m.fault.is_none(), std::cmp::Reverse(m.error_bound_ns)));
    if machines.is_empty() {
        let text = match (shown.summary.points.is_empty(), names::one_machine(shown.summary)) {
            (true, _) => "no machine yet",
            (_, true) => "one machine, one clock: no error between points",
            _ => "no word from the other machines' clocks yet",
        };
        return vec![labelled(model, "clocks", vec![part(0, text)], width)];
    }
    let lines = lines.max(1);
    let shown_machines = machines.len().min(lines);
    let mut out: Vec<Line<'static>> = Vec::new();
    for (i, machine) in machines.iter().take(shown_machines).enumerate() {
        let mut parts = clock(model, machine);
        if i + 1 == shown_machines && machines.len() > shown_machines {
            parts.push(part(1, format!("+{} machines: d", machines.len() - shown_machines)));
        }
        out.push(labelled(model, if i == 0 { "clocks" } else { "" }, parts, width));
    }
    out
}

/// The cost of tracing.
pub fn tool(model: &Model, shown: &DisplayedFigures<'_>, width: usize) -> Line<'static> {
    let (theme, tool) = (&model.theme, &shown.summary.tool);
    let dropped = match tool.sightings_dropped {
        0 => Span::raw("0 dropped"),
        n => Span::styled(format!(" {} DROPPED ", theme.count(n)), theme.alarm()),
    };
    let cpu = if tool.cpu_percent.is_finite() { format!("CPU {:.1} %", tool.cpu_percent) } else { "CPU -".into() };
    let cpu = theme.cut(&cpu, 16);
    let parts = vec![
        part(1, format!("{} ns/sighting", theme.count(tool.ns_per_sighting))),
        part(4, theme.number_of(tool.sightings, "sighting")),
        part(0, dropped),
        part(2, cpu),
        part(3, format!("RSS {}", units::bytes(tool.max_rss_bytes))),
    ];
    labelled(model, "tool", parts, width)
}

/// Notes: one line each, at most `lines`.
pub fn notes(model: &Model, shown: &DisplayedFigures<'_>, width: usize, lines: usize) -> Vec<Line<'static>> {
    let (theme, notes) = (&model.theme, &shown.summary.notes);
    let count = notes.len().min(lines);
    let mut out = Vec::new();
    for (i, note) in notes.iter().take(count).enumerate() {
        let rest = notes.len() - count;
        let more = if i + 1 == count && rest > 0 { format!(" (+{rest}: d)") } else { String::new() };
        let text = theme.cut(&theme.clean(note), width.saturating_sub(LABEL + more.len()));
        out.push(labelled(model, if i == 0 { "notes" } else { "" }, vec![part(0, text + &more)], width));
    }
    out
}

pub fn keys(model: &Model, width: usize) -> Line<'static> {
    let theme = &model.theme;
    let arrows = if theme.letters == units::CharacterSet::Ascii { ("j/k", "h/l") } else { ("↑↓", "←→") };
    let pause = if model.paused_at.is_some() { "p resume" } else { "p pause" };
    let parts = vec![
        part(0, " q quit".to_string()),
        part(1, "? help"),
        part(3, pause),
        part(4, "r reset"),
        part(5, format!("{} segment", arrows.0)),
        part(6, format!("{} stream", arrows.1)),
        part(7, "t view"),
        part(8, format!("s sort: {}", model.sort.name())),
        part(2, "d details"),
    ];
    fit(parts, "  ", width, theme).patch_style(theme.faint())
}
