//! The guest's door: when the host announced each packet to its guest, and when a vCPU of the guest ran with it.
//!
//! A server (a vhost worker, or a QEMU thread) takes packets off a tap, puts them into the guest's ring and then raises
//! one interrupt for all of them, unless the guest has disabled interrupts because it polls the ring. Events and
//! packets are joined exactly, never by guesses:
//!
//! - A packet belongs to the first interrupt of its queue that the same thread signals after it has read the packet,
//!   and before it sleeps or turns to a queue again.
//! - Without such an interrupt, the guest learns of the packet by an earlier one that no vCPU has taken yet. Otherwise
//!   it polls, and gets the packet as soon as the vCPU that took the queue's last interrupt runs.
//! - An interrupt belongs to the vCPU whose interrupt controller accepted it. The vCPU runs with it when it enters the
//!   guest after the injection, or at once if hardware delivers the interrupt to a vCPU that is in the guest.
//!
//! In the other direction, the guest kicks a queue of vhost, whose worker then begins a round. If the worker had ended
//! its previous round of the queue before the kick, the first packet of the new one is the one that the kick announced.
//! Others may have come during a round, without a kick, or with a kick that came too late to be needed.
//!
//! Packets for which one of these events is missing are counted, and have no times.

mod interrupt;
mod kicks;

use crate::threads::{is_worker, Mark};
use interrupt::{Interrupt, Line, QueueKey, Stage};
use kicks::Kicks;
use latpath_flight::{Event, EventKind, Left, Sleep, Transfer};
use latpath_model::{Ns, Sighting};
use std::collections::HashMap;

/// Maximum number of packets for which an event is awaited.
const MAX_PACKETS: usize = 1 << 16;
/// Maximum number of interrupts that no vCPU has taken.
const MAX_INTERRUPTS: usize = 4096;
/// Maximum number of threads and of queues; beyond it, all are forgotten.
const MAX_KNOWN: usize = 1 << 14;
/// Number of packets after which vhost announces them within a round (drivers/vhost/net.c, `VHOST_NET_BATCH`, plus 1).
const BATCH: usize = 65;
/// Maximum time from the read of a packet to the end of its round, ns.
const MAX_ROUND: Ns = 50_000_000;
/// Maximum time until a vCPU takes an interrupt, ns.
const MAX_WAIT: Ns = 10_000_000_000;

/// A step at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DoorStep {
    /// The vCPU leaves the guest to make the kick that announces the packet.
    Kicked,
    /// KVM receives the packet's interrupt.
    Signalled,
    /// A vCPU that has been notified of the packet, or polls for it, runs in the guest.
    Entered,
}

/// Counts of packets at the door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorCounts {
    /// Packets that servers took off taps.
    pub packets: u64,
    /// Packets with an interrupt of their own, or the first of those that share one.
    pub first: u64,
    /// Packets that share the interrupt of an earlier one.
    pub shared: u64,
    /// Packets without an interrupt, because an earlier interrupt was still pending.
    pub before_entry: u64,
    /// Packets without an interrupt, because the guest polled.
    pub polled: u64,
    /// Packets without an interrupt in a queue that has had no interrupt yet, so that the polling vCPU is unknown.
    pub never_interrupted: u64,
    /// Packets whose steps are unknown, because events were lost or are not recorded.
    pub unknown: u64,
    /// Packets with an interrupt that no vCPU was seen to take.
    pub not_taken: u64,
    /// Packets that vhost's workers took from guests.
    pub from_guests: u64,
    /// Those of `from_guests` that were the first of a round after a kick.
    pub kicked: u64,
}

/// State of a queue, as far as known.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// The virtual machine's process.
    process: Option<u32>,
    /// The vCPU thread that took the last interrupt.
    target: Option<u32>,
    /// Vector of the last interrupt.
    vector: Option<u32>,
    /// The interrupt that QEMU raises for the queue's packets, and the number of observations in its favour, at most
    /// [`SURE`].
    line: Option<(Line, u8)>,
}

/// A packet that a server has read, in the current round.
#[derive(Clone, Copy, Debug)]
struct Pending {
    read: Sighting,
    queue: QueueKey,
    /// The vCPU thread that took the queue's last interrupt before this packet.
    target: Option<u32>,
    /// The first time since the packet's read at which the vCPU `target` was in the guest.
    in_guest: Option<Mark>,
    /// Time at which this round took the packet.
    since: Ns,
}

/// A thread that reads taps, or relays vhost's interrupts.
#[derive(Clone, Debug, Default)]
struct Server {
    /// Whether it is a worker of vhost.
    is_vhost: bool,
    /// Interrupt eventfd of the queue to a guest that a vhost worker serves, if known.
    call: Option<u32>,
    /// The queue whose eventfd the thread has read; only for threads of QEMU.
    relays: Option<QueueKey>,
    /// Whether its next interrupt belongs to another device, whose irqfd it has signalled.
    signals_other: bool,
    /// The kick before its round, until it has written a packet.
    kick: Option<Mark>,
    /// During its round of a queue from a guest: the eventfd of that queue's kicks.
    serves: Option<u32>,
    pending: Vec<Pending>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Vcpu {
    number: Option<u32>,
    place: Place,
}

/// Whether a vCPU is in the guest.
#[derive(Clone, Copy, Debug, Default)]
enum Place {
    #[default]
    Unknown,
    /// In the guest, since this entry.
    Inside(Mark),
    /// Outside, since this exit.
    Outside(Mark),
}

/// Receives each step of a packet: the sighting at the tap with the time, CPU and thread of the step.
pub type TakeStep<'a> = &'a mut dyn FnMut(DoorStep, Sighting);

/// Joins packets with the events that announce them. Memory is bounded for any input.
#[derive(Debug, Default)]
pub struct Door {
    servers: HashMap<u32, Server>,
    queues: HashMap<QueueKey, Queue>,
    vcpus: HashMap<u32, Vcpu>,
    /// Processes of virtual machines, by thread ID.
    processes: HashMap<u32, Option<u32>>,
    interrupts: Vec<Interrupt>,
    kicks: Kicks,
    /// Packets without an interrupt that wait for this vCPU thread to enter the guest.
    polled: Vec<(u32, Sighting)>,
    /// Number of packets held in `servers`, `interrupts` and `polled`.
    held: usize,
    counts: DoorCounts,
    now: Ns,
}

fn mark_of(cpu: u32, event: &Event) -> Mark {
    Mark { t: event.t, pid: event.pid, cpu }
}

impl Door {
    /// The counts so far.
    pub fn counts(&self) -> DoorCounts {
        self.counts
    }

    /// Whether the process of this thread is known.
    pub fn is_identified(&self, tid: u32) -> bool {
        self.processes.contains_key(&tid)
    }

    /// Sets a thread's name and process. The name of a vhost worker that is a kernel thread contains its virtual
    /// machine's process, which is used.
    pub fn identify(&mut self, tid: u32, thread: Option<(&str, u32)>) {
        if self.processes.len() >= MAX_KNOWN {
            self.processes.clear();
        }
        let process = thread.map(|(name, process)| match is_worker(name) {
            true => name.trim_start_matches("vhost-").parse().unwrap_or(process),
            false => process,
        });
        self.processes.insert(tid, process);
    }

    fn process(&self, tid: u32) -> Option<u32> {
        self.processes.get(&tid).copied().flatten()
    }

    /// Time before which no further step will be reported, if all events before `until` have been pushed.
    pub fn settled(&self, until: Ns) -> Ns {
        let signalled = self.interrupts.iter().filter(|interrupt| !interrupt.is_raised()).map(|i| &i.packets);
        let waiting = self.servers.values().map(|server| &server.pending).chain(signalled).flatten();
        let kicks = self.servers.values().filter_map(|server| server.kick);
        let kicks = kicks.chain(self.kicks.unserved());
        let times = waiting.map(|pending| pending.read.t).chain(kicks.map(|kick| kick.t));
        let recent = times.filter(|t| *t >= until - MAX_ROUND);
        recent.min().map_or(until, |read| read.min(until))
    }

    /// A server takes a packet off a tap. Packets and events are pushed in order of time.
    pub fn read(&mut self, read: Sighting, step: TakeStep) {
        self.counts.packets += 1;
        if self.held >= MAX_PACKETS || read.t < self.now {
            self.counts.unknown += 1;
            return;
        }
        self.now = read.t;
        let server = self.server(read.tid);
        let (call, is_vhost, pending) = (server.call, server.is_vhost, server.pending.len());
        if is_vhost && call.is_none() {
            self.counts.unknown += 1;
            return;
        }
        // QEMU announces each packet before it reads the next one.
        if !is_vhost || pending >= BATCH {
            self.end_round(read.tid, step);
        }
        let queue = call.map_or(QueueKey::Tap(read.tid, read.point), QueueKey::Call);
        let target = self.queues.get(&queue).and_then(|queue| queue.target);
        let in_guest = target.and_then(|vcpu| self.in_guest(vcpu, read.t));
        self.server(read.tid).pending.push(Pending { read, queue, target, in_guest, since: read.t });
        self.held += 1;
    }

    /// A server writes a packet of a guest to a tap. Its event [`Transfer::TapWrite`] follows.
    pub fn written(&mut self, write: Sighting, step: TakeStep) {
        let Some(server) = self.servers.get_mut(&write.tid).filter(|server| server.is_vhost) else { return };
        self.counts.from_guests += 1;
        if let Some(kick) = server.kick.take().filter(|_| write.t >= self.now) {
            self.counts.kicked += 1;
            step(DoorStep::Kicked, Sighting { t: kick.t, cpu: kick.cpu as u16, tid: kick.pid, ..write });
        }
    }

    fn server(&mut self, tid: u32) -> &mut Server {
        if self.servers.len() >= MAX_KNOWN && !self.servers.contains_key(&tid) {
            self.forget_packets();
            self.servers.clear();
        }
        self.servers.entry(tid).or_default()
    }

    fn queue(&mut self, key: QueueKey) -> &mut Queue {
        if self.queues.len() >= MAX_KNOWN && !self.queues.contains_key(&key) {
            self.queues.clear();
        }
        self.queues.entry(key).or_default()
    }

    /// The entry of a vCPU thread that is in the guest, with `t` as the earliest time; `None` if the thread is not
    /// known to be there.
    fn in_guest(&self, vcpu: u32, t: Ns) -> Option<Mark> {
        match self.vcpus.get(&vcpu)?.place {
            Place::Inside(since) => Some(Mark { t: since.t.max(t), ..since }),
            Place::Unknown | Place::Outside(_) => None,
        }
    }

    /// Processes the next event of this machine.
    pub fn push(&mut self, cpu: u32, event: &Event, step: TakeStep) {
        self.now = self.now.max(event.t);
        let mark = mark_of(cpu, event);
        match event.what {
            EventKind::Switch { left: Left::Asleep(Sleep::Interruptible | Sleep::Idle), .. } => {
                self.end_round(mark.pid, step);
                self.end_service(mark);
            }
            EventKind::KvmEntry { vcpu } => self.entered(mark, vcpu, step),
            EventKind::KvmExit { vcpu, .. } => {
                let known = self.vcpu(mark.pid);
                (known.place, known.number) = (Place::Outside(mark), vcpu.or(known.number));
            }
            EventKind::KvmInjVirq(vector) => self.injected(mark, vector),
            EventKind::Transfer(transfer) => self.transfer(mark, transfer, step),
            _ => {}
        }
    }

    /// Forgets everything that lost events may have changed.
    pub fn lost(&mut self) {
        self.forget_packets();
        self.servers.values_mut().for_each(|server| (server.call, server.kick, server.serves) = (None, None, None));
        self.kicks.lost();
        self.vcpus.values_mut().for_each(|vcpu| vcpu.place = Place::Unknown);
        self.queues.values_mut().for_each(|queue| queue.target = None);
    }

    fn forget_packets(&mut self) {
        let raised = self.interrupts.drain(..).filter(Interrupt::is_raised);
        let announced = raised.map(|interrupt| interrupt.packets.len()).sum();
        self.not_taken(announced);
        self.servers.values_mut().for_each(|server| server.pending.clear());
        self.polled.clear();
        self.forget(self.held);
    }

    /// Abandons packets and interrupts that have waited for too long. Call it regularly.
    pub fn advance(&mut self, now: Ns) {
        let (mut forgotten, mut announced) = (0, 0);
        for server in self.servers.values_mut() {
            let old = server.pending.partition_point(|pending| pending.since < now - MAX_ROUND);
            server.pending.drain(..old);
            forgotten += old;
        }
        self.polled.retain(|(_, read)| {
            let is_young = read.t >= now - MAX_WAIT;
            forgotten += usize::from(!is_young);
            is_young
        });
        self.interrupts.retain(|interrupt| {
            let is_young = interrupt.since >= now - MAX_WAIT;
            let packets = if is_young { 0 } else { interrupt.packets.len() };
            match interrupt.is_raised() {
                true => announced += packets,
                false => forgotten += packets,
            }
            is_young
        });
        self.forget(forgotten);
        self.not_taken(announced);
    }

    /// Ends the input: counts the packets that still wait for an event.
    pub fn finish(&mut self) {
        self.forget_packets();
    }

    fn vcpu(&mut self, tid: u32) -> &mut Vcpu {
        if self.vcpus.len() >= MAX_KNOWN && !self.vcpus.contains_key(&tid) {
            self.vcpus.clear();
        }
        self.vcpus.entry(tid).or_default()
    }

    fn transfer(&mut self, mark: Mark, transfer: Transfer, step: TakeStep) {
        match transfer {
            Transfer::Round { kick, call, to_guest } => {
                self.end_round(mark.pid, step);
                self.end_service(mark);
                let serves = (!to_guest).then_some(kick);
                let kick = serves.and_then(|kick| self.kicks.round_begins(kick));
                let server = self.server(mark.pid);
                (server.is_vhost, server.kick, server.serves) = (true, kick, serves);
                if to_guest {
                    server.call = Some(call).filter(|call| *call != 0);
                }
            }
            Transfer::Signal(eventfd) => {
                if let Some(Place::Outside(exit)) = self.vcpus.get(&mark.pid).map(|vcpu| vcpu.place) {
                    self.kicks.signalled(eventfd, exit);
                }
                self.signalled(mark, eventfd);
            }
            // A write of any packet, followed or not, ends the kick's effect: the kick announced the first packet of
            // the round.
            Transfer::TapWrite(..) => {
                self.servers.get_mut(&mark.pid).into_iter().for_each(|server| server.kick = None);
            }
            Transfer::Irqfd(eventfd) => {
                self.signalled(mark, eventfd);
                let is_its = |i: &Interrupt| i.stage == Stage::Signalled(eventfd) && i.raiser == mark.pid;
                match self.interrupts.iter().rposition(is_its) {
                    Some(at) => self.raise(at, mark, None, step),
                    None => {
                        self.servers.get_mut(&mark.pid).into_iter().for_each(|server| server.signals_other = true);
                    }
                }
            }
            Transfer::Read(eventfd) => {
                self.end_round(mark.pid, step);
                self.relayed(mark, eventfd);
            }
            Transfer::RaiseLine(number) => self.raised(mark, Line::Wire(number), step),
            Transfer::RaiseMessage(data) => self.raised(mark, Line::Message(data), step),
            Transfer::Accept { vector, vcpu } => self.accepted(mark, vector, vcpu),
            Transfer::Posted { vector, .. } => self.posted(mark, vector, step),
            _ => {}
        }
    }

    /// Ends a worker's round of a queue from a guest, if it is in one.
    fn end_service(&mut self, mark: Mark) {
        let serves = self.servers.get_mut(&mark.pid).and_then(|server| server.serves.take());
        serves.into_iter().for_each(|kick| self.kicks.round_ends(kick, mark.t));
    }

    /// A vhost worker signals the interrupt of the queue that it serves.
    fn signalled(&mut self, mark: Mark, eventfd: u32) {
        let Some(server) = self.servers.get_mut(&mark.pid).filter(|server| server.call == Some(eventfd)) else {
            return;
        };
        let pending = std::mem::take(&mut server.pending);
        // If QEMU has not read an earlier signal yet, it reads both at once, so the packets share the earlier signal's
        // interrupt.
        let is_known = |i: &Interrupt| i.stage == Stage::Signalled(eventfd) && i.raiser == mark.pid;
        let at = match self.interrupts.iter().rposition(is_known) {
            Some(at) => at,
            None => match self.begin(mark, QueueKey::Call(eventfd), Stage::Signalled(eventfd)) {
                Some(at) => at,
                None => return self.forget(pending.len()),
            },
        };
        self.interrupts[at].packets.extend(pending);
    }

    /// A QEMU thread has read vhost's signal.
    fn relayed(&mut self, mark: Mark, eventfd: u32) {
        let signalled = self.interrupts.extract_if(.., |i| i.stage == Stage::Signalled(eventfd));
        let together = signalled.reduce(|earlier, last| {
            let packets = [earlier.packets, last.packets].concat();
            Interrupt { packets, ..last }
        });
        let Some(interrupt) = together else { return };
        self.server(mark.pid).relays = Some(interrupt.queue);
        let process = self.process(mark.pid);
        self.interrupts.push(Interrupt { stage: Stage::Relayed, raiser: mark.pid, process, ..interrupt });
    }

    fn forget(&mut self, packets: usize) {
        self.held -= packets;
        self.counts.unknown += packets as u64;
    }

    fn not_taken(&mut self, packets: usize) {
        self.held -= packets;
        self.counts.not_taken += packets as u64;
    }

    /// Begins an interrupt that the server on the CPU raises for a queue; `None` if there are too many.
    fn begin(&mut self, mark: Mark, queue: QueueKey, stage: Stage) -> Option<usize> {
        if self.interrupts.len() >= MAX_INTERRUPTS {
            return None;
        }
        let process = self.process(mark.pid);
        let known = self.queue(queue);
        // The kernel reuses the number of a closed eventfd: with another process, this is another queue.
        if known.process.is_some_and(|known| Some(known) != process) {
            *known = Queue::default();
        }
        known.process = process;
        self.interrupts.push(Interrupt {
            stage,
            queue,
            process,
            raiser: mark.pid,
            line: None,
            vector: None,
            vcpu: None,
            since: mark.t,
            packets: Vec::new(),
        });
        Some(self.interrupts.len() - 1)
    }

    /// KVM receives an interrupt.
    fn raise(&mut self, at: usize, mark: Mark, line: Option<Line>, step: TakeStep) {
        let interrupt = &mut self.interrupts[at];
        (interrupt.stage, interrupt.raiser, interrupt.line) = (Stage::Raised, mark.pid, line);
        let packets = interrupt.packets.len() as u64;
        self.counts.first += packets.min(1);
        self.counts.shared += packets.saturating_sub(1);
        for Pending { read, .. } in &interrupt.packets {
            step(DoorStep::Signalled, at_mark(read, mark));
        }
    }

    fn raised(&mut self, mark: Mark, line: Line, step: TakeStep) {
        // KVM reports the line of an irqfd's interrupt right after it has received the signal.
        let is_unnamed = |i: &Interrupt| i.stage == Stage::Raised && i.raiser == mark.pid && i.line.is_none();
        if let Some(interrupt) = self.interrupts.iter_mut().rfind(|i| is_unnamed(i)) {
            interrupt.line = Some(line);
            return;
        }
        // Some kernels accept a program at irqfd_wakeup and never run it: the line follows the worker's signal.
        let is_signalled = |i: &Interrupt| matches!(i.stage, Stage::Signalled(_)) && i.raiser == mark.pid;
        if let Some(at) = self.interrupts.iter().rposition(is_signalled) {
            return self.raise(at, mark, Some(line), step);
        }
        let Some(queue) = self.queue_of_line(mark.pid, line) else { return };
        let server = self.server(mark.pid);
        server.relays = None;
        if let Some(at) = self.interrupts.iter().position(|i| i.stage == Stage::Relayed && i.raiser == mark.pid) {
            return self.raise(at, mark, Some(line), step);
        }
        let pending = std::mem::take(&mut self.server(mark.pid).pending);
        match self.begin(mark, queue, Stage::Raised) {
            Some(at) => {
                self.interrupts[at].packets = pending;
                self.raise(at, mark, Some(line), step);
            }
            None => self.forget(pending.len()),
        }
    }

    /// The queue for which a QEMU thread raises an interrupt: the one whose signal it has read; or, right after it has
    /// read a packet, the packet's queue.
    fn queue_of_line(&mut self, tid: u32, line: Line) -> Option<QueueKey> {
        let server = self.servers.get_mut(&tid).filter(|server| !server.is_vhost)?;
        if std::mem::take(&mut server.signals_other) {
            return None;
        }
        if server.relays.is_some() {
            return server.relays;
        }
        let Some(Pending { queue: key, .. }) = server.pending.last().copied() else {
            let own = |key: &QueueKey| matches!(key, QueueKey::Tap(server, _) if *server == tid);
            let known = self.queues.iter().find(|(key, queue)| own(key) && queue.line == Some((line, SURE)));
            return known.map(|(key, _)| *key);
        };
        let queue = self.queue(key);
        queue.line = match queue.line {
            Some((known, sure)) if known == line => Some((line, (sure + 1).min(SURE))),
            Some((known, sure)) if sure > 1 => Some((known, sure - 1)),
            _ => Some((line, 1)),
        };
        queue.line.is_some_and(|(known, _)| known == line).then_some(key)
    }

    /// A vCPU's interrupt controller accepts the interrupt that this thread has just raised.
    fn accepted(&mut self, mark: Mark, vector: u32, vcpu: u32) {
        let is_its = |i: &&mut Interrupt| {
            let fits = !matches!(i.line, Some(Line::Message(data)) if data as u32 & 0xff != vector);
            i.stage == Stage::Raised && i.raiser == mark.pid && i.vcpu.is_none() && fits
        };
        let Some(interrupt) = self.interrupts.iter_mut().rfind(is_its) else {
            return self.accepted_again(mark, vector, vcpu);
        };
        (interrupt.vector, interrupt.vcpu) = (Some(vector), Some(vcpu));
        let queue = interrupt.queue;
        self.queue(queue).vector = Some(vector);
    }

    /// A line was raised while the guest was handling its interrupt. Once the guest has finished, KVM delivers the new
    /// one on the vCPU's thread.
    fn accepted_again(&mut self, mark: Mark, vector: u32, vcpu: u32) {
        if !self.vcpus.contains_key(&mark.pid) {
            return;
        }
        let (queues, process) = (&self.queues, self.process(mark.pid));
        let is_of_line = |i: &&mut Interrupt| {
            let known = queues.get(&i.queue).and_then(|queue| queue.vector);
            let waits = i.stage == Stage::Raised && i.vcpu.is_none() && matches!(i.line, Some(Line::Wire(_)));
            waits && i.process.is_some() && i.process == process && known == Some(vector)
        };
        for interrupt in self.interrupts.iter_mut().filter(is_of_line) {
            (interrupt.vector, interrupt.vcpu) = (Some(vector), Some(vcpu));
        }
    }

    /// Whether an interrupt is for this vCPU thread.
    fn is_for(&self, interrupt: &Interrupt, tid: u32) -> bool {
        let Some(vcpu) = self.vcpus.get(&tid) else { return false };
        let same = |a: Option<u32>, b: Option<u32>| a.is_some() && a == b;
        same(interrupt.process, self.process(tid)) && same(interrupt.vcpu, vcpu.number)
    }

    /// Hardware delivers an interrupt, immediately if the vCPU is in the guest.
    fn posted(&mut self, mark: Mark, vector: u32, step: TakeStep) {
        let is_its = |i: &Interrupt| i.stage == Stage::Raised && i.raiser == mark.pid && i.vector == Some(vector);
        let Some(at) = self.interrupts.iter().rposition(is_its) else { return };
        self.interrupts[at].stage = Stage::Posted;
        let target = self.vcpus.iter().find(|(tid, _)| self.is_for(&self.interrupts[at], **tid));
        match target.map_or(Place::Unknown, |(_, vcpu)| vcpu.place) {
            Place::Outside(_) => {}
            Place::Inside(since) => self.take(at, Mark { t: mark.t, ..since }, step),
            // The vCPU may be in the guest and may already have received the interrupt, so the time is unknown.
            Place::Unknown => {
                let interrupt = self.interrupts.remove(at);
                self.not_taken(interrupt.packets.len());
            }
        }
    }

    /// This vCPU thread injects an interrupt into its guest.
    fn injected(&mut self, mark: Mark, vector: u32) {
        let is_known = self.vcpus.get(&mark.pid).is_some_and(|vcpu| vcpu.number.is_some());
        let process = self.process(mark.pid);
        let fits = |interrupt: &Interrupt| {
            let known = || self.queues.get(&interrupt.queue).and_then(|queue| queue.vector);
            let is_its = if is_known { self.is_for(interrupt, mark.pid) } else { interrupt.process == process };
            interrupt.stage == Stage::Raised && interrupt.vector.or_else(known) == Some(vector) && is_its
        };
        let its: Vec<usize> = (0..self.interrupts.len()).filter(|at| fits(&self.interrupts[*at])).collect();
        for at in its.into_iter().rev() {
            match is_known {
                true => self.interrupts[at].stage = Stage::Injected(mark.pid),
                // The interrupt may be for any vCPU of the process, so whether this one takes it is unknown.
                false => {
                    let interrupt = self.interrupts.remove(at);
                    self.not_taken(interrupt.packets.len());
                }
            }
        }
    }

    /// A vCPU enters its guest, with the interrupts that are injected or posted.
    fn entered(&mut self, mark: Mark, number: Option<u32>, step: TakeStep) {
        let vcpu = self.vcpu(mark.pid);
        (vcpu.place, vcpu.number) = (Place::Inside(mark), number.or(vcpu.number));
        let mut at = 0;
        while at < self.interrupts.len() {
            let interrupt = &self.interrupts[at];
            let is_taken = match interrupt.stage {
                Stage::Injected(by) => by == mark.pid,
                Stage::Posted => self.is_for(interrupt, mark.pid),
                _ => false,
            };
            match is_taken {
                true => {
                    self.take(at, mark, step);
                    at = 0;
                }
                false => at += 1,
            }
        }
        if self.held == 0 {
            return;
        }
        let all = std::mem::take(&mut self.polled).into_iter();
        let (polled, waiting): (Vec<_>, Vec<_>) = all.partition(|(vcpu, _)| *vcpu == mark.pid);
        self.polled = waiting;
        for (_, read) in &polled {
            self.polls(read, mark, step);
        }
        let signalled = self.interrupts.iter_mut().filter(|interrupt| !interrupt.is_raised());
        let signalled = signalled.flat_map(|interrupt| &mut interrupt.packets);
        let pending = self.servers.values_mut().flat_map(|server| &mut server.pending).chain(signalled);
        for pending in pending.filter(|pending| pending.in_guest.is_none() && pending.target == Some(mark.pid)) {
            pending.in_guest = Some(mark);
        }
    }

    /// Ends an interrupt that a vCPU in the guest takes, and reports the step of its packets.
    fn take(&mut self, at: usize, mark: Mark, step: TakeStep) {
        let interrupt = self.interrupts.remove(at);
        self.queue(interrupt.queue).target = Some(mark.pid);
        self.held -= interrupt.packets.len();
        for Pending { read, .. } in &interrupt.packets {
            step(DoorStep::Entered, at_mark(read, mark));
        }
        // The events of the queue's earlier interrupts were missed, and will not follow.
        let earlier = self.interrupts.extract_if(..at, |i| i.queue == interrupt.queue && i.is_raised());
        let missed = earlier.map(|interrupt| interrupt.packets.len()).sum();
        self.not_taken(missed);
    }

    /// Reports the step of a packet for which a vCPU in the guest polls.
    fn polls(&mut self, read: &Sighting, mark: Mark, step: TakeStep) {
        self.held -= 1;
        self.counts.polled += 1;
        step(DoorStep::Entered, at_mark(read, mark));
    }

    /// Ends a server's round: its remaining packets, if any, are in the guest's ring without an interrupt.
    fn end_round(&mut self, tid: u32, step: TakeStep) {
        let Some(server) = self.servers.get_mut(&tid) else { return };
        (server.relays, server.signals_other) = (None, false);
        let mut pending = std::mem::take(&mut server.pending);
        let relayed = self.interrupts.extract_if(.., |i| i.stage == Stage::Relayed && i.raiser == tid);
        pending.extend(relayed.flat_map(|interrupt| interrupt.packets));
        for pending in pending {
            let Pending { read, queue, target, in_guest, .. } = pending;
            if let Some(interrupt) = self.interrupts.iter_mut().rfind(|i| i.queue == queue) {
                self.counts.before_entry += u64::from(interrupt.is_raised());
                interrupt.packets.push(pending);
                continue;
            }
            let now = self.queues.get(&queue).and_then(|queue| queue.target);
            match (in_guest, target) {
                // Another vCPU has taken an interrupt in the meantime, so the polling vCPU is unknown.
                _ if now != target && target.is_some() => self.forget(1),
                (Some(mark), _) => self.polls(&read, mark, step),
                (None, Some(vcpu)) => self.polled.push((vcpu, read)),
                (None, None) => {
                    self.held -= 1;
                    self.counts.never_interrupted += 1;
                }
            }
        }
    }
}

/// Number of equal observations after which the interrupt of a QEMU thread's queue is certain.
const SURE: u8 = 3;

/// A packet's sighting at a later event.
fn at_mark(read: &Sighting, mark: Mark) -> Sighting {
    Sighting { t: mark.t.max(read.t), cpu: mark.cpu as u16, tid: mark.pid, ..*read }
}

#[cfg(test)]
mod properties;
