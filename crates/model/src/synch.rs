//! smpSynch of streams of Sampled Values: what their packets say of the clock that they were sampled by.

use crate::{Ns, PointId, StreamId};

/// A point that sees a stream no more for this long does not speak for it any more.
const GONE: Ns = 1_000_000_000;
/// Most changes that wait to be taken: a sender that says another thing with each packet must not fill memory.
const MOST: usize = 1024;

/// What the packets of a stream of Sampled Values say of the clock that they were sampled by, from one packet on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynchChange {
    pub stream: StreamId,
    /// The first packet that says it.
    pub key: u32,
    /// When it was seen.
    pub t: Ns,
    /// smpSynch: 0 none, 1 local, 2 global, 5 to 254 a local area clock.
    pub synch: u8,
}

impl SynchChange {
    /// smpSynch of a sender whose clock keeps UTC.
    pub const GLOBAL: u8 = 2;

    /// Whether the sender's clock keeps UTC from here on.
    pub fn is_global(&self) -> bool {
        self.synch == Self::GLOBAL
    }
}

/// Finds where streams change what they say. One point speaks for each stream: elsewhere an older packet may come later.
#[derive(Debug, Default)]
pub struct SynchWatch {
    streams: Vec<Option<Said>>,
    changes: Vec<SynchChange>,
}

/// What one stream says, by the point that speaks for it.
#[derive(Clone, Copy, Debug)]
struct Said {
    point: PointId,
    t: Ns,
    synch: u8,
}

impl SynchWatch {
    /// Takes what a packet says that was seen at this point. True where there are changes to be taken.
    #[inline]
    pub fn see(&mut self, point: PointId, said: SynchChange) -> bool {
        let at = usize::from(said.stream);
        if at >= self.streams.len() {
            self.streams.resize(at + 1, None);
        }
        let before = self.streams[at];
        if before.is_none_or(|before| before.point == point || said.t >= before.t.saturating_add(GONE)) {
            self.streams[at] = Some(Said { point, t: said.t, synch: said.synch });
            if before.is_none_or(|before| before.synch != said.synch) && self.changes.len() < MOST {
                self.changes.push(said);
            }
        }
        !self.changes.is_empty()
    }

    /// The changes since the last call; of each stream also what it says first.
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
    fn a_change_is_said_once_and_by_the_point_that_speaks() {
        // The packet with key 1 comes to point 9 after the one with key 3 has come to point 7.
        let packets = [(0, 1, 7, 2), (1, 2, 7, 2), (2, 3, 7, 0), (3, 1, 9, 2), (4, 4, 7, 0), (5, 3, 9, 0)];
        assert_eq!(seen(&packets), [(1, 2), (3, 0)]);
    }

    #[test]
    fn another_point_speaks_where_the_first_is_gone() {
        assert_eq!(seen(&[(0, 1, 7, 2), (999, 2, 9, 0), (1_000, 3, 9, 0), (1_001, 4, 7, 2)]), [(1, 2), (3, 0)]);
    }
}
