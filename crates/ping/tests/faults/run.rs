//! A run over the wire, and the invariants that hold for every run, whatever the wire's faults.

use crate::wire::{End as WireEnd, Fate, Ledger, OnStamp, Wire, WireError, ALL, PHC_AHEAD};
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_ping::clocks::{Clocks, NicClockSource};
use latpath_ping::emit::{emit, Ended, Observer, Pacing, Plan};
use latpath_ping::figures::{FigureOptions, Figures, Report};
use latpath_ping::reflect::{reflect, ReflectPlan, Witness};
use latpath_ping::session::Session;
use latpath_ping::table::End;
use latpath_ping::timeline::Disturbance;
use latpath_ping::turnaround::Turnaround;
use latpath_ping::wire::{Header, Kind, NicReading};
use latpath_ping::{Route, Stamp, Transaction};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A millisecond, ns.
pub const MS: Ns = 1_000_000;
/// Longer than a busy machine delays a thread, ns; for tests that are not about late messages.
pub const LONG: Ns = 5_000 * MS;

/// A plan with `count` probes at 20 µs intervals; a probe without an answer for 300 ms is lost.
pub fn at_a_rate(count: u64) -> Plan {
    Plan { pacing: Pacing::Every("50000".parse().expect("a rate")), ..one_by_one(count) }
}

/// A plan with `count` probes, each of which is sent when the previous one is answered.
pub fn one_by_one(count: u64) -> Plan {
    Plan {
        session: 0x1234_5678,
        size: 96,
        pacing: Pacing::AsAnswersCome,
        spin: false,
        warm_up: 0,
        count: Some(count),
        duration: None,
        lost_after: 300 * MS,
        timeout: 10_000 * MS,
        by_ptp: false,
        threshold: None,
        stop_on_breach: false,
    }
}

/// A fault, preceded by its frequency: the number of messages in 1000 to which it applies.
#[derive(Clone, Copy)]
pub struct Fault(pub u32, pub fn() -> Fate);

/// Applies faults at random, only to probes and answers.
pub fn by_chance(seed: u64, what: &[Fault]) -> impl FnMut(&mut Vec<u8>) -> Fate {
    let (mut chance, what) = (Chance(seed), what.to_vec());
    move |message| {
        if !Header::read(message).is_some_and(|h| matches!(h.kind, Kind::Probe | Kind::Answer)) {
            return Fate::Comes;
        }
        let mut drawn = chance.below(1000);
        for Fault(share, fate) in &what {
            if drawn < *share {
                return fate();
            }
            drawn -= share;
        }
        Fate::Comes
    }
}

/// A pseudo-random number generator, reproducible from its seed (splitmix64).
#[derive(Clone)]
pub struct Chance(pub u64);

impl Chance {
    /// Draws a number in `0..n`.
    pub fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(n)) as u32
    }
}

/// The clock of the wire's NICs, without drift; tests may set it.
struct Phc {
    set: Arc<AtomicI64>,
    last: Option<(Ns, Ns)>,
}

impl Phc {
    fn of(wire: &Wire) -> Option<Box<dyn NicClockSource>> {
        Some(Box::new(Self { set: Arc::clone(&wire.phc_set), last: None }))
    }
}

impl NicClockSource for Phc {
    fn read(&mut self) -> (Option<NicReading>, Vec<Disturbance>) {
        let (set, at) = (self.set.load(Ordering::Relaxed), monotonic());
        let clock = NicReading { index: 0, at, offset: PHC_AHEAD + set, bound: 100, drift_ppb: 0 };
        let before = self.last.replace((at, set)).filter(|(_, before)| *before != set);
        let step = before.map(|(from, _)| Disturbance {
            nic_set_between: Some((from, at)),
            ..Disturbance::new(at, "the NIC's clock was set".into())
        });
        (Some(clock), step.into_iter().collect())
    }
}

/// Called when a transaction is closed.
pub type OnClosed = Box<dyn FnMut(&Wire, &Transaction, End)>;

/// A run that has not started yet.
pub struct Run {
    pub wire: Arc<Wire>,
    pub plan: Plan,
    /// Stamps that both ends take.
    pub takes: Vec<Stamp>,
    pub on_probes_stamp: Option<OnStamp>,
    pub on_answers_stamp: Option<OnStamp>,
    pub on_closed: OnClosed,
    pub figures: FigureOptions,
}

/// A finished run.
pub struct Outcome {
    pub ended: Ended,
    pub closed: Vec<(Transaction, End)>,
    pub breaches: Vec<Transaction>,
    pub taken: u16,
    pub report: Report,
    pub ledger: Ledger,
    /// Sequence numbers of the breaches that were reported to the reflector.
    pub reported: Vec<u64>,
}

struct Watching<'a> {
    figures: Figures,
    closed: Vec<(Transaction, End)>,
    breaches: Vec<Transaction>,
    taken: u16,
    wire: &'a Wire,
    on_closed: OnClosed,
}

impl Observer for Watching<'_> {
    fn closed(&mut self, t: &Transaction, end: End) {
        self.figures.add(t, end);
        self.closed.push((*t, end));
        (self.on_closed)(self.wire, t, end);
    }
    fn breach(&mut self, t: &Transaction) {
        self.breaches.push(*t);
    }
    fn route(&mut self, taken: u16) {
        self.taken = taken;
        self.figures.set_route(taken);
    }
    fn warm(&mut self) {
        self.figures.clear();
        self.closed.clear();
    }
}

#[derive(Default)]
pub struct Reported(pub Mutex<Vec<u64>>);

impl Witness<u32> for &Reported {
    fn begins(&mut self, _: &u32, _: u32) {}
    fn ends(&mut self, _: &u32, _: &Session) {}
    fn breach(&mut self, _: &u32, _: &Session, sequence: u64) {
        self.0.lock().expect("no panic").push(sequence);
    }
    fn slow(&mut self, _: &u32, _: u32, _: &Turnaround) {}
}

impl Run {
    /// Creates a run over a wire without faults, with stamps by kernel and NIC.
    pub fn new(plan: Plan) -> Self {
        Self {
            wire: Wire::new(),
            plan,
            takes: ALL.to_vec(),
            on_probes_stamp: None,
            on_answers_stamp: None,
            on_closed: Box::new(|_, _, _| {}),
            figures: FigureOptions::default(),
        }
    }

    /// Runs emitter and reflector to the end. If the reflector dies, another one replaces it once the wire is revived.
    pub fn go(self) -> Outcome {
        let (stop, reported) = (AtomicBool::new(false), Reported::default());
        let mut here = WireEnd::new(&self.wire, false, &self.takes, self.on_probes_stamp);
        let mut there = WireEnd::new(&self.wire, true, &self.takes, self.on_answers_stamp);
        let mut watching = Watching {
            figures: Figures::new(&self.figures),
            closed: Vec::new(),
            breaches: Vec::new(),
            taken: 0,
            wire: &self.wire,
            on_closed: self.on_closed,
        };
        let ended = thread::scope(|scope| {
            let reflector = scope.spawn(|| {
                let clocks = Clocks::watch(Phc::of(&self.wire));
                let mut ended = reflect(&mut there, &ReflectPlan::default(), &clocks, &mut &reported, &stop);
                while !stop.load(Ordering::Relaxed) {
                    latpath_testkit::waits::pace(std::time::Duration::from_millis(1));
                    ended = reflect(&mut there, &ReflectPlan::default(), &clocks, &mut &reported, &stop);
                }
                ended
            });
            let clocks = Clocks::watch(Phc::of(&self.wire));
            let ended = emit(&mut here, 0, &self.plan, &clocks, &mut watching, &AtomicBool::new(false));
            stop.store(true, Ordering::Relaxed);
            let _ = reflector.join().expect("the reflector does not panic");
            ended
        });
        assert_ne!(ended.why, Err(WireError::TooLong.to_string()), "the run did not end by itself");
        let report = watching.figures.report(&ended.counts, ended.seen, &ended.timeline, (0, ended.elapsed));
        let Watching { closed, breaches, taken, .. } = watching;
        Outcome {
            ended,
            closed,
            breaches,
            taken,
            report,
            ledger: self.wire.ledger(),
            reported: reported.0.into_inner().expect("no panic"),
        }
    }
}

impl Outcome {
    /// Checks the invariants of every run whose reflector survived.
    pub fn adds_up(&self) {
        self.emitters_counts_add_up();
        let (seen, ledger) = (self.ended.seen.expect("the reflector said what it saw"), &self.ledger);
        let (unique, reordered) = in_order(&ledger.there, |_| true);
        let c = &self.ended.counts;
        assert_eq!(seen.received, unique, "probes that came to the reflector");
        assert_eq!(seen.duplicates, ledger.there.len() as u64 - unique, "probes that came there twice");
        assert_eq!(seen.reordered, reordered, "probes that came there out of order");
        assert_eq!((seen.foreign, seen.refused), (ledger.foreign_there, ledger.answers_refused));
        let (there, back) = (self.report.lost_there.unwrap(), self.report.lost_back.unwrap());
        assert_eq!(there, c.sent - unique, "lost before the reflector");
        assert_eq!(there + back + c.late, c.lost, "what was lost was lost somewhere, or came too late");
    }

    /// Checks the invariants of every run.
    pub fn emitters_counts_add_up(&self) {
        let (c, ledger) = (&self.ended.counts, &self.ledger);
        assert_eq!((c.sent, c.refused), (ledger.probes, ledger.refused), "probes, and those that the kernel refused");
        assert_eq!(c.sent, c.answered + c.lost, "each probe is answered or lost");
        let ends: Vec<u64> = self.closed.iter().map(|(t, _)| t.sequence).collect();
        assert!(ends.iter().copied().eq(0..c.sent), "each probe is closed once, in order");
        let answered: HashSet<u64> = self.answered().map(|t| t.sequence).collect();
        assert_eq!(answered.len() as u64, c.answered);
        let (unique, _) = in_order(&ledger.back, |_| true);
        assert_eq!(c.answered + c.late, unique, "each probe's first answer is in time or late");
        assert_eq!(c.duplicates, ledger.back.len() as u64 - unique, "answers that came again");
        let (_, reordered) = in_order(&ledger.back, |sequence| answered.contains(&sequence));
        assert_eq!(c.reordered, reordered, "answers that came after a later probe's");
        assert_eq!(c.foreign, ledger.foreign_back, "messages that were none of ours");
        self.stamps_add_up();
    }

    /// Checks that segments add up to the round trip, and that missing stamps are counted.
    pub fn stamps_add_up(&self) {
        let mut incomplete = 0;
        let mut missing = [0; Stamp::ALL.len()];
        let mut unplaced = 0;
        for t in self.answered() {
            let lacks = self.taken & !t.raw.mask();
            incomplete += u64::from(lacks != 0);
            Stamp::ALL.into_iter().filter(|s| s.bit() & lacks != 0).for_each(|s| missing[s as usize] += 1);
            for route in [Route::detailed(t.mapped.mask()), Route::of_seven(t.mapped.mask())] {
                let sum: Ns = t.segments(&route).map(|part| part.expect("its stamps are there")).sum();
                assert_eq!(Some(sum), t.round_trip(), "the parts of probe {} sum to its round trip", t.sequence);
            }
            // If the NIC's clock was not read in time, e.g. because the machine paused, its stamps cannot be mapped.
            let has_none = t.raw.mask() & !t.mapped.mask() & self.taken != 0;
            unplaced += u64::from(has_none);
            if lacks == 0 && !has_none {
                assert!(
                    t.segments(&Route::detailed(self.taken)).all(|part| part.is_some()),
                    "each stamp has its place"
                );
            }
        }
        assert_eq!(self.report.unplaced, unplaced, "transactions with a stamp that has no place");
        assert_eq!(self.ended.counts.incomplete, incomplete, "transactions that lack a stamp");
        let reported: Vec<_> = self.report.missing.iter().map(|m| (m.stamp, m.count)).collect();
        let counted: Vec<_> =
            Stamp::ALL.into_iter().map(|s| (s, missing[s as usize])).filter(|(_, n)| *n > 0).collect();
        assert_eq!(reported, counted, "stamps that did not come");
        assert_eq!(self.report.round_trip.count, self.answered().count() as u64);
    }

    /// The transactions that were answered in time.
    pub fn answered(&self) -> impl Iterator<Item = &Transaction> {
        self.closed.iter().filter(|(_, end)| *end == End::Answered).map(|(t, _)| t)
    }

    /// Number of answered transactions with this stamp.
    pub fn with(&self, stamp: Stamp) -> u64 {
        self.answered().filter(|t| t.raw.get(stamp).is_some()).count() as u64
    }
}

/// Number of distinct values for which `counts` holds, and of those among them that follow a higher one.
fn in_order(list: &[u64], counts: impl Fn(u64) -> bool) -> (u64, u64) {
    let (mut known, mut highest, mut reordered) = (HashSet::new(), None, 0);
    for sequence in list.iter().copied().filter(|s| counts(*s)) {
        if known.insert(sequence) {
            reordered += u64::from(highest > Some(sequence));
            highest = highest.max(Some(sequence));
        }
    }
    (known.len() as u64, reordered)
}
