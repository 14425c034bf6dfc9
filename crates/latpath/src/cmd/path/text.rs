//! Text output of `latpath path`.

use super::SearchResult;
use latpath_clock::TimeOfDay;
use latpath_model::text::printable;
use latpath_path::{paths, points, Counts, Packet, Path, Step, StepKind};
use latpath_stats::text::{date_time, Table};
use latpath_stats::units::CharacterSet;
use std::fmt::Write;

/// All packets, unless `summary`, then their routes.
pub fn render(found: &SearchResult, summary: bool) -> String {
    let letters = CharacterSet::from_env();
    let mut out = String::new();
    if !summary {
        for packet in &found.packets {
            write_packet(&mut out, packet, &found.time_of_day, letters);
        }
    }
    let routes = paths(&found.packets);
    let total = found.packets.len();
    let _ = writeln!(out, "Routes of {total} {}", if total == 1 { "packet" } else { "packets" });
    if routes.is_empty() {
        out.push_str("  none was seen\n");
    }
    for (i, route) in routes.iter().enumerate() {
        write_route(&mut out, i + 1, route, total, letters);
    }
    let points = points(&routes);
    if !points.is_empty() {
        let points: Vec<_> = points.iter().map(|p| printable(&p.to_string())).collect();
        let _ = writeln!(out, "Points for latpath record and live\n  --points {}", points.join(","));
    }
    write_counts(&mut out, &found.counts, letters);
    out
}

/// Name of an skb within its packet: a, b, … z, a1, …
fn letter(skb: usize) -> String {
    let letter = char::from(b'a' + (skb % 26) as u8);
    if skb < 26 {
        letter.to_string()
    } else {
        format!("{letter}{}", skb / 26)
    }
}

fn device(s: &str) -> String {
    match s {
        "" => "-".into(),
        name => printable(name),
    }
}

fn what(s: &Step) -> String {
    let mut text = printable(s.what.name());
    if let StepKind::Copy { to, .. } = s.what {
        let _ = write!(text, " makes {}", letter(to));
    }
    if let Some((reason, function)) = &s.drop {
        let _ = write!(text, "  {reason} in {function}");
    }
    if s.same_bytes {
        text.push_str("  (the same bytes)");
    }
    text
}

fn write_packet(out: &mut String, packet: &Packet, time_of_day: &TimeOfDay, letters: CharacterSet) {
    let began = packet.began();
    let first = packet.steps.first();
    let (on, length) = first.map_or(("-".into(), 0), |s| (device(&s.device), s.len));
    let (number, time) = (packet.number + 1, date_time(time_of_day.utc(began)));
    let _ = writeln!(out, "Packet {number}  {time}  {length} bytes, first seen on {on}");
    let mut before = began;
    let heads = ["since first", "since last", "cpu", "<thread", "<device", "<skb", "<function"];
    let mut table = Table::new(&heads);
    for s in &packet.steps {
        let thread = if s.tid == 0 { printable(&s.thread) } else { format!("{}:{}", printable(&s.thread), s.tid) };
        table.row(vec![
            letters.duration(s.t - began),
            letters.duration(s.t - before),
            s.cpu.to_string(),
            thread,
            device(&s.device),
            letter(s.skb),
            what(s),
        ]);
        before = s.t;
    }
    write_table(out, &table, 2);
    out.push('\n');
}

fn write_table(out: &mut String, table: &Table, indent: usize) {
    table.lines(indent, usize::MAX, '~').iter().for_each(|line| *out += &format!("{line}\n"));
}

fn write_route(out: &mut String, number: usize, route: &Path, total: usize, letters: CharacterSet) {
    let (n, steps) = (route.packets.len(), route.hops.len());
    let percent = letters.rate(n as f64 * 100.0 / total.max(1) as f64);
    let took = letters.duration(route.hops.last().map_or(0, |h| h.since_first));
    let _ = writeln!(out, "  {number}. {n} of {total} packets ({percent} %), {steps} steps, median {took}");
    let mut table = Table::new(&["since last", "took", "steps", "<device", "<thread", "<from … to"]);
    for s in &route.stages {
        table.row(vec![
            letters.duration(s.since_last),
            letters.duration(s.took),
            s.hops.to_string(),
            device(&s.device),
            printable(&s.thread),
            match s.hops {
                1 => printable(&s.first),
                _ => format!("{} … {}", printable(&s.first), printable(&s.last)),
            },
        ]);
    }
    write_table(out, &table, 5);
}

fn write_counts(out: &mut String, counts: &Counts, letters: CharacterSet) {
    let n = |n| letters.count(n);
    let _ = writeln!(
        out,
        "Lost: {} in a full buffer, {}, {} of a program that was running already",
        letters.number_of(counts.events_lost, "event"),
        if counts.skbs_lost == 1 { "1 copy".into() } else { format!("{} copies", n(counts.skbs_lost)) },
        letters.number_of(counts.recursion_misses, "run")
    );
    for (count, text) in [
        (counts.unreadable, "packets could not be read where they lay"),
        (counts.beyond, "packets have what the filter asks for behind the bytes that are read (2048)"),
        (counts.packets_over, "more packets came than --count follows"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "      {} {text}", n(count));
        }
    }
}
