//! Estimates the offset of a machine's clock from the first file's clock, from the packets themselves.
//!
//! A packet cannot arrive before it was sent, and the user gives the maximum time that the fastest packet in each 10 s
//! takes. So if `d` is the smallest difference between the two files' times in such an interval, the offset in it lies
//! in `d - most ..= d`. The estimate is the middle of the range that all intervals permit, widened by the offset's
//! change from one interval to the next; its bound is half of that range.

use crate::{
    chosen::{StreamSelection, Streams},
    clock::{not_named, Offset, OffsetMethod},
    file,
    merge::Feed,
    options::{Estimate, Options},
    ImportError,
};
use latpath_model::{Ns, Sighting, StreamId};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Length of an interval, ns: the fastest packet in each takes at most the time given by the user.
const INTERVAL: Ns = 10_000_000_000;
/// Minimum number of packets for an interval to be used.
const MIN: u64 = 100;

/// Smallest difference between the two files' times of a packet in one interval.
#[derive(Default)]
struct Fastest {
    packets: u64,
    difference: Option<Ns>,
}

/// Estimates the offset between the clocks of the first file and of the first file from the requested machine.
pub(crate) fn estimate(options: &Options, request: &Estimate) -> Result<Offset, ImportError> {
    let other = options.sources.iter().position(|source| source.point.machine == request.machine);
    let Some(other) = other.filter(|at| *at > 0) else {
        let mut machines: Vec<&str> = options.sources.iter().map(|source| source.point.machine.as_str()).collect();
        machines.dedup();
        return Err(not_named(&request.machine, &machines));
    };
    let chosen = StreamSelection(options.streams.clone());
    let intervals = std::thread::scope(|scope| {
        let mut feeds = [0, other].map(|at| {
            let from = file::begin(scope, &options.sources[at], (options, &chosen), Arc::default());
            Feed::new(u16::from(at > 0), 0, from)
        });
        fastest(&mut feeds, options.window / 2)
    })?;
    let enough = intervals.values().filter(|interval| interval.packets >= MIN);
    let differences: Vec<Ns> = enough.filter_map(|interval| interval.difference).collect();
    let (Some(least), Some(most)) = (differences.iter().min(), differences.iter().max()) else {
        return Err(ImportError::NoEstimate { machine: request.machine.clone(), within: options.window / 2 });
    };
    // Within an interval, the offset may change by as much as from one interval to the next.
    let step = differences.windows(2).map(|two| two[1].saturating_sub(two[0]).saturating_abs()).max().unwrap_or(0);
    let (low, high) = (least.saturating_sub(request.most_ns).saturating_sub(step), most.saturating_add(step));
    let bound = high.saturating_sub(low).saturating_add(1) / 2;
    let ns = low.saturating_add(high.saturating_sub(low) / 2);
    Ok(Offset { machine: request.machine.clone(), ns, bound_ns: Some(bound), method: OffsetMethod::Estimated })
}

/// Number of kept packets at which those too old to match are discarded.
const MAX_KEYS: usize = 1 << 18;

/// The smallest difference in each interval, from packets whose times in the two files are at most `within` apart.
fn fastest(feeds: &mut [Feed; 2], within: Ns) -> Result<BTreeMap<i64, Fastest>, ImportError> {
    let mut streams = Streams::default();
    let mut newest: [HashMap<(StreamId, u32), Ns>; 2] = Default::default();
    let mut intervals: BTreeMap<i64, Fastest> = BTreeMap::new();
    let mut room = [MAX_KEYS; 2];
    loop {
        let next = [feeds[0].next(&mut streams)?, feeds[1].next(&mut streams)?];
        let which = usize::from(next[1] < next[0]);
        if next[which] == Ns::MAX {
            return Ok(intervals);
        }
        feeds[which].drain(next[1 - which], &mut |s: &Sighting, _| {
            newest[which].insert((s.stream, s.key), s.t);
            if newest[which].len() > room[which] {
                // Packets older than this are even further from all later packets, so they cannot match.
                newest[which].retain(|_, t| s.t.saturating_sub(*t) <= within);
                room[which] = (2 * newest[which].len()).max(MAX_KEYS);
            }
            let Some(opposite) = newest[1 - which].get(&(s.stream, s.key)) else { return };
            let (sent, arrived) = if which == 1 { (*opposite, s.t) } else { (s.t, *opposite) };
            let difference = arrived.saturating_sub(sent);
            if difference.saturating_abs() <= within {
                let interval = intervals.entry(sent.div_euclid(INTERVAL)).or_default();
                interval.packets += 1;
                interval.difference = Some(interval.difference.map_or(difference, |least| least.min(difference)));
            }
        });
    }
}
