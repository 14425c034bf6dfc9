//! Reads the per-CPU rings.

use crate::layout::{PerCpu, Record};
use latpath_bpf::Mapped;
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::mem::offset_of;
use std::sync::atomic::{fence, Ordering};

/// Age at which records are settled, ns. A program reads the clock at its start and publishes the record later, so that
/// younger records may be overtaken by older ones of another CPU.
const SETTLE: Ns = 2_000_000;

/// Maximum wait for a reserved, incomplete record, ns. On a real-time kernel, a program may be preempted between the
/// reservation and the completion for as long as threads of higher priority use its CPU; all later records of this CPU
/// wait behind it.
const STUCK: Ns = 10_000_000_000;
/// Number of pending records from which this wait is limited to `STUCK_WHEN_CROWDED`.
const CROWDED: usize = 1 << 20;
const STUCK_WHEN_CROWDED: Ns = 1_000_000_000;

pub(crate) struct Reader {
    tails: Vec<u64>,
    size: u64,
    pending: Vec<Record>,
    /// Lower bound of the times in `pending`.
    oldest: u64,
    watermark: Ns,
    /// Number of records overwritten before they were read.
    pub lost: u64,
}

/// Skips overwritten records and returns their number. Records are overwritten if more programs than the ring's margin
/// allows are between their check for free space and their reservation at the same time.
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

    /// Takes complete records from one CPU's ring. Returns false if it stopped at a record that is reserved but
    /// incomplete.
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
            // The generation is stored last: all other fields are visible now.
            fence(Ordering::Acquire);
            let record = ring.get(at);
            self.oldest = self.oldest.min(record.t);
            self.pending.push(record);
            tail += 1;
        }
        if tail != self.tails[cpu] {
            self.tails[cpu] = tail;
            // The copies must be complete before their space in the ring is returned.
            fence(Ordering::Release);
            percpu.set_field(cpu, offset_of!(PerCpu, tail), tail);
        }
        whole
    }

    /// Passes on the settled records of all CPUs in order of time; returns the watermark. With `all`, the programs are
    /// detached and no further record can arrive.
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
        // An incomplete record may be as old as the last watermark, which therefore waits for it, up to a limit.
        let stuck = if self.pending.len() < CROWDED { STUCK } else { STUCK_WHEN_CROWDED };
        if whole || all || settled - self.watermark > stuck {
            self.watermark = self.watermark.max(settled);
        }
        self.hand_over(each);
        self.watermark
    }

    /// Passes on records older than the watermark. While the watermark waits for an incomplete record, there may be no
    /// such records, but a million newer ones, which need no sorting yet.
    fn hand_over(&mut self, mut each: impl FnMut(&Record)) {
        if self.oldest >= self.watermark as u64 {
            return;
        }
        // The rings are nearly sorted runs, which the stable sort merges.
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
    fn reading_continues_after_an_overrun_and_losses_are_counted() {
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
