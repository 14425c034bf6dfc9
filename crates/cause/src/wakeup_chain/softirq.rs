//! Softirqs: their work, the delays between raise and start, and the contexts that raised them.

use super::{Context, End, WakeupChain};
use crate::{irq_interval::IrqInterval, Cause, CauseInterval};
use latpath_flight::{Doing, EventKind, State, Vector};
use latpath_model::Ns;

// include/linux/interrupt.h
const NET_TX: u32 = 2;
const NET_RX: u32 = 3;

impl WakeupChain<'_> {
    pub(super) fn softirq(&mut self, cpu: u32, vector: u32) -> Result<Context, End> {
        let Some(irq) = self.machine.irq_intervals(cpu).and_then(|s| s.softirq(vector, self.t)).copied() else {
            return Err(End::Lost(self.machine.why_unknown(Some(cpu), self.t)));
        };
        self.worked(cpu, vector, &irq);
        if self.is_done() {
            return Err(End::Done);
        }
        if !irq.begun {
            return Err(End::Lost(self.machine.why_unknown(Some(cpu), self.t - 1)));
        }
        let raised = self.machine.irq_intervals(cpu).and_then(|s| s.raised(vector, irq.from));
        // One nanosecond earlier, because at the time of the raise the softirq may already be running.
        let by = raised.map(|raised| Context::of(cpu, self.machine.at(cpu, raised.saturating_sub(1))));
        let timer = matches!(
            by,
            Some(Context::Timer { .. } | Context::Interrupt { doing: Doing::Vector(Vector::LocalTimer), .. })
        );
        // RPS: another CPU may have called this one with an IPI, or without one if this CPU polled while idle.
        let unasked = vector == NET_RX && matches!(by, Some(Context::Nobody { doing: Doing::Idle { .. }, .. }));
        let called = unasked || vector == NET_RX && matches!(by, Some(Context::Interrupt { .. }));
        if !timer && !called {
            if let Some(context) = self.was_queued(cpu, vector, &irq) {
                return Ok(context);
            }
        }
        match raised.zip(by) {
            Some((raised, context)) => {
                self.waited_to_begin(cpu, vector, &irq, raised);
                match context {
                    Context::Timer { doing, .. }
                    | Context::Interrupt { doing: doing @ Doing::Vector(Vector::LocalTimer), .. } => {
                        self.put_off(cpu, vector, &doing)
                    }
                    _ if unasked => {
                        let actor = self.machine.executor(cpu, &Doing::Softirq(vector), self.t);
                        Ok(self.sent_from(cpu, &actor).unwrap_or(context))
                    }
                    _ => Ok(context),
                }
            }
            None => Ok(self.before(cpu, &irq)),
        }
    }

    /// Detects a queueing discipline between the sightings. A softirq carries a packet to the device without
    /// interruption, so if another softirq had the packet at the earlier sighting, a qdisc held the packet in between.
    /// Returns the context at the earlier sighting.
    fn was_queued(&mut self, cpu: u32, vector: u32, irq: &IrqInterval) -> Option<Context> {
        let pair = self.pair;
        if !self.reader || !pair.sends || pair.queue || !self.has_a() || irq.from <= self.a {
            return None;
        }
        let before = pair.cpu_of_a.and_then(|cpu| self.machine.irq_intervals(cpu)?.any_softirq(self.a).copied());
        // If the earlier softirq is unknown, assumes that it passed the packet on right after `a`.
        let (since, its_vector) = match before {
            Some(IrqInterval { doing: Doing::Softirq(vector), to, .. }) => (to, vector),
            _ => (self.a, vector),
        };
        let actor = Some(self.machine.executor(cpu, &Doing::Softirq(vector), self.t));
        self.add(since, Cause::QdiscHeld, CauseInterval { actor, cpu: Some(cpu), ..CauseInterval::default() });
        Some(pair.cpu_of_a.map_or(Context::UnknownCpu, |cpu| Context::Softirq { cpu, vector: its_vector }))
    }

    /// Adds the time since the softirq began: work on this packet and, before that, on earlier packets.
    fn worked(&mut self, cpu: u32, vector: u32, irq: &IrqInterval) {
        let from = irq.from.max(self.a);
        let (until, ahead) = self.served_before(cpu, irq);
        let actor = self.machine.executor(cpu, &Doing::Softirq(vector), self.t);
        for tile in self.tiles_back(cpu, from) {
            let label = CauseInterval { actor: Some(actor.clone()), cpu: Some(cpu), ..CauseInterval::default() };
            let by = Some(self.machine.executor(cpu, &tile.doing, tile.from));
            match tile.doing {
                doing if Self::is_part_of(&doing, vector) => {
                    self.add(tile.from.max(until), Cause::Work, label.clone());
                    self.add(tile.from, Cause::QueuedBehind, CauseInterval { number: Some(ahead), ..label });
                }
                // On PREEMPT_RT, softirqs can be preempted, and can sleep until a lock is free.
                Doing::Thread(r) if r.pid != irq.pid => {
                    self.add(tile.from, Cause::WaitingForCpu, CauseInterval { by, ..label })
                }
                Doing::Thread(_) => self.add(tile.from, Cause::Work, label),
                Doing::Idle { .. } => self.add(tile.from, Cause::Blocked, label),
                Doing::Unknown => {
                    let notes = vec![self.machine.why_unknown(Some(cpu), tile.from).into()];
                    self.add(tile.from, Cause::Unexplained, CauseInterval { notes, ..label });
                }
                _ => self.add(tile.from, Cause::Interrupted, CauseInterval { by, ..label }),
            }
        }
    }

    /// When this softirq finished its work on earlier packets, and the number of these packets.
    fn served_before(&self, cpu: u32, irq: &IrqInterval) -> (Ns, u64) {
        let from = irq.from.max(self.a);
        let mut until = Ns::MIN;
        let mut ahead = 0;
        let mut polls: Vec<(Ns, u32)> = Vec::new();
        for event in self.machine.events(cpu, from, self.t) {
            if let EventKind::NapiWork { work, .. } = event.what {
                polls.push((event.t, work));
            }
        }
        // The first poll that ended is the one that carried the packet to the earlier sighting.
        let same_poll = irq.from < self.a && self.has_a() && self.pair.cpu_of_a == Some(cpu);
        if same_poll && !self.pair.queue {
            return (until, ahead);
        }
        for (t, work) in polls.into_iter().skip(usize::from(same_poll)).filter(|(_, work)| *work > 0) {
            (until, ahead) = (t, ahead + u64::from(work));
        }
        if self.reader && self.pair.queue {
            let (last, seen) = self.pair.ahead.since(until.max(from), self.t);
            if seen > 0 {
                (until, ahead) = (last, ahead + seen);
            }
        }
        (until, ahead)
    }

    /// Adds the time from the raise to the start of the softirq.
    fn waited_to_begin(&mut self, cpu: u32, vector: u32, irq: &IrqInterval, raised: Ns) {
        let actor = self.machine.executor(cpu, &Doing::Softirq(vector), self.t);
        // If ksoftirqd or ktimers runs the softirq, the wait is that of the thread.
        let daemon = self.is_daemon(irq.pid).then_some(irq.pid);
        let ready = daemon.map_or(Vec::new(), |pid| {
            let row = self.machine.row(pid);
            let tiles = row.iter().filter(|tile| matches!(tile.state, State::Ready { .. }));
            tiles.map(|tile| (tile.from, tile.to)).filter(|(from, to)| *to > raised && *from < self.t).collect()
        });
        for tile in self.tiles_back(cpu, raised) {
            let by = Some(self.machine.executor(cpu, &tile.doing, tile.from));
            let (actor, notes) = (Some(actor.clone()), self.machine.notes_of(cpu, &tile));
            let label = CauseInterval { actor, by, cpu: Some(cpu), notes, ..CauseInterval::default() };
            match (daemon, tile.doing) {
                (_, Doing::Unknown) => {
                    let notes = vec![self.machine.why_unknown(Some(cpu), tile.from).into()];
                    self.add(tile.from, Cause::Unexplained, CauseInterval { notes, by: None, ..label });
                }
                (Some(pid), Doing::Thread(r)) if r.pid != pid => {
                    let actor = Some(self.machine.thread(pid, tile.from));
                    for (from, to) in ready.iter().rev().filter(|(from, to)| *from < tile.to && *to > tile.from) {
                        self.add((*to).max(tile.from), Cause::SoftirqWait, label.clone());
                        let label = CauseInterval { actor: actor.clone(), ..label.clone() };
                        self.add((*from).max(tile.from), Cause::WaitingForCpu, label);
                    }
                    self.add(tile.from, Cause::SoftirqWait, label);
                }
                _ => self.add(tile.from, Cause::SoftirqWait, label),
            }
        }
    }

    /// Whether this is ksoftirqd, or the thread that runs timer softirqs on PREEMPT_RT.
    fn is_daemon(&self, pid: u32) -> bool {
        let name = self.machine.name_of(pid).unwrap_or_default();
        name.starts_with("ksoftirqd/") || name.starts_with("ktimers/")
    }

    /// Handles a softirq that a timer raised: the work was deferred until the timer expired.
    fn put_off(&mut self, cpu: u32, vector: u32, timer: &Doing) -> Result<Context, End> {
        let actor = Some(self.machine.executor(cpu, &Doing::Softirq(vector), self.t));
        let by = Some(self.machine.executor(cpu, timer, self.t));
        let label = CauseInterval { actor, by, cpu: Some(cpu), ..CauseInterval::default() };
        // The only packets sent on a timer are those held by queueing disciplines.
        let cause = if vector == NET_TX { Cause::QdiscHeld } else { self.cause_of_timer(timer) };
        self.add(self.a, cause, label);
        Err(End::Done)
    }

    /// What probably raised the softirq if its raise is not recorded: what the CPU did just before.
    fn before(&self, cpu: u32, irq: &IrqInterval) -> Context {
        let doing = self.machine.at(cpu, irq.from.saturating_sub(1));
        match (doing, self.machine.irq_intervals(cpu).and_then(|s| s.interrupt(irq.from))) {
            // A softirq runs right after the interrupt that raised it.
            (_, Some(interrupt)) if interrupt.to <= irq.from && irq.from - interrupt.to < 2_000 => {
                Context::of(cpu, interrupt.doing)
            }
            (doing, _) => Context::of(cpu, doing),
        }
    }
}
