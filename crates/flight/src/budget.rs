//! What the flight recorder may cost, and which events it gives up to stay within that.
//!
//! The cost of an event is known from a measurement at the start ([`Recorder::sample`](crate::Recorder::sample)), and the number of
//! events is counted. Together they are a part of the machine's CPU time. A bucket that the budget fills and events empty tolerates a
//! short burst. When it is empty the recorder drops the least useful events first: details, then who woke whom, then all
//! ([`Level`]). It records more again once the machine is calm enough, which context switches and interrupts show, since these
//! are counted by the kernel also while nothing is recorded.

use crate::event::What;
use latpath_model::Ns;

/// Share of the machine's CPU time, in millionths.
pub type Ppm = u64;

/// The budget unless the user sets one: 2 % of the machine.
pub const DEFAULT_BUDGET: Ppm = 20_000;
/// Time of an event outside its program, ns: the kernel's entry into a program and the return from it, which its own measurement
/// does not contain. Programs that do nothing cost this on an AMD EPYC with mitigations (docs/benchmarks.md).
const ENTRY_NS: u64 = 70;
/// Cost of an event where it was not measured, ns.
const ASSUMED_NS: u64 = 80;
/// Time for which a full bucket sustains twice the budget, s.
const BURST_S: u64 = 1;
/// Expected cost of a level at which it is entered because the one before costs too much, percent of the budget at most.
const EXPECTED: u64 = 90;
/// Expected cost of a level at which it is entered because the machine is calm again, percent of the budget at most.
const CALM: u64 = 70;
/// Least time at a level before more is recorded again, ns. It doubles each time that this was too early.
const LEAST_PAUSE: Ns = 500_000_000;
const LONGEST_PAUSE: Ns = 64_000_000_000;

/// Which events are recorded. Each level leaves out what the one before does, and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All events.
    #[default]
    All,
    /// No functions of timers and work items, no raising of softirqs.
    WithoutDetails,
    /// Nor who woke whom.
    WithoutWakers,
    /// Nothing.
    Paused,
}

impl Level {
    const EACH: [Self; 4] = [Self::All, Self::WithoutDetails, Self::WithoutWakers, Self::Paused];

    /// The first level at which a program of bpf/ is detached; names of threads are learnt at each level.
    pub(crate) fn that_drops(program: &str) -> Option<Self> {
        match program {
            "rename" | "wakeup_new" => None,
            "softirq_raise" | "hrtimer_entry" | "hrtimer_exit" | "timer_entry" | "timer_exit" | "work_start"
            | "work_end" => Some(Self::WithoutDetails),
            "waking" => Some(Self::WithoutWakers),
            _ => Some(Self::Paused),
        }
    }

    /// The same for an event.
    fn that_drops_event(what: &What) -> Self {
        match what {
            What::SoftirqRaise(_)
            | What::HrtimerEntry(_)
            | What::HrtimerExit
            | What::TimerEntry(_)
            | What::TimerExit
            | What::WorkStart(_)
            | What::WorkEnd => Self::WithoutDetails,
            What::Waking { .. } => Self::WithoutWakers,
            _ => Self::Paused,
        }
    }
}

/// Shares of the latest events that remain at each level, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix([u64; 4]);

impl Mix {
    pub fn of<'a>(events: impl IntoIterator<Item = &'a What>) -> Self {
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

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Events since the recorder's start.
    pub events: u64,
    /// Context switches, interrupts and softirqs of the machine since it booted; `None` where they were not read this time.
    pub activity: Option<u64>,
}

/// What there was at the latest reading of the machine's activity.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Ns,
    activity: u64,
    cost_ns: u64,
}

/// Decides on the level. Plain arithmetic on what it is given, so that it can be tested.
#[derive(Debug)]
pub(crate) struct Budget {
    ppm: Ppm,
    cpus: u64,
    /// CPU time that the recorder may take, ns each second.
    a_second: u64,
    ns_per_event: u64,
    /// CPU time that is left for a burst, ns.
    bucket: i64,
    level: Level,
    at: Ns,
    events: u64,
    read: Option<Reading>,
    /// Cost of recording all, ns for each 1,000 of the machine's activity; known after two readings at [`Level::All`].
    all_per_activity: Option<u64>,
    mix: Option<Mix>,
    since: Ns,
    pause: Ns,
    pub spent: Spent,
}

/// What became of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// CPU time of all events, ns.
    pub cost_ns: u64,
    /// Time in which details or wakers were left out, ns.
    pub reduced_ns: u64,
    /// Time in which nothing was recorded, ns.
    pub paused_ns: u64,
}

impl Budget {
    /// `events` were recorded by `now`.
    pub fn new(budget: Ppm, cpus: usize, now: Ns, events: u64) -> Self {
        let a_second = budget.saturating_mul(1000).saturating_mul(cpus as u64);
        Self {
            ppm: budget,
            cpus: cpus as u64,
            a_second,
            ns_per_event: ASSUMED_NS + ENTRY_NS,
            bucket: (a_second * BURST_S) as i64,
            level: Level::All,
            at: now,
            events,
            read: None,
            all_per_activity: None,
            mix: None,
            since: now,
            pause: LEAST_PAUSE,
            spent: Spent::default(),
        }
    }

    pub fn level(&self) -> Level {
        self.level
    }

    /// The budget.
    pub fn ppm(&self) -> Ppm {
        self.ppm
    }

    /// Part of the machine's CPU time that events took over a recording of this length, ns.
    pub fn cost_ppm(&self, length: Ns) -> Ppm {
        let available = u128::from(self.cpus) * length.max(1) as u128;
        (u128::from(self.spent.cost_ns) * 1_000_000 / available) as u64
    }

    /// Sets what an event costs within its program, ns, as far as that was measured.
    pub fn set_cost(&mut self, ns_per_event: Option<u64>) {
        self.ns_per_event = ns_per_event.unwrap_or(ASSUMED_NS) + ENTRY_NS;
    }

    /// Takes what was counted by `now`, and returns the level from now on. `mix` is asked for the latest events when the
    /// level at which all are recorded is left.
    pub fn tick(&mut self, now: Ns, counted: Counts, mix: impl FnOnce() -> Mix) -> Level {
        let elapsed = now.saturating_sub(self.at).max(1) as u64;
        let events = counted.events.saturating_sub(self.events);
        (self.at, self.events) = (now, counted.events);
        let cost = events.saturating_mul(self.ns_per_event);
        self.spent.cost_ns = self.spent.cost_ns.saturating_add(cost);
        match self.level {
            Level::All => {}
            Level::Paused => self.spent.paused_ns += elapsed,
            _ => self.spent.reduced_ns += elapsed,
        }
        let allowed = self.allowed(elapsed);
        let full = (self.a_second * BURST_S) as i64;
        self.bucket = (self.bucket + allowed as i64).saturating_sub_unsigned(cost).clamp(-full, full);
        let activity = counted.activity.and_then(|activity| self.read_activity(now, activity));
        if self.bucket < 0 {
            self.shed(now, cost, allowed, mix);
        } else if let Some((activity, elapsed)) = activity.filter(|_| now - self.since >= self.pause) {
            self.restore(now, activity, self.allowed(elapsed));
        }
        self.level
    }

    /// CPU time that the recorder may take in this time, both in ns.
    fn allowed(&self, elapsed: u64) -> u64 {
        (u128::from(self.a_second) * u128::from(elapsed) / 1_000_000_000) as u64
    }

    /// The activity since the reading before, and the time since then, ns.
    fn read_activity(&mut self, now: Ns, activity: u64) -> Option<(u64, u64)> {
        let last = self.read.replace(Reading { at: now, activity, cost_ns: self.spent.cost_ns })?;
        let done = activity.saturating_sub(last.activity);
        if self.level == Level::All && self.since <= last.at && done > 0 {
            self.all_per_activity = Some((self.spent.cost_ns - last.cost_ns).saturating_mul(1000) / done);
        }
        Some((done, now.saturating_sub(last.at).max(1) as u64))
    }

    fn enter(&mut self, level: Level, now: Ns) {
        self.level = level;
        self.since = now;
        self.bucket = (self.a_second * BURST_S) as i64 / 2;
    }

    /// Goes to the first level that is expected to cost no more than the budget.
    fn shed(&mut self, now: Ns, cost: u64, allowed: u64, mix: impl FnOnce() -> Mix) {
        if self.level == Level::All {
            // Events were recorded again too early.
            let again = now - self.since < self.pause;
            self.pause = if again { (self.pause * 2).min(LONGEST_PAUSE) } else { LEAST_PAUSE };
            self.mix = Some(mix());
        }
        let mix = self.mix.unwrap_or(Mix([100; 4]));
        let now_remains = mix.remains(self.level).max(1);
        let fits = |level: Level| cost * mix.remains(level) / now_remains * 100 <= allowed * EXPECTED;
        let next = Level::EACH.into_iter().find(|level| *level > self.level && fits(*level)).unwrap_or(Level::Paused);
        self.enter(next, now);
    }

    /// Goes back to the first level that is expected to leave room, judged by how busy the machine is.
    fn restore(&mut self, now: Ns, activity: u64, allowed: u64) {
        let mix = self.mix.unwrap_or(Mix([100; 4]));
        // Without a relation between the two nothing is known but by trying.
        let all = self.all_per_activity.map_or(0, |each| each.saturating_mul(activity) / 1000);
        let fits = |level: Level| all * mix.remains(level) <= allowed * CALM;
        if let Some(level) = Level::EACH.into_iter().find(|level| *level < self.level && fits(*level)) {
            self.enter(level, now);
        }
    }
}

/// Times in which nothing was recorded, so that nobody takes silence for a CPU on which nothing happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    /// From when to when, the latest last; the last may go on.
    gaps: Vec<(Ns, Option<Ns>)>,
}

impl Gaps {
    /// Gaps that are remembered. Rings keep some tenths of a second.
    const MOST: usize = 8;

    /// Begins one, unless one goes on.
    pub fn begin(&mut self, now: Ns) {
        if self.gaps.last().is_some_and(|gap| gap.1.is_none()) {
            return;
        }
        if self.gaps.len() == Self::MOST {
            self.gaps.remove(0);
        }
        self.gaps.push((now, None));
    }

    pub fn end(&mut self, now: Ns) {
        self.gaps.iter_mut().filter(|gap| gap.1.is_none()).for_each(|gap| gap.1 = Some(now));
    }

    /// The time around `to` without a gap in it: from after the last gap that began before `to`, until the next one begins.
    pub fn around(&self, started: Ns, to: Ns) -> (Ns, Ns) {
        let before = self.gaps.iter().rev().find(|(begin, _)| *begin < to);
        let after = self.gaps.iter().find(|(begin, _)| *begin >= to);
        let from = before.map_or(started, |(_, end)| end.unwrap_or(Ns::MAX));
        (from, after.map_or(Ns::MAX, |(begin, _)| *begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Ns = 100_000_000;
    const SECOND: Ns = 1_000_000_000;
    const PER_SWITCH: u64 = 3;

    /// A machine of two CPUs, whose rate of switches changes each second; each switch has three events, one of them a waking.
    struct Machine {
        budget: Budget,
        now: Ns,
        counted: Counts,
        activity: u64,
    }

    impl Machine {
        fn new() -> Self {
            Self { budget: Budget::new(DEFAULT_BUDGET, 2, 0, 0), now: 0, counted: Counts::default(), activity: 0 }
        }

        /// Runs one second at a rate of `switches` a second. Returns the level after each tick.
        fn second(&mut self, switches: u64) -> Vec<Level> {
            let tick = |_| {
                let events = match self.budget.level {
                    Level::Paused => 0,
                    Level::WithoutWakers => PER_SWITCH - 1,
                    _ => PER_SWITCH,
                };
                self.now += TICK;
                self.counted.events += events * switches / 10;
                self.activity += switches / 10;
                self.counted.activity = (self.now % SECOND == 0).then_some(self.activity);
                self.budget.tick(self.now, self.counted, || Mix([100, 100, 67, 0]))
            };
            (0..10).map(tick).collect()
        }

        /// Cost of the latest seconds, in millionths of the machine.
        fn cost(&mut self, seconds: u64, switches: u64) -> u64 {
            let before = self.budget.spent.cost_ns;
            (0..seconds).for_each(|_| drop(self.second(switches)));
            (self.budget.spent.cost_ns - before) / (2000 * seconds)
        }
    }

    #[test]
    fn what_fits_the_budget_is_recorded_whole() {
        let mut machine = Machine::new();
        for _ in 0..100 {
            assert!(machine.second(60_000).iter().all(|level| *level == Level::All));
        }
    }

    #[test]
    fn at_a_million_switches_a_second_the_budget_holds_from_the_first_seconds_on() {
        let mut machine = Machine::new();
        machine.second(1_000_000);
        assert_eq!(machine.budget.level, Level::Paused);
        assert!(machine.cost(120, 1_000_000) <= DEFAULT_BUDGET);
    }

    #[test]
    fn the_least_useful_events_go_first() {
        let mut machine = Machine::new();
        // 3 × 150 ns × 100,000 are 4.5 % of a CPU of 4; without wakers 3 %.
        (0..20).for_each(|_| drop(machine.second(100_000)));
        assert_eq!(machine.budget.level, Level::WithoutWakers);
        assert!(machine.budget.spent.paused_ns == 0 && machine.budget.spent.reduced_ns > 5_000_000_000);
    }

    #[test]
    fn a_calm_machine_is_recorded_again() {
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
        machine.now += TICK;
        machine.counted.events += 200_000;
        assert_eq!(machine.budget.tick(machine.now, machine.counted, || Mix([100; 4])), Level::All);
    }

    #[test]
    fn any_load_costs_no_more_than_the_budget_and_a_burst() {
        let mut machine = Machine::new();
        // A load that comes and goes: each coming may cost a burst.
        let mut seed = 1_u64;
        let mut seconds = 0;
        for _ in 0..200 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            machine.second((seed >> 33) % 1_000_000);
            seconds += 1;
        }
        let cost = machine.budget.spent.cost_ns / (2000 * seconds);
        assert!(cost <= DEFAULT_BUDGET * 3 / 2, "{cost}");
    }

    #[test]
    fn what_is_left_of_the_latest_events_is_counted_by_level() {
        let events = [What::WorkEnd, What::TimerExit, What::ReclaimBegin, What::ReclaimEnd];
        assert_eq!(Mix::of(&events), Mix([100, 50, 50, 0]));
        assert_eq!(Mix::of(&[]), Mix([100; 4]));
    }

    #[test]
    fn a_window_knows_the_time_without_a_gap() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.around(5, 100), (5, Ns::MAX));
        gaps.begin(50);
        assert_eq!((gaps.around(5, 40), gaps.around(5, 100)), ((5, 50), (Ns::MAX, Ns::MAX)));
        gaps.end(70);
        assert_eq!(
            (gaps.around(5, 40), gaps.around(5, 60), gaps.around(5, 100)),
            ((5, 50), (70, Ns::MAX), (70, Ns::MAX))
        );
        for at in 0..20 {
            gaps.begin(100 + 10 * at);
            gaps.end(105 + 10 * at);
        }
        assert!(gaps.gaps.len() <= Gaps::MOST);
    }
}
