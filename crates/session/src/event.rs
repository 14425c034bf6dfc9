//! The events that a session reports while it runs.

use latpath_capture::{CaptureKind, CaptureRequest, RankedCapture};
use latpath_model::{Ns, StreamId, StreamSpec};
use latpath_timesync::SyncEvent;
use serde::Serialize;
use std::collections::VecDeque;
use std::path::PathBuf;

/// Maximum number of queued events.
const MAX_WAITING: usize = 1024;

/// An event of a session, reported once. Times are in ns of the host's `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The route of the packets was found, or has changed.
    Route {
        /// Its points, in the order in which packets pass them.
        points: Vec<String>,
    },
    /// No packet of a stream has arrived for [`PATIENCE`](crate::PATIENCE).
    StreamAbsent {
        /// Name of the stream.
        stream: String,
        /// Time waited so far, ns.
        waited_ns: Ns,
        /// Whether frames of this protocol contain stream names, so that its streams can be listed.
        is_listed: bool,
    },
    /// The first packet of a stream that was reported absent has arrived.
    StreamArrived {
        /// Name of the stream.
        stream: String,
        /// Time from the start of the wait, ns.
        after_ns: Ns,
    },
    /// No packet was seen at any point that matches this pattern set by the user.
    PointUnseen {
        /// The user's pattern.
        pattern: String,
        /// The points that saw packets.
        points: Vec<String>,
    },
    /// No packet was seen at one end of this segment set by the user.
    SegmentUnseen {
        /// The segment, as `NAME=FROM..TO`.
        segment: String,
        /// The points that saw packets.
        points: Vec<String>,
    },
    /// A packet was late, and the flight recorders capture the events around it.
    LatePacket {
        /// Number of the capture.
        capture: u32,
        /// Name of the stream.
        stream: String,
        /// Number of the packet in its stream.
        packet: u64,
        /// Its latency.
        took_ns: Ns,
        /// Start of the captured window.
        from_ns: Ns,
        /// End of the captured window.
        to_ns: Ns,
    },
    /// A capture of all machines is complete.
    Captured {
        /// Number of the capture.
        capture: u32,
        /// Number of late packets in it; 0 for a baseline.
        late: u64,
        /// Latency of its slowest packet; 0 for a baseline.
        worst_ns: Ns,
    },
    /// The recording lacks the names of some virtual machines.
    VmsUnnamed {
        /// The machine that runs them, and the reason.
        why: String,
    },
    /// The recording has reached its maximum size on disk, and ends.
    SizeReached {
        /// The maximum.
        max_bytes: u64,
    },
    /// A note on the kernel's own trace.
    TraceNote {
        /// The note, for the user.
        text: String,
    },
    /// The kernel's own trace was saved to this file.
    TraceSaved {
        /// The file.
        path: PathBuf,
    },
    /// The kernel's own trace, or a part of it, is missing.
    TraceFailed {
        /// The reason.
        why: String,
    },
    /// A disturbance of one of this host's clocks began or ended.
    Clock {
        /// The event; its end is the time from which the clock was stable again.
        clock: SyncEvent,
    },
    /// Events were dropped here, because the caller did not take them in time.
    Dropped {
        /// Number of dropped events.
        events: u64,
    },
}

/// Name of a stream, as the user wrote it; empty if unknown.
pub(crate) fn stream_name(streams: &[StreamSpec], stream: StreamId) -> String {
    streams.get(usize::from(stream)).map(ToString::to_string).unwrap_or_default()
}

impl Event {
    pub(crate) fn late(request: &CaptureRequest, streams: &[StreamSpec]) -> Self {
        let CaptureRequest { number, worst, packet, from, to, stream, .. } = *request;
        let stream = stream_name(streams, stream);
        Self::LatePacket { capture: number, stream, packet, took_ns: worst, from_ns: from, to_ns: to }
    }

    pub(crate) fn captured(ranked: &RankedCapture) -> Self {
        let late = match ranked.capture.kind {
            CaptureKind::Spike => ranked.late.iter().sum(),
            CaptureKind::Baseline => 0,
        };
        Self::Captured { capture: ranked.capture.number, late, worst_ns: ranked.worst }
    }
}

/// A bounded queue of events for the caller. If it is full, new events are counted and dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventQueue {
    waiting: VecDeque<Event>,
    dropped: u64,
}

impl EventQueue {
    pub fn push(&mut self, event: Event) {
        match self.waiting.len() < MAX_WAITING {
            true => self.waiting.push_back(event),
            false => self.dropped += 1,
        }
    }

    /// Takes the next event. After the last one, [`Event::Dropped`] reports the number of dropped events.
    pub fn pop(&mut self) -> Option<Event> {
        let next = self.waiting.pop_front();
        next.or_else(|| match std::mem::take(&mut self.dropped) {
            0 => None,
            events => Some(Event::Dropped { events }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_nobody_takes_are_bounded_and_counted() {
        let mut queue = EventQueue::default();
        for max_bytes in 0..MAX_WAITING as u64 + 7 {
            queue.push(Event::SizeReached { max_bytes });
        }
        let taken: Vec<Event> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(taken.len(), MAX_WAITING + 1);
        assert_eq!(taken[0], Event::SizeReached { max_bytes: 0 });
        assert_eq!(taken.last(), Some(&Event::Dropped { events: 7 }));
        let json = serde_json::to_string(&taken[MAX_WAITING]).unwrap();
        assert_eq!(json, r#"{"event":"dropped","events":7}"#);
    }
}
