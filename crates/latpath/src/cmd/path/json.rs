//! Output of `latpath path --json`, described in docs/path.md.

use super::SearchResult;
use latpath_clock::TimeOfDay;
use latpath_path::{paths, points, Counts, Packet, Path, Step, StepKind};
use serde_json::{json, Value};

/// The result as one JSON object.
pub fn render(found: &SearchResult) -> Value {
    let routes = paths(&found.packets);
    let total: usize = routes.iter().map(|route| route.packets.len()).sum();
    let how = &found.how;
    json!({
        "attached": {
            "with": how.with.name(),
            "functions": how.functions,
            "functions_known": how.functions_known,
            "functions_shown": how.functions_shown,
            "tracepoints": how.tracepoints,
            "took_ns": how.took.as_nanos() as u64,
        },
        "packets": found.packets.iter().map(|p| packet(p, &found.time_of_day)).collect::<Vec<_>>(),
        "paths": routes.iter().map(|route| path(route, total)).collect::<Vec<_>>(),
        "points": points(&routes).iter().map(ToString::to_string).collect::<Vec<_>>(),
        "lost": lost(&found.counts),
        "notes": how.notes,
    })
}

fn lost(counts: &Counts) -> Value {
    json!({
        "events": counts.events_lost,
        "copies": counts.skbs_lost,
        "recursion_misses": counts.recursion_misses,
        "unreadable": counts.unreadable,
        "beyond_filter": counts.beyond,
        "packets_not_followed": counts.packets_over,
        "packets_looked_at": counts.looked_at,
    })
}

fn packet(packet: &Packet, time_of_day: &TimeOfDay) -> Value {
    let began = packet.began();
    let mut before = began;
    let mut steps = Vec::new();
    for s in &packet.steps {
        steps.push(step(s, began, before));
        before = s.t;
    }
    json!({
        "packet": packet.number + 1,
        "time_ns": time_of_day.utc(began),
        "monotonic_ns": began,
        "steps": steps,
    })
}

fn step(s: &Step, began: i64, before: i64) -> Value {
    let (kind, copy) = match &s.what {
        StepKind::Function(_) => ("function", None),
        StepKind::Tracepoint(_) => ("tracepoint", None),
        StepKind::Copy { to, .. } => ("copy", Some(to)),
    };
    json!({
        "since_first_ns": s.t - began,
        "since_last_ns": s.t - before,
        "cpu": s.cpu,
        "pid": s.pid,
        "tid": s.tid,
        "thread": s.thread,
        "device": (!s.device.is_empty()).then_some(&s.device),
        "netns": (s.netns != 0).then_some(s.netns),
        "ifindex": (s.ifindex != 0).then_some(s.ifindex),
        "kind": kind,
        "name": s.what.name(),
        "skb": s.skb,
        "copy": copy,
        "length": s.len,
        "same_bytes": s.same_bytes,
        "reason": s.drop.as_ref().map(|(reason, _)| reason),
        "dropped_in": s.drop.as_ref().map(|(_, function)| function),
        "point": s.point.as_ref().map(|(kind, device)| format!("host/{kind}@{device}")),
    })
}

fn path(route: &Path, total: usize) -> Value {
    let hops = route.hops.iter().map(|h| {
        json!({
            "name": h.name,
            "device": (!h.device.is_empty()).then_some(&h.device),
            "skb": h.skb,
            "since_first_p50_ns": h.since_first,
            "since_last_p50_ns": h.since_last,
        })
    });
    let stages = route.stages.iter().map(|s| {
        json!({
            "device": (!s.device.is_empty()).then_some(&s.device),
            "thread": s.thread,
            "first": s.first,
            "last": s.last,
            "hops": s.hops,
            "took_p50_ns": s.took,
            "since_last_p50_ns": s.since_last,
        })
    });
    json!({
        "packets": route.packets.iter().map(|n| n + 1).collect::<Vec<_>>(),
        "share": route.packets.len() as f64 / total.max(1) as f64,
        "hops": hops.collect::<Vec<_>>(),
        "stages": stages.collect::<Vec<_>>(),
        "points": route.points.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
