//! Late packets: their segments, causes, and the threads and CPUs that handled them.

use crate::writer::Track;
use crate::writer::{EventInfo, Writer};
use latpath_cause::{CauseInterval, Executor, PacketTimeline, RunContext};
use latpath_journey::Segment;
use latpath_model::Ns;
use latpath_stats::units::duration;
use std::io;

/// Maximum number of causes among a packet's arguments; the row below the packet shows all of them.
const MAX_CAUSES: usize = 16;

/// Index of a packet in the trace, from which the IDs of its arrows are derived.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number(pub u64);

impl Number {
    /// ID of the arrows between the packet's sightings.
    pub fn route(self) -> u64 {
        self.0 << 8 | 0xff
    }

    /// ID of the arrow from the packet's row to a sighting.
    pub fn sighting(self, at: usize) -> u64 {
        self.0 << 8 | (at as u64).min(0xfe)
    }
}

/// Clamps a time to Perfetto's range.
pub(crate) fn at(t: Ns) -> u64 {
    t.max(0) as u64
}

/// A slice for one or more hops.
struct Span {
    from: Ns,
    to: Ns,
    info: EventInfo,
}

/// Distributes spans over rows in which spans are nested or disjoint. A span that partly overlaps another goes to the
/// next row.
fn rows(mut spans: Vec<Span>) -> Vec<Vec<Span>> {
    spans.sort_by_key(|span| (span.from, std::cmp::Reverse(span.to)));
    let mut rows: Vec<(Vec<Ns>, Vec<Span>)> = Vec::new();
    for span in spans {
        let fits = |open: &mut Vec<Ns>| {
            while open.last().is_some_and(|end| *end <= span.from) {
                open.pop();
            }
            open.last().is_none_or(|end| span.to <= *end)
        };
        let place = rows.iter_mut().position(|(open, _)| fits(open)).unwrap_or_else(|| {
            rows.push(Default::default());
            rows.len() - 1
        });
        rows[place].0.push(span.to);
        rows[place].1.push(span);
    }
    rows.into_iter().map(|(_, spans)| spans).collect()
}

/// Writes the spans of a row: at the same time, ends precede beginnings.
fn write_row(out: &mut Writer, track: u64, spans: Vec<Span>) -> io::Result<()> {
    let mut open: Vec<Ns> = Vec::new();
    for span in spans {
        while let Some(end) = open.pop_if(|end| *end <= span.from) {
            out.end(0, at(end), track)?;
        }
        out.begin(0, at(span.from), track, span.info)?;
        open.push(span.to);
    }
    while let Some(end) = open.pop() {
        out.end(0, at(end), track)?;
    }
    Ok(())
}

/// Name of an executor, with its scheduling class.
fn who(who: &Executor) -> String {
    match who.class {
        Some(class) => format!("{}, {class}", who.name),
        None => who.name.clone(),
    }
}

/// A cause in one line, e.g. `waiting-for-cpu: vhost-5620 (5620), SCHED_OTHER, behind CPU 0/KVM (6154), FIFO 1`.
fn in_words(interval: &CauseInterval) -> String {
    let mut text = interval.cause.id().to_owned();
    if let Some(actor) = &interval.actor {
        text += &format!(": {}", who(actor));
    }
    if let Some(by) = &interval.by {
        let how = interval.cause.info().link.words();
        let how = if how.is_empty() { "with" } else { how };
        text += &format!(", {how} {}", who(by));
    }
    text
}

/// Name of a packet, e.g. `MU01 4711`.
pub(crate) fn packet_name(context: &RunContext, stream: u16, key: u32) -> String {
    match context.streams.get(usize::from(stream)) {
        Some(stream) => format!("{} {}", stream.short(), stream.key.text(key)),
        None => format!("packet {key}"),
    }
}

/// Causes with their total times, longest first.
fn causes(packet: &PacketTimeline) -> Vec<String> {
    let mut sums: Vec<(String, Ns)> = Vec::new();
    for (_, interval) in packet.intervals() {
        let (words, took) = (in_words(interval), interval.to.saturating_sub(interval.from));
        match sums.iter_mut().find(|(known, _)| *known == words) {
            Some((_, sum)) => *sum = sum.saturating_add(took),
            None => sums.push((words, took)),
        }
    }
    sums.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    sums.truncate(MAX_CAUSES);
    sums.into_iter().map(|(words, ns)| format!("{} {words}", duration(ns))).collect()
}

/// Writes a packet's row, and the row of causes below it.
pub(crate) fn write(out: &mut Writer, context: &RunContext, number: Number, packet: &PacketTimeline) -> io::Result<()> {
    let (Some(first), Some(last)) = (packet.seen.first(), packet.seen.last()) else { return Ok(()) };
    let name = packet_name(context, packet.stream, packet.key);
    let row_name = || format!("{name}: {}", duration(packet.time()));
    let track = out.row(Track::Packet(number.0), row_name)?;
    let spec = context.streams.get(usize::from(packet.stream));
    let seen = |point| packet.seen.iter().find(|seen| seen.point == point).map(|seen| seen.t);
    let mut spans = Vec::new();
    let whole = |info: EventInfo| {
        info.arg("stream", spec.map_or_else(String::new, ToString::to_string))
            .arg(spec.map_or("key", |s| s.key.name()), i64::from(packet.key))
            .arg("number", i64::try_from(packet.number).unwrap_or(i64::MAX))
            .arg("spike", i64::from(packet.capture))
            .arg("late", packet.late)
            .args("causes", causes(packet))
    };
    let mut is_whole = false;
    for Segment { name, from, to, .. } in &context.segments {
        let (Some(begin), Some(end)) = (seen(*from), seen(*to)) else { continue };
        if begin >= end {
            continue;
        }
        let info = EventInfo { category: "segment", ..EventInfo::named(name.clone()) };
        let info = info.arg("from", context.point(*from)).arg("to", context.point(*to));
        let info = info.arg("took_ns", end.saturating_sub(begin));
        let all = (begin, end) == (first.t, last.t) && !is_whole;
        is_whole |= all;
        spans.push(Span { from: begin, to: end, info: if all { whole(info) } else { info } });
    }
    if !is_whole && first.t < last.t {
        // No named segment covers the packet's whole route.
        let info = EventInfo { category: "segment", ..EventInfo::named("whole route") };
        spans.insert(0, Span { from: first.t, to: last.t, info: whole(info) });
    }
    let mut instants = Vec::new();
    for (place, pair) in packet.seen.windows(2).enumerate() {
        let (from, to) = (context.point(pair[0].point), context.point(pair[1].point));
        let info = EventInfo {
            category: "step",
            flows: vec![number.sighting(place)],
            ..EventInfo::named(format!("{} → {}", short(&from), short(&to)))
        };
        let info = info.arg("from", from).arg("to", to).arg("took_ns", pair[1].t.saturating_sub(pair[0].t));
        match pair[0].t < pair[1].t {
            true => spans.push(Span { from: pair[0].t, to: pair[1].t, info }),
            false => instants.push((pair[0].t, info)),
        }
    }
    let end = context.point(last.point);
    let flows = vec![number.sighting(packet.seen.len() - 1)];
    instants.push((last.t, EventInfo { category: "step", flows, ..EventInfo::named(short(&end)) }.arg("at", end)));
    for (n, spans) in rows(spans).into_iter().enumerate() {
        let track = match n {
            0 => track,
            n => out.row(Track::Beside(number.0, n), || "other segments".into())?,
        };
        write_row(out, track, spans)?;
    }
    for (t, info) in instants {
        out.instant(0, at(t), track, info)?;
    }
    why(out, number, packet)
}

/// Name of a point, without the machine if that is the host.
fn short(point: &str) -> &str {
    point.strip_prefix("host/").unwrap_or(point)
}

fn why(out: &mut Writer, number: Number, packet: &PacketTimeline) -> io::Result<()> {
    if packet.hops.is_empty() {
        return Ok(());
    }
    let track = out.row(Track::Why(number.0), String::new)?;
    let spans = packet.intervals().filter(|(_, interval)| interval.from < interval.to).map(|(_, interval)| {
        let info = EventInfo { category: interval.cause.id(), ..EventInfo::named(in_words(interval)) }
            .arg("cause", interval.cause.id())
            .arg("took_ns", interval.to.saturating_sub(interval.from))
            .arg("machine", packet.machine(interval))
            .maybe("actor", interval.actor.as_ref().map(who))
            .maybe("by", interval.by.as_ref().map(who))
            .maybe("cpu", interval.cpu.map(i64::from))
            .maybe("number", interval.number.map(|number| i64::try_from(number).unwrap_or(i64::MAX)))
            .maybe("idle_state", interval.state.as_deref())
            .maybe("note", interval.note().as_deref());
        Span { from: interval.from, to: interval.to, info }
    });
    // Intervals overlap only in a damaged record. Those that overlap an earlier one are left out.
    let mut end = Ns::MIN;
    let spans = spans.filter(|span| {
        let follows = span.from >= end;
        end = end.max(span.to);
        follows
    });
    let spans = spans.collect();
    write_row(out, track, spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from: Ns, to: Ns) -> Span {
        Span { from, to, info: EventInfo::named(format!("{from}..{to}")) }
    }

    #[test]
    fn nested_slices_share_a_row_and_crossing_ones_do_not() {
        let found = rows(vec![span(0, 3), span(0, 10), span(3, 10), span(2, 5), span(5, 9)]);
        let named = |row: &Vec<Span>| row.iter().map(|s| s.info.name.clone()).collect::<Vec<_>>();
        let found: Vec<_> = found.iter().map(named).collect();
        assert_eq!(found, [vec!["0..10", "0..3", "3..10", "5..9"], vec!["2..5"]]);
    }
}
