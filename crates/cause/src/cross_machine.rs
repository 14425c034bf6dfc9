//! Follows a packet back across machines: the wakeup chain on each machine, and the transitions between machines.

use crate::{
    guests::Guests,
    machine::Machine,
    queue::{lies_between, By, PacketsAhead, SightingsByPoint},
    wakeup_chain::{Call, Context, End, Hold, SightingPair, WakeupChain},
    Cause, CauseInterval, Note,
};
use latpath_flight::Doing;
use latpath_model::{Link, Ns, PacketSighting, Passage, PointInfo};

/// Maximum number of transitions between machines per walk.
const MAX_CROSSINGS: usize = 8;

/// A sighting with its point, and the index (`place`) of its machine in the capture.
#[derive(Clone, Copy)]
pub(crate) struct ResolvedSighting<'s> {
    pub seen: &'s PacketSighting,
    pub info: &'s PointInfo,
    pub place: usize,
}

/// A walk from the later sighting back to the earlier one.
pub(crate) struct CrossMachineWalk<'t> {
    machines: &'t [Machine],
    guests: &'t Guests,
    a: ResolvedSighting<'t>,
    b: ResolvedSighting<'t>,
    pair: SightingPair,
    t: Ns,
    /// Intervals, latest first.
    intervals: Vec<CauseInterval>,
}

enum Place {
    /// On the machine with this index, in this context.
    At(usize, Context),
    /// At a guest's CPU that the host interrupted (`by`: the interrupt), or of which the guest has no record that shows
    /// what preceded (`by`: why).
    Called { guest: usize, cpu: u32, by: Result<Doing, String> },
    /// The walk ends here, with the cause, machine and note for the remaining time.
    End(Cause, usize, String),
}

impl<'t> CrossMachineWalk<'t> {
    pub fn new(
        machines: &'t [Machine],
        guests: &'t Guests,
        sightings: &SightingsByPoint,
        a: ResolvedSighting<'t>,
        b: ResolvedSighting<'t>,
    ) -> Self {
        let machine = &machines[b.place];
        let served_by = match Context::of_sighting(machine, b.info, b.seen) {
            Context::Thread(tid) => By::Thread(tid),
            _ => By::Cpu(b.seen.cpu),
        };
        let planned = a.info.point.kind.is_computed();
        let pair = SightingPair {
            a: a.seen.t,
            b: b.seen.t,
            cpu_of_a: a.seen.cpu.filter(|_| !planned).map(u32::from),
            machine_of_a: a.place,
            queue: lies_between(a.info, b.info),
            sends: b.info.point.kind.info().passage == Passage::Out,
            upcall: a.info.point.kind.leaves_datapath(),
            planned,
            ahead: sightings.between(b.seen.point, a.seen.t, b.seen.t, served_by),
        };
        Self { machines, guests, a, b, pair, t: b.seen.t, intervals: Vec::new() }
    }

    /// Packets served before this one.
    pub fn ahead(&self) -> &PacketsAhead {
        &self.pair.ahead
    }

    /// Runs the walk; returns its intervals, latest first.
    pub fn follow(mut self) -> Vec<CauseInterval> {
        let machine = &self.machines[self.b.place];
        let mut place = match &machine.without {
            Some(_) => self.without_record(self.b.place, self.b.seen.cpu.map(u32::from)),
            None if self.b.info.point.kind.is_in_vm() => self.waited_for_vcpu(),
            None => Place::At(self.b.place, Context::of_sighting(machine, self.b.info, self.b.seen)),
        };
        for _ in 0..MAX_CROSSINGS {
            if self.t <= self.pair.a {
                break;
            }
            place = match place {
                Place::At(at, context) => self.walk(at, context),
                Place::Called { guest, cpu, by } => self.cross(guest, cpu, by),
                Place::End(..) => break,
            };
        }
        if self.t > self.pair.a {
            let (cause, machine, why) = match place {
                Place::End(cause, machine, why) => (cause, machine, why),
                _ => (Cause::Unexplained, 0, "more machines handed it on than latpath follows".into()),
            };
            self.intervals.push(unexplained(cause, machine, self.pair.a, self.t, why));
        }
        self.note_joints();
        self.intervals
    }

    fn take(&mut self, intervals: Vec<CauseInterval>) {
        self.t = intervals.last().map_or(self.t, |interval| interval.from);
        intervals.into_iter().for_each(|interval| push(&mut self.intervals, interval));
    }

    fn walk(&mut self, at: usize, context: Context) -> Place {
        let mut walk = WakeupChain::new(&self.machines[at], at, &self.pair, &self.guests.vcpus, self.t);
        walk.reader = self.intervals.is_empty();
        let end = walk.go(context);
        let intervals = walk.intervals;
        let last_cpu = intervals.last().and_then(|interval| interval.cpu).or(self.b.seen.cpu.map(u32::from));
        let intervals = self.with_hypervisor(at, intervals);
        self.take(intervals);
        match end {
            End::Done => Place::End(Cause::Unexplained, at, String::new()),
            End::Inside { thread, vcpu } => self.enter(at, thread, vcpu),
            End::Outside { cpu, doing, .. } if self.guests.vcpus.thread(at, cpu).is_some() => {
                Place::Called { guest: at, cpu, by: Ok(doing) }
            }
            End::Outside { why, .. } if self.over_wire() => Place::End(Cause::Device, at, why),
            End::Outside { cpu, why, .. } if at != 0 => {
                Place::End(Cause::Unexplained, at, format!("{why}, nor which thread of the host runs CPU {cpu}"))
            }
            End::Lost(why) if at != 0 && self.a.place != at => match last_cpu {
                Some(cpu) => Place::Called { guest: at, cpu, by: Err(why) },
                None => Place::End(Cause::Unexplained, at, why),
            },
            End::Outside { why, .. } | End::Lost(why) => Place::End(Cause::Unexplained, at, why),
        }
    }

    /// Whether only NICs and the network are between the two sightings.
    fn over_wire(&self) -> bool {
        let passage = |info: &PointInfo| info.point.kind.info().passage;
        self.a.info.point.kind.is_sending()
            && matches!(passage(self.b.info), Passage::In | Passage::Sent)
            && self.a.info.link == Link::Nic
            && self.b.info.link == Link::Nic
    }

    /// Handles a machine without a record. If it is a guest, its hypervisor's record of the vCPU threads may explain
    /// the time.
    fn without_record(&self, place: usize, cpu: Option<u32>) -> Place {
        let machine = &self.machines[place];
        let why = format!("no record of {}: {}", machine.name, machine.without.as_deref().unwrap_or_default());
        match cpu.filter(|cpu| self.guests.vcpus.thread(place, *cpu).is_some()) {
            Some(cpu) => Place::Called { guest: place, cpu, by: Err(why) },
            _ => Place::End(Cause::Unexplained, place, why),
        }
    }

    /// Explains the wait for a vCPU: at the earlier sighting, the packet was already in its guest's ring, and a vCPU
    /// had to run in the guest.
    fn waited_for_vcpu(&mut self) -> Place {
        let (at, host) = (self.b.place, &self.machines[self.b.place]);
        let Some(vcpu) = self.b.seen.thread() else {
            return Place::End(Cause::Unexplained, at, "which vCPU ran is not known".into());
        };
        let (inside, unknown) = self.labels_of(vcpu, at);
        let mut walk = WakeupChain::new(host, at, &self.pair, &self.guests.vcpus, self.t);
        let asleep = Cause::VcpuHalted;
        let hold = Hold { vcpu, inside: &inside, unknown: &unknown, asleep, for_waker: true };
        walk.hold(self.pair.a, hold);
        let intervals = walk.intervals;
        self.take(intervals);
        Place::End(Cause::Unexplained, at, String::new())
    }

    /// Templates for the intervals in which a vCPU's thread ran its guest with an interrupt pending, and for those in
    /// which the thread's state is unknown.
    fn labels_of(&self, vcpu: u32, at: usize) -> (CauseInterval, CauseInterval) {
        let host = &self.machines[at];
        let actor = Some(host.thread(vcpu, self.t));
        let why = host.why_unknown(None, self.t.saturating_sub(1));
        let why = format!("what {} did is not known: {why}", host.thread(vcpu, self.t).name);
        let unknown = unexplained(Cause::Unexplained, at, 0, 0, why);
        let inside = CauseInterval { cause: Cause::IrqInjection, actor, notes: Vec::new(), ..unknown.clone() };
        (inside, unknown)
    }

    /// Moves from a guest to its hypervisor, to the context that interrupted the guest's CPU.
    fn cross(&mut self, guest: usize, cpu: u32, by: Result<Doing, String>) -> Place {
        let Some((at, vcpu)) = self.guests.vcpus.thread(guest, cpu) else {
            let why = by.err().unwrap_or_else(|| format!("which thread of the host runs CPU {cpu} is not known"));
            return Place::End(Cause::Unexplained, guest, why);
        };
        let host = &self.machines[at];
        if let Some(why) = &host.without {
            return Place::End(Cause::Unexplained, at, format!("no record of {}: {why}", host.name));
        }
        let (inside, unknown) = match &by {
            Err(why) => {
                let unexplained =
                    CauseInterval { cpu: Some(cpu), ..unexplained(Cause::Unexplained, guest, 0, 0, why.clone()) };
                (unexplained.clone(), unexplained)
            }
            Ok(_) => self.labels_of(vcpu, at),
        };
        let mut walk = WakeupChain::new(host, at, &self.pair, &self.guests.vcpus, self.t);
        walk.reader = false;
        let carried = self.a.place == at && self.a.info.point.kind.info().passage == Passage::ToVm;
        // The vCPU was already running with the packet at the earlier sighting.
        let has_entered = self.a.place == at && self.a.info.point.kind.is_in_vm();
        let next = if has_entered || (by.is_err() && self.a.place == guest) {
            let asleep = Cause::VcpuHalted;
            walk.hold(self.pair.a, Hold { vcpu, inside: &inside, unknown: &unknown, asleep, for_waker: false });
            Err(End::Done)
        } else {
            walk.called(&Call {
                vcpu,
                carrier: self.a.seen.tid.filter(|_| carried),
                carriers: self.guests.carriers(guest),
                blind: by.is_err(),
                inside: &inside,
                unknown: &unknown,
            })
        };
        let intervals = match by {
            Ok(interrupt) => self.pending(walk.intervals, guest, cpu, &interrupt),
            Err(_) => walk.intervals,
        };
        self.take(intervals);
        match next {
            Ok(context) => Place::At(at, context),
            Err(End::Lost(why) | End::Outside { why, .. }) => Place::End(Cause::Unexplained, at, why),
            Err(_) => Place::End(Cause::Unexplained, at, String::new()),
        }
    }

    /// Explains the time in which an interrupt was pending while the vCPU ran: by what the guest did instead of
    /// handling it.
    fn pending(&self, intervals: Vec<CauseInterval>, guest: usize, cpu: u32, interrupt: &Doing) -> Vec<CauseInterval> {
        let machine = &self.machines[guest];
        let mut all = Vec::with_capacity(intervals.len());
        for interval in intervals {
            if interval.cause != Cause::IrqInjection {
                push(&mut all, interval);
                continue;
            }
            for tile in machine.tiles(cpu, interval.from, interval.to).into_iter().rev() {
                let like = CauseInterval { from: tile.from, to: tile.to, ..interval.clone() };
                push(
                    &mut all,
                    match tile.doing {
                        Doing::Idle { .. } | Doing::Unknown => like,
                        doing => CauseInterval {
                            actor: Some(machine.executor(cpu, interrupt, tile.to)),
                            by: Some(machine.executor(cpu, &doing, tile.from)),
                            machine: guest,
                            cpu: Some(cpu),
                            ..like
                        },
                    },
                );
            }
        }
        all
    }

    /// Moves from a hypervisor into the guest that has the earlier sighting, to the time before its vCPU thread acted.
    fn enter(&mut self, at: usize, thread: u32, vcpu: Option<u32>) -> Place {
        let guest = self.a.place;
        let cpu = vcpu.or(self.a.seen.cpu.map(u32::from));
        let machine = &self.machines[guest];
        let (context, why) = match &machine.without {
            Some(why) => (None, format!("no record of {}: {why}", machine.name)),
            None => match Context::on(cpu, machine, self.t) {
                Context::Nobody { cpu, .. } => (None, machine.why_unknown(Some(cpu), self.t)),
                Context::UnknownCpu => (None, machine.why_cpu_unknown(self.t)),
                context => (Some(context), String::new()),
            },
        };
        if let Some(context) = context {
            return Place::At(guest, context);
        }
        let mut walk = WakeupChain::new(&self.machines[at], at, &self.pair, &self.guests.vcpus, self.t);
        let inside = CauseInterval { cpu, ..unexplained(Cause::Unexplained, guest, 0, 0, why) };
        let (vcpu, asleep) = (thread, Cause::VcpuHalted);
        walk.hold(self.pair.a, Hold { vcpu, inside: &inside, unknown: &inside, asleep, for_waker: false });
        let intervals = walk.intervals;
        self.take(intervals);
        Place::End(Cause::Unexplained, guest, String::new())
    }

    /// Refines a guest's intervals by its hypervisor's record of the vCPU threads.
    fn with_hypervisor(&self, guest: usize, intervals: Vec<CauseInterval>) -> Vec<CauseInterval> {
        let mut all = Vec::with_capacity(intervals.len());
        for interval in intervals {
            let thread = interval.cpu.and_then(|cpu| self.guests.vcpus.thread(guest, cpu));
            let chosen = matches!(interval.cause, Cause::PollInterval | Cause::QdiscHeld);
            let Some((at, thread)) = thread.filter(|(at, _)| !chosen && self.machines[*at].without.is_none()) else {
                push(&mut all, interval);
                continue;
            };
            let asleep = if interval.is_idle() { Cause::VcpuHalted } else { Cause::VmExit };
            let mut walk = WakeupChain::new(&self.machines[at], at, &self.pair, &self.guests.vcpus, interval.to);
            let hold = Hold { vcpu: thread, inside: &interval, unknown: &interval, asleep, for_waker: false };
            walk.hold(interval.from, hold);
            walk.intervals.into_iter().for_each(|interval| push(&mut all, interval));
        }
        all
    }

    /// Adds a note to short intervals at the transition between two machines, once each: their times are only as exact
    /// as the difference of the clocks.
    fn note_joints(&mut self) {
        let bound = |place: usize| self.machines.get(place).map_or(0, |machine| machine.error_bound);
        let mut noted = None;
        for at in 1..self.intervals.len() {
            let (later, earlier) = (self.intervals[at - 1].machine, self.intervals[at].machine);
            let bound = bound(later).saturating_add(bound(earlier));
            if later == earlier || bound == 0 {
                continue;
            }
            for place in [at - 1, at] {
                let interval = &mut self.intervals[place];
                if interval.took() <= bound && noted.is_none_or(|last| last < place) {
                    noted = Some(place);
                    interval.notes.push(Note::Joined(bound));
                }
            }
        }
    }
}

/// Adds an earlier interval, or extends the last one back if they are alike.
fn push(intervals: &mut Vec<CauseInterval>, interval: CauseInterval) {
    match intervals.last_mut() {
        Some(later) if later.is_like(&interval) => later.from = interval.from,
        _ => intervals.push(interval),
    }
}

/// An interval with a note about why it is unexplained, and without an actor.
pub(crate) fn unexplained(cause: Cause, machine: usize, from: Ns, to: Ns, why: String) -> CauseInterval {
    CauseInterval { from, to, cause, machine, notes: vec![why.into()], ..CauseInterval::default() }
}
