//! Journeys as CSV (RFC 4180): one line each, with the columns of the run's Parquet parts and names instead of numbers.

use crate::{each_journey, notes, points_in_order, DropReasons, ExportError, ExportRequest, Exported};
use latpath_journey::Paths;
use latpath_model::text::{printable, visible};
use latpath_run::{Run, RunError, Select};
use std::{
    fmt::Write as _,
    io::{self, Write},
    sync::atomic::AtomicBool,
};

/// Writes all journeys of a run.
pub fn write(request: &mut ExportRequest, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let select = Select { cpus_and_threads: request.run.manifest().imported.is_empty(), ..Select::default() };
    let damaged = write_until(request.stop, request.run, &select, out)?;
    Ok(Exported { summary: "all journeys, a line each".into(), notes: notes(request.run, &damaged) })
}

/// Amount of text after which it is written, bytes.
const PIECE: usize = 1 << 16;

/// Writes the selected journeys. Skips damaged parts and returns their errors.
///
/// Columns: `stream` (in the form used on the command line), `key`, `number`, `utc_ns`, `t_ns`; for each point, in the
/// order of the route, the time from `t_ns` to its sighting in ns (empty without a sighting); `cpu:` and `tid:` of each
/// point, if `select` requests them; `duplicates`, `out_of_order`, `drop_reason` (of packets that did not arrive),
/// `path`.
///
/// # Errors
/// If the output cannot be written.
pub fn write_csv(run: &Run, select: &Select, out: &mut dyn Write) -> io::Result<Vec<RunError>> {
    write_until(&AtomicBool::new(false), run, select, out)
}

fn write_until(stop: &AtomicBool, run: &Run, select: &Select, out: &mut dyn Write) -> io::Result<Vec<RunError>> {
    let manifest = run.manifest();
    let order = points_in_order(run);
    let points: Vec<String> = order.iter().map(|p| run.points()[*p].point.to_string()).collect();
    let mut text = String::with_capacity(PIECE + 4096);
    text.push_str("stream,key,number,utc_ns,t_ns");
    points.iter().for_each(|p| push_field(&mut text, p));
    if select.cpus_and_threads {
        for point in &points {
            push_field(&mut text, &format!("cpu:{point}"));
            push_field(&mut text, &format!("tid:{point}"));
        }
    }
    text.push_str(",duplicates,out_of_order,drop_reason,path\n");

    let streams: Vec<String> = manifest.streams.iter().map(|s| quoted(&s.to_string())).collect();
    let reasons: Vec<String> =
        manifest.drop_notes.iter().map(|n| quoted(&format!("{} in {}", n.reason, n.function))).collect();
    let drops = DropReasons::of(run);
    let paths = Paths::of_points(run.points());
    let time_of_day = manifest.time_of_day();
    let damaged = each_journey(run, select, stop, |j| {
        let seen = |p: usize| j.seen >> p & 1 == 1;
        let first = j.first().unwrap_or(0);
        match streams.get(usize::from(j.stream)) {
            Some(stream) => text.push_str(stream),
            None => push(&mut text, format_args!("{}", j.stream)),
        }
        push(&mut text, format_args!(",{},{},{},{first}", j.key, j.number, time_of_day.utc(first)));
        for p in order.iter().copied() {
            text.push(',');
            if seen(p) {
                push(&mut text, format_args!("{}", j.t[p].wrapping_sub(first)));
            }
        }
        if select.cpus_and_threads {
            for p in order.iter().copied() {
                match (seen(p), j.cpu.get(p), j.tid.get(p)) {
                    (true, Some(cpu), Some(tid)) => push(&mut text, format_args!(",{cpu},{tid}")),
                    _ => text.push_str(",,"),
                }
            }
        }
        push(&mut text, format_args!(",{},{},", j.duplicates, j.out_of_order));
        if let Some((note, _)) = drops.of_packet(j.stream, j.seen, j.drop_note) {
            match reasons.get(note) {
                Some(note) => text.push_str(note),
                None => push(&mut text, format_args!("note {note}")),
            }
        }
        text.push(',');
        if paths.any() {
            text.push_str(paths.class(j.seen).name());
        }
        text.push('\n');
        if text.len() >= PIECE {
            out.write_all(text.as_bytes())?;
            text.clear();
        }
        Ok(())
    })?;
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(damaged)
}

fn push(text: &mut String, what: std::fmt::Arguments) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(what);
}

fn push_field(text: &mut String, field: &str) {
    text.push(',');
    text.push_str(&quoted(field));
}

/// Encodes a name: in quotes if it contains a comma or a quote, and without control characters, because the table may
/// be shown on a terminal.
fn quoted(field: &str) -> String {
    let mut field = visible(&printable(field)).into_owned();
    // A leading apostrophe keeps a spreadsheet from reading the field as a formula.
    if field.starts_with(['=', '+', '-', '@']) {
        field.insert(0, '\'');
    }
    if field.contains([',', '"']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}
