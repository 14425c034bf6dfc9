//! Overlays: the help, and the details in full.

use crate::{
    lines,
    model::{DisplayedFigures, Model, Overlay},
    names,
};
use latpath_linux::Cpus;
use latpath_stats::{text, units::share};
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::Line,
    widgets::{Clear, Widget},
};

/// Text of the help: the keys, then the marks.
const HELP: [&str; 20] = [
    " KEYS",
    " q, Ctrl-C      quit",
    " p, space       pause the figures; measuring and alarms go on",
    " r              reset: count from zero",
    " up/down, j/k   segment: its histogram is shown",
    " left/right, h/l, Tab   stream: all, then each",
    " s              sort segments: path, p99, max, over",
    " t              view: both, table, histogram, streams",
    " d              details: path, losses, clocks, notes in full",
    " ?, F1          this help; any key closes it",
    " Ctrl-Z suspend (fg comes back), Ctrl-L redraw",
    "",
    " FIGURES",
    " Tnet publisher to host NIC, Thyp host NIC to VM NIC,",
    " Tsub VM NIC to application; 2-3: from point 2 to 3.",
    " over: journeys over the threshold (line in histogram).",
    " ~ shorter than its clock error bound: no fact.",
    " Negative times are a clock fault, shown as measured.",
    " lost after a point: that point saw the packet last.",
    " dropped: sightings lost by latpath itself.",
];

/// Draws the overlay, if there is one.
pub fn draw(model: &Model, shown: &DisplayedFigures<'_>, area: Rect, buf: &mut Buffer) {
    match model.overlay {
        Overlay::None => {}
        Overlay::Help => {
            let width = HELP.iter().map(|l| l.len()).max().unwrap_or(0) + 2;
            let text = HELP.iter().map(|l| (*l).to_string()).collect::<Vec<_>>();
            window(text, 0, centred(area, width, HELP.len()), model, buf);
        }
        Overlay::Details(from) => {
            let width = usize::from(area.width);
            let mut text = vec![" DETAILS   (up/down scroll, d closes)".to_string()];
            for line in details(model, shown) {
                let (blank, words) = line.split_at(line.len() - line.trim_start().len());
                text.extend(text::wrapped(blank.into(), 7.min(width / 2), words, width, model.theme.ellipsis()));
            }
            window(text, from, centred(area, width, usize::from(area.height)), model, buf);
        }
    }
}

fn window(text: Vec<String>, from: usize, area: Rect, model: &Model, buf: &mut Buffer) {
    Clear.render(area, buf);
    let title = text.first().cloned().unwrap_or_default();
    let room = usize::from(area.height).saturating_sub(1);
    // Scrolling stops when the last line is at the bottom.
    let from = from.min(text.len().saturating_sub(room + 1));
    let mut out = vec![Line::styled(text::pad(&title, usize::from(area.width)), model.theme.warn())];
    out.extend(text.into_iter().skip(1 + from).take(room).map(Line::raw));
    lines::put(&out, area, buf);
}

fn centred(area: Rect, width: usize, height: usize) -> Rect {
    let width = u16::try_from(width).unwrap_or(u16::MAX).min(area.width);
    let height = u16::try_from(height).unwrap_or(u16::MAX).min(area.height);
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

/// All content that the screen shortens, in full.
fn details(model: &Model, shown: &DisplayedFigures<'_>) -> Vec<String> {
    let (theme, summary) = (&model.theme, shown.summary);
    let mut out = vec![String::new(), " PATH".into()];
    for (i, point) in summary.points.iter().enumerate() {
        out.push(format!(" {:3} {}", i + 1, theme.clean(&point.to_string())));
    }
    out.push(String::new());
    out.push(format!(
        " LOST {} of {} ({})",
        theme.count(shown.lost()),
        theme.count(shown.journeys()),
        share(shown.lost(), shown.journeys())
    ));
    for loss in shown.losses() {
        let reason = loss.reason.as_ref().map_or(String::new(), |r| format!(": {}", theme.clean(r)));
        out.push(format!("   {} after {}{reason}", theme.count(loss.count), theme.clean(&loss.place)));
    }
    if let Some(late) = summary.late.as_ref().filter(|late| late.late > 0) {
        out.push(String::new());
        out.push(format!(
            " WHY LATE ({}, {} explained, {} beyond the baseline)",
            theme.number_of(late.late, "packet"),
            theme.count(late.explained),
            theme.duration(late.excess_ns)
        ));
        for (what, sums) in [("by cause", &late.by_cause), ("by culprit", &late.by_culprit)] {
            let sums: Vec<String> = sums
                .iter()
                .filter(|sum| sum.share_percent >= 1.0)
                .map(|sum| format!("{} {:.1} %", theme.clean(&sum.name), sum.share_percent))
                .collect();
            if !sums.is_empty() {
                out.push(format!("   {what}: {}", sums.join(", ")));
            }
        }
        for cause in &late.causes {
            let cpus = cause.cpus.iter().copied().collect::<Cpus>().named();
            let cpus = cpus.map_or(String::new(), |cpus| format!(" {cpus}"));
            out.push(format!(
                "   {}: {} ({}{cpus}, {}): {:.1} %, {}, {}, median {}",
                theme.clean(&cause.cause),
                theme.clean(&cause.description),
                theme.clean(&cause.machine),
                theme.clean(&cause.segment),
                cause.share_percent,
                theme.number_of(cause.first, "packet"),
                theme.duration(cause.excess_ns),
                theme.duration(cause.median_ns)
            ));
        }
        out.extend(late.latest.iter().map(|latest| format!("   latest: {}", theme.clean(latest))));
        out.extend(late.shown_after.map(|after| {
            format!(
                "   shown {} after a spike's first late packet had come (median of {}; {} at most)",
                theme.duration(after.median_ns),
                theme.count(after.spikes),
                theme.duration(after.worst_ns)
            )
        }));
    }
    if !summary.worst.is_empty() {
        out.push(String::new());
        out.push(" WORST PACKETS".into());
    }
    for worst in &summary.worst {
        let total = theme.duration(worst.total_ns);
        out.push(format!("   {total}  {} key {}", names::stream(&worst.stream, theme), worst.key));
        for step in &worst.steps {
            let (point, since_last) = (theme.clean(&step.point), theme.duration(step.since_last_ns));
            let role = step.role.as_ref().map_or(String::new(), |role| format!(" ({})", theme.clean(role)));
            let by =
                step.cpu.zip(step.tid).map_or(String::new(), |(cpu, tid)| format!(", CPU {cpu}, thread {tid}{role}"));
            out.push(format!("      {since_last:>9}  {point}{by}"));
        }
    }
    out.push(String::new());
    out.push(" CLOCKS".into());
    for m in &summary.machines {
        let fault = m.fault.as_ref().map_or(String::new(), |f| format!(", FAULT: {}", theme.clean(f)));
        out.push(format!(
            "   {}: {}, offset {} {}{}, drift {} ppb, {} exchanges{fault}",
            theme.clean(&m.machine),
            theme.clean(&m.method),
            theme.duration(m.offset_ns),
            theme.letters.plus_minus(),
            theme.duration(m.error_bound_ns),
            m.drift_ppb,
            theme.count(m.exchanges),
        ));
    }
    out.push(String::new());
    out.push(" STREAMS".into());
    for s in &summary.streams {
        let text = theme.clean(&s.stream);
        out.push(format!(
            "   {text} ({}): {}",
            names::stream(&s.stream, theme),
            theme.number_of(s.journeys, "journey")
        ));
    }
    out.push(String::new());
    out.push(" NOTES".into());
    out.extend(summary.notes.iter().map(|n| format!("   {}", theme.clean(n))));
    out
}
