//! The common timeline of a transaction: the emitter's `CLOCK_MONOTONIC`.
//!
//! Four clocks take stamps: `CLOCK_MONOTONIC` and the PHC at each end. Readings ([`NicReading`]) relate a PHC to its
//! machine's `CLOCK_MONOTONIC`. The reflector's `CLOCK_MONOTONIC` equals the emitter's if both run on one kernel.
//! Otherwise each round trip bounds the offset, and [`OffsetEstimator`] keeps the tightest bounds: the error bound is
//! at best half of the time that a message spends on the wire in both directions.
//!
//! If a clock of each machine follows the same PTP grandmaster, its time gives the offset within the sum of both bounds
//! (crate timesync), and the round trips check it.
//!
//! A transaction is mapped with one offset per clock, so differences within one clock stay exact, and the segments add
//! up to the round trip.

use crate::nic_clock::{NicTrack, Offset};
use crate::transaction::{Segment, Source, Stamp, Stamps, Transaction};
use crate::wire::NicReading;
use latpath_clock::{Assumed, Exchange, OffsetEstimator};
use latpath_model::Ns;
use latpath_timesync::PtpTime;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum age of an estimate of the offset, ns. Within it, the clocks drift apart by at most 1 ns at 100 ppm.
const FRESH_NS: Ns = 10_000_000;
/// Interval from which only the fastest exchange is passed to the estimator, ns.
const SLOT_NS: Ns = 10_000_000;

/// Relation between the clocks of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Both ends run on one kernel and share its clock.
    SameKernel,
    /// The offset is estimated from the round trips.
    Estimated,
    /// A clock of each end follows the same PTP grandmaster.
    Synchronised,
}

/// Maps the stamps of transactions to the timeline.
pub struct Timeline {
    relation: Relation,
    /// Clock of the emitter's NIC.
    here: NicTrack,
    /// Clock of the reflector's NIC.
    there: NicTrack,
    /// Maximum error bounds of the two NIC clocks so far, ns.
    nic_bounds: [Ns; 2],
    /// Latest exchange passed to the estimator.
    taken: Option<Exchange>,
    /// Whether emitter and reflector use the same PHC.
    one_phc: bool,
    /// Reflector − emitter according to PTP, and its bound, ns; or why it is unknown. `None` until PTP is used.
    ptp: Option<Result<(Ns, Ns), String>>,
    /// Whether the round trips contradict the PTP offset.
    apart: bool,
    estimator: OffsetEstimator,
    /// Current estimate of reflector − emitter, and its bound, ns.
    offset: Option<(Ns, Ns)>,
    offset_until: Ns,
    best: Option<Exchange>,
    slot_until: Ns,
    largest_bound: Ns,
    drift_ppb: Option<i64>,
    disturbances: Vec<Disturbance>,
    disturbed: u64,
}

/// A disturbance of a clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Disturbance {
    /// Time of its discovery, ns of `CLOCK_MONOTONIC`: the emitter's, or the reflector's in the reflector's own result.
    pub at_ns: Ns,
    /// Description, including the size of the disturbance.
    pub what: String,
    /// Interval in which the NIC clock was set; its stamps from this interval cannot be placed on the timeline.
    #[serde(skip)]
    pub nic_set_between: Option<(Ns, Ns)>,
}

impl Disturbance {
    /// Creates a disturbance that did not set a NIC clock.
    pub fn new(at_ns: Ns, what: String) -> Self {
        Self { at_ns, what, nic_set_between: None }
    }
}

/// Maximum number of disturbances reported individually.
const MAX_REPORTED: usize = 100;

impl Timeline {
    /// Creates a timeline for ends whose clocks have this relation.
    pub fn new(relation: Relation) -> Self {
        Self {
            relation,
            here: NicTrack::default(),
            there: NicTrack::default(),
            nic_bounds: [0; 2],
            taken: None,
            one_phc: false,
            ptp: None,
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

    /// Relates the ends' clocks by the grandmaster's time at this machine and at the reflector's, as known at `now`.
    /// Has no effect if both ends run on one kernel.
    pub fn set_ptp(&mut self, now: Ns, here: Option<PtpTime>, there: Option<PtpTime>) {
        if self.relation != Relation::Estimated {
            return;
        }
        let tie = match (here, there) {
            (Some(here), Some(there)) => {
                here.moment_of(&there).map(|(at, bound)| (there.monotonic_ns.saturating_sub(at), bound))
            }
            (None, _) => Err("no clock of this machine follows a PTP grandmaster (latpath clocks)".into()),
            (_, None) => Err("the reflector reports no PTP grandmaster: no clock of its machine follows one \
                (latpath clocks there), or it is of an earlier version"
                .into()),
        };
        if let (Some(Ok(_)), Err(why)) = (&self.ptp, &tie) {
            let what = format!("the ends are no longer tied by PTP: {why}");
            self.disturbed(now, what);
        }
        self.ptp = Some(tie);
    }

    /// Whether the ends' clocks are related by PTP.
    pub fn is_by_ptp(&self) -> bool {
        matches!(self.ptp, Some(Ok(_)))
    }

    /// Why the ends' clocks are not related by PTP, if that was requested.
    pub fn why_not_by_ptp(&self) -> Option<&str> {
        self.ptp.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Relation between the clocks of both ends.
    pub fn relation(&self) -> Relation {
        if self.is_by_ptp() {
            Relation::Synchronised
        } else {
            self.relation
        }
    }

    /// Adds readings of the NIC clocks.
    pub fn set_nic_clocks(&mut self, here: Option<NicReading>, there: Option<NicReading>) {
        here.into_iter().for_each(|clock| self.here.add(clock));
        there.into_iter().for_each(|clock| self.there.add(clock));
        let index = |track: &NicTrack| track.last().map(|c| c.index);
        self.one_phc = self.relation == Relation::SameKernel
            && self.here.last().is_some()
            && index(&self.here) == index(&self.there);
    }

    /// Whether NIC stamps are to be mapped; a transaction must then wait for later readings of the NIC clocks.
    pub fn has_nic_clocks(&self) -> bool {
        self.here.last().is_some() || self.there.last().is_some()
    }

    /// Marks an interval in which the clock of the emitter's NIC was set.
    pub fn nic_was_set(&mut self, from: Ns, to: Ns) {
        self.here.darken(from, to);
        if self.one_phc {
            self.there.darken(from, to);
        }
    }

    /// Records that the reflector's PHC was set before its latest reading. The reflector may report this one reading
    /// late.
    pub fn reflectors_nic_was_set(&mut self) {
        let (from, to) = (self.there.read_at(2), self.there.read_at(0));
        if let (Some(from), Some(to)) = (from.or(self.there.read_at(1)), to) {
            self.there.darken(from, to);
        }
    }

    /// Notes a disturbance of a clock.
    pub fn disturbed(&mut self, at_ns: Ns, what: String) {
        self.disturbed += 1;
        if self.disturbances.len() < MAX_REPORTED {
            self.disturbances.push(Disturbance::new(at_ns, what));
        }
    }

    /// The first disturbances, and the total number.
    pub fn disturbances(&self) -> (&[Disturbance], u64) {
        (&self.disturbances, self.disturbed)
    }

    /// Error bound of times between the two ends: current and maximum, ns.
    pub fn bound(&self) -> Option<(Ns, Ns)> {
        self.offset.map(|(_, bound)| (bound, self.largest_bound.max(bound)))
    }

    /// Latest readings of the NIC clocks: the emitter's and the reflector's.
    pub fn nic_clocks(&self) -> [Option<NicReading>; 2] {
        [&self.here, &self.there].map(|track| track.last().copied())
    }

    /// Drift of the reflector's `CLOCK_MONOTONIC` against the emitter's, ppb; `None` without an estimate.
    pub fn drift_ppb(&self) -> Option<i64> {
        self.drift_ppb
    }

    /// Maximum error bound so far of a segment's times, ns; 0 if one clock took both stamps, `None` if unknown.
    pub fn error_bound(&self, segment: Segment) -> Option<Ns> {
        let clock = |stamp: Stamp| (stamp.source() == Source::Nic, stamp.is_reflectors());
        let (from, to) = (clock(segment.from), clock(segment.to));
        if from == to || (self.one_phc && from.0 && to.0) {
            return Some(0);
        }
        let nic = |(nic, there): (bool, bool)| match (nic, there) {
            (false, _) => Some(0),
            (true, false) => self.here.last().map(|_| self.nic_bounds[0]),
            (true, true) => self.there.last().map(|_| self.nic_bounds[1]),
        };
        let between = if from.1 == to.1 { Some(0) } else { self.bound().map(|(_, largest)| largest) };
        Some(nic(from)?.saturating_add(nic(to)?).saturating_add(between?))
    }

    /// Adds an exchange of application times, from a hello.
    pub fn hello(&mut self, exchange: Exchange) {
        if self.relation == Relation::Estimated {
            self.take(&exchange);
            self.offset_until = Ns::MIN;
        }
    }

    /// Passes an exchange to the estimator, unless it overlaps with the previous one.
    fn take(&mut self, exchange: &Exchange) {
        if self.taken.is_some_and(|last| exchange.t1 <= last.t4) {
            return;
        }
        self.taken = Some(*exchange);
        if let Some(fault) = self.estimator.add(exchange) {
            self.disturbed(fault.at_host, format!("the ends' clocks against each other: {fault}"));
            self.offset_until = Ns::MIN;
        }
    }

    /// The exchange that bounds the offset best: the stamps closest to the wire on a known clock.
    fn exchange(&self, raw: &Stamps, here: Option<Offset>, there: Option<Offset>) -> Option<Exchange> {
        use Stamp::*;
        let outermost = |nic: Stamp, clock: Option<Offset>, others: &[Stamp]| match (raw.get(nic), clock) {
            (Some(time), Some(clock)) => Some((time.saturating_sub(clock.ns), clock.bound)),
            _ => others.iter().find_map(|s| Some((raw.get(*s)?, 0))),
        };
        let (t1, w1) = outermost(T1Nic, here, &[T1Driver, T1Sched, T1App])?;
        let (t2, w2) = outermost(T2Nic, there, &[T2Kernel, T2App])?;
        let (t3, w3) = outermost(T3Nic, there, &[T3Driver, T3Sched, T3App])?;
        let (t4, w4) = outermost(T4Nic, here, &[T4Kernel, T4App])?;
        // Widen the time on the wire by the bounds of the NIC clocks, so that the exchange's bounds on the offset
        // remain valid.
        Some(Exchange {
            t1: t1.saturating_sub(w1.saturating_add(w2)),
            t2,
            t3,
            t4: t4.saturating_add(w3.saturating_add(w4)),
        })
    }

    /// Updates the estimate from a transaction, and maps its stamps to the timeline. NIC stamps are left out if the
    /// clock was not read both before and after them, or was set in between.
    pub fn map(&mut self, t: &mut Transaction) {
        let Some(t1) = t.raw.get(Stamp::T1App) else { return };
        let t2 = t.raw.get(Stamp::T2App);
        let span = t.raw.between(Stamp::T1App, Stamp::T4App).unwrap_or(0);
        let (here, there) = (self.here.at(t1, span), t2.and_then(|t2| self.there.at(t2, span)));
        for (worst, offset) in self.nic_bounds.iter_mut().zip([here, there]) {
            *worst = offset.map_or(*worst, |offset| offset.bound.max(*worst));
        }
        if self.relation == Relation::Estimated {
            self.learn(t1, &t.raw, here, there);
            if t1 >= self.offset_until {
                self.estimate(t1);
            }
            if let Some(Ok((offset, bound))) = self.ptp {
                self.set_offset(offset, bound);
            }
        }
        self.place(t, here, there);
    }

    /// Maps a transaction that is still open, without updating the estimate, using the latest readings of the NIC
    /// clocks.
    pub fn map_now(&self, t: &mut Transaction) {
        let Some(t1) = t.raw.get(Stamp::T1App) else { return };
        let there = t.raw.get(Stamp::T2App).and_then(|t2| self.there.guess(t2));
        self.place(t, self.here.guess(t1), there);
    }

    fn place(&self, t: &mut Transaction, here: Option<Offset>, there: Option<Offset>) {
        let offset = self.offset.map(|(offset, _)| offset);
        let here = here.map(|clock| clock.ns);
        let there = match (self.one_phc, offset, there) {
            (true, ..) => here,
            (false, Some(offset), Some(clock)) => Some(clock.ns.saturating_add(offset)),
            _ => None,
        };
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

    fn learn(&mut self, t1: Ns, raw: &Stamps, here: Option<Offset>, there: Option<Offset>) {
        if t1 >= self.slot_until {
            if let Some(best) = self.best.take() {
                self.take(&best);
            }
            self.slot_until = t1 + SLOT_NS;
        }
        if let Some(exchange) = self.exchange(raw, here, there) {
            if self.best.is_none_or(|best| exchange.round_trip() < best.round_trip()) {
                self.best = Some(exchange);
            }
        }
    }

    fn estimate(&mut self, t1: Ns) {
        self.offset_until = t1 + FRESH_NS;
        let Some(e) = self.estimator.at_host(t1) else { return };
        self.drift_ppb = Some(e.drift_ppb);
        if self.relation() != Relation::Synchronised {
            self.set_offset(e.offset_ns, e.bound_ns);
        } else if let Some((offset, bound)) = self.offset {
            let off = offset.abs_diff(e.offset_ns).saturating_sub(bound.unsigned_abs() + e.bound_ns.unsigned_abs());
            // A contradiction is reported only once.
            if off > 0 && !self.apart {
                let what = format!(
                    "PTP does not keep the ends' clocks together as it reports: the round trips prove them {off} ns further apart"
                );
                self.disturbed(t1, what);
            }
            self.apart = off > 0;
        }
    }

    fn set_offset(&mut self, offset: Ns, bound: Ns) {
        self.offset = Some((offset, bound));
        self.largest_bound = self.largest_bound.max(bound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::Route;
    use proptest::prelude::*;

    /// A transaction whose stamps are `segment` ns apart in true time, taken by clocks that are ahead by the given
    /// offsets.
    fn seen(at: Ns, segment: Ns, there: Ns, phc_here: Ns, phc_there: Ns) -> Transaction {
        let mut t = Transaction::default();
        for (i, stamp) in Stamp::ALL.into_iter().enumerate() {
            let ahead = match (stamp.source(), stamp.is_reflectors()) {
                (Source::Nic, false) => phc_here,
                (Source::Nic, true) => there + phc_there,
                (_, false) => 0,
                (_, true) => there,
            };
            t.raw.set(stamp, at + segment * i as Ns + ahead);
        }
        t
    }

    fn clock(index: i32, offset: Ns) -> Option<NicReading> {
        Some(NicReading { index, at: 0, offset, bound: 50, drift_ppb: 0 })
    }

    /// Adds readings of undisturbed clocks, four per second for 10 s; the reflector's system clock is ahead by `ahead`.
    fn read(timeline: &mut Timeline, ahead: Ns, here: Option<NicReading>, there: Option<NicReading>) {
        for at in (0..40).map(|i| i * 250_000_000) {
            let then = |clock: Option<NicReading>, ahead: Ns| clock.map(|c| NicReading { at: at + ahead, ..c });
            timeline.set_nic_clocks(then(here, 0), then(there, ahead));
        }
    }

    #[test]
    fn on_one_kernel_segments_are_unchanged() {
        let mut timeline = Timeline::new(Relation::SameKernel);
        read(&mut timeline, 0, clock(0, 1_000_000), clock(0, 1_000_007));
        let mut t = seen(5_000_000_000, 100, 0, 1_000_000, 1_000_000);
        timeline.map(&mut t);
        let segments: Vec<_> = t.segments(&Route::detailed(u16::MAX)).collect();
        assert_eq!(segments, vec![Some(100); 13], "one PHC is read with one offset");
    }

    proptest! {
        #[test]
        fn between_machines_the_true_offset_is_within_the_bound_and_the_segments_sum_exactly(
            there in 1_000_000_000i64..1 << 50, phc_here in -1i64 << 50..1 << 50, phc_there in 0i64..1 << 50, segment in 1i64..10_000
        ) {
            let mut timeline = Timeline::new(Relation::Estimated);
            read(&mut timeline, there, clock(0, phc_here), clock(0, phc_there));
            let route = Route::detailed(u16::MAX);
            for i in 0..100 {
                let mut t = seen(1_000_000_000 + i * 5_000_000, segment, there, phc_here, phc_there);
                timeline.map(&mut t);
                if i < 10 {
                    continue;
                }
                let sum: Ns = t.segments(&route).map(|p| p.expect("every stamp has a place")).sum();
                prop_assert_eq!(Some(sum), t.round_trip());
                let (bound, _) = timeline.bound().expect("an offset is known");
                let off = t.mapped.get(Stamp::T2App).unwrap() - (t.raw.get(Stamp::T2App).unwrap() - there);
                prop_assert!(off.abs() <= bound, "off by {off}, bound {bound}");
                prop_assert_eq!(t.mapped.between(Stamp::T1Nic, Stamp::T4Nic), t.nic_round_trip());
            }
            prop_assert_eq!(timeline.disturbances().1, 0);
        }

        #[test]
        fn ptp_gives_one_way_times_within_the_sum_of_both_bounds(
            there in 1_000_000_000i64..1 << 50, phc_here in -1i64 << 50..1 << 50, phc_there in 0i64..1 << 50,
            off in -500i64..=500, segment in 1i64..10_000
        ) {
            let mut timeline = Timeline::new(Relation::Estimated);
            read(&mut timeline, there, clock(0, phc_here), clock(0, phc_there));
            let route = Route::detailed(u16::MAX);
            for i in 0..100 {
                let now = 1_000_000_000 + i * 5_000_000;
                timeline.set_ptp(now, Some(by(1, now, 0)), Some(by(1, now + 300_000 + there, 300_000 + off)));
                let mut t = seen(now, segment, there, phc_here, phc_there);
                timeline.map(&mut t);
                let wrong = t.mapped.get(Stamp::T2App).unwrap() - (t.raw.get(Stamp::T2App).unwrap() - there);
                prop_assert_eq!(wrong, off, "the offset by PTP");
                let sum: Ns = t.segments(&route).map(|p| p.expect("every stamp has a place")).sum();
                prop_assert_eq!(Some(sum), t.round_trip());
            }
            prop_assert_eq!((timeline.relation(), timeline.bound()), (Relation::Synchronised, Some((500, 500))));
        }

        #[test]
        fn invented_times_of_a_peer_are_handled(times in prop::array::uniform14(any::<i64>()), n in 1usize..5) {
            let mut timeline = Timeline::new(Relation::Estimated);
            read(&mut timeline, 0, clock(0, 5), Some(NicReading { index: 1, at: times[0], offset: times[1], bound: 5, drift_ppb: times[2] }));
            for _ in 0..n {
                let mut t = Transaction::default();
                Stamp::ALL.into_iter().zip(times).for_each(|(stamp, time)| t.raw.set(stamp, time));
                t.raw.set(Stamp::T1App, 1_000_000);
                t.raw.set(Stamp::T4App, 2_000_000);
                timeline.map(&mut t);
            }
        }
    }

    /// UTC when the emitter's clock is at 0.
    const UTC: Ns = 1_700_000_000_000_000_000;

    /// A grandmaster's time as known on a machine: `late` ns after [`UTC`] when the machine's clock is at
    /// `monotonic_ns`.
    fn by(grandmaster: u8, monotonic_ns: Ns, late: Ns) -> PtpTime {
        let grandmaster = latpath_timesync::ClockIdentity([grandmaster; 8]);
        PtpTime { grandmaster, monotonic_ns, utc_ns: UTC + late, bound_ns: 250 }
    }

    #[test]
    fn a_contradiction_of_ptp_and_its_end_are_reported_once() {
        let mut timeline = Timeline::new(Relation::Estimated);
        for i in 0..100 {
            // According to PTP, the reflector's clock is 2 ms ahead.
            let now = 1_000_000_000 + i * 5_000_000;
            timeline.set_ptp(now, Some(by(1, 0, 0)), Some(by(1, 2_000_000, 0)));
            timeline.map(&mut seen(now, 100, 0, 0, 0));
        }
        let (said, count) = timeline.disturbances();
        assert_eq!((said.len(), count), (1, 1), "{said:?}");
        assert!(said[0].what.contains("PTP does not keep"), "{said:?}");
        for (here, there) in [(Some(by(1, 0, 0)), Some(by(2, 0, 0))), (Some(by(1, 0, 0)), None), (None, None)] {
            timeline.set_ptp(2_000_000_000, here, there);
            assert_eq!(timeline.relation(), Relation::Estimated);
        }
        let (said, count) = timeline.disturbances();
        assert_eq!(count, 2, "{said:?}");
        assert!(said[1].what.contains("grandmaster is 020202"), "{said:?}");
        assert!(timeline.why_not_by_ptp().is_some_and(|why| why.starts_with("no clock of this machine")));
        let mut one_kernel = Timeline::new(Relation::SameKernel);
        one_kernel.set_ptp(0, None, None);
        assert_eq!((one_kernel.relation(), one_kernel.why_not_by_ptp()), (Relation::SameKernel, None));
    }

    #[test]
    fn without_a_clock_reading_nic_stamps_are_not_mapped() {
        let mut timeline = Timeline::new(Relation::SameKernel);
        let mut t = seen(1_000, 100, 0, 7, 7);
        timeline.map(&mut t);
        assert_eq!(t.mapped.get(Stamp::T1Nic), None);
        assert_eq!(t.mapped.get(Stamp::T2Kernel), t.raw.get(Stamp::T2Kernel));
        assert_eq!(t.nic_round_trip(), Some(800), "the PHC's own differences need no other clock");
    }
}
