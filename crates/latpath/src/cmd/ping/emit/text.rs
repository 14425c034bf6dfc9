//! A session's result as text.

use super::super::times::{cell, histogram, table, table_lines};
use super::breach_context;
use super::one::Done;
use super::Args;
use latpath_ping::breach::BreachedProbe;
use latpath_ping::breach_context::BreachContext;
use latpath_ping::emit::{EndReason, Pacing};
use latpath_ping::figures::{Report, RoundTripSegmentFigures};
use latpath_ping::timeline::Relation;
use latpath_ping::transaction::{Source, Stamp};
use latpath_stats::text::Table;
use latpath_stats::units::{count, duration, number_of, rate};
use latpath_stats::TimeFigures;

/// All lines of the result; `explained` is the breach whose context is shown.
pub fn session(done: &Done, args: &Args, explained: Option<(&BreachedProbe, &BreachContext)>) -> String {
    let r = &done.report;
    let mut lines = vec![head(done, args)];
    lines.push(format!("stamps    {}", stamps(done.taken)));
    lines.push(clocks(r));
    lines.extend(done.notes.iter().map(|note| format!("note      {note}")));
    lines.extend(sent(done, args));
    lines.extend(breach(done, explained));
    if r.round_trip.count > 0 {
        lines.push(String::new());
        lines.extend(round_trips(r));
        lines.push(String::new());
        lines.extend(segments(&r.segments, &r.round_trip));
        if args.detail && !r.detail.is_empty() {
            lines.push(String::new());
            lines.extend(segments(&r.detail, &r.round_trip));
        }
        lines.extend(worst(r));
        if let Some(log) = &done.log {
            let files: Vec<_> = log.files.iter().map(|f| f.display().to_string()).collect();
            let dropped = if log.dropped > 0 { format!(", {} dropped", count(log.dropped)) } else { String::new() };
            lines.push(format!("\nlog       {} transactions in {}{dropped}", count(log.rows), files.join(", ")));
            lines.extend(log.notes.iter().map(|note| format!("note      {note}")));
        }
        if args.drawn.bucket.is_some() {
            lines.push(String::new());
            let beyond = r.overflow.iter().map(|k| (k.round_trip_ns, k.sequence));
            lines.extend(histogram("round trip", &r.histogram, (r.overflow_from_ns, r.overflown), beyond));
        }
    }
    lines.join("\n") + "\n"
}

fn head(done: &Done, args: &Args) -> String {
    let over = done.device.as_ref().map_or(String::new(), |d| format!(" over {d}"));
    let pacing = match args.pacing() {
        Pacing::Every(pace) => format!("{}/s", rate(pace.hz())),
        Pacing::Flood => "as fast as the kernel takes them".into(),
        Pacing::AsAnswersCome => "each when the last answer came".into(),
    };
    format!("{}{over}, {} bytes, {pacing}", done.target, args.size)
}

/// Names of the stamps taken, grouped by their source.
fn stamps(taken: u16) -> String {
    let of = |source: Source| {
        let mut names: Vec<&str> = Stamp::ALL
            .into_iter()
            .filter(|s| s.bit() & taken != 0 && s.source() == source)
            .map(|s| s.name().split(' ').next().unwrap_or(""))
            .collect();
        names.dedup();
        names.join(" ")
    };
    let all = [(Source::Nic, "NIC"), (Source::Kernel, "kernel"), (Source::App, "latpath")];
    let some: Vec<String> = all
        .iter()
        .map(|(s, name)| (of(*s), name))
        .filter(|(t, _)| !t.is_empty())
        .map(|(t, n)| format!("{n} {t}"))
        .collect();
    some.join("; ")
}

fn clocks(r: &Report) -> String {
    let mut text = match (r.clocks, r.error_bound_ns, r.max_error_bound_ns) {
        (Relation::SameKernel, ..) => "clocks    both ends run on one kernel and share its clock".to_string(),
        (Relation::Estimated, Some(now), Some(most)) => format!(
            "clocks    the ends' offset is estimated from the round trips, ± {} (at worst ± {})",
            duration(now),
            duration(most)
        ),
        (Relation::Synchronised, Some(now), _) => {
            format!("clocks    both ends follow one PTP grandmaster, ± {}", duration(now))
        }
        (Relation::Estimated | Relation::Synchronised, ..) => {
            "clocks    the reflector's clock is not known".to_string()
        }
    };
    if let (Relation::Estimated, Some(drift)) = (r.clocks, r.drift_ppb) {
        text += &format!("; the reflector's runs {drift:+} ppb against this one");
    }
    for (whose, clock) in [("the NIC's clock", r.nic_clock), ("the reflector's NIC's", r.reflector_nic_clock)] {
        if let Some(c) = clock {
            text += &format!(
                "\nclocks    {whose} (ptp{}) runs {:+} ppb against its machine's, ± {}",
                c.index,
                c.drift_ppb,
                duration(c.bound)
            );
        }
    }
    for d in &r.disturbances {
        text +=
            &format!("\nclocks    at {}: {}", latpath_stats::units::elapsed((d.at_ns - r.started_ns).max(0)), d.what);
    }
    if r.disturbed > r.disturbances.len() as u64 {
        text += &format!("\nclocks    {} disturbances in all", count(r.disturbed));
    }
    text
}

fn sent(done: &Done, args: &Args) -> Vec<String> {
    let (r, c) = (&done.report, &done.report.counts);
    let hz = if r.elapsed_ns > 0 { c.sent as f64 * 1e9 / r.elapsed_ns as f64 } else { 0.0 };
    let mut lines = vec![format!(
        "sent      {} in {}, {}/s; {} answered, {} lost{}",
        number_of(c.sent, "probe"),
        duration(r.elapsed_ns),
        rate(hz),
        count(c.answered),
        count(c.lost),
        match (c.lost, r.lost_there, r.lost_back) {
            (1.., Some(there), Some(back)) => format!(" ({} to the reflector, {} from it)", count(there), count(back)),
            _ => String::new(),
        }
    )];
    let seen = r.reflector.unwrap_or_default();
    let odd = [
        (c.late, "answers came after their probe was given up"),
        (c.duplicates, "answers came twice"),
        (seen.duplicates, "probes came to the reflector twice"),
        (c.reordered, "answers came out of order"),
        (seen.reordered, "probes came to the reflector out of order"),
        (c.foreign, "messages here were no answers of this session"),
        (seen.foreign, "messages at the reflector were of no session that it knows"),
        (done.ended.restarts, "times the reflector was restarted: what it saw before is not known"),
        (done.ended.dropped, "messages were dropped here: the socket's buffer was full"),
        (seen.dropped, "messages were dropped at the reflector: its socket's buffer was full"),
        (seen.refused, "answers were refused by the reflector's kernel"),
        (c.incomplete, "transactions lack a stamp"),
    ];
    lines.extend(odd.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("          {} {what}", count(*n))));
    if c.refused > 0 {
        let why = done.ended.refusal.as_ref().map_or("a queue was full".into(), ToString::to_string);
        lines.push(format!("          refused by the kernel here, {}: {why}", number_of(c.refused, "probe")));
    }
    lines.extend(
        r.missing.iter().map(|m| format!("missing   {} of {} {}", m.stamp.name(), count(m.count), "transactions")),
    );
    if r.unplaced > 0 {
        let n = count(r.unplaced);
        lines.push(format!(
            "unplaced  the NICs' stamps of {n} transactions: a clock was set or stood still; their segments are left out"
        ));
    }
    // Probes that were due, less a margin for a start between two deadlines.
    let due = args.rate.map_or(0, |pace| (pace.hz() * r.elapsed_ns as f64 / 1e9) as u64);
    let behind = due.saturating_sub(c.sent + c.refused + 1 + due / 10_000);
    if behind > 0 && args.stop_after.count.is_none() {
        lines.push(format!(
            "          this machine did not keep up: {} that were due were not sent",
            number_of(behind, "probe")
        ));
    }
    if done.ended.why == Ok(EndReason::Stopped) {
        lines.push("          stopped before its end".into());
    }
    lines
}

/// The breach that ended the session, or the worst one with a context, and its context.
fn breach(done: &Done, explained: Option<(&BreachedProbe, &BreachContext)>) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Ok(EndReason::Breach), Some(w)) = (&done.ended.why, done.report.worst.first()) {
        let longest =
            w.longest.as_ref().map_or(String::new(), |segment| format!("; longest beyond its median: {segment}"));
        lines.push(format!("breach    probe {} took {}{longest}", w.sequence, duration(w.round_trip_ns)));
    } else if let Some((breach, _)) = explained {
        let took = breach.round_trip_ns.map_or("no time that is known".into(), duration);
        let longest = breach.longest.map(|at| format!("; longest beyond its median: {}", breach.segments[at].name));
        let longest = longest.unwrap_or_default();
        lines.push(format!("breach    probe {} took {took}, the worst that has a context{longest}", breach.sequence));
    }
    lines.extend(explained.iter().flat_map(|(_, context)| breach_context::lines(context)));
    lines
}

fn round_trips(r: &Report) -> Vec<String> {
    let rows = [
        ("round trip", Some(&r.round_trip)),
        ("NIC's round trip", r.nic_round_trip.as_ref()),
        ("reflector NIC's turnaround", r.nic_turnaround.as_ref()),
    ];
    let mut lines = table(&rows.into_iter().filter_map(|(name, times)| Some((name, times?))).collect::<Vec<_>>(), true);
    if let Some(limit) = r.threshold_ns {
        lines.push(format!("over {}: {}", duration(limit), count(r.over_threshold)));
    }
    lines
}

fn segments(segments: &[RoundTripSegmentFigures], round_trip: &TimeFigures) -> Vec<String> {
    let heads = ["<segment", "<from → to", "min", "p50", "p95", "p99", "p99.9", "max", "share", "±", "<"];
    let mut table = Table::new(&heads);
    for p in segments {
        let t = &p.times;
        let share = if round_trip.mean_ns > 0 { 100.0 * t.mean_ns as f64 / round_trip.mean_ns as f64 } else { 0.0 };
        let bound = match p.error_bound_ns {
            Some(0) => "0".into(),
            Some(ns) => duration(ns),
            None => "?".into(),
        };
        let known = |figure: String| if t.count == 0 { "-".into() } else { figure };
        let times = [t.min_ns, t.p50_ns, t.p95_ns, t.p99_ns, t.p99_9_ns, t.max_ns].map(|ns| known(duration(ns)));
        let negative =
            if t.negative > 0 { format!("{} below 0: a clock's fault", count(t.negative)) } else { String::new() };
        let names = [p.name.to_string(), format!("{} → {}", p.from.name(), p.to.name())];
        table.row(names.into_iter().chain(times).chain([known(format!("{share:.1}%")), bound, negative]).collect());
    }
    table_lines(&table)
}

fn worst(r: &Report) -> Vec<String> {
    if r.worst.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(&["worst", "probe", "<longest beyond its median", "<"]);
    for w in &r.worst {
        let segments: Vec<String> = w.segments_ns.iter().map(|p| cell(*p)).collect();
        let longest = w.longest.clone().unwrap_or_else(|| "-".into());
        table.row(vec![
            duration(w.round_trip_ns),
            w.sequence.to_string(),
            longest,
            format!("({})", segments.join(" + ")),
        ]);
    }
    [vec![String::new()], table_lines(&table)].concat()
}
