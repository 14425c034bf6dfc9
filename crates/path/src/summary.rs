//! Groups packets by path, and measures the stages of each path.

use crate::packet::{Packet, Step};
use latpath_model::{Ns, Point, HOST};
use std::collections::HashMap;

/// A step common to all packets of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The function or tracepoint.
    pub name: String,
    /// The device; empty for none.
    pub device: String,
    /// Index of the skb: 0 for the first skb.
    pub skb: usize,
    /// Median time since the packet was first seen, ns.
    pub since_first: Ns,
    /// Median time since the previous hop, ns.
    pub since_last: Ns,
}

/// Consecutive hops on one device and CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The device; empty for none.
    pub device: String,
    /// Name of the most common thread at its first hop.
    pub thread: String,
    /// Name of its first hop.
    pub first: String,
    /// Name of its last hop.
    pub last: String,
    /// Number of hops.
    pub hops: usize,
    /// Median time from its first hop to its last, ns.
    pub took: Ns,
    /// Median time from the previous stage's last hop to its first, ns.
    pub since_last: Ns,
}

/// A path taken by packets.
#[derive(Clone, Debug)]
pub struct Path {
    /// Numbers of the packets.
    pub packets: Vec<u32>,
    /// Hops, in order of their median times.
    pub hops: Vec<Hop>,
    /// The hops, combined into stages.
    pub stages: Vec<Stage>,
    /// Points at which `latpath record` would record the packets, in order.
    pub points: Vec<Point>,
}

/// The median; for an even number of times, the lower of the two middle ones; 0 if there are none.
fn median(mut times: Vec<Ns>) -> Ns {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// Orders the steps independently of how the CPUs' events interleave: CPU by CPU, in order of first appearance. On each
/// CPU, the steps stay in order of time.
fn cpu_order(packet: &Packet) -> Vec<usize> {
    let mut cpus: Vec<u16> = Vec::new();
    for step in &packet.steps {
        if !cpus.contains(&step.cpu) {
            cpus.push(step.cpu);
        }
    }
    let mut order: Vec<usize> = (0..packet.steps.len()).collect();
    order.sort_by_key(|i| cpus.iter().position(|c| *c == packet.steps[*i].cpu));
    order
}

/// Identity of a path: name, device and skb of each step.
type Signature<'a> = Vec<(&'a str, &'a str, usize)>;

fn signature(packet: &Packet) -> Signature<'_> {
    let of = |i: usize| {
        let s = &packet.steps[i];
        (s.what.name(), s.device.as_str(), s.skb)
    };
    cpu_order(packet).into_iter().map(of).collect()
}

/// The paths, most frequent first.
pub fn paths(packets: &[Packet]) -> Vec<Path> {
    let mut groups: Vec<Vec<&Packet>> = Vec::new();
    let mut place: HashMap<Signature<'_>, usize> = HashMap::new();
    for packet in packets.iter().filter(|p| !p.steps.is_empty()) {
        let at = *place.entry(signature(packet)).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Vec::new());
        }
        groups[at].push(packet);
    }
    let mut paths: Vec<Path> = groups.iter().map(|packets| path(packets)).collect();
    paths.sort_by_key(|p| std::cmp::Reverse(p.packets.len()));
    paths
}

/// Summarises packets with the same signature.
fn path(packets: &[&Packet]) -> Path {
    let orders: Vec<Vec<usize>> = packets.iter().map(|p| cpu_order(p)).collect();
    let step = |p: usize, i: usize| -> &Step { &packets[p].steps[orders[p][i]] };
    let all = 0..packets.len();
    let since_first = |i: usize| median(all.clone().map(|p| step(p, i).t - packets[p].began()).collect());
    let mut in_time: Vec<(Ns, usize)> = (0..orders[0].len()).map(|i| (since_first(i), i)).collect();
    in_time.sort();
    let between = |from: usize, to: usize| median(all.clone().map(|p| step(p, to).t - step(p, from).t).collect());
    let hops: Vec<Hop> = in_time
        .iter()
        .enumerate()
        .map(|(n, (since_first, i))| Hop {
            name: step(0, *i).what.name().into(),
            device: step(0, *i).device.clone(),
            skb: step(0, *i).skb,
            since_first: *since_first,
            since_last: if n == 0 { 0 } else { between(in_time[n - 1].1, *i) },
        })
        .collect();
    let cpu_of = |i: usize| step(0, i).cpu;
    let mut cuts: Vec<usize> = (0..in_time.len())
        .filter(|n| {
            *n == 0 || {
                let (before, this) = (in_time[n - 1].1, in_time[*n].1);
                hops[n - 1].device != hops[*n].device || cpu_of(before) != cpu_of(this)
            }
        })
        .collect();
    cuts.push(in_time.len());
    let stages = cuts.windows(2).map(|cut| {
        let (from, to) = (in_time[cut[0]].1, in_time[cut[1] - 1].1);
        Stage {
            device: hops[cut[0]].device.clone(),
            thread: commonest(all.clone().map(|p| step(p, from).thread.as_str())),
            first: hops[cut[0]].name.clone(),
            last: hops[cut[1] - 1].name.clone(),
            hops: cut[1] - cut[0],
            took: between(from, to),
            since_last: hops[cut[0]].since_last,
        }
    });
    let stages = stages.collect();
    let sorted = in_time.iter().map(|(_, i)| step(0, *i));
    Path { packets: packets.iter().map(|p| p.number).collect(), hops, stages, points: points_of(sorted) }
}

/// The most common name; among equally common ones, the alphabetically first.
fn commonest<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    names.for_each(|n| *counts.entry(n).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
    counts.first().map_or(String::new(), |(name, _)| name.to_string())
}

/// The points at which steps are sightings, without duplicates.
fn points_of<'a>(steps: impl Iterator<Item = &'a Step>) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for (kind, device) in steps.filter_map(|s| s.point.as_ref()) {
        let point = Point { machine: HOST.into(), kind: *kind, device: device.clone() };
        if !points.contains(&point) {
            points.push(point);
        }
    }
    points
}

/// The points for `record`: those of all paths, in the order of the most frequent path. Drops are always recorded and
/// need no point.
pub fn points(paths: &[Path]) -> Vec<Point> {
    let mut all: Vec<Point> = Vec::new();
    for point in paths.iter().flat_map(|p| &p.points).filter(|p| !p.kind.is_drop()) {
        if !all.contains(point) {
            all.push(point.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::StepKind;

    fn step(t: Ns, cpu: u16, name: &str, device: &str) -> Step {
        Step {
            t,
            cpu,
            pid: 1,
            tid: 1,
            thread: "t".into(),
            device: device.into(),
            netns: 1,
            ifindex: 1,
            what: StepKind::Function(name.into()),
            skb: 0,
            len: 100,
            same_bytes: false,
            drop: None,
            point: None,
        }
    }

    fn packet(number: u32, steps: Vec<Step>) -> Packet {
        let mut packet = Packet::new(number);
        packet.steps = steps;
        packet
    }

    #[test]
    fn packets_of_one_path_are_joined_with_median_times() {
        let taken = |number, base: Ns, gap: Ns| {
            packet(number, vec![step(base, 0, "a", "x"), step(base + gap, 0, "b", "x"), step(base + 100, 1, "c", "y")])
        };
        let odd = packet(3, vec![step(5, 0, "a", "x"), step(6, 0, "dropped", "x")]);
        let found = paths(&[taken(0, 0, 10), taken(1, 1000, 30), odd, taken(2, 2000, 20)]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].packets, [0, 1, 2]);
        let hops: Vec<_> = found[0].hops.iter().map(|h| (h.name.as_str(), h.since_first, h.since_last)).collect();
        assert_eq!(hops, [("a", 0, 0), ("b", 20, 20), ("c", 100, 80)]);
        let stages: Vec<_> =
            found[0].stages.iter().map(|s| (s.device.as_str(), s.hops, s.took, s.since_last)).collect();
        assert_eq!(stages, [("x", 2, 20, 0), ("y", 1, 0, 80)]);
        assert_eq!(found[1].packets, [3]);
    }

    #[test]
    fn interleaving_of_two_cpus_makes_no_other_path() {
        let one = vec![step(0, 0, "wake", "x"), step(5, 1, "read", "y"), step(9, 0, "done", "x")];
        let two = vec![step(0, 1, "wake", "x"), step(2, 1, "done", "x"), step(7, 0, "read", "y")];
        assert_eq!(paths(&[packet(0, one), packet(1, two)]).len(), 1);
    }

    #[test]
    fn no_packets_are_no_paths() {
        assert!(paths(&[]).is_empty());
        assert!(paths(&[packet(0, vec![])]).is_empty());
    }
}
