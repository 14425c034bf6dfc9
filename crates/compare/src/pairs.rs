//! Pairs the segments of two groups.
//!
//! Device names vary between hosts and set-ups (`vnet0`, `vnet7`, `tap3`). Two segments are therefore the same if their
//! names are equal, and the machines and point kinds of both ends. The name of a step between neighbouring points
//! contains the points' names, so steps are matched by their ends alone.

use crate::recording::{Measured, Recording};
use latpath_model::{Ns, SegmentKind};
use latpath_stats::Band;

/// One segment in each recording of both groups.
pub struct Pair<'a> {
    pub a: Vec<&'a Measured>,
    pub b: Vec<&'a Measured>,
}

impl Pair<'_> {
    /// Error bound of the difference, ns; `None` if one is unknown. A group's clocks may have the same error in all
    /// recordings, so the bounds of the two groups are added.
    pub fn error_bound_ns(&self) -> Option<Ns> {
        let most = |side: &[&Measured]| side.iter().map(|m| m.error_bound_ns).try_fold(0, |most, b| Some(b?.max(most)));
        Some(most(&self.a)?.saturating_add(most(&self.b)?))
    }

    /// The band given by the user.
    pub fn band(&self) -> Option<Band> {
        self.a.iter().chain(&self.b).find_map(|m| m.in_band).map(|(band, _)| band)
    }
}

/// Point without its device name: `host/tx` for `host/tx@vnet0`.
fn place(point: &str) -> &str {
    point.split('@').next().unwrap_or(point)
}

/// Identity of a segment without device names: stream, name, first point, last point, and the number of earlier
/// segments of the recording for which these are the same, since streams may take several routes.
type Key<'a> = (&'a Option<String>, &'a str, &'a str, &'a str, usize);

fn keys(recording: &Recording) -> Vec<Key<'_>> {
    let mut keys: Vec<Key> = Vec::new();
    for m in &recording.segments {
        let name = if m.kind == SegmentKind::Step { "" } else { m.name.as_str() };
        let key = (&m.stream, name, place(&m.from), place(&m.to));
        let before = keys.iter().filter(|k| (k.0, k.1, k.2, k.3) == key).count();
        keys.push((key.0, key.1, key.2, key.3, before));
    }
    keys
}

/// The segments that all recordings have, and notes on the others.
pub fn pairs<'a>(
    (a_name, a): (&str, &'a [Recording]),
    (b_name, b): (&str, &'a [Recording]),
) -> (Vec<Pair<'a>>, Vec<String>) {
    let all: Vec<_> = a.iter().chain(b).map(|r| (r, keys(r))).collect();
    let find = |(recording, keys): &(&'a Recording, Vec<Key>), key: &Key| {
        keys.iter().position(|k| k == key).map(|at| &recording.segments[at])
    };
    let (mut pairs, mut notes) = (Vec::new(), Vec::new());
    let mut seen: Vec<Key> = Vec::new();
    for (recording, keys) in &all {
        for (key, segment) in keys.iter().zip(&recording.segments) {
            if seen.contains(key) {
                continue;
            }
            seen.push(*key);
            let found: Vec<_> = all.iter().map(|one| find(one, key)).collect();
            match found.iter().copied().collect::<Option<Vec<_>>>() {
                Some(everywhere) => {
                    pairs.push(Pair { a: everywhere[..a.len()].to_vec(), b: everywhere[a.len()..].to_vec() });
                }
                None => notes.push(missing(segment, &found, &all, (a_name, b_name), a.len())),
            }
        }
    }
    (pairs, notes)
}

fn missing(
    segment: &Measured,
    found: &[Option<&Measured>],
    all: &[(&Recording, Vec<Key>)],
    (a, b): (&str, &str),
    split: usize,
) -> String {
    let ends = format!("{} ({} to {})", segment.name, place(&segment.from), place(&segment.to));
    let has = |side: &[Option<&Measured>]| (side.iter().all(Option::is_some), side.iter().any(Option::is_some));
    match (has(&found[..split]), has(&found[split..])) {
        ((true, _), (_, false)) => format!("{ends}: not comparable: {b} has no such segment"),
        ((_, false), (true, _)) => format!("{ends}: not comparable: {a} has no such segment"),
        _ => {
            let lacks = found.iter().zip(all).find(|(m, _)| m.is_none()).map_or("", |(_, (r, _))| r.path.as_str());
            format!("{ends}: not comparable: {lacks} has no such segment")
        }
    }
}
