//! What `latpath path` prints for people.

use super::Found;
use latpath_model::{text::printable, Ns};
use latpath_path::{paths, points, Counts, Packet, Path, Step, What};
use latpath_stats::units::Letters;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// All packets, then the ways that they took.
pub fn render(found: &Found, summary: bool) -> String {
    let letters = Letters::from_env();
    let mut out = String::new();
    if !summary {
        for packet in &found.packets {
            write_packet(&mut out, packet, found.utc_offset, letters);
        }
    }
    let ways = paths(&found.packets);
    let total = found.packets.len();
    let _ = writeln!(out, "Ways of {total} {}", if total == 1 { "packet" } else { "packets" });
    if ways.is_empty() {
        out.push_str("  none was seen\n");
    }
    for (i, way) in ways.iter().enumerate() {
        write_way(&mut out, i + 1, way, total, letters);
    }
    let points = points(&ways);
    if !points.is_empty() {
        let points: Vec<_> = points.iter().map(|p| printable(&p.to_string())).collect();
        let _ = writeln!(out, "Points for latpath record and live\n  --points {}", points.join(","));
    }
    write_counts(&mut out, &found.counts, letters);
    out
}

/// Rows of cells in columns as wide as they need; `<` in front of a heading makes its column flush left.
fn table(out: &mut String, indent: &str, headings: &[&str], rows: &[Vec<String>]) {
    let width = |s: &str| s.chars().count();
    let heads: Vec<&str> = headings.iter().map(|h| h.trim_start_matches('<')).collect();
    let widths: Vec<usize> =
        (0..heads.len()).map(|c| rows.iter().map(|r| width(&r[c])).max().unwrap_or(0).max(width(heads[c]))).collect();
    let heads: Vec<String> = heads.into_iter().map(String::from).collect();
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = indent.to_string();
        for (c, cell) in row.iter().enumerate() {
            let space = " ".repeat(widths[c] - width(cell));
            let cell = if headings[c].starts_with('<') { format!("{cell}{space}") } else { format!("{space}{cell}") };
            line.push_str(&cell);
            line.push_str("  ");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// An skb's name in its packet: a, b, … z, a1, …
fn letter(skb: usize) -> String {
    let letter = char::from(b'a' + (skb % 26) as u8);
    if skb < 26 {
        letter.to_string()
    } else {
        format!("{letter}{}", skb / 26)
    }
}

fn clock_time(ns: Ns) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(ns.max(0) as u64);
    humantime::format_rfc3339_nanos(time).to_string().replace('T', " ").replace('Z', "")
}

fn device(s: &str) -> String {
    if s.is_empty() {
        "-".into()
    } else {
        printable(s)
    }
}

fn what(s: &Step) -> String {
    let mut text = printable(s.what.name());
    if let What::Copy { to, .. } = s.what {
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

fn write_packet(out: &mut String, packet: &Packet, utc_offset: Ns, letters: Letters) {
    let began = packet.began();
    let first = packet.steps.first();
    let on = first.map_or("-".into(), |s| device(&s.device));
    let length = first.map_or(0, |s| s.len);
    let _ = writeln!(
        out,
        "Packet {}  {}  {length} bytes, first seen on {on}",
        packet.number + 1,
        clock_time(began + utc_offset)
    );
    let mut before = began;
    let mut rows = Vec::new();
    for s in &packet.steps {
        let thread = if s.tid == 0 { printable(&s.thread) } else { format!("{}:{}", printable(&s.thread), s.tid) };
        rows.push(vec![
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
    table(out, "  ", &["since first", "since last", "cpu", "<thread", "<device", "<skb", "<function"], &rows);
    out.push('\n');
}

fn write_way(out: &mut String, number: usize, way: &Path, total: usize, letters: Letters) {
    let n = way.packets.len();
    let percent = letters.rate(n as f64 * 100.0 / total.max(1) as f64);
    let took = way.hops.last().map_or(0, |h| h.since_first);
    let _ = writeln!(
        out,
        "  {number}. {n} of {total} packets ({percent} %), {} steps, median {}",
        way.hops.len(),
        letters.duration(took)
    );
    let rows: Vec<Vec<String>> = way
        .stages
        .iter()
        .map(|s| {
            let steps = if s.hops == 1 {
                printable(&s.first)
            } else {
                format!("{} … {}", printable(&s.first), printable(&s.last))
            };
            vec![
                letters.duration(s.since_last),
                letters.duration(s.took),
                s.hops.to_string(),
                device(&s.device),
                printable(&s.thread),
                steps,
            ]
        })
        .collect();
    table(out, "     ", &["since last", "took", "steps", "<device", "<thread", "<from … to"], &rows);
}

fn write_counts(out: &mut String, counts: &Counts, letters: Letters) {
    let n = |n| letters.count(n);
    let _ = writeln!(
        out,
        "Lost: {} events in a full buffer, {} copies, {} by recursion",
        n(counts.events_lost),
        n(counts.skbs_lost),
        n(counts.recursion_misses)
    );
    for (count, text) in [
        (counts.unreadable, "packets could not be read where they lay"),
        (counts.beyond, "packets have what the filter asks for behind the bytes that are read (2048)"),
        (counts.packets_over, "times a further packet came by (--count)"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "      {} {text}", n(count));
        }
    }
}
