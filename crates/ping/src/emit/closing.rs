//! Closing transactions, and handing them over on the timeline.

use super::hello::HELLO_WAIT_NS;
use super::{Emitter, Observer, Step};
use crate::table::End;
use crate::transaction::{Stamp, Transaction};
use crate::transport::{Transport, Wait};
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::time::Duration;

/// So long a transaction with NICs' stamps waits for readings of their clocks after it, and for what shows at the next ones.
const HOLD_NS: Ns = 700_000_000;
/// Transactions that wait so at most; beyond that the oldest go with what is known.
const MOST_HELD: usize = 1 << 17;
/// Time in which this machine's NIC's clock is read twice, if nothing holds that up.
const TWO_READINGS: Duration = Duration::from_millis(120);
/// So long they are waited for.
const TWO_READINGS_AT_MOST: Duration = Duration::from_secs(2);
/// So often the reflector is asked after the last probe what it saw, at least.
const LAST_HELLOS: u64 = 5;
/// How long after its last probe a run waits for stamps that are under way.
const SETTLE_NS: Ns = 100_000_000;
/// How long after its answer a transaction waits for stamps at most, so that one that never comes holds up no others for longer.
const STAMPS_NS: Ns = 1_000_000_000;

impl<T: Transport, O: Observer> Emitter<'_, T, O> {
    /// Hands over what is complete, and what was sent before `given_up`: a time that a probe is waited for ago.
    #[inline]
    pub(super) fn close(&mut self, given_up: Ns) {
        let now = given_up.saturating_add(self.plan.lost_after);
        self.close_overdue(given_up, now.saturating_sub(STAMPS_NS));
    }

    /// Where the table is full, room for the next probe is more than the last stamps of those that were answered.
    #[inline]
    pub(super) fn make_room(&mut self) {
        if !self.table.has_room() {
            self.close_overdue(Ns::MIN / 2, Ns::MAX);
        }
    }

    #[inline]
    fn close_overdue(&mut self, given_up: Ns, overdue: Ns) {
        let hold = self.timeline.has_nic_clocks();
        let (timeline, observer, held) = (&mut self.timeline, &mut *self.observer, &mut self.held);
        self.table.close(given_up, overdue, |mut t, end| {
            if hold {
                held.push_back((t, end));
            } else {
                timeline.map(&mut t);
                observer.closed(&t, end);
            }
        });
        if hold {
            self.release(given_up.saturating_add(self.plan.lost_after).saturating_sub(HOLD_NS));
        }
    }

    /// Puts onto the timeline what was sent before this, and what is too much to wait.
    pub(super) fn release(&mut self, sent_before: Ns) {
        let is_ripe = |(t, _): &(Transaction, End)| t.raw.get(Stamp::T1App).is_none_or(|t1| t1 < sent_before);
        while self.held.len() > MOST_HELD || self.held.front().is_some_and(is_ripe) {
            let Some((mut t, end)) = self.held.pop_front() else { return };
            self.timeline.map(&mut t);
            self.observer.closed(&t, end);
        }
    }

    /// Closes all, after the NICs' clocks were read once more.
    pub(super) fn close_all(&mut self) {
        // Whole and held alike; the rest is closed below, with what it has.
        self.close(Ns::MIN / 2);
        if self.timeline.has_nic_clocks() && (self.table.open() > 0 || !self.held.is_empty()) {
            self.clocks.wait_for_readings(2, TWO_READINGS, TWO_READINGS_AT_MOST);
            self.follow_clocks();
            // Where the route is gone, the reflector's clock is not read any more.
            let _ = self.ask(HELLO_WAIT_NS);
        }
        self.close(Ns::MAX);
    }

    /// Waits for the answers and stamps of what is under way.
    pub(super) fn settle(&mut self) -> Step<T> {
        self.settling = true;
        let begun = monotonic();
        while self.table.open() > 0 {
            let counts = self.table.counts;
            let waits = counts.answered + counts.lost < counts.sent;
            if monotonic() - begun >= if waits { SETTLE_NS.max(self.plan.lost_after) } else { SETTLE_NS } {
                break;
            }
            // The reflector's stamps of its last answers come with its welcomes.
            self.ask(1_000_000)?;
            self.take_stamps()?;
            self.close(monotonic() - self.plan.lost_after);
            if self.table.open() > 0 {
                self.take(Wait::Until(monotonic() + 1_000_000))?;
            }
        }
        self.close_all();
        // What the reflector saw of these probes: a welcome to any hello from now on says it.
        let (asked, begun) = (self.hello.number, monotonic());
        while !self.reflector_is_done {
            // Not by time alone: while this thread stands still nobody is asked.
            let enough = self.hello.number >= asked + LAST_HELLOS;
            if enough && monotonic() - begun > self.plan.lost_after {
                break;
            }
            self.ask(HELLO_WAIT_NS)?;
            self.reflector_is_done = self.hello.answered > asked;
            if !self.reflector_is_done {
                self.rest();
            }
        }
        self.settling = false;
        Ok(())
    }
}
