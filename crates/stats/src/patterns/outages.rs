//! Outages: consecutive packets of a stream that got no further than one point, or that no point saw.

use latpath_model::{Ns, PointId};
use std::cmp::Reverse;

/// Minimum number of packets of an outage.
const FEWEST: u64 = 3;
/// Maximum number of outages of one stream that are kept.
const MOST: usize = 1024;

/// Consecutive missing packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Sending times of the first and the last; of packets that no point saw, the arrivals of the packets before and
    /// after them.
    pub from: Ns,
    pub to: Ns,
    /// The last point of the route that saw them; `None` for packets that no point saw.
    pub place: Option<PointId>,
    pub packets: u64,
    /// The first number, and the number after the last.
    pub numbers: (u64, u64),
}

impl Outage {
    fn rank(&self) -> (Reverse<u64>, u64) {
        (Reverse(self.packets), self.numbers.0)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Outages {
    found: Vec<Outage>,
    open: Option<Outage>,
}

impl Outages {
    /// Adds a packet that did not arrive.
    pub fn lost(&mut self, number: u64, sent: Ns, place: PointId) {
        match &mut self.open {
            Some(open) if open.place == Some(place) && open.numbers.1 == number => {
                (open.to, open.numbers.1) = (open.to.max(sent), number.saturating_add(1));
                open.packets += 1;
            }
            _ => {
                self.close();
                let numbers = (number, number.saturating_add(1));
                self.open = Some(Outage { from: sent, to: sent, place: Some(place), packets: 1, numbers });
            }
        }
    }

    /// Adds packets that no point saw, directly before this number; `from`: arrival of the packet before them.
    pub fn never_seen(&mut self, packets: u32, number: u64, (from, to): (Ns, Ns)) {
        if u64::from(packets) >= FEWEST {
            self.keep(Outage { from, to, place: None, packets: packets.into(), numbers: (number, number) });
        }
    }

    /// Ends a batch.
    pub fn close(&mut self) {
        self.open.take().into_iter().for_each(|open| self.keep(open));
    }

    /// At the border of two batches an outage may begin with a single packet: short ones are only dropped if there are
    /// many.
    fn keep(&mut self, outage: Outage) {
        self.found.push(outage);
        if self.found.len() >= 4 * MOST {
            self.join();
            if self.found.len() > MOST {
                self.found.select_nth_unstable_by_key(MOST - 1, Outage::rank);
                self.found.truncate(MOST);
            }
        }
    }

    fn join(&mut self) {
        self.found.sort_unstable_by_key(|one| (one.numbers, one.from));
        self.found.dedup_by(|next, one| {
            let same = one.place.is_some() && next.place == one.place && next.numbers.0 == one.numbers.1;
            if same {
                (one.to, one.numbers.1) = (one.to.max(next.to), next.numbers.1);
                one.packets += next.packets;
            }
            same
        });
    }

    pub fn merge(&mut self, mut other: Self) {
        other.close();
        other.found.into_iter().for_each(|one| self.keep(one));
    }

    /// Outages of at least three packets, in order.
    pub fn finish(mut self) -> Vec<Outage> {
        self.close();
        self.join();
        self.found.retain(|one| one.packets >= FEWEST);
        self.found.sort_unstable_by_key(|one| one.from);
        self.found
    }
}
