//! smpSynch of streams of Sampled Values, as their packets say it at one point: elsewhere an older packet may come later.

use crate::layout::Record;
use latpath_model::{Ns, StreamId, SynchChange};

/// A point that sees a stream no more for this long does not speak for it any more.
const GONE: Ns = 1_000_000_000;
/// Most changes that wait to be taken: a sender that says another thing with each packet must not fill memory.
const MOST: usize = 1024;

/// What streams say.
#[derive(Default)]
pub(crate) struct SynchWatch {
    streams: Vec<Option<Said>>,
    /// Those that were not taken yet.
    pub changes: Vec<SynchChange>,
}

/// What one stream says, by the point that speaks for it.
#[derive(Clone, Copy)]
struct Said {
    point: u8,
    t: Ns,
    /// As records have it: plus one.
    synch: u8,
}

impl SynchWatch {
    /// Takes a packet's record.
    pub fn see(&mut self, r: &Record, stream: StreamId) {
        if r.synch == 0 {
            return;
        }
        let (at, t) = (usize::from(stream), r.t as Ns);
        if at >= self.streams.len() {
            self.streams.resize(at + 1, None);
        }
        let before = self.streams[at];
        if before.is_some_and(|said| said.point != r.point && t < said.t.saturating_add(GONE)) {
            return;
        }
        self.streams[at] = Some(Said { point: r.point, t, synch: r.synch });
        if before.is_none_or(|said| said.synch != r.synch) && self.changes.len() < MOST {
            self.changes.push(SynchChange { stream, key: r.key, t, synch: r.synch - 1 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(packets: &[(u64, u32, u8, u8)]) -> Vec<(u32, u8)> {
        let mut watch = SynchWatch::default();
        for (ms, key, point, synch) in packets {
            let r = Record {
                t: ms * 1_000_000,
                aux: 0,
                key: *key,
                tid: 0,
                stream: 0,
                cpu: 0,
                point: *point,
                synch: *synch,
                generation: 0,
            };
            watch.see(&r, 3);
        }
        watch.changes.iter().map(|change| (change.key, change.synch)).collect()
    }

    #[test]
    fn a_change_is_said_once_and_by_the_point_that_speaks() {
        // The packet with key 1 comes to point 9 after the one with key 3 has come to point 7.
        let packets =
            [(0, 1, 7, 3), (1, 2, 7, 3), (2, 3, 7, 1), (3, 1, 9, 3), (4, 4, 7, 1), (5, 3, 9, 1), (6, 5, 7, 0)];
        assert_eq!(seen(&packets), [(1, 2), (3, 0)]);
    }

    #[test]
    fn another_point_speaks_where_the_first_is_gone() {
        assert_eq!(seen(&[(0, 1, 7, 3), (999, 2, 9, 1), (1_000, 3, 9, 1), (1_001, 4, 7, 3)]), [(1, 2), (3, 0)]);
    }
}
