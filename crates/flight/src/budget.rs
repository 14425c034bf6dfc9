//! The budget of the flight recorder, and which events it gives up to stay within it.
//!
//! The kernel programs enforce the budget themselves: a bucket that fills with time and is emptied by events (`struct
//! allowance` in bpf/event.h). It permits 80 % of the budget continuously, and a burst of 15 % of a second's budget.
//! When the bucket is empty, the programs record nothing more and wake a thread ([`keeper`](crate::keeper)), which
//! detaches them. The remaining 5 % cover entering and leaving the programs until then. So no second costs more than
//! the budget.
//!
//! [`Budget`] decides what is recorded next, and when. It drops the least useful events first: details, then wakers,
//! then all ([`Level`]). It records more again once the machine is calm enough, judged by its context switches and
//! interrupts, which the kernel counts even while nothing is recorded.
//!
//! The programs measure the cost of one event in 64, and count all events.

use crate::event::EventKind;
use crate::layout::BUDGET_EVENTS;
use latpath_model::Ns;

/// Share of the machine's CPU time, ppm.
pub type Ppm = u64;

/// Default budget: 2 % of the machine.
pub const DEFAULT_BUDGET: Ppm = 20_000;
/// Cost of an event outside its program, ns: the kernel's entry into a program and the return from it, which the
/// programs cannot measure. Programs that do nothing cost 25 to 70 ns on an AMD EPYC with mitigations
/// (docs/benchmarks.md).
const ENTRY_NS: u64 = 50;
/// Assumed cost of an event within its program until it is measured, ns.
const ASSUMED_NS: u64 = 100;
/// Share of the budget that fills the bucket, percent.
const SUSTAINED: u64 = 80;
/// Capacity of the bucket, percent of a second's budget. The rest is for program runs until they are detached.
const BURST: u64 = 15;
/// Time in which an empty bucket fills, ns.
pub(crate) const BURST_NS: u64 = 1_000_000_000 * BURST / SUSTAINED;
/// Maximum expected cost, percent of the budget, of a level that is entered because the previous one costs too much.
const EXPECTED: u64 = 75;
/// Maximum expected cost, percent of the budget, of a level that is entered because the machine is calm again.
const CALM: u64 = 60;
/// Time between the end of one level and the start of the next, ns, in which the bucket half fills.
const REFILL: Ns = BURST_NS as Ns / 2;
/// Interval at which the machine's activity is read, ns; not shorter, because the file is long on machines with many
/// interrupts. The second value applies while fewer events are recorded.
pub(crate) const ACTIVITY_EVERY: [Ns; 2] = [1_000_000_000, 200_000_000];
/// Minimum time at a level before more is recorded again, ns. It doubles, up to `LONGEST_PAUSE`, each time that turns
/// out to be too early.
const MIN_PAUSE: Ns = 500_000_000;
const LONGEST_PAUSE: Ns = 64_000_000_000;

/// The recorded events. Each level omits more than the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All events.
    #[default]
    All,
    /// All except functions of timers and work items, and raising of softirqs.
    WithoutDetails,
    /// Also without wakers.
    WithoutWakers,
    /// Nothing.
    Paused,
}

impl Level {
    const EACH: [Self; 4] = [Self::All, Self::WithoutDetails, Self::WithoutWakers, Self::Paused];

    /// The first level at which a program of bpf/ is detached; `None` for programs that record threads' names at each
    /// level.
    pub(crate) fn that_drops(program: &str) -> Option<Self> {
        match program {
            "rename" | "wakeup_new" => None,
            "softirq_raise" | "hrtimer_entry" | "hrtimer_exit" | "timer_entry" | "timer_exit" | "work_start"
            | "work_end" => Some(Self::WithoutDetails),
            "waking" => Some(Self::WithoutWakers),
            _ => Some(Self::Paused),
        }
    }

    /// The first level at which events of this kind are not recorded.
    fn that_drops_event(what: &EventKind) -> Self {
        match what {
            EventKind::SoftirqRaise(_)
            | EventKind::HrtimerEntry(_)
            | EventKind::HrtimerExit
            | EventKind::TimerEntry(_)
            | EventKind::TimerExit
            | EventKind::WorkStart(_)
            | EventKind::WorkEnd => Self::WithoutDetails,
            EventKind::Waking { .. } => Self::WithoutWakers,
            _ => Self::Paused,
        }
    }
}

/// Share of the latest events that would be recorded at each level, percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix([u64; 4]);

impl Mix {
    pub fn of<'a>(events: impl IntoIterator<Item = &'a EventKind>) -> Self {
        let (mut all, mut remaining) = (0, [0; 4]);
        for what in events {
            all += 1;
            let dropped = Level::that_drops_event(what);
            Level::EACH.iter().zip(&mut remaining).filter(|(level, _)| **level < dropped).for_each(|(_, n)| *n += 1);
        }
        Self(remaining.map(|n: u64| (n * 100).checked_div(all).unwrap_or(100)))
    }

    fn remains(self, level: Level) -> u64 {
        if level == Level::Paused {
            0
        } else {
            self.0[level as usize]
        }
    }
}

/// Counts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Number of events since the recorder was started.
    pub events: u64,
    /// Number of program runs that recorded nothing, because the bucket was empty.
    pub refused: u64,
    /// Number of context switches, interrupts and softirqs of the machine since boot; `None` if not read this time.
    pub activity: Option<u64>,
}

/// Counts when the machine's activity was last read.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Ns,
    activity: u64,
    cost_ns: u64,
}

/// Decides on the level. It is pure arithmetic on its inputs, so that it can be tested.
#[derive(Debug)]
pub(crate) struct Budget {
    ppm: Ppm,
    cpus: u64,
    /// CPU time that the recorder may take per second, ns.
    a_second: u64,
    ns_per_event: u64,
    level: Level,
    /// The level to enter after a pause in which the bucket fills, and the time at which to enter it.
    planned: Option<(Level, Ns)>,
    at: Ns,
    counted: Counts,
    read: Option<Reading>,
    /// Cost of recording everything, ns per 1,000 units of the machine's activity; known after two readings at
    /// [`Level::All`].
    all_per_activity: Option<u64>,
    mix: Option<Mix>,
    since: Ns,
    pause: Ns,
    pub spent: Spent,
}

/// Use of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// CPU time of all events, ns.
    pub cost_ns: u64,
    /// Time in which details or wakers were omitted, ns.
    pub reduced_ns: u64,
    /// Time in which nothing was recorded, ns.
    pub paused_ns: u64,
}

impl Budget {
    /// Creates a budget that starts at `now`, with the counts at that time.
    pub fn new(budget: Ppm, cpus: usize, now: Ns, counted: Counts) -> Self {
        Self {
            ppm: budget,
            cpus: cpus as u64,
            a_second: budget.saturating_mul(1000).saturating_mul(cpus as u64),
            ns_per_event: ASSUMED_NS + ENTRY_NS,
            level: Level::All,
            planned: None,
            at: now,
            counted,
            read: None,
            all_per_activity: None,
            mix: None,
            since: now,
            pause: MIN_PAUSE,
            spent: Spent::default(),
        }
    }

    pub fn level(&self) -> Level {
        self.level
    }

    /// The budget, ppm.
    pub fn ppm(&self) -> Ppm {
        self.ppm
    }

    /// Share of the machine's CPU time that recording took over `length` ns.
    pub fn cost_ppm(&self, length: Ns) -> Ppm {
        let available = u128::from(self.cpus) * length.max(1) as u128;
        (u128::from(self.spent.cost_ns) * 1_000_000 / available) as u64
    }

    /// Sets the measured cost of an event within its program, ns.
    pub fn set_cost(&mut self, ns_per_event: Option<u64>) {
        self.ns_per_event = ns_per_event.unwrap_or(ASSUMED_NS) + ENTRY_NS;
    }

    /// Time in which the bucket fills by the cost of [`BUDGET_EVENTS`] events, ns.
    pub fn part_ns(&self) -> u64 {
        /// Longer than any recording, but far from overflowing the kernel's arithmetic.
        const MAX: u64 = 1 << 60;
        let cost = self.ns_per_event as u128 * BUDGET_EVENTS as u128 * 1_000_000_000;
        let filled = u128::from(self.a_second) * u128::from(SUSTAINED) / 100;
        cost.checked_div(filled).map_or(MAX, |ns| ns.min(u128::from(MAX)) as u64)
    }

    /// When the next [`tick`](Self::tick) is due, given the time at which the activity was last read.
    pub fn due(&self, activity_read: Ns) -> Ns {
        let reading = activity_read + ACTIVITY_EVERY[usize::from(self.level != Level::All)];
        self.planned.map_or(reading, |(_, at)| at.min(reading))
    }

    /// Evaluates the counts at `now`, and returns the new level. `stopped`: when the programs found the bucket empty,
    /// if they did. `mix` returns the mix of the latest events; it is called when [`Level::All`] is left.
    pub fn tick(&mut self, now: Ns, counted: Counts, stopped: Option<Ns>, mix: impl FnOnce() -> Mix) -> Level {
        let recorded_until = match self.level {
            Level::Paused => self.at,
            _ => stopped.unwrap_or(now).clamp(self.at, now.max(self.at)),
        };
        let recorded = (recorded_until - self.at) as u64;
        let cost = counted.events.saturating_sub(self.counted.events).saturating_mul(self.ns_per_event);
        let refused = counted.refused.saturating_sub(self.counted.refused).saturating_mul(ENTRY_NS);
        self.spent.cost_ns = self.spent.cost_ns.saturating_add(cost).saturating_add(refused);
        self.spent.paused_ns += (now - recorded_until).max(0) as u64;
        if self.level != Level::All {
            self.spent.reduced_ns += recorded;
        }
        (self.at, self.counted) = (now, counted);
        let activity = counted.activity.and_then(|activity| self.read_activity(now, activity));
        match (stopped, self.planned) {
            (Some(_), _) if self.level != Level::Paused => self.shed(now, cost, self.allowed(recorded), mix),
            (_, Some((level, at))) if now >= at => self.enter(level, now),
            (_, Some(_)) => {}
            _ => {
                if let Some((activity, elapsed)) = activity.filter(|_| now - self.since >= self.pause) {
                    self.restore(now, activity, self.allowed(elapsed));
                }
            }
        }
        self.level
    }

    /// CPU time that the recorder may take in `elapsed`, both in ns.
    fn allowed(&self, elapsed: u64) -> u64 {
        (u128::from(self.a_second) * u128::from(elapsed) / 1_000_000_000) as u64
    }

    /// The activity since the previous reading, and the time since then, ns.
    fn read_activity(&mut self, now: Ns, activity: u64) -> Option<(u64, u64)> {
        let last = self.read.replace(Reading { at: now, activity, cost_ns: self.spent.cost_ns })?;
        let done = activity.saturating_sub(last.activity);
        if self.level == Level::All && self.since <= last.at && done > 0 {
            self.all_per_activity = Some((self.spent.cost_ns - last.cost_ns).saturating_mul(1000) / done);
        }
        Some((done, now.saturating_sub(last.at).max(1) as u64))
    }

    fn enter(&mut self, level: Level, now: Ns) {
        (self.level, self.planned, self.since) = (level, None, now);
    }

    /// Pauses, and plans the first level that is expected to fit the budget.
    fn shed(&mut self, now: Ns, cost: u64, allowed: u64, mix: impl FnOnce() -> Mix) {
        if self.level == Level::All {
            // If the previous return to `Level::All` was too early, wait longer before the next one.
            let again = now - self.since < self.pause;
            self.pause = if again { (self.pause * 2).min(LONGEST_PAUSE) } else { MIN_PAUSE };
            self.mix = Some(mix());
        }
        let mix = self.mix.unwrap_or(Mix([100; 4]));
        let now_remains = mix.remains(self.level).max(1);
        let fits = |level: Level| cost * mix.remains(level) / now_remains * 100 <= allowed * EXPECTED;
        let next = Level::EACH.into_iter().find(|level| *level > self.level && fits(*level));
        self.enter(Level::Paused, now);
        self.planned = next.filter(|next| *next != Level::Paused).map(|next| (next, now + REFILL));
    }

    /// Returns to the first level that is expected to fit, judged by the machine's activity.
    fn restore(&mut self, now: Ns, activity: u64, allowed: u64) {
        let mix = self.mix.unwrap_or(Mix([100; 4]));
        // If the relation between activity and cost is unknown, each level counts as fitting and is tried.
        let all = self.all_per_activity.map_or(0, |each| each.saturating_mul(activity) / 1000);
        let fits = |level: Level| all * mix.remains(level) <= allowed * CALM;
        if let Some(level) = Level::EACH.into_iter().find(|level| *level < self.level && fits(*level)) {
            self.enter(level, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;
    const SECOND: Ns = 1000 * MS;
    const PER_SWITCH: u64 = 3;
    /// Time until the keeper has detached the programs, ns.
    const LATENCY: Ns = 10 * MS;

    /// A machine with two CPUs, whose rate of switches changes each second. Each switch causes three events, one of
    /// them a waking. The bucket works like that of bpf/flight.bpf.c.
    struct Machine {
        budget: Budget,
        now: Ns,
        counted: Counts,
        activity: u64,
        used_until: u64,
        stopped: Option<Ns>,
        /// Time at which the keeper runs next.
        due: Ns,
        activity_read: Ns,
    }

    impl Machine {
        fn new() -> Self {
            Self {
                budget: Budget::new(DEFAULT_BUDGET, 2, 0, Counts::default()),
                now: 0,
                counted: Counts::default(),
                activity: 0,
                used_until: 0,
                stopped: None,
                due: 0,
                activity_read: -SECOND,
            }
        }

        /// Simulates `runs` runs of the programs within a millisecond.
        fn run_programs(&mut self, mut runs: u64) {
            while runs > 0 {
                let part = runs.min(BUDGET_EVENTS as u64);
                runs -= part;
                if self.stopped.is_none() {
                    let used = self.used_until.max(self.now as u64);
                    self.used_until = used + self.budget.part_ns() * part / BUDGET_EVENTS as u64;
                    if used > self.now as u64 + BURST_NS {
                        self.stopped = Some(self.now);
                        self.due = self.due.min(self.now + LATENCY);
                    }
                }
                match self.stopped {
                    None => self.counted.events += part,
                    Some(_) => self.counted.refused += part,
                }
            }
        }

        /// Simulates a second at `switches` per second. Returns the level after each ms.
        fn second(&mut self, switches: u64) -> Vec<Level> {
            let ms = |_| {
                self.now += MS;
                self.activity += switches / 1000;
                match self.budget.level {
                    Level::Paused => {}
                    Level::WithoutWakers => self.run_programs((PER_SWITCH - 1) * switches / 1000),
                    _ => self.run_programs(PER_SWITCH * switches / 1000),
                }
                if self.now >= self.due {
                    self.keep();
                }
                self.budget.level
            };
            (0..1000).map(ms).collect()
        }

        fn keep(&mut self) {
            let stopped = self.stopped.filter(|_| self.budget.level != Level::Paused);
            let is_due = self.now >= self.activity_read + ACTIVITY_EVERY[usize::from(self.budget.level != Level::All)];
            self.counted.activity = (is_due || stopped.is_some()).then_some(self.activity);
            if self.counted.activity.is_some() {
                self.activity_read = self.now;
            }
            let level = self.budget.tick(self.now, self.counted, stopped, || Mix([100, 100, 67, 0]));
            if level != Level::Paused {
                self.stopped = None;
            }
            self.due = self.budget.due(self.activity_read);
        }

        /// Simulates a second; returns its cost, ppm of the machine.
        fn cost(&mut self, switches: u64) -> u64 {
            let before = self.budget.spent.cost_ns;
            self.second(switches);
            (self.budget.spent.cost_ns - before) / 2000
        }
    }

    #[test]
    fn loads_within_the_budget_are_recorded_completely() {
        let mut machine = Machine::new();
        for _ in 0..100 {
            assert!(machine.second(60_000).iter().all(|level| *level == Level::All));
        }
        assert_eq!(machine.budget.spent.paused_ns, 0);
    }

    #[test]
    fn at_a_million_switches_a_second_the_budget_holds_in_each_second_from_the_first_on() {
        let mut machine = Machine::new();
        for second in 0..120 {
            let cost = machine.cost(1_000_000);
            assert!(cost <= DEFAULT_BUDGET, "{cost} in second {second}");
        }
        assert!(machine.budget.spent.paused_ns > 110_000_000_000);
    }

    #[test]
    fn the_least_useful_events_are_dropped_first() {
        let mut machine = Machine::new();
        // 90,000 switches × 3 events × 150 ns take 4.1 % of a CPU; 3.2 % are permitted continuously. Without wakers it
        // is 2.7 %.
        (0..20).for_each(|_| drop(machine.second(90_000)));
        assert_eq!(machine.budget.level, Level::WithoutWakers);
        let Spent { paused_ns, reduced_ns, .. } = machine.budget.spent;
        assert!(paused_ns < 500_000_000 && reduced_ns > 5_000_000_000, "{:?}", machine.budget.spent);
    }

    #[test]
    fn recording_resumes_on_a_calm_machine() {
        let mut machine = Machine::new();
        machine.second(60_000);
        machine.second(1_000_000);
        (0..6).for_each(|_| drop(machine.second(2_000)));
        assert_eq!(machine.budget.level, Level::All);
    }

    #[test]
    fn a_short_burst_is_recorded() {
        let mut machine = Machine::new();
        machine.second(1000);
        machine.now += 20 * MS;
        // This takes more than a tenth of a second's budget within 1 ms.
        machine.run_programs(35_000);
        assert_eq!((machine.stopped, machine.counted.refused), (None, 0));
    }

    #[test]
    fn no_load_costs_more_than_the_budget_in_any_second() {
        let mut machine = Machine::new();
        let mut seed = 1_u64;
        for _ in 0..400 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let rate = (seed >> 33) % 1_000_000;
            let cost = machine.cost(rate);
            assert!(cost <= DEFAULT_BUDGET, "{cost} at {rate} switches a second");
        }
    }

    #[test]
    fn with_a_budget_of_zero_nothing_is_recorded() {
        assert_eq!(Budget::new(0, 2, 0, Counts::default()).part_ns(), 1 << 60);
        assert_eq!(Budget::new(1_000_000, 1, 0, Counts::default()).part_ns(), 256 * 150 * 100 / 80);
    }

    #[test]
    fn omitted_events_are_counted_by_level() {
        let events = [EventKind::WorkEnd, EventKind::TimerExit, EventKind::ReclaimBegin, EventKind::ReclaimEnd];
        assert_eq!(Mix::of(&events), Mix([100, 50, 50, 0]));
        assert_eq!(Mix::of(&[]), Mix([100; 4]));
    }
}
