//! What all machines did around late packets: chosen, frozen and put together, while the following goes on.

use crate::freezer::Freezer;
use latpath_flight::Options as RecorderOptions;
use latpath_journey::Journey;
use latpath_spike::{Chooser, Counted, Frozen, Gathered, MachineRecord, Options as Choice, Order, Rule, Scene};
use latpath_words::{Ns, HOST};
use std::collections::VecDeque;

/// How long a machine has for what it did in a time.
const MACHINE_PATIENCE: Ns = 2_000_000_000;
/// Scenes that wait to be taken.
const WAITING: usize = 64;

/// What is recorded, and frozen when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlightOptions {
    /// Memory for each CPU's events, bytes.
    pub bytes_per_cpu: usize,
    /// Which packets are late.
    pub rule: Rule,
    /// How long to wait for packets that are under way when their time is frozen; no longer than the window in any case.
    pub patience: Ns,
}

/// What the flight recorder of this machine has recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightFigures {
    /// Events so far.
    pub events: u64,
    /// Events that were missed because the same program was running already on that CPU.
    pub missed: u64,
    /// Memory for events and names, in bytes.
    pub bytes: u64,
    /// What an event cost, where that was measured.
    pub ns_per_event: Option<u64>,
    /// What this kernel does not tell.
    pub missing: Vec<String>,
}

/// A scene that is not whole yet.
struct UnderWay {
    order: Order,
    /// In the order of the feeds.
    machines: Vec<Option<MachineRecord>>,
    packets: Option<Gathered>,
    deadline: Ns,
}

/// See the module's text.
pub(crate) struct Flight {
    pub chooser: Chooser,
    freezer: Result<Freezer, String>,
    under_way: Vec<UnderWay>,
    done: VecDeque<Frozen>,
    /// The first order of each time that is frozen for late packets, for those who want to know at once.
    spotted: VecDeque<Order>,
}

/// Machines that are asked for what they did.
pub(crate) trait Witness {
    /// The machine's name.
    fn name(&self) -> &str;
    /// Asks for a time of the host's. Returns at once; false if nothing will come.
    fn ask(&mut self, order: u32, from: Ns, to: Ns) -> Result<(), String>;
    /// An answer that has come: which order's, and what.
    fn answer(&mut self) -> Option<(u32, MachineRecord)>;
}

impl Flight {
    /// Starts the recorder of this machine; where it cannot, other machines' records are still worth having.
    pub fn start(options: &FlightOptions, window: Ns, streams: usize) -> Self {
        let recorder = RecorderOptions { bytes_per_cpu: options.bytes_per_cpu, ..RecorderOptions::default() };
        let patience = options.patience.min(window.saturating_add(200_000_000));
        Self {
            chooser: Chooser::new(Choice { rule: options.rule, patience, on_time: true }, streams),
            freezer: Freezer::start(&recorder),
            under_way: Vec::new(),
            done: VecDeque::new(),
            spotted: VecDeque::new(),
        }
    }

    /// Why this machine does not record, if it does not.
    pub fn fault(&self) -> Option<&str> {
        self.freezer.as_ref().err().map(String::as_str)
    }

    pub fn figures(&self) -> Option<FlightFigures> {
        self.freezer.as_ref().ok().map(Freezer::figures)
    }

    pub fn take(&mut self, journey: &Journey) {
        self.chooser.take(journey);
    }

    /// One round: asks for what is to be frozen, takes what has come. All journeys that began before `reached` were taken.
    pub fn round(&mut self, clock: Ns, reached: Ns, witnesses: &mut [&mut dyn Witness]) {
        self.chooser.advance(clock, reached);
        self.order(clock, witnesses);
        self.collect(clock, reached, witnesses);
    }

    fn order(&mut self, clock: Ns, witnesses: &mut [&mut dyn Witness]) {
        while let Some(order) = self.chooser.next_order() {
            let failed = |machine: &str, why: String| {
                Some(MachineRecord { machine: machine.into(), offset_ns: 0, error_bound_ns: 0, record: Err(why) })
            };
            let mut machines = Vec::new();
            machines.push(match &self.freezer {
                Ok(freezer) => freezer.ask(order.number, order.from, order.to).err().and_then(|why| failed(HOST, why)),
                Err(why) => failed(HOST, why.clone()),
            });
            for witness in witnesses.iter_mut() {
                let asked = witness.ask(order.number, order.from, order.to);
                machines.push(asked.err().and_then(|why| failed(witness.name(), why)));
            }
            let deadline = clock.saturating_add(MACHINE_PATIENCE);
            self.under_way.push(UnderWay { order, machines, packets: None, deadline });
            if order.kind == latpath_spike::Kind::Spike && self.spotted.len() < WAITING {
                self.spotted.push_back(order);
            }
        }
    }

    fn collect(&mut self, clock: Ns, reached: Ns, witnesses: &mut [&mut dyn Witness]) {
        if self.under_way.is_empty() {
            return;
        }
        while let Some(gathered) = self.chooser.next_gathered(reached) {
            if let Some(scene) = self.under_way.iter_mut().find(|u| u.order.number == gathered.number) {
                scene.packets = Some(gathered);
            }
        }
        let mut came = |number: u32, at: usize, record: MachineRecord| {
            if let Some(scene) = self.under_way.iter_mut().find(|u| u.order.number == number) {
                scene.machines[at].get_or_insert(record);
            }
        };
        while let Some((number, snapshot)) = self.freezer.as_ref().ok().and_then(Freezer::answer) {
            let record = Ok(snapshot);
            came(number, 0, MachineRecord { machine: HOST.into(), offset_ns: 0, error_bound_ns: 0, record });
        }
        for (at, witness) in witnesses.iter_mut().enumerate() {
            while let Some((number, record)) = witness.answer() {
                came(number, at + 1, record);
            }
        }
        let names = || std::iter::once(HOST.to_string()).chain(witnesses.iter().map(|w| w.name().to_string()));
        for scene in self.under_way.iter_mut().filter(|u| clock >= u.deadline) {
            for (machine, name) in scene.machines.iter_mut().zip(names()).filter(|(m, _)| m.is_none()) {
                let record = Err(format!("no answer within {} s", MACHINE_PATIENCE / 1_000_000_000));
                *machine = Some(MachineRecord { machine: name, offset_ns: 0, error_bound_ns: 0, record });
            }
        }
        // Later ones need not wait for earlier ones.
        let is_whole = |u: &UnderWay| u.packets.is_some() && u.machines.iter().all(Option::is_some);
        while let Some(at) = self.under_way.iter().position(is_whole) {
            let UnderWay { order, machines, packets, .. } = self.under_way.remove(at);
            let Some(Gathered { packets, more_late, late, worst, .. }) = packets else { continue };
            let machines = machines.into_iter().flatten().collect();
            let (number, kind) = (order.number, order.kind);
            let scene = Scene { number, kind, from: order.from, to: order.to, machines, packets, more_late };
            if self.done.len() == WAITING {
                self.done.pop_front();
            }
            self.done.push_back(Frozen { scene, worst, late });
        }
    }

    /// No journey comes any more: orders what is left. Call [`Self::round`] until [`Self::is_idle`], or as long as there is time.
    pub fn finish(&mut self, clock: Ns, witnesses: &mut [&mut dyn Witness]) {
        self.chooser.finish(clock);
        self.order(clock, witnesses);
    }

    /// Whether no scene is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    pub fn next_scene(&mut self) -> Option<Frozen> {
        self.done.pop_front()
    }

    pub fn next_spotted(&mut self) -> Option<Order> {
        self.spotted.pop_front()
    }

    pub fn counted(&self) -> &Counted {
        self.chooser.counted()
    }
}
