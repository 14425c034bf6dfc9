//! Tests the door against a simulated host, in which the true time of each packet's announcement is known.

use super::*;
use latpath_flight::{Class, Event, EventKind, Left, Sleep, Transfer};
use latpath_model::PointId;
use proptest::prelude::*;

/// The next event in one of the virtual machines.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The vhost worker turns to the queue.
    Begin,
    Read,
    /// The worker announces the round's packets, and then sleeps if true.
    End(bool),
    /// The vCPU leaves its guest.
    Exit,
    /// The vCPU enters its guest, with the pending interrupts.
    Enter,
    /// The guest has emptied its ring, and enables the interrupt.
    Done,
    /// The worker of another queue reads a packet without a round.
    Other,
}

fn act() -> impl Strategy<Value = (usize, Act)> {
    let act = prop_oneof![
        3 => Just(Act::Begin),
        6 => Just(Act::Read),
        4 => any::<bool>().prop_map(Act::End),
        3 => Just(Act::Exit),
        4 => Just(Act::Enter),
        3 => Just(Act::Done),
        1 => Just(Act::Other),
    ];
    (0..2_usize, act)
}

/// A virtual machine with one vCPU and one queue.
#[derive(Debug, Default)]
struct Vm {
    posts: bool,
    /// Whether the host's kernel runs no program at irqfd_wakeup.
    hides_irqfd: bool,
    in_round: bool,
    inside: bool,
    /// Time of the vCPU's last entry.
    entered: Ns,
    masked: bool,
    /// Packets of the pending interrupt; `None` without one.
    pending: Option<Vec<u32>>,
    /// Packets of the round, with the time at which the vCPU was first in the guest since their read.
    round: Vec<(u32, Ns, Option<Ns>)>,
    /// Packets for which the guest polls once the vCPU enters.
    polled: Vec<u32>,
    has_taken: bool,
}

/// Times of a packet's read, of its interrupt, and of the vCPU's entry.
type Times = (Ns, Option<Ns>, Option<Ns>);

/// The host, with each packet's true times, indexed by its key.
struct Host {
    door: Door,
    vms: [Vm; 2],
    t: Ns,
    truth: Vec<Times>,
    found: Vec<Times>,
}

fn worker(vm: usize) -> u32 {
    10 + vm as u32
}

fn vcpu(vm: usize) -> u32 {
    20 + vm as u32
}

/// Both virtual machines use the same vector.
const VECTOR: u32 = 0x41;

impl Host {
    fn new(vms: [(bool, bool); 2]) -> Self {
        let mut door = Door::default();
        for vm in 0..2 {
            let process = 1000 + vm as u32;
            door.identify(worker(vm), Some(("qemu", process)));
            door.identify(vcpu(vm), Some(("CPU 0/KVM", process)));
        }
        let vms = vms.map(|(posts, hides_irqfd)| Vm { posts, hides_irqfd, ..Vm::default() });
        Self { door, vms, t: 1_000, truth: Vec::new(), found: Vec::new() }
    }

    fn event(&mut self, cpu: usize, pid: u32, what: EventKind) {
        self.t += 10;
        let (event, found) = (Event { t: self.t, pid, what }, &mut self.found);
        self.door.push(cpu as u32, &event, &mut |step, seen| note(found, step, seen));
    }

    fn transfer(&mut self, cpu: usize, pid: u32, transfer: Transfer) {
        self.event(cpu, pid, EventKind::Transfer(transfer));
    }

    fn read(&mut self, tid: u32, point: PointId) -> u32 {
        self.t += 10;
        let key = self.truth.len() as u32;
        let read = Sighting { t: self.t, key, tid, point, ..Sighting::default() };
        self.truth.push((self.t, None, None));
        self.found.push((self.t, None, None));
        let found = &mut self.found;
        self.door.read(read, &mut |step, seen| note(found, step, seen));
        key
    }

    fn act(&mut self, vm: usize, act: Act) {
        let (cpu, tid, call) = (vm, worker(vm), 7 + vm as u32);
        match act {
            Act::Begin if !self.vms[vm].in_round => {
                self.transfer(cpu, tid, Transfer::Round { kick: 90, call, to_guest: true });
                self.vms[vm].in_round = true;
            }
            Act::Read if self.vms[vm].in_round && self.vms[vm].round.len() < BATCH => {
                let key = self.read(tid, vm as PointId);
                let own = &mut self.vms[vm];
                let in_guest = (own.inside && own.has_taken).then_some(self.t);
                own.round.push((key, self.t, in_guest));
            }
            Act::End(sleeps) if self.vms[vm].in_round => self.end(vm, sleeps),
            Act::Exit if self.vms[vm].inside => {
                self.event(2 + vm, vcpu(vm), EventKind::KvmExit { vcpu: Some(0), reason: None, isa: 2 });
                self.vms[vm].inside = false;
            }
            Act::Enter if !self.vms[vm].inside => self.enter(vm),
            Act::Done if self.vms[vm].inside && self.vms[vm].pending.is_none() => self.vms[vm].masked = false,
            Act::Other => {
                // The other queue has no interrupt, so its packet's steps are unknown.
                self.read(30 + vm as u32, 9);
            }
            _ => {}
        }
    }

    fn end(&mut self, vm: usize, sleeps: bool) {
        let (cpu, tid, call) = (vm, worker(vm), 7 + vm as u32);
        let round = std::mem::take(&mut self.vms[vm].round);
        let keys = round.iter().map(|(key, ..)| *key);
        if !self.vms[vm].masked {
            self.transfer(cpu, tid, Transfer::Signal(call));
            let message = Transfer::RaiseMessage(u64::from(VECTOR));
            let hides_irqfd = self.vms[vm].hides_irqfd;
            self.transfer(cpu, tid, if hides_irqfd { message } else { Transfer::Irqfd(call) });
            let raised = self.t;
            for (key, ..) in &round {
                self.truth[*key as usize].1 = Some(raised);
            }
            if !hides_irqfd {
                self.transfer(cpu, tid, message);
            }
            self.transfer(cpu, tid, Transfer::Accept { vector: VECTOR, vcpu: 0 });
            self.vms[vm].masked = true;
            self.vms[vm].pending = Some(keys.collect());
            if self.vms[vm].posts {
                self.transfer(cpu, tid, Transfer::Posted { vector: VECTOR, vcpu: 0 });
                if self.vms[vm].inside {
                    self.take(vm);
                }
            } else if self.vms[vm].inside {
                // KVM makes the vCPU leave the guest for the injection.
                self.act(vm, Act::Exit);
            }
        } else if let Some(pending) = &mut self.vms[vm].pending {
            pending.extend(keys);
        } else {
            for (key, _, in_guest) in round {
                match in_guest {
                    Some(t) => self.truth[key as usize].2 = Some(t),
                    None if self.vms[vm].inside => self.truth[key as usize].2 = Some(self.vms[vm].entered),
                    None => self.vms[vm].polled.push(key),
                }
            }
        }
        self.vms[vm].in_round = false;
        if sleeps {
            let class = Class { prio: 120, policy: 0 };
            let left = Left::Asleep(Sleep::Interruptible);
            self.event(cpu, tid, EventKind::Switch { next: 0, left, prev: class, next_class: class });
        }
    }

    /// The vCPU, which is in its guest, takes the pending interrupt.
    fn take(&mut self, vm: usize) {
        self.vms[vm].has_taken = true;
        for key in self.vms[vm].pending.take().unwrap_or_default() {
            self.truth[key as usize].2 = Some(self.t);
        }
    }

    fn enter(&mut self, vm: usize) {
        if self.vms[vm].pending.is_some() && !self.vms[vm].posts {
            self.event(2 + vm, vcpu(vm), EventKind::KvmInjVirq(VECTOR));
        }
        self.event(2 + vm, vcpu(vm), EventKind::KvmEntry { vcpu: Some(0) });
        (self.vms[vm].inside, self.vms[vm].entered) = (true, self.t);
        let t = self.t;
        self.take(vm);
        for (_, _, in_guest) in self.vms[vm].round.iter_mut().filter(|(.., in_guest)| in_guest.is_none()) {
            *in_guest = Some(t);
        }
        for key in std::mem::take(&mut self.vms[vm].polled) {
            self.truth[key as usize].2 = Some(t);
        }
    }

    fn held(&self) -> u64 {
        self.door.held as u64
    }
}

fn note(found: &mut [Times], step: DoorStep, seen: Sighting) {
    let times = &mut found[seen.key as usize];
    let place = match step {
        DoorStep::Signalled => &mut times.1,
        DoorStep::Entered => &mut times.2,
        DoorStep::Kicked => unreachable!("no packet comes from a guest"),
    };
    assert_eq!(*place, None, "{step:?} of {} twice", seen.key);
    *place = Some(seen.t);
}

fn counted(counts: DoorCounts) -> u64 {
    let DoorCounts { first, shared, before_entry, polled, never_interrupted, unknown, .. } = counts;
    first + shared + before_entry + polled + never_interrupted + unknown
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Every reported time is the true one, and is reported once; a packet without a time is counted or waits.
    #[test]
    fn the_door_reports_when_each_packet_was_announced(
        vms: [(bool, bool); 2], acts in prop::collection::vec(act(), 0..200),
    ) {
        let mut host = Host::new(vms);
        for (vm, act) in acts {
            host.act(vm, act);
        }
        // At the end, the vCPUs take all interrupts.
        for vm in 0..2 {
            host.act(vm, Act::End(true));
            host.act(vm, Act::End(true));
            host.act(vm, Act::Exit);
            host.act(vm, Act::Enter);
            let class = Class { prio: 120, policy: 0 };
            let left = Left::Asleep(Sleep::Interruptible);
            host.event(vm, worker(vm), EventKind::Switch { next: 0, left, prev: class, next_class: class });
            host.act(vm, Act::Exit);
            host.act(vm, Act::Enter);
        }
        let mut unknown = 0;
        for (key, (found, truth)) in host.found.iter().zip(&host.truth).enumerate() {
            prop_assert_eq!(found.1, truth.1, "the interrupt of {}: {:?} {:?}", key, found, truth);
            prop_assert!(found.2.is_none() || found.2 == truth.2, "the entry of {}: {:?} {:?}", key, found, truth);
            prop_assert!(found.1.is_none_or(|t| t >= found.0) && found.2.is_none_or(|t| t >= found.0));
            unknown += u64::from(found.2.is_none());
        }
        let counts = host.door.counts();
        prop_assert_eq!(counts.packets, host.truth.len() as u64);
        let known = counts.never_interrupted + counts.unknown + counts.not_taken + host.held();
        prop_assert_eq!(unknown, known);
        // A packet with an interrupt is counted when it is announced.
        let waiting: u64 = host.door.servers.values().map(|server| server.pending.len() as u64).sum();
        prop_assert_eq!(counted(counts) + waiting + host.door.polled.len() as u64, counts.packets);
        host.door.finish();
        prop_assert_eq!(host.held(), 0);
    }

    /// After a loss of events, times are missing but never wrong.
    #[test]
    fn lost_events_leave_times_out_and_change_none(
        vms: [(bool, bool); 2], acts in prop::collection::vec(act(), 0..200), at in 0..200_usize,
    ) {
        let mut host = Host::new(vms);
        for (place, (vm, act)) in acts.into_iter().enumerate() {
            if place == at {
                host.door.lost();
            }
            host.act(vm, act);
        }
        for (key, (found, truth)) in host.found.iter().zip(&host.truth).enumerate() {
            prop_assert!(found.1.is_none() || found.1 == truth.1, "the interrupt of {}: {:?} {:?}", key, found, truth);
            prop_assert!(found.2.is_none() || found.2 == truth.2, "the entry of {}: {:?} {:?}", key, found, truth);
        }
        let held: usize = host.door.interrupts.iter().map(|i| i.packets.len()).sum();
        let pending: usize = host.door.servers.values().map(|server| server.pending.len()).sum();
        prop_assert_eq!(held + pending + host.door.polled.len(), host.door.held);
    }
}

/// A host with one virtual machine and without vhost's rounds.
fn without_rounds() -> Host {
    Host::new(Default::default())
}

/// The QEMU thread that relays the interrupts of vhost, and the eventfd of the queue's interrupt.
const RELAY: u32 = 40;
const CALL: u32 = 7;

/// A host whose vCPU is outside its guest, and whose QEMU relays the interrupts of vhost.
fn with_relay() -> Host {
    let mut host = without_rounds();
    host.door.identify(RELAY, Some(("qemu", 1000)));
    host.event(2, vcpu(0), EventKind::KvmExit { vcpu: Some(0), reason: None, isa: 2 });
    host
}

impl Host {
    fn begins_round(&mut self) {
        self.transfer(0, worker(0), Transfer::Round { kick: 90, call: CALL, to_guest: true });
    }

    /// The vhost worker begins a round, reads a packet and signals the interrupt; the relay reads the signal.
    fn reads_and_signals(&mut self) -> usize {
        self.begins_round();
        let key = self.read(worker(0), 0) as usize;
        self.transfer(0, worker(0), Transfer::Signal(CALL));
        self.transfer(1, RELAY, Transfer::Read(CALL));
        key
    }

    /// The relay raises the interrupt; returns the time.
    fn relays(&mut self) -> Ns {
        self.transfer(1, RELAY, Transfer::RaiseLine(11));
        let raised = self.t;
        self.transfer(1, RELAY, Transfer::Accept { vector: 0x27, vcpu: 0 });
        raised
    }

    /// The vCPU takes the relay's interrupt.
    fn takes_relayed(&mut self) {
        self.event(2, vcpu(0), EventKind::KvmInjVirq(0x27));
        self.event(2, vcpu(0), EventKind::KvmEntry { vcpu: Some(0) });
    }
}

#[test]
fn qemu_relays_the_interrupt_of_vhost() {
    let mut host = with_relay();
    let key = host.reads_and_signals();
    let raised = host.relays();
    host.takes_relayed();
    assert_eq!(host.found[key], (host.truth[key].0, Some(raised), Some(host.t)));
}

#[test]
fn a_line_that_is_raised_while_the_guest_handles_it_is_accepted_once_that_has_ended() {
    let mut host = with_relay();
    host.reads_and_signals();
    host.relays();
    host.takes_relayed();
    let later = host.reads_and_signals();
    host.transfer(1, RELAY, Transfer::RaiseLine(11));
    let raised = host.t;
    host.event(2, vcpu(0), EventKind::KvmExit { vcpu: Some(0), reason: None, isa: 2 });
    // This interrupt belongs to another device.
    host.transfer(2, vcpu(0), Transfer::Accept { vector: 0x28, vcpu: 0 });
    host.transfer(2, vcpu(0), Transfer::Accept { vector: 0x27, vcpu: 0 });
    host.takes_relayed();
    assert_eq!(host.found[later], (host.truth[later].0, Some(raised), Some(host.t)));
    assert_eq!(host.held(), 0);
}

/// Between its read of the signal and the interrupt, the QEMU thread waits for a CPU. Packets that arrive meanwhile
/// need no further signal.
#[test]
fn qemu_that_waits_for_a_cpu_announces_what_came_meanwhile() {
    let mut host = with_relay();
    let first = host.reads_and_signals();
    host.begins_round();
    let later = host.read(worker(0), 0) as usize;
    host.begins_round();
    host.t += 3 * MAX_ROUND;
    host.door.advance(host.t);
    let raised = host.relays();
    host.takes_relayed();
    for key in [first, later] {
        assert_eq!(host.found[key], (host.truth[key].0, Some(raised), Some(host.t)));
    }
    assert_eq!(host.held(), 0);
}

#[test]
fn qemu_raises_the_interrupt_right_after_it_has_read_a_packet() {
    let mut host = without_rounds();
    let qemu = worker(0);
    let message = |data: u64| Transfer::RaiseMessage(data);
    host.event(2, vcpu(0), EventKind::KvmEntry { vcpu: Some(0) });
    for _ in 0..4 {
        let key = host.read(qemu, 0) as usize;
        host.transfer(0, qemu, message(0x51));
        let raised = host.t;
        host.transfer(0, qemu, Transfer::Accept { vector: 0x51, vcpu: 0 });
        host.event(2, vcpu(0), EventKind::KvmExit { vcpu: Some(0), reason: None, isa: 2 });
        host.event(2, vcpu(0), EventKind::KvmInjVirq(0x51));
        host.event(2, vcpu(0), EventKind::KvmEntry { vcpu: Some(0) });
        assert_eq!(host.found[key], (host.truth[key].0, Some(raised), Some(host.t)));
    }
    // The guest polls; QEMU then raises the interrupt of another device.
    let polled = host.read(qemu, 0) as usize;
    let read = host.t;
    host.transfer(0, qemu, message(0x61));
    host.transfer(0, qemu, Transfer::Accept { vector: 0x61, vcpu: 0 });
    host.transfer(0, qemu, Transfer::Read(33));
    assert_eq!(host.found[polled], (read, None, Some(read)));
    assert_eq!(host.door.counts().polled, 1);
}

#[test]
fn a_virtual_machine_without_interrupts_is_counted_so() {
    let mut host = without_rounds();
    host.event(2, vcpu(0), EventKind::KvmEntry { vcpu: Some(0) });
    for _ in 0..3 {
        host.transfer(0, worker(0), Transfer::Round { kick: 90, call: 7, to_guest: true });
        host.read(worker(0), 0);
    }
    host.transfer(0, worker(0), Transfer::Round { kick: 90, call: 7, to_guest: true });
    assert_eq!(host.door.counts().never_interrupted, 3);
    assert!(host.found.iter().all(|(_, signalled, entered)| signalled.is_none() && entered.is_none()));
}

#[test]
fn vhost_announces_a_long_round_in_parts() {
    let mut host = without_rounds();
    host.event(2, vcpu(0), EventKind::KvmEntry { vcpu: Some(0) });
    host.transfer(0, worker(0), Transfer::Round { kick: 90, call: 7, to_guest: true });
    let first: Vec<u32> = (0..BATCH).map(|_| host.read(worker(0), 0)).collect();
    let last = host.read(worker(0), 0);
    host.transfer(0, worker(0), Transfer::Signal(7));
    host.transfer(0, worker(0), Transfer::Irqfd(7));
    assert!(first.iter().all(|key| host.found[*key as usize].1.is_none()), "announced before this interrupt");
    assert_eq!(host.found[last as usize].1, Some(host.t));
}

#[test]
fn what_is_never_taken_is_counted_and_forgotten() {
    let mut host = without_rounds();
    host.transfer(0, worker(0), Transfer::Round { kick: 90, call: 7, to_guest: true });
    host.read(worker(0), 0);
    host.transfer(0, worker(0), Transfer::Signal(7));
    host.read(worker(0), 0);
    assert_eq!(host.door.settled(host.t), host.truth[0].0, "QEMU may find that the guest polls");
    host.door.advance(host.t + MAX_ROUND + 1);
    assert_eq!((host.door.counts().unknown, host.held()), (1, 1));
    host.door.advance(host.t + MAX_WAIT + 1);
    assert_eq!((host.door.counts().unknown, host.door.counts().not_taken, host.held()), (2, 0, 0));
}

#[test]
fn packets_are_bounded() {
    let mut host = without_rounds();
    host.transfer(0, worker(0), Transfer::Round { kick: 90, call: 7, to_guest: true });
    host.transfer(0, worker(0), Transfer::Signal(7));
    for _ in 0..MAX_PACKETS + 5 {
        host.read(worker(0), 0);
        if host.truth.len().is_multiple_of(50) {
            host.transfer(0, worker(0), Transfer::Signal(7));
        }
    }
    assert_eq!((host.door.counts().unknown, host.held()), (5, MAX_PACKETS as u64));
}

#[test]
fn an_interrupt_line_that_is_high_already_is_not_raised_again() {
    let mut host = with_relay();
    let first = host.reads_and_signals();
    host.relays();
    let before_entry = host.reads_and_signals();
    host.transfer(1, RELAY, Transfer::Read(33));
    host.takes_relayed();
    assert_eq!([first, before_entry].map(|key| host.found[key].2), [Some(host.t); 2]);
    // The guest's handler has not read the device's status yet.
    let polled = host.reads_and_signals();
    host.transfer(1, RELAY, Transfer::Read(33));
    assert_eq!(host.found[polled], (host.truth[polled].0, None, Some(host.truth[polled].0)));
    let counts = host.door.counts();
    assert_eq!((counts.first, counts.before_entry, counts.polled), (1, 1, 1));
}

#[test]
fn the_first_packet_of_a_round_belongs_to_the_first_kick_before_it() {
    let (mut door, mut kicks) = (Door::default(), Vec::new());
    let push = |door: &mut Door, t: Ns, pid: u32, what: EventKind| {
        door.push(3, &Event { t, pid, what }, &mut |step, _| unreachable!("{step:?} of a packet for the guest"));
    };
    let exit = EventKind::KvmExit { vcpu: Some(0), reason: None, isa: 2 };
    let entry = EventKind::KvmEntry { vcpu: Some(0) };
    let round = EventKind::Transfer(Transfer::Round { kick: 90, call: 7, to_guest: false });
    let (signal, write) = (EventKind::Transfer(Transfer::Signal(90)), EventKind::Transfer(Transfer::TapWrite(4, 1)));
    let mut written = |door: &mut Door, t: Ns| {
        let write = Sighting { t, tid: worker(0), ..Sighting::default() };
        door.written(write, &mut |step, kick| kicks.push((step, t, kick.t, kick.tid)));
    };
    let sleeps = EventKind::Switch {
        next: 0,
        left: Left::Asleep(Sleep::Interruptible),
        prev: Class { prio: 120, policy: 0 },
        next_class: Class { prio: 120, policy: 0 },
    };
    // Only its first round shows that the eventfd belongs to a queue.
    push(&mut door, 1, worker(0), round);
    push(&mut door, 2, worker(0), sleeps);
    for (t, what) in [(10, exit), (11, signal), (12, entry), (20, exit), (21, signal), (22, entry)] {
        push(&mut door, t, vcpu(0), what);
    }
    assert_eq!(door.settled(25), 10, "the kick's packet comes");
    push(&mut door, 30, worker(0), round);
    written(&mut door, 31);
    push(&mut door, 32, worker(0), write);
    // This packet came during the round.
    written(&mut door, 33);
    push(&mut door, 34, worker(0), write);
    // The round that is under way may take the packet of this kick.
    for (t, what) in [(35, exit), (36, signal), (37, entry)] {
        push(&mut door, t, vcpu(0), what);
    }
    push(&mut door, 38, worker(0), sleeps);
    push(&mut door, 39, worker(0), round);
    written(&mut door, 39);
    push(&mut door, 39, worker(0), write);
    push(&mut door, 39, worker(0), sleeps);
    // A signal of a vCPU in its guest is no kick.
    push(&mut door, 40, vcpu(0), signal);
    push(&mut door, 41, worker(0), round);
    written(&mut door, 42);
    push(&mut door, 43, worker(0), sleeps);
    // The first packet is of a stream that is not followed.
    push(&mut door, 50, vcpu(0), exit);
    push(&mut door, 51, vcpu(0), signal);
    push(&mut door, 52, worker(0), round);
    push(&mut door, 53, worker(0), write);
    written(&mut door, 54);
    assert_eq!(door.settled(60), 60);
    assert_eq!((door.counts().from_guests, door.counts().kicked), (5, 1));
    assert_eq!(kicks, [(DoorStep::Kicked, 31, 10, vcpu(0))]);
}
