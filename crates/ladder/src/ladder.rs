//! The state machine: events in, transfers out.

use crate::event::{Device, Direction, Doorbell, Event, EventKind, Eventfd, Line};
use crate::figures::{Counts, Ended, Key, Lane};
use crate::step::Variant;
use crate::threads::{Identity, Mark, Threads};
use crate::transfer::{Open, Stage};
use latpath_model::Ns;
use std::collections::{BTreeMap, HashMap};

/// Maximum number of queues.
const LANES: usize = 512;
/// Maximum number of open transfers.
const OPEN: usize = 1024;
/// Maximum number of interrupts with a known vector, and of eventfds of interrupts.
const KNOWN: usize = 4096;
/// Maximum number of exit reasons.
const REASONS: usize = 256;

/// How events identify a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// By eventfds, which kick, queue and interrupt share.
    Eventfds,
    /// By the register that the guest writes to, and by wakeups.
    Wakeups,
}

/// Names of devices and virtual machines.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub devices: HashMap<Device, String>,
    pub vms: HashMap<u32, String>,
}

/// Turns events, in order of time, into transfers. Memory is bounded for any input.
#[derive(Debug)]
pub struct Ladder {
    pub(crate) join: Join,
    pub(crate) threads: Threads,
    pub(crate) lanes: Vec<Lane>,
    lane_of: HashMap<Key, usize>,
    pub(crate) open: Vec<Open>,
    /// Eventfds of interrupts (not kicks), with the process that raised them. The kernel reuses the number of a closed
    /// eventfd.
    calls: BTreeMap<Eventfd, Option<u32>>,
    pub(crate) vectors: HashMap<(Option<u32>, Line), u32>,
    pub(crate) ended: HashMap<Option<u32>, [Option<Ended>; 2]>,
    pub(crate) reasons: Vec<String>,
    pub(crate) counts: Counts,
    pub(crate) names: Names,
    now: Ns,
    first: Option<Ns>,
    /// Whether events of these kinds have been seen at all.
    has_wakings: bool,
    pub(crate) has_accepts: bool,
    pub(crate) has_injections: bool,
}

impl Ladder {
    /// Creates an empty ladder.
    pub fn new(join: Join) -> Self {
        Self {
            join,
            threads: Threads::default(),
            lanes: Vec::new(),
            lane_of: HashMap::new(),
            open: Vec::new(),
            calls: BTreeMap::new(),
            vectors: HashMap::new(),
            ended: HashMap::new(),
            reasons: Vec::new(),
            counts: Counts::default(),
            names: Names::default(),
            now: Ns::MIN,
            first: None,
            has_wakings: false,
            has_accepts: false,
            has_injections: false,
        }
    }

    /// Sets a device's name. Devices beyond 512 remain unnamed.
    pub fn name_device(&mut self, device: Device, name: &str) {
        if self.names.devices.len() < LANES {
            self.names.devices.insert(device, name.to_owned());
        }
    }

    /// Sets a virtual machine's name, by its process. Virtual machines beyond 512 remain unnamed.
    pub fn name_vm(&mut self, process: u32, name: &str) {
        if self.names.vms.len() < LANES {
            self.names.vms.insert(process, name.to_owned());
        }
    }

    /// Sets a thread's identity.
    pub fn identify(&mut self, pid: u32, identity: Identity) {
        self.threads.of(pid).identity = identity;
    }

    /// Whether a thread's identity is known.
    pub fn is_identified(&self, pid: u32) -> bool {
        self.threads.get(pid).is_some_and(|thread| !thread.identity.name.is_empty())
    }

    /// A thread's process, if known.
    pub(crate) fn process(&self, pid: u32) -> Option<u32> {
        self.threads.process(pid)
    }

    pub(crate) fn is_vcpu(&self, pid: u32) -> bool {
        self.threads.get(pid).is_some_and(|thread| thread.is_vcpu)
    }

    /// Sets the virtual machine of a tap.
    pub fn tap_of(&mut self, device: Device, vm: u32) {
        if let Some(lane) = self.lane(Key::Tap(device)) {
            self.lanes[lane].vm = Some(vm);
        }
    }

    /// Returns the number that stands for an exit reason. Reasons beyond 256 share the last number.
    pub fn reason(&mut self, name: &str) -> u16 {
        let at = self.reasons.iter().position(|known| known == name).unwrap_or_else(|| {
            if self.reasons.len() < REASONS {
                self.reasons.push(name.to_owned());
            }
            self.reasons.len() - 1
        });
        at as u16
    }

    /// Processes the next event.
    pub fn push(&mut self, event: &Event) {
        self.counts.events += 1;
        if event.t < self.now {
            self.counts.violations += 1;
        }
        self.now = self.now.max(event.t);
        self.first.get_or_insert(event.t);
        let mark = Mark { t: event.t, pid: event.pid, cpu: event.cpu };
        match event.what {
            EventKind::Switch { next, asleep } => self.switched(mark, next, asleep),
            EventKind::Waking { pid } => self.waking(mark, pid),
            EventKind::Exit(reason) => self.threads.of(event.pid).leaves_guest(mark, reason),
            EventKind::Entry => {
                self.entered(mark);
                self.threads.of(event.pid).enters_guest();
            }
            EventKind::Write(doorbell) => self.written(mark, doorbell),
            EventKind::Read => self.device_read(mark),
            EventKind::Signal(eventfd) => self.signalled(mark, eventfd),
            EventKind::Take(eventfd) => self.taken(mark, eventfd),
            EventKind::Serve { kick, call, direction } => self.served(mark, kick, call, direction),
            EventKind::Irqfd(eventfd) => self.irqfd(mark, eventfd),
            EventKind::Arrive(device) => self.arrived(mark, device),
            EventKind::Packet { direction: Direction::FromGuest, device } => self.packet_from_guest(mark, device),
            EventKind::Packet { direction: Direction::ToGuest, device } => self.packet_to_guest(mark, device),
            EventKind::Raise(line) => self.raised(mark, line),
            EventKind::Accept { vector } => self.accepted(mark, vector),
            EventKind::Posted { vector } => self.posted(mark, vector),
            EventKind::Inject { vector } => self.injected(mark, vector),
            EventKind::Eoi { vector } => self.eoi(mark, vector),
            EventKind::Lost(events) => self.lost(events),
        }
    }

    fn lost(&mut self, events: u64) {
        self.counts.lost_events = self.counts.lost_events.saturating_add(events);
        self.counts.ended_by_loss += self.open.len() as u64;
        self.open.clear();
        self.ended.clear();
        self.lanes.iter_mut().for_each(|lane| lane.is_in_round = false);
        self.threads.forget_states();
    }

    fn switched(&mut self, mark: Mark, next: u32, asleep: bool) {
        if mark.pid != 0 {
            self.threads.of(mark.pid).asleep = asleep;
            if asleep {
                self.round_over(mark.pid);
            }
        }
        if next != 0 {
            let thread = self.threads.of(next);
            let explained = thread.run(Mark { pid: next, ..mark }) || !thread.takes_part();
            // If wakeups are not recorded at all, every thread seems to run without one, which is no violation.
            self.counts.violations += u64::from(!explained && self.has_wakings);
        }
    }

    fn waking(&mut self, mark: Mark, pid: u32) {
        self.has_wakings = true;
        self.threads.of(pid).wake(mark);
        self.wakes_target(mark.pid, pid);
        let by = self.threads.of(mark.pid);
        by.woke = Some(pid);
        if self.join == Join::Wakeups {
            if let Some(doorbell) = by.doorbell.take() {
                self.kick(mark, Key::Doorbell(doorbell), Some(pid));
            }
            let open = self.open.iter_mut();
            open.filter(|o| o.stage == Stage::Worked && o.server == mark.pid).for_each(|o| o.is_signalled = true);
        }
    }

    /// Index of a queue, added if new; `None` if there are too many.
    pub(crate) fn lane(&mut self, key: Key) -> Option<usize> {
        if let Some(at) = self.lane_of.get(&key) {
            return Some(*at);
        }
        if self.lanes.len() == LANES {
            self.counts.omitted_queues += 1;
            return None;
        }
        let device = match key {
            Key::Tap(device) => Some(device),
            _ => None,
        };
        let doorbell = match key {
            Key::Doorbell(doorbell) => Some(doorbell),
            _ => None,
        };
        let direction = device.map(|_| Direction::ToGuest);
        self.lanes.push(Lane { key: Some(key), device, doorbell, direction, ..Lane::default() });
        self.lane_of.insert(key, self.lanes.len() - 1);
        Some(self.lanes.len() - 1)
    }

    pub(crate) fn known_lane(&self, key: Key) -> Option<usize> {
        self.lane_of.get(&key).copied()
    }

    pub(crate) fn begin(&mut self, open: Open) {
        if self.open.len() == OPEN {
            self.open.remove(0);
            self.counts.unfinished += 1;
        }
        self.open.push(open);
    }

    /// Removes and returns the open transfers that match `is`.
    pub(crate) fn take(&mut self, mut is: impl FnMut(&Open) -> bool) -> Vec<Open> {
        let (taken, rest) = std::mem::take(&mut self.open).into_iter().partition(|open| is(open));
        self.open = rest;
        taken
    }

    /// Counts a transfer that has ended.
    pub(crate) fn close(&mut self, open: &Open) {
        let Some(transfer) = open.finish() else {
            self.counts.violations += 1;
            return;
        };
        let variant = open.variant();
        if variant != Variant::NoInterrupt {
            let ended = Ended { lane: open.lane, variant, t: open.interrupted() };
            if self.ended.len() < KNOWN || self.ended.contains_key(&open.vm) {
                self.ended.entry(open.vm).or_default()[open.direction as usize] = Some(ended);
            }
        }
        self.lanes[open.lane].groups.entry(variant).or_default().add(transfer);
    }

    /// Counts a kick that was served without a packet.
    pub(crate) fn close_without_packet(&mut self, open: &Open) {
        self.lanes[open.lane].without_packet += 1;
    }

    /// A server raises interrupts with this eventfd.
    pub(crate) fn remember_call(&mut self, eventfd: Eventfd, server: u32) {
        if eventfd != 0 && (self.calls.len() < KNOWN || self.calls.contains_key(&eventfd)) {
            self.calls.insert(eventfd, self.threads.process(server));
        }
        // The number may have been that of a kick's eventfd, since closed, so its queue is forgotten.
        self.lane_of.remove(&Key::Kicks(eventfd));
    }

    #[cfg(test)]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// A server receives kicks from this eventfd, so it is not, or no longer, an interrupt's.
    pub(crate) fn remember_kick(&mut self, eventfd: Eventfd) {
        self.calls.remove(&eventfd);
    }

    /// Whether an eventfd signalled by a vCPU is an interrupt's. If another process raised interrupts with it, its
    /// number has been reused.
    pub(crate) fn is_call(&mut self, eventfd: Eventfd, vcpu: u32) -> bool {
        let Some(owner) = self.calls.get(&eventfd) else { return false };
        let is_same = owner.zip(self.threads.process(vcpu)).is_none_or(|(owner, process)| owner == process);
        if !is_same {
            self.calls.remove(&eventfd);
        }
        is_same
    }

    /// Forgets an eventfd's queue if it is another virtual machine's: the number has been reused.
    pub(crate) fn forget_other_vms(&mut self, key: Key, vm: Option<u32>) {
        let known = self.known_lane(key).and_then(|lane| self.lanes[lane].vm);
        if matches!(key, Key::Kicks(_)) && known.zip(vm).is_some_and(|(known, vm)| known != vm) {
            self.lane_of.remove(&key);
        }
    }

    pub(crate) fn remember_vector(&mut self, vm: Option<u32>, line: Line, vector: u32) {
        if self.vectors.len() < KNOWN || self.vectors.contains_key(&(vm, line)) {
            self.vectors.insert((vm, line), vector);
        }
    }

    /// Time of the first event, and duration until the last, ns.
    pub(crate) fn covered(&self) -> (Ns, Ns) {
        self.first.map_or((0, 0), |first| (first, self.now.saturating_sub(first)))
    }

    fn written(&mut self, mark: Mark, doorbell: Doorbell) {
        let is_known = self.known_lane(Key::Doorbell(doorbell)).is_some_and(|lane| self.lanes[lane].packets > 0);
        let vcpu = self.threads.of(mark.pid);
        let woke = vcpu.woke;
        if vcpu.exit.is_none() && !vcpu.is_vcpu {
            return;
        }
        // On Intel CPUs, KVM reports the write after it has signalled the queue's eventfd, so the queue is already
        // known.
        if let Some(lane) = vcpu.kicked.take() {
            let queue = &mut self.lanes[lane];
            queue.doorbell = queue.doorbell.or(Some(doorbell));
            return;
        }
        // A wakeup shows that the write is a kick; KVM reports some writes only after the wakeup.
        if self.join == Join::Wakeups && (is_known || woke.is_some()) {
            return self.kick(mark, Key::Doorbell(doorbell), woke);
        }
        vcpu.doorbell = Some(doorbell);
    }
}
