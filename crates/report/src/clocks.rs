//! The text of `latpath clocks`, and the section of a report on clocks.

use crate::page::{Page, Style};
use crate::segments::{label, percentile};
use latpath_model::Ns;
use latpath_stats::text::Table;
use latpath_stats::units::duration;
use latpath_stats::{DisorderedFigures, SegmentFigures, Summary};
use latpath_timesync::{ClockReport, Link, LinkState, PtpInstance, SyncEvent};

/// Formats the state of the clocks as text; `events`: events of this watch so far.
pub fn clocks_text(report: &ClockReport, events: &[SyncEvent], style: Style) -> String {
    let mut page = Page::new(style);
    links(&mut page, &report.links);
    page.gap();
    page.line(conclusion(&page, report));
    for instance in &report.ptp {
        let details = details(&page, instance);
        page.wrapped("  ".into(), 4, &details);
    }
    if let Some(clock) = &report.virtual_clock {
        let offset =
            clock.offset_ns.zip(clock.error_ns).map_or("which this user cannot read".into(), |(offset, error)| {
                format!("this machine minus its host: {}", within(&page, offset, error))
            });
        page.line(format!("ptp_kvm: {offset}"));
    }
    page.line(kernel(&page, report));
    if !events.is_empty() {
        page.heading("Events");
        events.iter().for_each(|event| page_event(&mut page, report, event));
    }
    notes(&mut page, report);
    page.finish()
}

fn links(page: &mut Page, links: &[Link]) {
    let mut table = Table::new(&["<clock", "<follows", "<by", "<state", "offset", "bound", "age"]);
    let time = |ns: Option<Ns>| ns.map_or_else(|| "-".into(), |ns| page.duration(ns));
    let name = |text: &str| if text.is_empty() { "-".into() } else { page.clean(text) };
    for link in links {
        table.row(vec![
            name(&link.clock),
            name(&link.follows),
            name(&link.by),
            link.state.name().into(),
            time(link.offset_ns),
            time(link.bound_ns),
            time(link.age_ns),
        ]);
    }
    page.whole_table(&table);
}

fn within(page: &Page, offset: Ns, error: Ns) -> String {
    format!("{} {} {}", page.duration(offset), page.letters.plus_minus(), page.duration(error))
}

fn conclusion(page: &Page, report: &ClockReport) -> String {
    match (&report.root, report.system_bound_ns) {
        (Some(root), Some(bound)) => {
            format!("The system clock is within {} of {}.", page.duration(bound), page.clean(root))
        }
        _ => {
            let why = report.why_not_within(0).unwrap_or_default();
            let by_nic = report.grandmaster_time.map_or_else(String::new, |time| {
                format!(
                    " A NIC's clock is within {} of grandmaster {}, and ties machines.",
                    page.duration(time.bound_ns),
                    time.grandmaster
                )
            });
            format!("The system clock is not synchronised: {}.{by_nic}", page.clean(&why))
        }
    }
}

fn details(page: &Page, instance: &PtpInstance) -> String {
    let mut parts = Vec::new();
    if instance.is_silent {
        parts.push("does not answer at present".into());
    }
    for port in &instance.ports {
        let kind = match port.in_hardware {
            Some(true) => ", timestamps of the NIC",
            Some(false) => ", timestamps of the kernel",
            None => "",
        };
        let device = if port.device.is_empty() { String::new() } else { format!(" ({})", page.clean(&port.device)) };
        parts.push(format!("port {}{device} {}{kind}", port.number, port.state.name()));
    }
    if instance.state != LinkState::Master {
        let steps = page.number_of(instance.steps_removed.into(), "step");
        parts.push(format!(
            "grandmaster {}: clockClass {}, clockAccuracy 0x{:02x}, {steps} away",
            instance.grandmaster, instance.grandmaster_class, instance.grandmaster_accuracy
        ));
        parts.push(format!("path delay {}", page.duration(instance.path_delay_ns)));
    }
    parts.extend(instance.utc_offset_s.map(|s| format!("TAI - UTC {s} s")));
    format!("{} at {}: {}", page.clean(&instance.name()), page.clean(&instance.socket), parts.join("; "))
}

fn kernel(page: &Page, report: &ClockReport) -> String {
    let kernel = &report.kernel;
    let state = match kernel.synchronised {
        true => format!("synchronised, maximum error {}", page.duration(kernel.max_error_ns)),
        false => "not synchronised".into(),
    };
    let tai = match kernel.tai_offset_s {
        0 => "no TAI offset set".into(),
        s => format!("TAI - UTC {s} s"),
    };
    format!("kernel (adjtimex): {state}; frequency {:+} ppb; {tai}", kernel.frequency_ppb)
}

fn page_event(page: &mut Page, report: &ClockReport, event: &SyncEvent) {
    let ago = page.duration(report.monotonic_ns.saturating_sub(event.noticed_ns).max(0));
    let lasted = match event.until_ns {
        Some(until) => format!("lasted {}", duration(until.saturating_sub(event.from_ns).max(0))),
        None => "goes on".into(),
    };
    let text = format!("{}, {}: {} ({lasted}, noticed {ago} ago)", event.clock, event.kind.name(), event.text);
    let text = page.clean(&text);
    page.wrapped("  ".into(), 4, &text);
}

/// Maximum number of events that a report lists.
const MAX_LISTED: usize = 50;

/// Writes the clocks' sources of synchronisation, their events, and packet times while clocks were disordered.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    let Some(clocks) = &summary.clocks else { return };
    page.heading("Clocks");
    let mut table = Table::new(&["<clock", "<follows", "<by", "<state", "readings", "min", "mean", "max", "bound"]);
    let time = |ns: Option<Ns>| ns.map_or_else(|| "-".into(), |ns| page.duration(ns));
    let name = |text: &str| if text.is_empty() { "-".into() } else { page.clean(text) };
    for link in &clocks.links {
        let state = link.state.name().into();
        let mut row = vec![name(&link.clock), name(&link.follows), name(&link.by), state, page.count(link.readings)];
        row.extend([link.min_ns, link.mean_ns, link.max_ns, link.error_bound_ns].map(time));
        table.row(row);
    }
    page.table(&table);
    for event in clocks.events.iter().take(MAX_LISTED) {
        let lasted = match event.lasted_ns {
            Some(lasted) => format!("lasted {}", duration(lasted)),
            None => "not in order at the end".into(),
        };
        let (at, kind) = (duration(event.since_start_ns), event.kind.name());
        let text = format!("at {at}: {}, {kind}: {} ({lasted})", event.clock, event.text);
        let text = page.clean(&text);
        page.wrapped("  ".into(), 4, &text);
    }
    let more = clocks.events.len().saturating_sub(MAX_LISTED);
    if more > 0 {
        page.line(format!("  and {}", page.number_of(more as u64, "further event")));
    }
    if let Some(figures) = &clocks.disordered {
        disordered(page, summary, figures);
    }
}

/// Writes two rows for each segment: times while the clocks were in order, and while they were not.
fn disordered(page: &mut Page, summary: &Summary, figures: &DisorderedFigures) {
    page.heading("Segments while clocks were in order and disordered");
    let text = format!(
        "clocks were disordered for {}, in which {} began",
        page.duration(figures.elapsed_ns),
        page.number_of(figures.packets, "packet")
    );
    page.wrapped("  ".into(), 4, &text);
    let over = format!("over {}", page.duration(summary.threshold_ns));
    let percentiles = ["p50", "p99", "p99.9"];
    let heads = [&["<segment", "<clocks", "count", "mean"], &percentiles[..], &["max", over.as_str()]].concat();
    let mut table = Table::new(&heads);
    for all in &summary.segments {
        let find = |segments: &[SegmentFigures]| segments.iter().find(|s| s.is_of_same(all)).cloned();
        let rows = [
            (label(page, summary, all), "in order", find(&figures.in_order)),
            (String::new(), "disordered", find(&figures.disordered)),
        ];
        for (name, which, s) in rows.into_iter().filter_map(|(name, which, s)| Some((name, which, s?))) {
            let mut row = vec![name, which.into(), page.count(s.times.count), page.time(&s, s.times.mean_ns)];
            row.extend(percentiles.map(|name| percentile(page, &s, name)));
            row.extend([page.time(&s, s.times.max_ns), page.count(s.over_threshold)]);
            table.row(row);
        }
    }
    page.table(&table);
}

fn notes(page: &mut Page, report: &ClockReport) {
    let mut notes = report.notes.clone();
    if report.ptp.is_empty() && report.phc2sys.is_empty() && report.chrony.is_none() && notes.is_empty() {
        notes.push(
            "no PTP service and no chronyd runs here: start ptp4l (linuxptp) on the NIC that receives PTP, and \
             phc2sys or chronyd for the system clock"
                .into(),
        );
    }
    if !notes.is_empty() {
        page.heading("Notes");
        for note in notes {
            let note = page.clean(&note);
            page.wrapped("  ".into(), 4, &note);
        }
    }
}
