//! `latpath streams`: lists the streams on a device or in a file.

use super::flags::Stamps;
use super::interrupt::stop_flag;
use super::listening::{places, Heard};
use super::report::print_as;
use super::wire::wire_text;
use super::Outcome;
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_model::stream::{format_mac, listed_titles};
use latpath_model::StreamSpec;
use latpath_protocols::protocol::{Field, Order, Value};
use latpath_stats::text::Table;
use latpath_stats::units::{count, duration, rate};
use latpath_traffic::document::StreamsDocument;
use latpath_traffic::{CaptureError, CaptureFile, Discovery, FoundStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum number of rows in the tables: a flood of names on a bus must not flood the terminal.
const MAX_ROWS: usize = 200;

#[derive(ClapArgs)]
#[command(about = format!("List the streams that pass a device or stand in a capture: {}", listed_titles()))]
pub struct Args {
    /// Device to listen on, in both directions, e.g. eth0 or eth0%NAMESPACE; can be repeated [default: all that are up,
    /// in all network namespaces]
    #[arg(short, long = "interface", value_name = "IF", conflicts_with = "read")]
    interfaces: Vec<String>,
    /// Also watch network namespaces of other users, such as those of rootless containers
    #[arg(long, conflicts_with_all = ["interfaces", "read"])]
    other_users: bool,
    /// Read this file instead: a capture, pcap or pcapng, also .gz; - for standard input
    #[arg(short, long, value_name = "FILE")]
    read: Option<PathBuf>,
    /// Timestamps to take: the kernel's, or also the NIC's, which are switched on for this time and give the time from
    /// the wire to the driver
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Stamps::Kernel, conflicts_with = "read")]
    stamps: Stamps,
    /// Stop after this time (10s, 1h 30m)
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = crate::cmd::values::some_time, conflicts_with = "read")]
    duration: Duration,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let stop = stop_flag()?;
    let mut heard = Heard::default();
    let (ended, place, are_several) = match &args.read {
        Some(path) => {
            let ended = read(path, (&mut heard.found, &mut heard.devices), &stop).map_err(Into::into);
            (ended, path.display().to_string(), false)
        }
        None => {
            let places = places(&args.interfaces, args.other_users)?;
            let (of_places, ended) = places.listen(args.duration, args.stamps == Stamps::Nic, &stop);
            heard = of_places;
            (ended, places.describe(), places.are_several())
        }
    };
    // Prints no empty table for an unreadable source.
    if ended.is_ok() || heard.found.frames > 0 {
        let width = latpath_screen::width().unwrap_or(usize::MAX);
        let document = || StreamsDocument::of(&heard.found, &heard.devices, heard.dropped, heard.wire);
        let printed = print_as(args.json, document, || text(&heard, &place, are_several, width));
        ended?;
        printed?;
    } else {
        ended?;
    }
    Ok(Outcome::Done)
}

/// Reads a capture; `interfaces` receives the names of its interfaces.
fn read(
    path: &Path,
    (found, interfaces): (&mut Discovery, &mut Vec<String>),
    stop: &AtomicBool,
) -> Result<(), CaptureError> {
    let mut capture = CaptureFile::open(path)?;
    let ended = loop {
        match capture.next_packet() {
            Ok(Some(packet)) => found.note_packet(&packet),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        if stop.load(Ordering::Relaxed) {
            break Ok(());
        }
    };
    // Frames of link types without streams count as other protocols.
    found.frames += capture.left_out();
    found.other_protocols += capture.left_out();
    *interfaces = capture.interfaces().iter().map(ToString::to_string).collect();
    ended
}

/// A field as text on one line.
fn cell(value: &Value, hz: Option<f64>) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Number(n) => n.to_string(),
        Value::Hex { number, bytes } => format!("{number:#0width$x}", width = 2 + 2 * usize::from(*bytes)),
        Value::PerFrame(n) => hz.map_or("-".into(), |hz| rate(hz * f64::from(*n))),
        Value::Unknown => "-".into(),
    }
}

/// The cells of a stream, each with its heading. `interface`: the stream's interface, if the streams come from several.
/// `has_nic_times`: whether to add the times from the wire to the driver.
fn cells(s: &FoundStream, interface: Option<&str>, has_nic_times: bool) -> Vec<(&'static str, String)> {
    let (hz, details) = (s.frames_hz(), s.stream.matcher.details(&s.newest));
    let fields = |fields: Vec<Field>| fields.into_iter().map(move |f| (f.title, cell(&f.value, hz)));
    let mut cells: Vec<_> = fields(details.name).collect();
    cells.extend(interface.map(|interface| ("interface", interface.to_owned())));
    cells.push(("VLAN", s.tag.map_or("-".into(), |t| t.vlan().to_string())));
    cells.push(("src", format_mac(&s.src)));
    cells.push(("dst", s.destination().unwrap_or_else(|| "-".into())));
    cells.push(("frames", count(s.frames)));
    cells.push(("frames/s", hz.map_or("-".into(), rate)));
    cells.extend(fields(details.newest));
    if s.stream.key.order() != Some(Order::States) {
        cells.push(("wrap", s.tracker.wrap().map_or("not seen yet".into(), |w| w.to_string())));
    }
    let totals = s.tracker.totals();
    cells.push(("lost", count(totals.lost)));
    cells.push(("repeated", count(totals.duplicates)));
    if has_nic_times {
        let [p50, p99] = s.wire_to_driver.percentiles([500_000, 990_000]);
        let known = |time| if s.wire_to_driver.count() > 0 { duration(time) } else { "-".into() };
        cells.push(("wire→driver p50", known(p50)));
        cells.push(("p99", known(p99)));
    }
    cells
}

/// Columns that are omitted, in this order, if the terminal is too narrow; JSON has all columns.
const SPARED: [&str; 6] = ["confRev", "src", "wrap", "APPID", "frames", "ASDUs"];

fn table(rows: &[Vec<(&'static str, String)>], without: &[&str]) -> Vec<String> {
    let shown = |row: &[(&'static str, String)]| -> Vec<(&'static str, String)> {
        row.iter().filter(|(head, _)| !without.contains(head)).cloned().collect()
    };
    let heads: Vec<String> = shown(&rows[0]).iter().map(|(head, _)| format!("<{head}")).collect();
    let mut table = Table::new(&heads.iter().map(String::as_str).collect::<Vec<_>>());
    rows.iter().for_each(|row| table.row(shown(row).into_iter().map(|(_, cell)| cell).collect()));
    table.lines(0, usize::MAX, '~')
}

/// One table for each protocol with streams, within `width` columns if possible. `are_several`: the streams may come
/// from several devices.
fn text(heard: &Heard, place: &str, are_several: bool, width: usize) -> String {
    let Heard { found, devices, dropped, wire } = heard;
    let (streams, mut lines) = (found.streams(), Vec::new());
    let are_several = are_several || streams.windows(2).any(|two| two[0].interface != two[1].interface);
    let interface = |s: &FoundStream| devices.get(s.interface).map(String::as_str).filter(|_| are_several);
    let shown = &streams[..streams.len().min(MAX_ROWS)];
    for of_protocol in shown.chunk_by(|a, b| a.stream.matcher.protocol() == b.stream.matcher.protocol()) {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let rows: Vec<_> = of_protocol.iter().map(|stream| cells(stream, interface(stream), wire.is_some())).collect();
        let fits = |lines: &Vec<String>| lines.iter().all(|line| line.chars().count() <= width);
        let tables = (0..=SPARED.len()).map(|n| table(&rows, &SPARED[..n]));
        let mut tables = tables.skip_while(|lines| !fits(lines));
        lines.extend(tables.next().unwrap_or_else(|| table(&rows, &SPARED)));
    }
    if streams.is_empty() {
        lines.push(format!("{place}: no {}", listed_titles()));
    }
    let more = streams.len().saturating_sub(MAX_ROWS) as u64;
    let unread = format!("frames cannot be read: {}", found.unread);
    let notes = [
        (more, "more streams (--json lists all)"),
        (found.unread.total(), unread.as_str()),
        (found.beyond, "frames belong to further streams, beyond the 4096 that the list keeps apart"),
        (*dropped, "frames were dropped by the kernel: the ring was full"),
    ];
    for (n, what) in notes.into_iter().filter(|(n, _)| *n > 0) {
        lines.push(format!("{} {what}", count(n)));
    }
    if let Some(counts) = wire {
        lines.push(format!("NIC: {}", wire_text(*counts)));
    }
    for s in shown.iter().filter(|s| s.tracker.totals().duplicates > s.frames / 2) {
        let (repeated, frames) = (count(s.tracker.totals().duplicates), count(s.frames));
        let stream = StreamSpec::new(s.stream.matcher.clone()).to_string();
        let key = s.stream.key.name();
        lines.push(format!("{stream}: {repeated} of {frames} frames repeat a {key}"));
    }
    lines.join("\n") + "\n"
}
