//! Closes transactions, places them on the timeline and passes them on.

use super::hello::HELLO_WAIT_NS;
use super::{Emitter, Observer, Step};
use crate::table::End;
use crate::transaction::{Stamp, Transaction};
use crate::transport::{Transport, Wait};
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::time::Duration;

/// Time from the sending of a transaction with NIC stamps until it is placed on the timeline, ns: by then, later
/// readings of the NIC clocks exist.
const HOLD_NS: Ns = 700_000_000;
/// Maximum number of held transactions; beyond it, the oldest are placed with the readings so far.
const MAX_HELD: usize = 1 << 17;
/// Time that two readings of this machine's NIC clock usually take.
const TWO_READINGS: Duration = Duration::from_millis(120);
/// Maximum wait for two readings of this machine's NIC clock.
const TWO_READINGS_AT_MOST: Duration = Duration::from_secs(2);
/// Minimum number of hellos sent after the last probe to obtain the reflector's counts.
const LAST_HELLOS: u64 = 5;
/// Maximum wait for pending stamps after the last probe, ns.
const SETTLE_NS: Ns = 100_000_000;
/// Maximum time for which a transaction waits for stamps after its answer, ns; bounds the delay that a missing stamp
/// causes for later transactions.
const STAMPS_NS: Ns = 1_000_000_000;

impl<T: Transport, O: Observer> Emitter<'_, T, O> {
    /// Closes complete transactions, and those sent before `given_up`.
    #[inline]
    pub(super) fn close(&mut self, given_up: Ns) {
        let now = given_up.saturating_add(self.plan.lost_after);
        self.close_overdue(given_up, now.saturating_sub(STAMPS_NS));
    }

    /// Makes room in a full table by closing answered transactions whose last stamps have not arrived.
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

    /// Places transactions sent before `sent_before`, and any beyond `MAX_HELD`, on the timeline.
    pub(super) fn release(&mut self, sent_before: Ns) {
        let is_ripe = |(t, _): &(Transaction, End)| t.raw.get(Stamp::T1App).is_none_or(|t1| t1 < sent_before);
        while self.held.len() > MAX_HELD || self.held.front().is_some_and(is_ripe) {
            let Some((mut t, end)) = self.held.pop_front() else { return };
            self.timeline.map(&mut t);
            self.observer.closed(&t, end);
        }
    }

    /// Closes all transactions after reading the NIC clocks one last time.
    pub(super) fn close_all(&mut self) {
        // Close complete transactions first; the others are closed below with the stamps that they have by then.
        self.close(Ns::MIN / 2);
        if self.timeline.has_nic_clocks() && (self.table.open() > 0 || !self.held.is_empty()) {
            self.clocks.wait_for_readings(2, TWO_READINGS, TWO_READINGS_AT_MOST);
            self.follow_clocks();
            // This fails if the route is gone; there is then no further reading of the reflector's clock.
            let _ = self.ask(HELLO_WAIT_NS);
        }
        self.close(Ns::MAX);
    }

    /// Waits for the answers and stamps of pending probes.
    pub(super) fn settle(&mut self) -> Step<T> {
        self.settling = true;
        let begun = monotonic();
        while self.table.open() > 0 {
            let counts = self.table.counts;
            let waits = counts.answered + counts.lost < counts.sent;
            if monotonic() - begun >= if waits { SETTLE_NS.max(self.plan.lost_after) } else { SETTLE_NS } {
                break;
            }
            // Welcomes carry the reflector's stamps on its last answers.
            self.ask(1_000_000)?;
            self.take_stamps()?;
            self.close(monotonic() - self.plan.lost_after);
            if self.table.open() > 0 {
                self.take(Wait::Until(monotonic() + 1_000_000))?;
            }
        }
        self.close_all();
        // The welcome to any later hello contains the reflector's counts for all these probes.
        let (asked, begun) = (self.hello.number, monotonic());
        while !self.reflector_is_done {
            // Time alone is no criterion, because no hello is sent while this thread does not run.
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
