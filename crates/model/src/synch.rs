//! smpSynch of Sampled Values streams: the synchronisation of the sender's sampling clock, as reported in its packets.

use crate::{Ns, PointId, StreamId};

/// Time without sightings after which a point no longer represents a stream, ns.
const MAX_SILENCE: Ns = 1_000_000_000;
/// Maximum number of pending changes: a sender that changes smpSynch with each packet must not fill memory.
const MAX_CHANGES: usize = 1024;

/// The synchronisation that a stream's packets report, beginning with one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynchChange {
    /// The stream.
    pub stream: StreamId,
    /// Key of the first packet with this smpSynch.
    pub key: u32,
    /// Time of that packet, ns.
    pub t: Ns,
    /// smpSynch: 0 none, 1 local, 2 global, 5 to 254 a local area clock.
    pub synch: u8,
}

impl SynchChange {
    /// smpSynch of a sender whose clock is synchronised to UTC.
    pub const GLOBAL: u8 = 2;

    /// Whether the sender's clock is synchronised to UTC from this packet on.
    pub fn is_global(&self) -> bool {
        self.synch == Self::GLOBAL
    }
}

/// Detects changes of smpSynch. Only one point counts for each stream, since older packets may arrive later at other
/// points.
#[derive(Debug, Default)]
pub struct SynchWatch {
    streams: Vec<Option<SynchReport>>,
    changes: Vec<SynchChange>,
}

/// The state of one stream, at the point that represents it.
#[derive(Clone, Copy, Debug)]
struct SynchReport {
    point: PointId,
    t: Ns,
    synch: u8,
}

impl SynchWatch {
    /// Adds the report of a packet at this point. Returns whether changes are pending.
    #[inline]
    pub fn see(&mut self, point: PointId, report: SynchChange) -> bool {
        let at = usize::from(report.stream);
        if at >= self.streams.len() {
            self.streams.resize(at + 1, None);
        }
        let before = self.streams[at];
        if before.is_none_or(|before| before.point == point || report.t >= before.t.saturating_add(MAX_SILENCE)) {
            self.streams[at] = Some(SynchReport { point, t: report.t, synch: report.synch });
            if before.is_none_or(|before| before.synch != report.synch) && self.changes.len() < MAX_CHANGES {
                self.changes.push(report);
            }
        }
        !self.changes.is_empty()
    }

    /// The changes since the last call, including the first report of each stream.
    pub fn take_changes(&mut self) -> Vec<SynchChange> {
        std::mem::take(&mut self.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(packets: &[(Ns, u32, PointId, u8)]) -> Vec<(u32, u8)> {
        let mut watch = SynchWatch::default();
        for (ms, key, point, synch) in packets {
            watch.see(*point, SynchChange { stream: 3, key: *key, t: ms * 1_000_000, synch: *synch });
        }
        watch.take_changes().iter().map(|change| (change.key, change.synch)).collect()
    }

    #[test]
    fn a_change_is_reported_once_by_the_reporting_point() {
        // The packet with key 1 reaches point 9 after the one with key 3 has reached point 7.
        let packets = [(0, 1, 7, 2), (1, 2, 7, 2), (2, 3, 7, 0), (3, 1, 9, 2), (4, 4, 7, 0), (5, 3, 9, 0)];
        assert_eq!(seen(&packets), [(1, 2), (3, 0)]);
    }

    #[test]
    fn another_point_reports_if_the_first_is_gone() {
        assert_eq!(seen(&[(0, 1, 7, 2), (999, 2, 9, 0), (1_000, 3, 9, 0), (1_001, 4, 7, 2)]), [(1, 2), (3, 0)]);
    }
}
