//! Threads: what they did, what they waited for, and the contexts that woke them.

use super::{idle_state, Context, End, WakeupChain, MAX_INTERVALS};
use crate::{
    machine::{never_before, Machine},
    Cause, CauseInterval, OfHolder,
};
use latpath_flight::{CpuTile, Doing, Since, Sleep, State, ThreadTile, Waker};
use latpath_model::Ns;

/// Maximum depth of nested waits.
const MAX_NESTED: u32 = 3;

impl WakeupChain<'_> {
    /// Walks back along a thread's row to the thread's wakeup.
    pub(super) fn thread(&mut self, pid: u32) -> Result<Context, End> {
        let row = self.machine.row(pid);
        // What ended the preceding sleep.
        let mut woken: Option<Since> = None;
        while !self.is_done() {
            if self.intervals.len() >= MAX_INTERVALS {
                return Err(End::Lost("more happened than latpath follows".into()));
            }
            let Some(tile) = self.tile_here(&row) else {
                self.unrecorded(pid)?;
                continue;
            };
            match tile.state {
                State::Running { cpu } => {
                    self.ran(pid, cpu, tile.from);
                    woken = None;
                }
                State::Ready { cpu, since, throttled } => {
                    self.was_ready(pid, cpu, since, throttled, tile.from);
                    woken = Some(since);
                }
                State::Asleep(sleep) => {
                    if let Some(next) = self.slept(pid, sleep, &tile, woken.take())? {
                        return Ok(next);
                    }
                }
                State::Unknown => self.unrecorded(pid)?,
            }
            if let (Some(Since::Woken(waker)), true) = (woken, self.starts_row(&row)) {
                return Ok(Context::of(waker.cpu, waker.context));
            }
        }
        Err(End::Done)
    }

    /// The tile of a thread's row in which `self.t` lies or with which it ends.
    pub(super) fn tile_here(&self, row: &[ThreadTile]) -> Option<ThreadTile> {
        let end = row.partition_point(|tile| tile.from < self.t);
        row[..end].last().filter(|tile| tile.to >= self.t).copied()
    }

    /// Whether nothing is recorded about the thread before `self.t`.
    fn starts_row(&self, row: &[ThreadTile]) -> bool {
        let end = row.partition_point(|tile| tile.from < self.t);
        row[..end].last().is_none_or(|tile| tile.state == State::Unknown)
    }

    /// Handles a gap in the thread's own row, using the rows of the CPUs.
    fn unrecorded(&mut self, pid: u32) -> Result<(), End> {
        match self.machine.has_run(pid, self.a, self.t) {
            Some((cpu, from)) => {
                self.ran(pid, cpu, from);
                Ok(())
            }
            None => {
                let executor = self.machine.thread(pid, self.t).name;
                let why = self.machine.why_unknown(None, self.t.saturating_sub(1));
                Err(End::Lost(format!("what {executor} did is not known: {why}")))
            }
        }
    }

    /// Adds the time in which the thread had a CPU: its own work, and interrupts.
    fn ran(&mut self, pid: u32, cpu: u32, from: Ns) {
        let actor = self.machine.thread(pid, from);
        let faults = self.machine.page_faults(pid, cpu, from);
        for tile in self.tiles_back(cpu, from) {
            let label = CauseInterval { actor: Some(actor.clone()), cpu: Some(cpu), ..CauseInterval::default() };
            if tile.doing.interrupts() {
                let by = Some(self.machine.executor(cpu, &tile.doing, tile.from));
                self.add(tile.from, Cause::Interrupted, CauseInterval { by, ..label });
                continue;
            }
            for (begin, note) in self.machine.worked(pid, &faults, tile.from.max(self.a), self.t) {
                self.work(begin, CauseInterval { notes: note.into_iter().collect(), ..label.clone() });
            }
        }
    }

    /// Adds a thread's own work: for this packet, or for earlier ones.
    fn work(&mut self, from: Ns, label: CauseInterval) {
        let (until, ahead) = match self.reader && self.pair.queue {
            true => self.pair.ahead.since(self.a, self.pair.b),
            false => (Ns::MIN, 0),
        };
        let number = (ahead > 0).then_some(ahead);
        if self.pair.upcall && self.is_switch(&label) {
            self.add(from, Cause::Upcall, CauseInterval { number, ..label });
            return;
        }
        self.add(from.max(until), Cause::Work, label.clone());
        self.add(from, Cause::QueuedBehind, CauseInterval { number, ..label });
    }

    /// Whether the actor is a thread of ovs-vswitchd.
    fn is_switch(&self, label: &CauseInterval) -> bool {
        let Some(pid) = label.actor.as_ref().and_then(|executor| executor.doing.thread()) else { return false };
        let of_switch = |name: Option<String>| name.is_some_and(|name| name.starts_with("ovs-vswitchd"));
        let named = |start| self.machine.name_of(pid).is_some_and(|name| name.starts_with(start));
        of_switch(self.machine.process_of(pid)) || ["ovs-vswitchd", "handler", "revalidator"].into_iter().any(named)
    }

    /// Adds the time in which the thread was ready.
    pub(super) fn was_ready(&mut self, pid: u32, cpu: Option<u32>, since: Since, throttled: bool, from: Ns) {
        let actor = Some(self.machine.thread(pid, self.t));
        let label = CauseInterval { actor, cpu, ..CauseInterval::default() };
        let waits = if self.runs_vcpu(pid) { Cause::VcpuPreempted } else { Cause::WaitingForCpu };
        if throttled {
            self.add(from, Cause::Throttled, label);
            return;
        }
        let Some(on) = cpu else {
            let notes = vec![self.machine.why_unknown(None, self.t).into()];
            self.add(from, Cause::Unexplained, CauseInterval { notes, ..label });
            return;
        };
        if let Some((begin, end, note)) = self.was_passed_over(pid, on, since, from) {
            self.waited_behind(pid, on, waits, end, &label);
            self.add(begin, Cause::Throttled, CauseInterval { notes: vec![note.into()], ..label.clone() });
        }
        self.waited_behind(pid, on, waits, from, &label);
    }

    /// The interval in which a thread was ready, but its CPU was idle or ran only less urgent threads: the thread or
    /// its control group had used up its time, which some kernels notice only when they choose the next thread.
    fn was_passed_over(&self, pid: u32, cpu: u32, since: Since, from: Ns) -> Option<(Ns, Ns, &'static str)> {
        let queued = match since {
            Since::Woken(_) => self.machine.queued(pid, from, self.t)?,
            _ => from,
        };
        let begin = self.machine.passes_over(pid, cpu, queued, self.t)?;
        let class = self.machine.class(pid, begin);
        let idle = |tile: &CpuTile| matches!(tile.doing, Doing::Idle { .. });
        let passed = |tile: &CpuTile| match tile.doing {
            Doing::Thread(r) => r.pid != pid && r.class.is_some_and(|by| never_before(by, class)),
            _ => idle(tile),
        };
        let tiles = self.machine.tiles(cpu, begin, self.t);
        let end = tiles.iter().rev().find(|tile| passed(tile)).map(|tile| tile.to)?;
        let note = match tiles.iter().any(idle) {
            true => "its CPU went idle although it was ready",
            false => "its CPU ran less urgent threads although it was ready",
        };
        (begin < end).then_some((begin, end, note))
    }

    /// Adds what the thread's CPU did while the thread was ready.
    fn waited_behind(&mut self, pid: u32, on: u32, waits: Cause, from: Ns, label: &CauseInterval) {
        // What an idle CPU does after its idle state belongs to leaving that state.
        let mut left_state = None;
        let tiles: Vec<_> = self.tiles_back(on, from).collect();
        for (at, tile) in tiles.iter().enumerate() {
            let by = Some(self.machine.executor(on, &tile.doing, tile.from));
            let label = CauseInterval { by, ..label.clone() };
            match tile.doing {
                // According to the thread's own row, it was not running yet.
                Doing::Thread(r) if r.pid == pid => {
                    self.add(tile.from, Cause::Work, CauseInterval { by: None, ..label })
                }
                Doing::Thread(_) => {
                    let notes = self.machine.notes_of(on, tile);
                    self.add(tile.from, waits, CauseInterval { notes, ..label });
                }
                Doing::Idle { .. } => {
                    left_state = idle_state(&tiles[at..]).or(left_state);
                    let label = self.of_idle(on, left_state, tile.from, label);
                    self.add(tile.from, Cause::IdleExit, label);
                }
                Doing::Unknown => {
                    let notes = vec![self.machine.why_unknown(Some(on), tile.from).into()];
                    self.add(tile.from, Cause::Unexplained, CauseInterval { by: None, notes, ..label });
                }
                _ => self.add(tile.from, Cause::Interrupted, label),
            }
        }
    }

    /// Adds a sleep. Returns the waker's context, in which the chain continues; `None` if the chain continues in this
    /// row, because the thread did not sleep until the waker passed on the packet: it was stopped, slept until a timer,
    /// or waited in the middle of its own work.
    fn slept(
        &mut self,
        pid: u32,
        sleep: Sleep,
        tile: &ThreadTile,
        woken: Option<Since>,
    ) -> Result<Option<Context>, End> {
        let actor = Some(self.machine.thread(pid, self.t));
        let waker = match woken {
            Some(Since::Woken(waker)) => Some(waker),
            _ => None,
        };
        let name = |w: &Waker| self.machine.executor(w.cpu, &w.context, w.t);
        let is_blocked = matches!(sleep, Sleep::Blocked);
        let note = is_blocked.then(|| self.machine.why_blocked(pid, tile.from, tile.to)).flatten();
        let label = CauseInterval { actor, notes: note.into_iter().collect(), ..CauseInterval::default() };
        match (sleep, waker) {
            (Sleep::Stopped | Sleep::Traced | Sleep::Frozen, waker) => {
                let notes = waker.iter().map(|w| format!("it went on by {}", name(w).name).into()).collect();
                self.add(tile.from, Cause::Stopped, CauseInterval { notes, ..label });
                Ok(None)
            }
            (_, Some(waker)) if Machine::is_timer(&waker) => {
                let by = Some(name(&waker));
                let cause = match sleep {
                    Sleep::Blocked => Cause::Blocked,
                    // A talker sleeps until its planned send time.
                    _ if self.pair.planned && tile.from <= self.a => Cause::LateTimer,
                    _ => self.cause_of_timer(&waker.context),
                };
                let number = (cause == Cause::PollInterval).then_some((tile.to - tile.from).max(0) as u64);
                self.add(tile.from, cause, CauseInterval { by, number, ..label });
                Ok(None)
            }
            (Sleep::Blocked, Some(waker)) if matches!(waker.context, Doing::Thread(_)) => {
                self.blocked_by(tile.from, &waker, label);
                Ok(None)
            }
            (Sleep::Blocked, waker) => {
                let by = waker.as_ref().map(name);
                self.add(tile.from, Cause::Blocked, CauseInterval { by, ..label });
                Ok(None)
            }
            (_, Some(waker)) if self.was_handed(pid, tile.from, &waker) => {
                self.waited(tile.from, &waker, Cause::Blocked, label);
                Ok(None)
            }
            (_, Some(waker)) => Ok(Some(Context::of(waker.cpu, waker.context))),
            (_, None) => {
                let executor = label.actor.map_or(String::new(), |executor| executor.name);
                let why = match () {
                    () if self.machine.records_wakers => "no wakeup is recorded",
                    () => "this machine's record has no wakers",
                };
                Err(End::Lost(format!("what woke {executor} is not known: {why}")))
            }
        }
    }

    /// Whether the thread already had the packet when it fell asleep at `slept`: the context of the earlier sighting
    /// woke the thread right afterwards, or queued the packet while the thread was awake.
    fn was_handed(&self, pid: u32, slept: Ns, waker: &Waker) -> bool {
        if !self.has_a() || slept <= self.a {
            return false;
        }
        let (a, cpu) = (self.pair.a, self.pair.cpu_of_a);
        let giver = Context::on(cpu, self.machine, a);
        let gives = |waker: &Waker| Some(waker.cpu) == cpu && Context::of(waker.cpu, waker.context) == giver;
        if giver == Context::Thread(pid) {
            return false;
        }
        let row = self.machine.row(pid);
        let awake = |tile: &ThreadTile| matches!(tile.state, State::Ready { .. } | State::Running { .. });
        if row.iter().any(|tile| tile.from <= a && tile.to > a && awake(tile)) {
            return (self.pair.queue || self.pair.upcall) && !gives(waker);
        }
        let wakers = row.iter().filter(|tile| tile.from < slept).filter_map(|tile| match tile.state {
            State::Ready { since: Since::Woken(waker), .. } => Some(waker),
            _ => None,
        });
        wakers.filter(|waker| waker.t >= a).min_by_key(|waker| waker.t).is_some_and(|first| gives(&first))
    }

    /// Adds a wait in the kernel, from `slept` on, for a resource that another thread held. If something delayed that
    /// thread, the cause of its delay counts.
    fn blocked_by(&mut self, slept: Ns, waker: &Waker, label: CauseInterval) {
        let first = self.intervals.len();
        let by = Some(self.machine.executor(waker.cpu, &waker.context, waker.t));
        let waiter = self.waiter_for(&label.actor);
        let blocked = CauseInterval { cause: Cause::Blocked, machine: self.place, by, waiter, ..label.clone() };
        self.waited(slept, waker, Cause::Blocked, label);
        for interval in &mut self.intervals[first..] {
            let kept = match interval.cause.info().of_holder {
                OfHolder::Its => true,
                // Kept if the holder itself waited in the kernel, e.g. for a disk or for another lock.
                OfHolder::ItsOfAnother => interval.actor != blocked.actor,
                OfHolder::Blocked => false,
            };
            if !kept {
                *interval = CauseInterval { from: interval.from, to: interval.to, ..blocked.clone() };
            }
        }
        let mut nested = self.intervals.split_off(first);
        nested.dedup_by(|earlier, later| {
            let same = later.is_like(earlier);
            later.from = if same { earlier.from } else { later.from };
            same
        });
        self.intervals.append(&mut nested);
    }

    /// Adds a wait from `slept` on in the middle of the thread's own work, e.g. for a lock. The wait is divided into
    /// what the waker did since `slept`; the rest has this cause.
    pub(super) fn waited(&mut self, slept: Ns, waker: &Waker, cause: Cause, label: CauseInterval) {
        let limit = self.a;
        self.a = slept.max(limit);
        let (reader, waiter) = (self.reader, self.waiter);
        if self.nested < MAX_NESTED {
            self.nested += 1;
            self.reader = false;
            self.go(Context::of(waker.cpu, waker.context));
            self.nested -= 1;
            self.waiter = waiter;
        }
        let by = Some(self.machine.executor(waker.cpu, &waker.context, waker.t));
        self.add(slept, cause, CauseInterval { by, ..label });
        (self.a, self.reader) = (limit, reader);
    }
}
