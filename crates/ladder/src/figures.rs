//! Statistics of transfers.

use crate::event::{Device, Direction, Doorbell, Eventfd, Line};
use crate::step::{Step, Variant};
use crate::transfer::Transfer;
use latpath_histogram::Histogram;
use latpath_model::Ns;
use std::collections::BTreeMap;

/// Maximum number of transfers kept whole per group, so that one near the median can be drawn.
const KEPT: usize = 512;

/// Key of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    Kicks(Eventfd),
    /// By the register that the guest writes to.
    Doorbell(Doorbell),
    /// By the tap, for packets to the guest.
    Tap(Device),
}

/// A queue with its counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    pub key: Option<Key>,
    /// Direction of its packets, if known.
    pub direction: Option<Direction>,
    pub device: Option<Device>,
    pub doorbell: Option<Doorbell>,
    pub vm: Option<u32>,
    /// The thread that serves it.
    pub server: Option<u32>,
    /// Whether the server has not slept since it last turned to this queue.
    pub is_in_round: bool,
    pub line: Option<Line>,
    pub kicks: u64,
    pub coalesced: u64,
    pub packets: u64,
    pub without_packet: u64,
    pub groups: BTreeMap<Variant, Group>,
}

impl Lane {
    /// Packets from the guest without a kick of their own.
    pub fn packets_without_kick(&self) -> u64 {
        match self.direction {
            Some(Direction::ToGuest) => 0,
            _ => self.packets.saturating_sub(self.kicks.saturating_sub(self.without_packet)),
        }
    }
}

/// Transfers of a queue with the same variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub total: Histogram,
    pub rungs: [Histogram; Step::ALL.len()],
    pub reasons: BTreeMap<u16, u64>,
    pub next_kick: Histogram,
    kept: Vec<Transfer>,
    noise: u64,
}

impl Group {
    pub fn add(&mut self, transfer: Transfer) {
        self.total.record(transfer.total());
        for (step, time) in transfer.rungs() {
            self.rungs[step as usize].record(time);
        }
        if let Some(reason) = transfer.reason {
            *self.reasons.entry(reason).or_default() += 1;
        }
        self.keep(transfer);
    }

    /// Keeps a uniform random sample of the transfers (Vitter's algorithm R).
    fn keep(&mut self, transfer: Transfer) {
        if self.kept.len() < KEPT {
            return self.kept.push(transfer);
        }
        // A linear congruential generator with Knuth's constants: its quality does not matter here.
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (self.noise >> 33) % self.total.count();
        if let Some(place) = self.kept.get_mut(at as usize) {
            *place = transfer;
        }
    }

    /// Among the transfers with the most frequent set of steps, the one whose time is nearest to the median.
    pub fn typical(&self) -> Option<&Transfer> {
        let shape = |transfer: &Transfer| transfer.steps.iter().fold(0u32, |bits, (step, _)| bits | 1 << *step as u32);
        let mut shapes: BTreeMap<u32, u64> = BTreeMap::new();
        self.kept.iter().for_each(|transfer| *shapes.entry(shape(transfer)).or_default() += 1);
        let (most, _) = shapes.into_iter().max_by_key(|(_, n)| *n)?;
        let median = self.total.percentile(500_000);
        let apart = |transfer: &&Transfer| (transfer.total() - median).abs();
        self.kept.iter().filter(|transfer| shape(transfer) == most).min_by_key(apart)
    }
}

/// A transfer whose interrupt the guest has received, until the guest's next kick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub lane: usize,
    pub variant: Variant,
    pub t: Ns,
}

/// Counters of the events and of the transfers that could not be completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events processed.
    pub events: u64,
    /// Events lost before processing.
    pub lost_events: u64,
    /// Transfers abandoned because of lost events.
    pub ended_by_loss: u64,
    /// Transfers whose end was not seen.
    pub unfinished: u64,
    /// Packets that more than one transfer could have carried.
    pub ambiguous: u64,
    /// Effects seen before their cause: threads of transfers that ran without a wakeup, steps before the step that
    /// causes them, events out of order.
    pub violations: u64,
    /// Queues beyond the maximum number.
    pub omitted_queues: u64,
}
