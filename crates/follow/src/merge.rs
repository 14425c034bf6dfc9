//! Merges the sightings of all machines on one timeline.

use crate::tables::{Mapping, Tables};
use latpath_agent::Machine;
use latpath_flight::Figures;
use latpath_linux::{background::Background, proc::kernel_release};
use latpath_model::{Counters, Ns, PlannedSend, SenderAt, Sighting, Source, SynchChange, HOST};
use latpath_probe::Probe;
use latpath_run::{FlightRecord, MachineFigures, MachineRecord};
use latpath_settings::Reading;
use latpath_vms::Vm;

/// Maximum lag of a machine's watermark, ns, up to which others wait for it: its CPUs may pause for seconds on a busy
/// host.
const PATIENCE: Ns = 10_000_000_000;
/// Number of queued sightings of all machines from which this limit is `PATIENCE_WHEN_CROWDED`.
const CROWDED: usize = 1 << 20;
const PATIENCE_WHEN_CROWDED: Ns = 2_000_000_000;
/// Number of queued sightings (2 MiB) from which another machine delays the others by at most `PATIENCE_IN_A_FLOOD`;
/// otherwise a flood could make this process buffer without bound.
const FLOOD: usize = 1 << 16;
const PATIENCE_IN_A_FLOOD: Ns = 250_000_000;

/// Maximum number of an origin's overdue sightings (those that the others did not wait for) joined per round: more at
/// once would evict journeys that are still open.
const MAX_OVERDUE: usize = 1 << 13;

/// A source of sightings: this machine's kernel programs, a test, or an agent on another machine.
pub trait Origin: Source {
    /// Name of the machine.
    fn name(&self) -> &str {
        HOST
    }

    /// Detaches the programs. Their sightings can still be drained.
    ///
    /// # Errors
    /// The other machine does not answer.
    fn stop(&mut self) -> Result<(), String>;

    /// Kernel release.
    fn kernel(&self) -> String {
        kernel_release()
    }

    /// The settings of another machine when its probe was attached, if they were requested.
    fn settings(&self) -> Option<Reading> {
        None
    }

    /// The virtual machines of another machine when its probe was attached, and why some are not known; `None` if they
    /// were not requested.
    fn vms(&self) -> Option<(Vec<Vm>, Option<String>)> {
        None
    }

    /// State of the machine's clock relative to the host's.
    fn clock(&self) -> MachineFigures {
        MachineFigures { machine: HOST.into(), method: MachineFigures::SAME_CLOCK.into(), ..MachineFigures::default() }
    }

    /// Why the rest of the sightings is missing; `None` if none is.
    fn fault(&self) -> Option<String> {
        None
    }

    /// From now on, follows one packet in `n` (a power of two), chosen by its key. Agents ignore this and follow every
    /// packet.
    fn sample(&mut self, _n: u32) {}

    /// Changes of the clock state reported in Sampled Values since the last call.
    fn synch_changes(&mut self) -> Vec<SynchChange> {
        Vec::new()
    }

    /// Planned send times read from packets since the last call.
    fn planned_sends(&mut self) -> Vec<PlannedSend> {
        Vec::new()
    }

    /// The connection to the machine; `None` for the host.
    fn machine(&mut self) -> Option<&mut Machine> {
        None
    }

    /// Figures of another machine's flight recorder, or the reason why it does not run; `None` if not requested.
    fn recorder(&self) -> Option<Result<Figures, String>> {
        None
    }
}

impl Origin for Probe {
    fn stop(&mut self) -> Result<(), String> {
        self.detach();
        Ok(())
    }

    fn sample(&mut self, n: u32) {
        Probe::sample(self, n);
    }

    fn synch_changes(&mut self) -> Vec<SynchChange> {
        Probe::synch_changes(self)
    }

    fn planned_sends(&mut self) -> Vec<PlannedSend> {
        Probe::planned_sends(self)
    }
}

impl Origin for Machine {
    fn name(&self) -> &str {
        Machine::name(self)
    }

    fn stop(&mut self) -> Result<(), String> {
        Machine::stop(self).map_err(|error| error.to_string())
    }

    fn kernel(&self) -> String {
        self.facts().kernel.clone()
    }

    fn settings(&self) -> Option<Reading> {
        Machine::settings(self)
    }

    fn vms(&self) -> Option<(Vec<Vm>, Option<String>)> {
        Machine::vms(self)
    }

    fn clock(&self) -> MachineFigures {
        let clock = Machine::clock(self);
        MachineFigures {
            machine: self.name().into(),
            hypervisor: self.hypervisor(),
            method: self.clock_method(),
            offset_ns: clock.offset_ns,
            drift_ppb: clock.drift_ppb,
            error_bound_ns: clock.max_error_bound_ns,
            exchanges: clock.exchanges,
            causality_violations: clock.causality_violations,
            fault: self.clock_fault(),
            cpu_percent: self.cpu_percent(),
        }
    }

    fn fault(&self) -> Option<String> {
        Machine::fault(self).map(|fault| fault.to_string())
    }

    fn machine(&mut self) -> Option<&mut Machine> {
        Some(self)
    }

    fn recorder(&self) -> Option<Result<Figures, String>> {
        Machine::recorder(self)
    }
}

/// An origin, and its queued sightings.
pub struct Feed {
    /// The origin.
    pub origin: Box<dyn Origin>,
    mapping: Mapping,
    waiting: Vec<Sighting>,
    watermark: Ns,
}

impl Feed {
    /// Creates a feed with an empty queue.
    pub fn new(origin: impl Origin + 'static) -> Self {
        Self { origin: Box::new(origin), mapping: Mapping::default(), waiting: Vec::new(), watermark: Ns::MIN }
    }

    /// Senders of the streams, with points of the common table.
    pub fn senders(&mut self) -> Vec<SenderAt> {
        let Self { origin, mapping, .. } = self;
        let common = |at: SenderAt| Some(SenderAt { point: mapping.point(at.point)?, ..at });
        origin.senders().into_iter().filter_map(common).collect()
    }

    /// The machine's record for the run.
    pub fn record(&self, counters: Counters, flight: Option<Result<Figures, String>>) -> MachineRecord {
        let flight = flight.map(|flight| match flight {
            Ok(figures) => FlightRecord { figures, fault: None },
            Err(why) => FlightRecord { fault: Some(why), ..FlightRecord::default() },
        });
        MachineRecord { clock: self.origin.clock(), kernel: self.origin.kernel(), counters, flight }
    }

    fn refresh(&mut self, tables: &mut Tables) {
        self.mapping.refresh(&self.origin.points(), &self.origin.drop_notes(), tables);
    }

    /// Updates the variable properties of known points.
    pub fn update_points(&mut self, tables: &mut Tables) {
        self.mapping.update(&self.origin.points(), tables);
    }

    /// Queues the origin's available sightings that are not earlier than `from`.
    fn fill(&mut self, from: Ns, tables: &mut Tables, fresh: &mut Vec<Sighting>, background: &mut Option<Background>) {
        fresh.clear();
        let watermark = self.origin.drain(fresh);
        if self.origin.machine().is_none() {
            background.iter_mut().for_each(|background| background.round(fresh));
        }
        self.watermark = self.watermark.max(watermark);
        let (mut refreshed, before) = (false, self.waiting.len());
        for s in fresh.drain(..).filter(|s| s.t >= from) {
            if self.mapping.is_stale_for(&s) && !refreshed {
                self.refresh(tables);
                refreshed = true;
            }
            self.waiting.extend(self.mapping.map(s, tables));
        }
        // An origin's sightings are in order, except if a CPU paused before it submitted one.
        let (waited, came) = self.waiting.split_at_mut(before);
        if !came.is_sorted_by_key(|s| s.t) {
            came.sort_by_key(|s| s.t);
        }
        let first = came.first().map_or(Ns::MAX, |s| s.t);
        let later = waited.partition_point(|s| s.t <= first);
        merge_runs(&mut self.waiting[later..], before - later);
    }

    /// Whether the other origins wait for this one; `newest` is the latest watermark.
    fn is_waited_for(&mut self, newest: Ns, patience: Ns) -> bool {
        let floods = self.waiting.len() >= FLOOD && self.origin.machine().is_some();
        let patience = if floods { PATIENCE_IN_A_FLOOD } else { patience };
        self.watermark > newest.saturating_sub(patience) || newest == Ns::MAX
    }
}

/// Merges the origins' sightings.
pub struct Merge {
    /// The origins, the host first.
    pub feeds: Vec<Feed>,
    fresh: Vec<Sighting>,
    ready: Vec<Sighting>,
    horizon: Ns,
    /// Time before which sightings are dropped, ns.
    from: Ns,
    /// Number of sightings that arrived after the others had continued without them.
    pub overdue: u64,
}

impl Merge {
    /// Merges these feeds. `from`: time at which the last probe was attached; earlier sightings are dropped, because
    /// they could be mistaken for those of current packets with the same keys.
    pub fn new(feeds: Vec<Feed>, from: Ns) -> Self {
        Self { from, feeds, fresh: Vec::new(), ready: Vec::new(), horizon: Ns::MIN, overdue: 0 }
    }

    /// Drops sightings before this time.
    pub fn leave_out_before(&mut self, from: Ns) {
        self.from = from;
        self.feeds.iter_mut().for_each(|feed| feed.waiting.clear());
    }

    /// Changes reported by all origins: see [`Origin::synch_changes`].
    pub fn synch_changes(&mut self) -> Vec<SynchChange> {
        self.feeds.iter_mut().flat_map(|feed| feed.origin.synch_changes()).collect()
    }

    /// Send times reported by all origins: see [`Origin::planned_sends`].
    pub fn planned_sends(&mut self) -> Vec<PlannedSend> {
        self.feeds.iter_mut().flat_map(|feed| feed.origin.planned_sends()).collect()
    }

    /// The machines other than the host.
    pub fn machines(&mut self) -> Vec<&mut Machine> {
        self.feeds.iter_mut().filter_map(|feed| feed.origin.machine()).collect()
    }

    /// Returns, in order of time, the sightings that no origin can precede any more, and the watermark.
    pub fn step(&mut self, tables: &mut Tables, background: &mut Option<Background>) -> (&[Sighting], Ns) {
        let mut ended = false;
        for feed in &mut self.feeds {
            // If this many old sightings are queued, read no more: the sender then keeps the rest, and drops and counts
            // sightings that exceed its own memory.
            if ended || feed.waiting.get(FLOOD).is_none_or(|s| s.t >= self.horizon) {
                feed.fill(self.from, tables, &mut self.fresh, background);
            }
            ended |= feed.watermark == Ns::MAX;
        }
        let newest = self.feeds.iter().map(|f| f.watermark).max().unwrap_or(Ns::MIN);
        let waiting: usize = self.feeds.iter().map(|f| f.waiting.len()).sum();
        let patience = if waiting < CROWDED { PATIENCE } else { PATIENCE_WHEN_CROWDED };
        let waited_for = self.feeds.iter_mut().filter_map(|f| f.is_waited_for(newest, patience).then_some(f.watermark));
        let horizon = waited_for.min().unwrap_or(newest);
        // Releases memory after a burst.
        self.ready.shrink_to((2 * self.ready.len()).max(1 << 14));
        self.ready.clear();
        for feed in &mut self.feeds {
            let due = match feed.waiting.last() {
                Some(last) if last.t >= horizon => feed.waiting.partition_point(|s| s.t < horizon),
                _ => feed.waiting.len(),
            };
            let overdue = feed.waiting[..due].iter().take_while(|s| s.t < self.horizon).count();
            // At the end, all overdue sightings are returned.
            let most = if horizon == Ns::MAX { overdue } else { overdue.min(MAX_OVERDUE) };
            self.overdue += most as u64;
            self.ready.extend(feed.waiting.drain(..most));
            self.ready.extend(feed.waiting.drain(overdue - most..due - most));
        }
        if self.feeds.len() > 1 {
            self.ready.sort_by_key(|s| s.t);
        }
        self.horizon = self.horizon.max(horizon);
        (&self.ready, self.horizon)
    }

    /// The sightings of the last [`Self::step`].
    pub fn ready(&self) -> &[Sighting] {
        &self.ready
    }
}

/// Stably merges two sorted runs that meet at `middle`.
fn merge_runs(sightings: &mut [Sighting], middle: usize) {
    let later = sightings[middle..].to_vec();
    let (mut left, mut end) = (middle, sightings.len());
    for s in later.iter().rev() {
        while left > 0 && sightings[left - 1].t > s.t {
            (left, end) = (left - 1, end - 1);
            sightings[end] = sightings[left];
        }
        end -= 1;
        sightings[end] = *s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_model::{DropNote, Point, PointInfo};
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex};

    /// The available sightings and the watermark, set by the test.
    type GivenSightings = Arc<Mutex<(Vec<Sighting>, Ns)>>;

    /// An origin whose sightings are set by the test.
    struct FakeOrigin(GivenSightings);

    impl Source for FakeOrigin {
        fn points(&mut self) -> Vec<PointInfo> {
            vec!["host/nic-rx@eth0".parse::<Point>().unwrap().into()]
        }

        fn drop_notes(&mut self) -> Vec<DropNote> {
            Vec::new()
        }

        fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
            let mut given = self.0.lock().unwrap();
            out.append(&mut given.0);
            given.1
        }

        fn counters(&mut self) -> Counters {
            Counters::default()
        }
    }

    impl Origin for FakeOrigin {
        fn stop(&mut self) -> Result<(), String> {
            Ok(())
        }
    }

    fn two_origins() -> ([GivenSightings; 2], Merge, Tables) {
        let given = [(); 2].map(|()| GivenSightings::default());
        let feeds = given.iter().map(|given| Feed::new(FakeOrigin(given.clone())));
        let merge = Merge::new(feeds.collect(), 0);
        (given, merge, Tables::default())
    }

    /// Other machines do not wait for one that floods. Its overdue sightings are joined a few per round, each once,
    /// without delaying the others.
    #[test]
    fn many_overdue_sightings_are_joined_a_few_a_round() {
        const SECOND: Ns = 1_000_000_000;
        let (given, mut merge, mut tables) = two_origins();
        let seen = |t: Ns, key: u32| Sighting { t, key, ..Sighting::default() };
        given[0].lock().unwrap().1 = 100 * SECOND;
        assert!(merge.step(&mut tables, &mut None).0.is_empty());
        let all = 3 * MAX_OVERDUE as u32 + 5;
        *given[1].lock().unwrap() = ((0..all).map(|key| seen(50 * SECOND + Ns::from(key), key)).collect(), 50 * SECOND);
        let mut came = Vec::new();
        for round in 1..=4 {
            let now = 100 * SECOND + round;
            *given[0].lock().unwrap() = (vec![seen(now - 1, all + round as u32)], now);
            let (ready, reached) = merge.step(&mut tables, &mut None);
            assert!(ready.is_sorted_by_key(|s| s.t) && ready.len() <= MAX_OVERDUE + 1, "{}", ready.len());
            assert_eq!((ready.last().map(|s| s.key), reached), (Some(all + round as u32), now));
            came.extend(ready[..ready.len() - 1].iter().map(|s| s.key));
        }
        assert_eq!(came, (0..all).collect::<Vec<_>>());
        assert_eq!(merge.overdue, u64::from(all));
    }

    #[test]
    fn endless_late_sightings_of_a_machine_are_bounded() {
        const NOW: Ns = 100_000_000_000;
        let (given, mut merge, mut tables) = two_origins();
        let past = |count: usize| (0..count as i64).map(|t| Sighting { t, ..Sighting::default() }).collect::<Vec<_>>();
        given[0].lock().unwrap().1 = NOW;
        assert!(merge.step(&mut tables, &mut None).0.is_empty());
        given[1].lock().unwrap().0 = past(2 * FLOOD);
        assert_eq!(merge.step(&mut tables, &mut None).0.len(), MAX_OVERDUE);
        given[1].lock().unwrap().0 = past(5);
        assert_eq!(merge.step(&mut tables, &mut None).0.len(), MAX_OVERDUE);
        assert_eq!(given[1].lock().unwrap().0.len(), 5);
        for given in &given {
            given.lock().unwrap().1 = Ns::MAX;
        }
        assert_eq!(merge.step(&mut tables, &mut None).0.len(), 2 * FLOOD - 2 * MAX_OVERDUE + 5);
        assert_eq!(merge.overdue, 2 * FLOOD as u64 + 5);
    }

    proptest! {
        #[test]
        fn two_runs_are_merged_as_a_stable_sort_would(
            mut first in prop::collection::vec(0..20_i64, 0..40), mut second in prop::collection::vec(0..20_i64, 0..40),
        ) {
            first.sort_unstable();
            second.sort_unstable();
            let middle = first.len();
            let numbered = first.into_iter().chain(second).enumerate();
            let mut merged: Vec<_> =
                numbered.map(|(n, t)| Sighting { t, key: n as u32, ..Sighting::default() }).collect();
            let mut sorted = merged.clone();
            sorted.sort_by_key(|s| s.t);
            merge_runs(&mut merged, middle);
            prop_assert_eq!(merged, sorted);
        }
    }
}
