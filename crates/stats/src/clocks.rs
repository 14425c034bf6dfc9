//! Figures of the host's clocks, and of packets while the clocks were disturbed and while they were not.

use crate::SegmentFigures;
use latpath_clock::TimeOfDay;
use latpath_model::Ns;
use latpath_timesync::{LinkState, SyncEventKind, SyncHistory};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Synchronisation of the host's clocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockFigures {
    /// The links, each between a clock and the reference that it followed.
    pub links: Vec<ClockLinkFigures>,
    /// Events, in the order in which they were noticed.
    pub events: Vec<ClockEventFigures>,
    /// Figures of packets while clocks were disturbed, and of all others; `None` without events (only in reports).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disordered: Option<DisorderedFigures>,
}

/// Figures of the link between a clock and its reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockLinkFigures {
    /// The clock, e.g. `system clock`, `ptp0 (eth0)`.
    pub clock: String,
    /// Its reference; empty if it has none.
    pub follows: String,
    /// The daemon that steered it; empty if there was none.
    pub by: String,
    /// The last state.
    pub state: LinkState,
    /// Number of readings with an offset.
    pub readings: u64,
    /// Smallest offset, ns; `None` without readings.
    pub min_ns: Option<Ns>,
    /// Mean offset, ns.
    pub mean_ns: Option<Ns>,
    /// Largest offset, ns.
    pub max_ns: Option<Ns>,
    /// Largest error bound, ns; `None` if it was unknown at some time.
    pub error_bound_ns: Option<Ns>,
}

/// An event of a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClockEventFigures {
    /// Its kind.
    pub kind: SyncEventKind,
    /// The clock.
    pub clock: String,
    /// Earliest possible start, relative to the recording's start, ns.
    pub since_start_ns: Ns,
    /// Earliest possible start, UTC, ns.
    pub time_ns: Ns,
    /// Time from that start until the event was noticed, ns.
    pub noticed_after_ns: Ns,
    /// Time from that start until the clock was stable again, ns; `None` if it was not until the end.
    pub lasted_ns: Option<Ns>,
    /// Description.
    pub text: String,
}

/// Figures of packets while clocks were disturbed, and of all others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DisorderedFigures {
    /// Total time for which clocks were disturbed, ns.
    pub elapsed_ns: Ns,
    /// Number of packets first seen in that time.
    pub packets: u64,
    /// Figures of the segments for these packets.
    pub disordered: Vec<SegmentFigures>,
    /// Figures of the segments for all other packets.
    pub in_order: Vec<SegmentFigures>,
}

impl ClockFigures {
    /// The figures of a history; `None` if the history is empty. `start`: start of the measurement, `CLOCK_MONOTONIC`,
    /// ns.
    pub fn of(history: &SyncHistory, time_of_day: &TimeOfDay, start: Ns) -> Option<Self> {
        if history.is_empty() {
            return None;
        }
        let link = |link: &latpath_timesync::SyncSample| {
            let measured = |ns: Ns| (link.readings > 0).then_some(ns);
            ClockLinkFigures {
                clock: link.clock.clone(),
                follows: link.follows.clone(),
                by: link.by.clone(),
                state: link.state,
                readings: link.readings,
                min_ns: measured(link.min_ns),
                mean_ns: link.mean_ns(),
                max_ns: measured(link.max_ns),
                error_bound_ns: link.bound_ns,
            }
        };
        let event = |event: &latpath_timesync::SyncEvent| ClockEventFigures {
            kind: event.kind,
            clock: event.clock.clone(),
            since_start_ns: event.from_ns.saturating_sub(start),
            time_ns: time_of_day.utc(event.from_ns),
            noticed_after_ns: event.noticed_ns.saturating_sub(event.from_ns),
            lasted_ns: event.until_ns.map(|until| until.saturating_sub(event.from_ns)),
            text: event.text.clone(),
        };
        Some(Self {
            links: history.links.iter().map(link).collect(),
            events: history.events.iter().map(event).collect(),
            disordered: None,
        })
    }
}
