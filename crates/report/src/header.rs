//! Origin of the figures: machine, kernel, options, path, clocks.

use crate::page::Page;
use latpath_model::{text::quoted, Point, HOST};
use latpath_run::{Manifest, Run, State};
use latpath_settings::is_boot_setting;
use latpath_stats::text::{date_time, short_stream, Table};
use latpath_stats::units::{bytes, elapsed};
use latpath_stats::Summary;

/// The name of the run's directory, independent of how the user typed the path.
pub(crate) fn name(run: &Run) -> String {
    let whole = run.path().canonicalize();
    let path = whole.as_deref().unwrap_or(run.path());
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Writes the run's name, the start and duration of the recording, and `more`.
pub(crate) fn title(page: &mut Page, run: &Run, name: &str, more: &str) {
    page.line(format!("Run {}", page.clean(name)));
    page.item("recorded", &format!("{}{more}", recorded(page, run)));
}

/// Writes the first lines of a document to be signed: streams, time of recording, machine, and run.
pub(crate) fn first_lines(page: &mut Page, run: &Run) {
    const NAMED: usize = 8;
    let manifest = run.manifest();
    let mut names: Vec<String> = manifest.streams.iter().take(NAMED).map(ToString::to_string).collect();
    let more = manifest.streams.len().saturating_sub(NAMED);
    names.extend((more > 0).then(|| format!("and {more} more")));
    page.item(if manifest.streams.len() == 1 { "stream" } else { "streams" }, &page.clean(&names.join(" ")));
    page.item("recorded", &recorded(page, run));
    let (name, kernel) = (&manifest.host.name, &manifest.host.kernel);
    if manifest.imported.is_empty() && !name.is_empty() {
        let kernel = if kernel.is_empty() { String::new() } else { format!(", Linux {kernel}") };
        page.item("machine", &page.clean(&format!("{name}{kernel}")));
    }
    page.item("run", &page.clean(&self::name(run)));
}

/// Start and length of the recording: `2026-01-02 03:04:05 UTC, 8.1 s long`.
fn recorded(page: &Page, run: &Run) -> String {
    let start = page.clean(&run.manifest().start.utc.split('.').next().unwrap_or_default().replace('T', " "));
    format!("{start} UTC, {} long", elapsed(run.elapsed_ns()))
}

/// Writes the run's streams, command, host and marks.
pub(crate) fn write(page: &mut Page, run: &Run, name: &str) {
    let manifest = run.manifest();
    let state = match manifest.state {
        State::Finished => "",
        State::Interrupted => ", ended early",
        State::Recording => ", not ended",
    };
    let (_, size) = run.size();
    let (journeys, by) = (page.number_of(run.journeys(), "journey"), page.clean(&manifest.latpath));
    title(page, run, name, &format!("{state}, {journeys}, {}, by latpath {by}", bytes(size)));
    page.item("command", &page.clean(&manifest.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")));
    let streams: Vec<String> = manifest.streams.iter().map(ToString::to_string).collect();
    page.item("streams", &page.clean(&streams.join(" ")));
    if manifest.imported.is_empty() {
        host(page, manifest);
    }
    for (at, file) in manifest.imported.iter().enumerate() {
        let unit = if file.resolution_ns >= 1000 { ", whole microseconds" } else { "" };
        let text = format!("{} from {}, {}{unit}", file.point, file.path, page.number_of(file.packets, "packet"));
        page.item(if at == 0 { "imported" } else { "" }, &page.clean(&text));
    }
    for (at, mark) in run.marks().iter().enumerate() {
        let since = elapsed(mark.t_ns.saturating_sub(manifest.start.monotonic_ns));
        let utc = date_time(manifest.time_of_day().utc(mark.t_ns));
        page.item(if at == 0 { "marks" } else { "" }, &format!("{since}, {utc} UTC  {}", page.clean(&mark.text)));
    }
}

fn host(page: &mut Page, manifest: &Manifest) {
    let host = &manifest.host;
    let join = |facts: &[(&str, &str)]| {
        let known = facts.iter().filter(|(_, value)| !value.is_empty());
        known.map(|(name, value)| format!("{name}{value}")).collect::<Vec<_>>().join(", ")
    };
    let realtime = if host.kernel_version.contains("PREEMPT_RT") { "PREEMPT_RT" } else { "" };
    let memory = if host.memory_bytes > 0 { bytes(host.memory_bytes) } else { String::new() };
    let machine = join(&[("", &host.name), ("Linux ", &host.kernel), ("", realtime), ("", &host.architecture)]);
    page.item("machine", &page.clean(&machine));
    let governors = host.governors.join("+");
    let cpus = join(&[
        ("", &host.cpu_model),
        ("CPUs ", &host.cpus_online),
        ("isolated ", &host.cpus_isolated),
        ("nohz_full ", &host.cpus_nohz_full),
        ("governor ", &governors),
        ("SMT ", &host.smt),
        ("clock source ", &host.clocksource),
        ("memory ", &memory),
    ]);
    page.item("", &page.clean(&cpus));
    // The manifest contains the whole command line; only boot settings are shown.
    let parameters: Vec<&str> =
        host.kernel_command_line.split_whitespace().filter(|word| is_boot_setting(word)).collect();
    if !parameters.is_empty() {
        page.item("", &page.clean(&parameters.join(" ")));
    }
}

/// Writes the points in order, and the clocks of the machines.
pub(crate) fn route(page: &mut Page, summary: &Summary) {
    page.heading("Route");
    if summary.points.is_empty() {
        page.line("  no point saw a packet");
    }
    let mut routes: Vec<(Vec<String>, &[Point])> = Vec::new();
    for stream in summary.streams.iter().filter(|s| !s.points.is_empty()) {
        let name = page.clean(&short_stream(&stream.stream));
        match routes.iter_mut().find(|(_, route)| *route == stream.points) {
            Some((names, _)) => names.push(name),
            None => routes.push((vec![name], &stream.points)),
        }
    }
    if routes.len() < 2 {
        routes = vec![(Vec::new(), &summary.points)];
    }
    for (streams, route) in routes {
        if !streams.is_empty() {
            page.item("of", &streams.join(", "));
        }
        for point in route {
            let point = point.to_string();
            let number = summary.number(&point).map_or(String::new(), |n| n.to_string());
            page.line(format!("  {number:>2}  {}", page.clean(&point)));
        }
    }
    for point in &summary.off_route {
        let point = page.clean(&point.to_string());
        page.line(format!("      {point} (off the route)"));
    }
    let others: Vec<_> = summary.machines.iter().filter(|m| !m.is_timeline()).collect();
    if others.is_empty() {
        return;
    }
    let reference = summary.machines.iter().find(|m| m.is_timeline()).map_or(HOST, |m| &m.machine);
    page.heading(&match reference {
        HOST => "Clocks against the host's".into(),
        machine => format!("Clocks against that of {}", page.clean(machine)),
    });
    let bound = format!("{}bound", page.letters.plus_minus());
    let mut table = Table::new(&["<machine", "<method", "offset", "drift", &bound, "exchanges", "<"]);
    for machine in others {
        table.row(vec![
            page.clean(&machine.machine),
            page.clean(&machine.method),
            page.duration(machine.offset_ns),
            format!("{} ppb", machine.drift_ppb),
            page.duration(machine.error_bound_ns),
            page.count(machine.exchanges),
            machine.fault.as_ref().map_or(String::new(), |fault| format!("! {}", page.clean(fault))),
        ]);
    }
    page.table(&table);
}
