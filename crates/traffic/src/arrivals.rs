//! Arrivals of frames that carry their send time: latency, slots of a schedule, deadlines.

mod clock;
mod send_time;
mod slots;

pub use clock::ArrivalClock;
pub use send_time::{BadSendTime, SendTime};
pub use slots::{SlotClass, SlotCounts, SlotRule, MAX_CYCLES};

use latpath_histogram::Histogram;
use latpath_model::Ns;
use latpath_protocols::Tag;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of frames listed, those with the longest latencies.
const LISTED: usize = 10;

/// How to measure frames that carry their send time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalOptions {
    /// Where the send time is in a frame.
    pub send_time: SendTime,
    /// The slots of the schedule.
    pub slots: Option<SlotRule>,
    /// Maximum latency of a frame that arrives in time, ns.
    pub deadline: Option<Ns>,
    /// Maximum error between the sender's clock and the clock of the arrivals, ns; `None` if unknown.
    pub bound: Option<Ns>,
}

/// A frame with a long latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LateFrame {
    /// Its number (smpCnt).
    pub key: u32,
    /// Its send time by the sender's clock, ns.
    #[serde(rename = "send_time_ns")]
    pub send_time: Ns,
    /// Arrival minus send time, ns.
    #[serde(rename = "latency_ns")]
    pub latency: Ns,
}

/// Arrivals of a stream's frames.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// Arrival minus send time, ns. Negative if the clock error exceeds the true latency.
    pub latency: Histogram,
    /// Number of frames by slot: in_slot + early + late = frames with a latency.
    pub slots: SlotCounts,
    /// Distance of arrivals from their slots, ns: 0 in the slot, negative before it.
    pub slot_error: Histogram,
    /// Frames that arrived after their deadline.
    pub deadline_missed: u64,
    /// Number of frames that have no readable send time or no arrival time, and so neither latency nor slot.
    pub untimed: u64,
    /// Number of frames by the priority in their VLAN tag (PCP); the last element counts untagged frames.
    pub pcp: [u64; 9],
    /// The frames with the longest latencies, longest first.
    pub latest: Vec<LateFrame>,
}

impl Arrivals {
    /// Adds a frame. `times` are its send time and its arrival, both by the sender's clock.
    pub fn note(&mut self, options: &ArrivalOptions, times: Option<(Ns, Ns)>, key: u32, tag: Option<Tag>) {
        self.pcp[tag.map_or(8, |tag| usize::from(tag.priority()))] += 1;
        let Some((send_time, arrival)) = times else {
            self.untimed += 1;
            return;
        };
        let latency = arrival.saturating_sub(send_time);
        self.latency.record(latency);
        if let Some(rule) = &options.slots {
            self.slot_error.record(rule.error(latency));
            self.slots.note(rule, latency, options.bound.unwrap_or(0));
        }
        self.deadline_missed += u64::from(options.deadline.is_some_and(|deadline| latency > deadline));
        if self.latest.len() < LISTED || self.latest.last().is_some_and(|last| latency > last.latency) {
            let at = self.latest.partition_point(|frame| frame.latency >= latency);
            self.latest.insert(at, LateFrame { key, send_time, latency });
            self.latest.truncate(LISTED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_by_deadline_and_priority_and_the_latest_are_listed() {
        let options = ArrivalOptions {
            send_time: "publish".parse().unwrap(),
            slots: Some(SlotRule { cycle: 1000, from: 0, to: 100 }),
            deadline: Some(500),
            bound: Some(0),
        };
        let mut arrivals = Arrivals::default();
        for n in 0..100 {
            let tag = (n % 2 == 0).then(|| Tag::new(5, 6));
            arrivals.note(&options, Some((1_000_000, 1_000_000 + Ns::from(n) * 10)), n, tag);
        }
        arrivals.note(&options, None, 100, None);
        // The latencies are 0, 10, … 990 ns.
        assert_eq!((arrivals.deadline_missed, arrivals.untimed, arrivals.latency.count()), (49, 1, 100));
        assert_eq!((arrivals.pcp[6], arrivals.pcp[8]), (50, 51));
        let latest: Vec<_> = arrivals.latest.iter().map(|frame| (frame.key, frame.latency)).collect();
        assert_eq!(latest, (0..10).map(|i| (99 - i, 990 - Ns::from(i) * 10)).collect::<Vec<_>>());
        assert_eq!(arrivals.slots.total(), 100);
    }
}
