//! One timeline for a transaction: the emitter's `CLOCK_MONOTONIC`.
//!
//! Four clocks take stamps: `CLOCK_MONOTONIC` and the PHC, at either end. A PHC is tied to its machine's `CLOCK_MONOTONIC` by
//! readings ([`NicClock`]). The reflector's `CLOCK_MONOTONIC` is the emitter's where both run on one kernel; elsewhere each round trip
//! limits the offset for certain, and [`OffsetEstimator`] keeps the tightest limits: the offset's bound is at best half the
//! time that a message spends on the wire both ways.
//!
//! A transaction is mapped with one offset for each clock, so what one clock says of a transaction stays what it said, and the
//! parts sum to the round trip.

use crate::transaction::{Part, Source, Stamp, Stamps, Transaction};
use crate::wire::NicClock;
use latpath_clock::{Assumed, Exchange, OffsetEstimator};
use latpath_words::Ns;
use serde::Serialize;

/// An estimate is used for so long before the next is made. Drift within it: at most 1 ns at 100 ppm.
const FRESH_NS: Ns = 10_000_000;
/// Of the exchanges within this time, the estimator gets the fastest one.
const SLOT_NS: Ns = 10_000_000;

/// How the ends' clocks are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Both ends run on one kernel and share its clocks.
    SameKernel,
    /// The offset is estimated from the round trips themselves.
    Estimated,
    /// The ends' PHCs show the same time, within a bound that the user answers for.
    Synchronised,
}

/// Where a transaction's stamps stand on one timeline.
pub struct Timeline {
    relation: Relation,
    /// The emitter's NIC's clock.
    here: Option<NicClock>,
    /// The reflector's.
    there: Option<NicClock>,
    /// Emitter and reflector use one and the same PHC.
    one_phc: bool,
    /// How far the ends' PHCs can be apart, where the user says that they are kept together.
    together: Option<Ns>,
    /// The round trips have contradicted that.
    apart: bool,
    estimator: OffsetEstimator,
    /// Reflector − emitter, and its bound, for some time.
    offset: Option<(Ns, Ns)>,
    offset_until: Ns,
    best: Option<Exchange>,
    slot_until: Ns,
    largest_bound: Ns,
    drift_ppb: Option<i64>,
    disturbances: Vec<Disturbance>,
    disturbed: u64,
}

/// Something that made a clock useless for some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disturbance {
    /// When it was noticed, the emitter's `CLOCK_MONOTONIC`.
    pub at_ns: Ns,
    /// What and how much.
    pub what: String,
}

/// Most disturbances that are told one by one.
const TOLD: usize = 100;

/// PHC − `CLOCK_MONOTONIC` at `at`.
fn offset_of(clock: &NicClock, at: Ns) -> Ns {
    let since = i128::from(at.saturating_sub(clock.at));
    let drift = since * i128::from(clock.drift_ppb) / 1_000_000_000;
    clock.offset.saturating_add(Ns::try_from(drift).unwrap_or(0))
}

impl Timeline {
    /// Of two ends that share a kernel, or do not.
    pub fn new(relation: Relation) -> Self {
        Self {
            relation,
            here: None,
            there: None,
            one_phc: false,
            together: None,
            apart: false,
            estimator: OffsetEstimator::new(Assumed::EXCHANGES),
            offset: (relation == Relation::SameKernel).then_some((0, 0)),
            offset_until: Ns::MIN,
            best: None,
            slot_until: Ns::MIN,
            largest_bound: 0,
            drift_ppb: (relation == Relation::SameKernel).then_some(0),
            disturbances: Vec::new(),
            disturbed: 0,
        }
    }

    /// The ends' PHCs are kept together (by PTP, say), within this. Two ends on one kernel need no such thing.
    pub fn keep_together(&mut self, within: Ns) {
        self.together = Some(within).filter(|_| self.relation == Relation::Estimated);
    }

    /// How the ends' clocks are one.
    pub fn relation(&self) -> Relation {
        match self.together.filter(|_| self.here.is_some() && self.there.is_some()) {
            Some(_) => Relation::Synchronised,
            None => self.relation,
        }
    }

    /// A new reading of the NICs' clocks.
    pub fn set_nic_clocks(&mut self, here: Option<NicClock>, there: Option<NicClock>) {
        self.here = here.or(self.here);
        self.there = there.or(self.there);
        let index = |c: Option<NicClock>| c.map(|c| c.index);
        self.one_phc =
            self.relation == Relation::SameKernel && self.here.is_some() && index(self.here) == index(self.there);
    }

    /// Notes that a clock was disturbed.
    pub fn disturbed(&mut self, at_ns: Ns, what: String) {
        self.disturbed += 1;
        if self.disturbances.len() < TOLD {
            self.disturbances.push(Disturbance { at_ns, what });
        }
    }

    /// Disturbances: the first ones in words, and how many there were.
    pub fn disturbances(&self) -> (&[Disturbance], u64) {
        (&self.disturbances, self.disturbed)
    }

    /// How wrong a time between the ends can be, and was at worst, ns.
    pub fn bound(&self) -> Option<(Ns, Ns)> {
        self.offset.map(|(_, bound)| (bound, self.largest_bound.max(bound)))
    }

    /// The NICs' clocks as they were read last, emitter's and reflector's.
    pub fn nic_clocks(&self) -> [Option<NicClock>; 2] {
        [self.here, self.there]
    }

    /// How much faster the reflector's `CLOCK_MONOTONIC` runs than the emitter's, ppb; `None` where that was never estimated.
    pub fn drift_ppb(&self) -> Option<i64> {
        self.drift_ppb
    }

    /// How wrong a part's times can be, at worst so far: 0 where one clock took both its stamps. `None` where nothing is known.
    pub fn error_bound(&self, part: Part) -> Option<Ns> {
        let clock = |stamp: Stamp| (stamp.source() == Source::Nic, stamp.is_reflectors());
        let (from, to) = (clock(part.from), clock(part.to));
        if from == to || (self.one_phc && from.0 && to.0) {
            return Some(0);
        }
        let nic = |(nic, there): (bool, bool)| match (nic, there) {
            (false, _) => Some(0),
            (true, false) => self.here.map(|c| c.bound),
            (true, true) => self.there.map(|c| c.bound),
        };
        let between = if from.1 == to.1 { Some(0) } else { self.bound().map(|(_, largest)| largest) };
        Some(nic(from)?.saturating_add(nic(to)?).saturating_add(between?))
    }

    /// An exchange of application times, as of a hello.
    pub fn hello(&mut self, exchange: Exchange) {
        if self.relation == Relation::Estimated {
            self.take(&exchange);
            self.offset_until = Ns::MIN;
        }
    }

    fn take(&mut self, exchange: &Exchange) {
        if let Some(fault) = self.estimator.add(exchange) {
            self.disturbed(fault.at_host, format!("the ends' clocks against each other: {fault}"));
            self.offset_until = Ns::MIN;
        }
    }

    /// The times of a transaction that say most of the offset: as far out as there are stamps.
    fn exchange(&self, raw: &Stamps) -> Option<Exchange> {
        use Stamp::*;
        let first = |of: &[Stamp]| of.iter().find_map(|s| Some((*s, raw.get(*s)?)));
        let (at, at_there) = (raw.get(T1App)?, raw.get(T2App)?);
        let local = |(stamp, time): (Stamp, Ns), clock: Option<NicClock>, at: Ns| match stamp.source() {
            Source::Nic => clock.map(|c| (time.saturating_sub(offset_of(&c, at)), c.bound.max(0))),
            _ => Some((time, 0)),
        };
        let outermost = |clock: Option<NicClock>, nic: Stamp, others: &[Stamp], at: Ns| {
            local(first(&[nic]).filter(|_| clock.is_some()).or_else(|| first(others))?, clock, at)
        };
        let (t1, w1) = outermost(self.here, T1Nic, &[T1Driver, T1Sched, T1App], at)?;
        let (t2, w2) = outermost(self.there, T2Nic, &[T2Kernel, T2App], at_there)?;
        let (t3, w3) = outermost(self.there, T3Nic, &[T3Driver, T3Sched, T3App], at_there)?;
        let (t4, w4) = outermost(self.here, T4Nic, &[T4Kernel, T4App], at)?;
        // What the NICs' clocks may be wrong, granted to the way: what the exchange proves then still holds for certain.
        Some(Exchange {
            t1: t1.saturating_sub(w1.saturating_add(w2)),
            t2,
            t3,
            t4: t4.saturating_add(w3.saturating_add(w4)),
        })
    }

    /// Learns from a transaction, and puts its stamps onto the timeline. A stamp whose clock is not known has no place there.
    pub fn map(&mut self, t: &mut Transaction) {
        let (Some(t1), t2) = (t.raw.get(Stamp::T1App), t.raw.get(Stamp::T2App)) else { return };
        if self.relation == Relation::Estimated {
            self.learn(t1, &t.raw);
            if t1 >= self.offset_until {
                self.estimate(t1);
            }
            if let (Some(within), Some(here), Some(there), Some(t2)) = (self.together, self.here, self.there, t2) {
                // Both PHCs show the same: what the two machines' own clocks differ by follows.
                let offset = offset_of(&here, t1).saturating_sub(offset_of(&there, t2));
                self.offset = Some((offset, within.saturating_add(here.bound).saturating_add(there.bound)));
            }
        }
        let here = self.here.map(|c| offset_of(&c, t1));
        let there = match (self.one_phc, self.offset, self.there, t2) {
            (true, ..) => here,
            (false, Some((offset, _)), Some(clock), Some(t2)) => Some(offset_of(&clock, t2).saturating_add(offset)),
            _ => None,
        };
        let offset = self.offset.map(|(offset, _)| offset);
        for stamp in Stamp::ALL {
            let Some(time) = t.raw.get(stamp) else { continue };
            let ahead = match (stamp.source(), stamp.is_reflectors()) {
                (Source::Nic, false) => here,
                (Source::Nic, true) => there,
                (_, false) => Some(0),
                (_, true) => offset,
            };
            t.mapped.set_if(stamp, ahead.map(|ahead| time.saturating_sub(ahead)));
        }
    }

    fn learn(&mut self, t1: Ns, raw: &Stamps) {
        if t1 >= self.slot_until {
            if let Some(best) = self.best.take() {
                self.take(&best);
            }
            self.slot_until = t1 + SLOT_NS;
        }
        if let Some(exchange) = self.exchange(raw) {
            if self.best.is_none_or(|best| exchange.round_trip() < best.round_trip()) {
                self.best = Some(exchange);
            }
        }
    }

    fn estimate(&mut self, t1: Ns) {
        self.offset_until = t1 + FRESH_NS;
        if let Some(e) = self.estimator.at_host(t1) {
            let said = self.offset.filter(|_| self.relation() == Relation::Synchronised);
            if let Some((offset, bound)) = said {
                let off = offset.abs_diff(e.offset_ns).saturating_sub(bound.unsigned_abs() + e.bound_ns.unsigned_abs());
                // Once, not for each of the estimates that go on saying so.
                if off > 0 && !self.apart {
                    let what = format!("the ends' PHCs are not together as was said: the round trips prove them {off} ns further apart");
                    self.disturbed(t1, what);
                }
                self.apart = off > 0;
            }
            let (offset, bound) = said.unwrap_or((e.offset_ns, e.bound_ns));
            self.offset = Some((offset, bound));
            self.largest_bound = self.largest_bound.max(bound);
            self.drift_ppb = Some(e.drift_ppb);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::Line;
    use proptest::prelude::*;

    /// A transaction whose stamps lie `part` apart on the true timeline, seen by clocks that are ahead by these.
    fn seen(at: Ns, part: Ns, there: Ns, phc_here: Ns, phc_there: Ns) -> Transaction {
        let mut t = Transaction::default();
        for (i, stamp) in Stamp::ALL.into_iter().enumerate() {
            let ahead = match (stamp.source(), stamp.is_reflectors()) {
                (Source::Nic, false) => phc_here,
                (Source::Nic, true) => there + phc_there,
                (_, false) => 0,
                (_, true) => there,
            };
            t.raw.set(stamp, at + part * i as Ns + ahead);
        }
        t
    }

    fn clock(index: i32, offset: Ns) -> Option<NicClock> {
        Some(NicClock { index, at: 0, offset, bound: 50, drift_ppb: 0 })
    }

    #[test]
    fn on_one_kernel_all_parts_are_what_they_were() {
        let mut timeline = Timeline::new(Relation::SameKernel);
        timeline.set_nic_clocks(clock(0, 1_000_000), clock(0, 1_000_007));
        let mut t = seen(5_000_000_000, 100, 0, 1_000_000, 1_000_000);
        timeline.map(&mut t);
        let parts: Vec<_> = t.parts(&Line::detailed(u16::MAX)).collect();
        assert_eq!(parts, vec![Some(100); 13], "one PHC is read with one offset");
    }

    proptest! {
        #[test]
        fn between_machines_the_true_offset_is_within_the_bound_and_the_parts_sum_exactly(
            there in 1_000_000_000i64..1 << 50, phc_here in -1i64 << 50..1 << 50, phc_there in 0i64..1 << 50, part in 1i64..10_000
        ) {
            let mut timeline = Timeline::new(Relation::Estimated);
            timeline.set_nic_clocks(clock(0, phc_here), clock(0, phc_there));
            let line = Line::detailed(u16::MAX);
            for i in 0..100 {
                let mut t = seen(1_000_000_000 + i * 5_000_000, part, there, phc_here, phc_there);
                timeline.map(&mut t);
                if i < 10 {
                    continue;
                }
                let sum: Ns = t.parts(&line).map(|p| p.expect("every stamp has a place")).sum();
                prop_assert_eq!(Some(sum), t.round_trip());
                let (bound, _) = timeline.bound().expect("an offset is known");
                let off = t.mapped.get(Stamp::T2App).unwrap() - (t.raw.get(Stamp::T2App).unwrap() - there);
                prop_assert!(off.abs() <= bound, "off by {off}, bound {bound}");
                prop_assert_eq!(t.mapped.between(Stamp::T1Nic, Stamp::T4Nic), t.nic_round_trip());
            }
            prop_assert_eq!(timeline.disturbances().1, 0);
        }

        #[test]
        fn phcs_that_are_together_give_the_ways_there_and_back_within_what_was_said(
            there in 1_000_000_000i64..1 << 50, phc in -1i64 << 50..1 << 50, off in -5_000i64..5_000, part in 1i64..10_000
        ) {
            let mut timeline = Timeline::new(Relation::Estimated);
            timeline.keep_together(5_000);
            // What the reflector's PHC is ahead of its own machine's clock.
            let phc_there = phc - there + off;
            timeline.set_nic_clocks(clock(0, phc), clock(0, phc_there));
            for i in 0..100 {
                let mut t = seen(1_000_000_000 + i * 5_000_000, part, there, phc, phc_there);
                timeline.map(&mut t);
                let wire = t.mapped.between(Stamp::T1Nic, Stamp::T2Nic).unwrap();
                prop_assert_eq!(wire, part + off, "raw difference of the two PHCs");
                let sum: Ns = t.parts(&Line::detailed(u16::MAX)).map(|p| p.expect("every stamp has a place")).sum();
                prop_assert_eq!(Some(sum), t.round_trip());
            }
            prop_assert_eq!((timeline.relation(), timeline.disturbances().1), (Relation::Synchronised, 0));
        }

        #[test]
        fn times_that_a_hostile_peer_made_up_do_no_harm(times in prop::array::uniform14(any::<i64>()), n in 1usize..5) {
            let mut timeline = Timeline::new(Relation::Estimated);
            timeline.set_nic_clocks(clock(0, 5), Some(NicClock { index: 1, at: times[0], offset: times[1], bound: 5, drift_ppb: times[2] }));
            for _ in 0..n {
                let mut t = Transaction::default();
                Stamp::ALL.into_iter().zip(times).for_each(|(stamp, time)| t.raw.set(stamp, time));
                t.raw.set(Stamp::T1App, 1_000_000);
                t.raw.set(Stamp::T4App, 2_000_000);
                timeline.map(&mut t);
            }
        }
    }

    #[test]
    fn phcs_that_are_further_apart_than_was_said_are_found_out_once() {
        let mut timeline = Timeline::new(Relation::Estimated);
        timeline.keep_together(1_000);
        timeline.set_nic_clocks(clock(0, 0), clock(0, 2_000_000));
        for i in 0..100 {
            timeline.map(&mut seen(1_000_000_000 + i * 5_000_000, 100, 0, 0, 2_000_000));
        }
        let (said, count) = timeline.disturbances();
        assert_eq!((said.len(), count), (1, 1), "{said:?}");
        assert!(said[0].what.contains("not together"), "{said:?}");
    }

    #[test]
    fn without_a_clock_for_them_the_nics_stamps_have_no_place() {
        let mut timeline = Timeline::new(Relation::SameKernel);
        let mut t = seen(1_000, 100, 0, 7, 7);
        timeline.map(&mut t);
        assert_eq!(t.mapped.get(Stamp::T1Nic), None);
        assert_eq!(t.mapped.get(Stamp::T2Kernel), t.raw.get(Stamp::T2Kernel));
        assert_eq!(t.nic_round_trip(), Some(800), "the PHC's own differences need no other clock");
    }
}
