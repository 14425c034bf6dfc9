//! A ring of the transactions of the last few seconds, in bounded memory.

use super::{pages::Pages, when, LogError, LogOptions};
use crate::transaction::{Stamp, Transaction};
use latpath_linux::proc::number;
use latpath_model::Ns;
use std::time::Duration;

/// Spare capacity for an uneven rate, percent.
const SPARE_PERCENT: u64 = 10;
const SPARE: u64 = 1024;
/// Size of the ring if the rate is unknown, bytes.
const UNKNOWN_RATE: u64 = 64 << 20;

/// A ring of transactions, in which new ones replace the oldest.
pub(super) struct Ring {
    slots: Pages<Transaction>,
    time: Ns,
    /// Number of rows added so far, which is the number of the next row.
    head: u64,
    /// Number of the oldest row in the ring.
    tail: u64,
    draining: Option<Window>,
    /// If the ring was full at a request and held less than the time span: the shortest span that it held, ns.
    short: Option<Ns>,
}

/// Rows to move from the ring to the file.
#[derive(Clone, Copy)]
struct Window {
    /// Earliest time of the rows, ns; earlier rows are skipped.
    from: Ns,
    /// Sequence number of the last row, which may not have been added yet.
    upto: u64,
}

impl Ring {
    pub fn new(time: Duration, options: &LogOptions, notes: &mut Vec<String>) -> Result<Self, LogError> {
        let row = size_of::<Transaction>() as u64;
        let rows = match options.rate_hz.filter(|hz| hz.is_finite() && *hz > 0.0) {
            Some(hz) => {
                let rows = (hz * time.as_secs_f64()).ceil();
                // The conversion saturates at a value beyond any memory size.
                (rows as u64).saturating_mul(100 + SPARE_PERCENT) / 100 + SPARE
            }
            None => {
                notes.push(format!(
                    "log: the rate is not known beforehand, so its ring has room for {} transactions",
                    UNKNOWN_RATE / row
                ));
                UNKNOWN_RATE / row
            }
        };
        let meminfo_text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let free = number(&meminfo_text, "MemAvailable").map_or(u64::MAX, |kb| kb.saturating_mul(1024) / 2);
        let need = rows.saturating_mul(row);
        if need > free && !options.huge_pages || usize::try_from(need).is_err() {
            let rate_hz = options.rate_hz.unwrap_or(0.0);
            return Err(LogError::Memory { time, rate_hz, need: need >> 20, free: free >> 20 });
        }
        Ok(Self::of(Pages::new(rows as usize, Transaction::default(), options.huge_pages)?, time))
    }

    fn of(slots: Pages<Transaction>, time: Duration) -> Self {
        let time = Ns::try_from(time.as_nanos()).unwrap_or(Ns::MAX);
        Self { slots, time, head: 0, tail: 0, draining: None, short: None }
    }

    fn row(&self, number: u64) -> &Transaction {
        &self.slots[(number % self.slots.len() as u64) as usize]
    }

    /// Adds a transaction. Returns whether it overwrote one that was still to be written to the file.
    #[inline]
    pub fn push(&mut self, transaction: &Transaction) -> bool {
        let mut lost = false;
        if self.head - self.tail == self.slots.len() as u64 {
            lost = self.draining.is_some_and(|w| w.holds(self.row(self.tail)));
            self.tail += 1;
        }
        let at = (self.head % self.slots.len() as u64) as usize;
        self.slots[at] = *transaction;
        self.head += 1;
        lost
    }

    /// Requests that the transactions in the time span before this one be written, and this one once it has been added.
    pub fn breach(&mut self, transaction: &Transaction) {
        let at = transaction.raw.get(Stamp::T4App).unwrap_or_else(|| when(transaction));
        self.ask(at, transaction.sequence);
    }

    /// Requests that the transactions in the last time span be written.
    pub fn end(&mut self) {
        if self.head > self.tail {
            let at = when(self.row(self.head - 1));
            self.ask(at, u64::MAX);
        }
    }

    fn ask(&mut self, at: Ns, upto: u64) {
        let from = at.saturating_sub(self.time);
        if self.head - self.tail == self.slots.len() as u64 {
            let held = at.saturating_sub(when(self.row(self.tail)));
            if held < self.time {
                self.short = Some(self.short.map_or(held, |short| short.min(held)));
            }
        }
        // The request made for an earlier breach remains valid.
        let from = self.draining.map_or(from, |w| w.from.min(from));
        let upto = self.draining.map_or(upto, |w| w.upto.max(upto));
        self.draining = Some(Window { from, upto });
    }

    /// Whether there are rows to be moved to the file.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Takes the next row that is to be written to the file.
    pub fn drain(&mut self) -> Option<Transaction> {
        let window = self.draining?;
        while self.tail < self.head {
            let row = *self.row(self.tail);
            if row.sequence > window.upto {
                break;
            }
            self.tail += 1;
            if window.holds(&row) {
                return Some(row);
            }
        }
        // The transaction of the breach itself may not have been added yet.
        if window.upto == u64::MAX || self.head > 0 && self.row(self.head - 1).sequence >= window.upto {
            self.draining = None;
        }
        None
    }

    /// Number of rows still to be moved to the file.
    pub fn left(&self) -> u64 {
        let Some(window) = self.draining else { return 0 };
        (self.tail..self.head).filter(|n| window.holds(self.row(*n))).count() as u64
    }

    /// A note for the reader if the ring was too small for the time span.
    pub fn note(&self) -> Option<String> {
        let (held, time) = (self.short?, self.time);
        let seconds = |ns: Ns| ns as f64 / 1e9;
        Some(format!(
            "log: transactions came faster than its ring was made for: it held {:.3} s of {:.3} s",
            seconds(held),
            seconds(time)
        ))
    }
}

impl Window {
    fn holds(&self, row: &Transaction) -> bool {
        row.sequence <= self.upto && when(row) >= self.from
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One of a series of transactions that are sent once per second and have a round trip of half a second.
    fn transaction(sequence: u64) -> Transaction {
        let mut t = Transaction { sequence, ..Transaction::default() };
        t.raw.set(Stamp::T1App, sequence as Ns * 1_000_000_000);
        t.raw.set(Stamp::T4App, sequence as Ns * 1_000_000_000 + 500_000_000);
        t
    }

    fn ring(slots: usize, seconds: u64) -> Ring {
        let slots = Pages::new(slots, Transaction::default(), false).unwrap();
        Ring::of(slots, Duration::from_secs(seconds))
    }

    fn drained(ring: &mut Ring) -> Vec<u64> {
        std::iter::from_fn(|| ring.drain()).map(|t| t.sequence).collect()
    }

    #[test]
    fn the_last_seconds_before_the_end_are_kept() {
        let mut ring = ring(100, 3);
        (0..50).for_each(|n| assert!(!ring.push(&transaction(n))));
        assert_eq!(drained(&mut ring), [0; 0], "nothing leaves unasked");
        ring.end();
        assert_eq!(drained(&mut ring), [46, 47, 48, 49]);
        assert!(!ring.is_draining() && ring.note().is_none());
    }

    #[test]
    fn a_breach_keeps_the_transactions_before_it_and_itself_once() {
        let mut ring = ring(100, 3);
        (0..10).for_each(|n| assert!(!ring.push(&transaction(n))));
        ring.breach(&transaction(10));
        assert_eq!(drained(&mut ring), [8, 9]);
        assert!(ring.is_draining(), "the breach itself is not closed yet");
        ring.push(&transaction(10));
        ring.push(&transaction(11));
        assert_eq!(drained(&mut ring), [10]);
        assert!(!ring.is_draining());
        ring.end();
        assert_eq!(drained(&mut ring), [11], "what is in the file already does not come again");
    }

    #[test]
    fn a_ring_that_is_too_small_reports_its_actual_time() {
        let mut ring = ring(4, 10);
        (0..20).for_each(|n| assert!(!ring.push(&transaction(n))));
        ring.breach(&transaction(19));
        assert_eq!(ring.left(), 4);
        assert!(ring.push(&transaction(20)), "a row that was to be kept had to go");
        assert_eq!(drained(&mut ring), [17, 18, 19]);
        let note = ring.note().unwrap();
        assert!(note.contains("it held 3.500 s of 10.000 s"), "{note}");
    }

    #[test]
    fn a_ring_beyond_all_memory_is_refused() {
        let options = LogOptions { rate_hz: Some(1e9), huge_pages: false };
        let error = Ring::new(Duration::from_secs(1_000_000), &options, &mut Vec::new()).err().unwrap();
        assert!(error.to_string().contains("use a shorter time"), "{error}");
    }

    proptest! {
        #[test]
        fn rows_are_written_once_and_in_order(
            slots in 1usize..20, breaches in prop::collection::vec(0u64..60, 0..6), drains in 0usize..4
        ) {
            let mut ring = ring(slots, 5);
            let mut out = Vec::new();
            for n in 0..60 {
                if breaches.contains(&n) {
                    ring.breach(&transaction(n));
                }
                ring.push(&transaction(n));
                out.extend((0..drains).map_while(|_| ring.drain()).map(|t| t.sequence));
            }
            ring.end();
            out.extend(drained(&mut ring));
            prop_assert!(out.windows(2).all(|w| w[0] < w[1]), "{:?}", out);
            prop_assert_eq!(out.last(), Some(&59));
        }
    }
}
