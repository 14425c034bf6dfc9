//! Sightings of all machines on one timeline, in order.

use crate::tables::{Mapping, Tables};
use latpath_agent::Machine;
use latpath_flight::Figures;
use latpath_linux::background::Background;
use latpath_model::{Counters, Ns, Sighting, Source, HOST};
use latpath_probe::Probe;
use latpath_run::{FlightRecord, MachineFigures, MachineRecord};
use std::convert::Infallible;

/// A machine whose watermark is this far behind is not waited for: its CPUs can stand still for seconds on a crowded host.
const PATIENCE: Ns = 10_000_000_000;
/// Nor is one this far behind, where so many sightings of the others wait already.
const CROWDED: usize = 1 << 20;
const PATIENCE_WHEN_CROWDED: Ns = 2_000_000_000;

/// The sightings of this machine: its kernel programs, or what a test says that they saw.
pub trait HostSource: Source<Error = Infallible> {
    /// Takes the programs off. What they saw can still be drained.
    fn detach(&mut self);

    /// `uname -r`.
    fn kernel(&self) -> String;

    /// Follows one packet in `n` from now on, a power of two, chosen by its key.
    fn sample(&mut self, n: u32);

    /// What cannot be seen on this kernel, and why.
    fn notes(&self) -> Vec<String>;
}

impl HostSource for Probe {
    fn detach(&mut self) {
        Probe::detach(self);
    }

    fn sample(&mut self, n: u32) {
        Probe::sample(self, n);
    }

    fn kernel(&self) -> String {
        self.abilities().release.clone()
    }

    fn notes(&self) -> Vec<String> {
        Probe::notes(self)
    }
}

/// Where sightings come from.
pub enum Origin {
    /// This machine.
    Host(Box<dyn HostSource>),
    /// An agent on another machine.
    Machine(Box<Machine>),
}

/// One origin, and its sightings that wait for those of the others.
pub struct Feed {
    /// Where they come from.
    pub origin: Origin,
    mapping: Mapping,
    waiting: Vec<Sighting>,
    watermark: Ns,
}

impl Feed {
    /// Nothing has come yet.
    pub fn new(origin: Origin) -> Self {
        Self { origin, mapping: Mapping::default(), waiting: Vec::new(), watermark: Ns::MIN }
    }

    /// What the origin counted. An agent that died keeps what it had said.
    pub fn counters(&mut self) -> Counters {
        match &mut self.origin {
            Origin::Host(probe) => probe.counters().unwrap_or_else(|never| match never {}),
            Origin::Machine(machine) => machine.counters().unwrap_or_default(),
        }
    }

    /// What a run says of the machine.
    pub fn record(&self, counters: Counters, flight: Option<Result<Figures, String>>) -> MachineRecord {
        let flight = flight.map(|flight| match flight {
            Ok(figures) => FlightRecord { figures, fault: None },
            Err(why) => FlightRecord { fault: Some(why), ..FlightRecord::default() },
        });
        match &self.origin {
            Origin::Host(probe) => {
                let (machine, method) = (HOST.into(), "same clock".into());
                let clock = MachineFigures { machine, method, ..MachineFigures::default() };
                MachineRecord { clock, kernel: probe.kernel(), counters, flight }
            }
            Origin::Machine(m) => {
                let clock = m.clock();
                let clock = MachineFigures {
                    machine: m.name().into(),
                    method: clock.method.name().into(),
                    offset_ns: clock.offset_ns,
                    drift_ppb: clock.drift_ppb,
                    error_bound_ns: clock.max_error_bound_ns,
                    exchanges: clock.exchanges,
                    fault: m.clock_fault(),
                    cpu_percent: m.cpu_percent(),
                };
                MachineRecord { clock, kernel: m.facts().kernel.clone(), counters, flight }
            }
        }
    }

    fn refresh(&mut self, tables: &mut Tables) {
        let (points, notes) = match &mut self.origin {
            Origin::Host(probe) => (probe.points().unwrap_or_default(), probe.drop_notes().unwrap_or_default()),
            Origin::Machine(m) => (m.points().unwrap_or_default(), m.drop_notes().unwrap_or_default()),
        };
        self.mapping.refresh(&points, &notes, tables);
    }

    /// Takes what the origin has ready, from a time on.
    fn fill(&mut self, from: Ns, tables: &mut Tables, fresh: &mut Vec<Sighting>, background: &mut Option<Background>) {
        fresh.clear();
        let watermark = match &mut self.origin {
            Origin::Host(probe) => {
                let watermark = probe.drain(fresh).unwrap_or_else(|never| match never {});
                background.iter_mut().for_each(|background| background.round(fresh));
                watermark
            }
            // A machine that died gives no more; its watermark goes on with the clock.
            Origin::Machine(machine) => machine.drain(fresh).unwrap_or(self.watermark),
        };
        self.watermark = self.watermark.max(watermark);
        let mut refreshed = false;
        for s in fresh.drain(..).filter(|s| s.t >= from) {
            if self.mapping.is_stale_for(&s) && !refreshed {
                self.refresh(tables);
                refreshed = true;
            }
            self.waiting.extend(self.mapping.map(s));
        }
        // An origin keeps the order, but for a CPU that stood still before it handed its packet over.
        if !self.waiting.is_sorted_by_key(|s| s.t) {
            self.waiting.sort_by_key(|s| s.t);
        }
    }
}

/// All feeds.
pub struct Merge {
    /// The host's first.
    pub feeds: Vec<Feed>,
    fresh: Vec<Sighting>,
    ready: Vec<Sighting>,
    horizon: Ns,
    /// Older sightings are left out.
    from: Ns,
    /// Sightings that came after the others had gone on without them.
    pub overdue: u64,
}

impl Merge {
    /// `from` is when the last of all probes was attached: what one saw before would be taken for packets of now that
    /// bear the same numbers.
    pub fn new(feeds: Vec<Feed>, from: Ns) -> Self {
        Self { from, feeds, fresh: Vec::new(), ready: Vec::new(), horizon: Ns::MIN, overdue: 0 }
    }

    /// Leaves out sightings before this time.
    pub fn leave_out_before(&mut self, from: Ns) {
        self.from = from;
        self.feeds.iter_mut().for_each(|feed| feed.waiting.clear());
    }

    /// The other machines.
    pub fn machines(&mut self) -> Vec<&mut Machine> {
        fn machine(feed: &mut Feed) -> Option<&mut Machine> {
            match &mut feed.origin {
                Origin::Host(_) => None,
                Origin::Machine(machine) => Some(machine),
            }
        }
        self.feeds.iter_mut().filter_map(machine).collect()
    }

    /// The sightings, in order of time, that no origin can precede any more, and how far time has come.
    pub fn step(&mut self, tables: &mut Tables, background: &mut Option<Background>) -> (&[Sighting], Ns) {
        for feed in &mut self.feeds {
            feed.fill(self.from, tables, &mut self.fresh, background);
        }
        let newest = self.feeds.iter().map(|f| f.watermark).max().unwrap_or(Ns::MIN);
        let waiting: usize = self.feeds.iter().map(|f| f.waiting.len()).sum();
        let patience = if waiting < CROWDED { PATIENCE } else { PATIENCE_WHEN_CROWDED };
        let patient = |w: &Ns| *w > newest.saturating_sub(patience) || newest == Ns::MAX;
        let horizon = self.feeds.iter().map(|f| f.watermark).filter(patient).min().unwrap_or(newest);
        self.ready.clear();
        for feed in &mut self.feeds {
            let before = self.ready.len();
            if feed.waiting.last().is_none_or(|s| s.t < horizon) {
                self.ready.append(&mut feed.waiting);
            } else {
                let upto = feed.waiting.partition_point(|s| s.t < horizon);
                self.ready.extend(feed.waiting.drain(..upto));
            }
            self.overdue += self.ready[before..].iter().take_while(|s| s.t < self.horizon).count() as u64;
        }
        if self.feeds.len() > 1 {
            self.ready.sort_by_key(|s| s.t);
        }
        self.horizon = self.horizon.max(horizon);
        (&self.ready, self.horizon)
    }
}
