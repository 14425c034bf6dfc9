//! Outages: consecutive packets of a stream that were last seen at the same point, or that no point saw.

use latpath_model::{Ns, PointId};
use std::cmp::Reverse;

/// Minimum number of packets in an outage.
const MIN: u64 = 3;
/// Maximum number of outages kept per stream.
const MAX: usize = 1024;

/// Consecutive missing packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Sending times of the first and the last packet. If no point saw them, sending times of the packets before and
    /// after them.
    pub from: Ns,
    pub to: Ns,
    /// The last point of the route that saw them; `None` for packets that no point saw.
    pub place: Option<PointId>,
    pub packets: u64,
    /// Number of the first packet, and the number after the last.
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

    /// Adds packets that no point saw and that directly precede packet `number`; `from` and `to`: sending times of the
    /// packets before and after them.
    pub fn never_seen(&mut self, packets: u32, number: u64, (from, to): (Ns, Ns)) {
        if u64::from(packets) >= MIN {
            self.keep(Outage { from, to, place: None, packets: packets.into(), numbers: (number, number) });
        }
    }

    /// Ends a batch.
    pub fn close(&mut self) {
        self.open.take().into_iter().for_each(|open| self.keep(open));
    }

    /// Keeps an outage, even a short one: it may be a part of an outage that extends over two batches. If there are
    /// many, joins them, and keeps the longest.
    fn keep(&mut self, outage: Outage) {
        self.found.push(outage);
        if self.found.len() >= 4 * MAX {
            self.join();
            if self.found.len() > MAX {
                self.found.select_nth_unstable_by_key(MAX - 1, Outage::rank);
                self.found.truncate(MAX);
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

    /// The outages of at least three packets, in chronological order.
    pub fn finish(mut self) -> Vec<Outage> {
        self.close();
        self.join();
        self.found.retain(|one| one.packets >= MIN);
        self.found.sort_unstable_by_key(|one| one.from);
        self.found
    }
}
