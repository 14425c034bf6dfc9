//! Reading the per-CPU rings.

use crate::layout::{PerCpu, Record};
use latpath_bpf::Mapped;
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::mem::offset_of;
use std::sync::atomic::{fence, Ordering};

/// A program takes its time when it starts and hands the record over a little later: records this young may still be
/// overtaken by older ones from another CPU.
const SETTLE: Ns = 2_000_000;

/// A record that is reserved and not whole is waited for this long. On a real-time kernel a program may be preempted between the
/// two, for as long as more urgent threads keep its CPU; all that this CPU saw afterwards stands behind it.
const STUCK: Ns = 10_000_000_000;
/// It is waited for no longer than a second where so many records of other CPUs wait already.
const CROWDED: usize = 1 << 20;
const STUCK_WHEN_CROWDED: Ns = 1_000_000_000;

pub(crate) struct Reader {
    tails: Vec<u64>,
    size: u64,
    pending: Vec<Record>,
    /// No record of `pending` is older.
    oldest: u64,
    watermark: Ns,
    /// Records that were overwritten before they were read.
    pub lost: u64,
}

/// Goes on behind records that were overwritten, and returns how many: more programs than the margin has room for stood between their
/// look at the ring and their reservation.
fn overwritten(tail: &mut u64, head: u64, size: u64) -> u64 {
    if head.saturating_sub(*tail) <= size {
        return 0;
    }
    let before = std::mem::replace(tail, head - size / 2);
    *tail - before
}

impl Reader {
    pub fn new(cpus: usize, size: usize) -> Self {
        Self { tails: vec![0; cpus], size: size as u64, pending: Vec::new(), oldest: u64::MAX, watermark: 0, lost: 0 }
    }

    /// Takes what is ready out of one CPU's ring. False if a record is reserved and not yet whole.
    fn take(&mut self, cpu: usize, ring: &Mapped<Record>, percpu: &Mapped<PerCpu>) -> bool {
        let head: u64 = percpu.field(cpu, offset_of!(PerCpu, head));
        let mut tail = self.tails[cpu];
        let mut whole = true;
        self.lost += overwritten(&mut tail, head, self.size);
        while tail < head {
            let at = cpu * self.size as usize + (tail & (self.size - 1)) as usize;
            let generation = ((tail / self.size) as u16) | 1 << 15;
            let seen: u32 = ring.field(at, offset_of!(Record, point));
            if (seen >> 16) as u16 != generation {
                whole = false;
                break;
            }
            // The generation is stored last; what follows it was stored before.
            fence(Ordering::Acquire);
            let record = ring.get(at);
            self.oldest = self.oldest.min(record.t);
            self.pending.push(record);
            tail += 1;
        }
        if tail != self.tails[cpu] {
            self.tails[cpu] = tail;
            // The copies are done before the room is given back.
            fence(Ordering::Release);
            percpu.set_field(cpu, offset_of!(PerCpu, tail), tail);
        }
        whole
    }

    /// Hands over the settled records of all CPUs in order of time; returns the watermark.
    /// With `all`, the programs are detached and nothing more can come.
    pub fn drain(
        &mut self,
        ring: &Mapped<Record>,
        percpu: &Mapped<PerCpu>,
        all: bool,
        each: impl FnMut(&Record),
    ) -> Ns {
        let now = monotonic();
        let mut whole = true;
        for cpu in 0..self.tails.len() {
            whole &= self.take(cpu, ring, percpu);
        }
        let settled = if all { Ns::MAX } else { now - SETTLE };
        // A reserved record may be as old as the last watermark.
        let stuck = if self.pending.len() < CROWDED { STUCK } else { STUCK_WHEN_CROWDED };
        if whole || all || settled - self.watermark > stuck {
            self.watermark = self.watermark.max(settled);
        }
        self.hand_over(each);
        self.watermark
    }

    /// Hands over what is older than the watermark. While a record is waited for there may be nothing, and a million records
    /// behind it: then they are not looked at.
    fn hand_over(&mut self, mut each: impl FnMut(&Record)) {
        if self.oldest >= self.watermark as u64 {
            return;
        }
        // The rings are sorted runs, nearly: the stable sort finds and merges them.
        self.pending.sort_by_key(|r| r.t);
        let ready = self.pending.partition_point(|r| (r.t as Ns) < self.watermark);
        self.pending.drain(..ready).for_each(|r| each(&r));
        self.oldest = self.pending.first().map_or(u64::MAX, |r| r.t);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_was_overrun_is_read_on_and_what_is_lost_is_counted() {
        let after = |tail, head| {
            let mut at = tail;
            let lost = overwritten(&mut at, head, 1024);
            (at, lost)
        };
        assert_eq!(after(5_000, 5_000), (5_000, 0));
        assert_eq!(after(5_000, 6_024), (5_000, 0), "full, and whole");
        assert_eq!(after(5_000, 6_025), (5_513, 513));
        assert_eq!(after(5_000, 4_000), (5_000, 0));
    }
}
