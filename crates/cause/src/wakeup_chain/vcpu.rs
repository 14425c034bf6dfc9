//! vCPUs as recorded by the host: what their threads did while a guest had to act, and the contexts that called the
//! guest.

use super::{Context, End, WakeupChain};
use crate::{machine::Machine, Cause, CauseInterval, Note};
use latpath_flight::{Doing, EventKind, Since, Sleep, State, ThreadTile, Waker};
use latpath_model::Ns;
use latpath_vms::exit_reason;

/// A call of a guest, i.e. an interrupt that told it about a packet, reconstructed from the host's record.
pub(crate) struct Call<'c> {
    /// ID of the vCPU's thread.
    pub vcpu: u32,
    /// The thread that has the packet, if it is the one of the earlier sighting.
    pub carrier: Option<u32>,
    /// Threads that carry packets to the guest.
    pub carriers: &'c [u32],
    /// Whether the guest's record does not go back far enough; then the vCPU's first wakeup counts, not its last.
    pub blind: bool,
    /// Template for intervals in which the vCPU runs.
    pub inside: &'c CauseInterval,
    /// Template for intervals in which the state of the vCPU's thread is unknown.
    pub unknown: &'c CauseInterval,
}

/// How the time in which a guest had to act is labelled.
#[derive(Clone, Copy)]
pub(crate) struct Hold<'h> {
    /// ID of the vCPU's thread.
    pub vcpu: u32,
    /// Template for intervals in which the thread runs its guest.
    pub inside: &'h CauseInterval,
    /// Template for intervals in which the thread's state is unknown.
    pub unknown: &'h CauseInterval,
    /// Cause while the thread sleeps although the guest did not halt.
    pub asleep: Cause,
    /// Whether to blame the thread that ended the guest's halt, if that thread was awake all the time and about to do
    /// so.
    pub for_waker: bool,
}

fn runs(tile: &ThreadTile) -> bool {
    matches!(tile.state, State::Running { .. })
}

impl<'c> Call<'c> {
    fn hold(&self) -> Hold<'c> {
        let asleep = Cause::VcpuHalted;
        Hold { vcpu: self.vcpu, inside: self.inside, unknown: self.unknown, asleep, for_waker: false }
    }
}

impl WakeupChain<'_> {
    /// Whether the chain continues in the guest that this thread runs, because the earlier sighting is there.
    pub(super) fn enters_guest(&self, pid: u32) -> bool {
        self.vcpus.guest(self.place, pid) == Some(self.pair.machine_of_a)
    }

    pub(super) fn runs_vcpu(&self, pid: u32) -> bool {
        self.vcpus.has(self.place, pid)
    }

    /// Walks back to the caller from `self.t`, when a guest began to handle the interrupt of a call.
    pub fn called(&mut self, call: &Call) -> Result<Context, End> {
        let row = self.machine.row(call.vcpu);
        if let Some(waker) = self.woken_for(&row, call) {
            self.hold(waker.t, call.hold());
            return Ok(Context::of(waker.cpu, waker.context));
        }
        let carried = match call.carrier {
            // What the carrier did after its first run was not for this packet.
            Some(carrier) => self.first_run(carrier).map(|until| (carrier, until)),
            None => {
                let last = call.carriers.iter().filter_map(|carrier| Some((*carrier, self.last_run(*carrier)?)));
                last.max_by_key(|(_, until)| *until)
            }
        };
        match carried {
            Some((carrier, until)) => {
                let until = self.injected(call.vcpu).map_or(until, |at| until.min(at));
                self.hold(until, call.hold());
                Ok(Context::Thread(carrier))
            }
            None => {
                self.hold(self.a, call.hold());
                Err(End::Done)
            }
        }
    }

    /// The wakeup of the vCPU's thread for the packet; it follows the earlier sighting.
    fn woken_for(&self, row: &[ThreadTile], call: &Call) -> Option<Waker> {
        let begin = row.partition_point(|tile| tile.to <= self.a);
        let carries = |w: &Waker| match w.context {
            Doing::Thread(r) => call.carrier == Some(r.pid) || call.carriers.contains(&r.pid) || call.carrier.is_none(),
            Doing::Idle { .. } | Doing::Unknown => false,
            _ => !Machine::is_timer(w),
        };
        let woken = |pair: &[ThreadTile]| match (pair[0].state, pair[1].state) {
            (State::Asleep(sleep), State::Ready { since: Since::Woken(w), .. }) => {
                let sleeps = matches!(sleep, Sleep::Interruptible | Sleep::Idle | Sleep::Unknown);
                (sleeps && w.t > self.a && carries(&w)).then_some(w)
            }
            _ => None,
        };
        // Because of the error between the machines' clocks, the guest may appear to act before its vCPU was woken.
        let asleep_at_end = row.iter().find(|tile| tile.from < self.t && tile.to >= self.t);
        let end = match asleep_at_end.map(|tile| (tile.state, tile.to)) {
            Some((State::Asleep(_), to)) => to,
            _ => self.t,
        };
        // A carrier that falls asleep has already passed on all its packets.
        let end = call.carrier.and_then(|carrier| self.awake_until(carrier)).map_or(end, |asleep| end.min(asleep));
        let mut pairs = row.get(begin..).unwrap_or_default().windows(2).filter(|pair| pair[1].from <= end);
        if call.blind {
            pairs.find_map(woken)
        } else {
            pairs.rev().find_map(woken)
        }
    }

    /// The tiles of a thread's row from the earlier sighting to `self.t`.
    fn tiles_of(&self, pid: u32) -> Vec<ThreadTile> {
        let row = self.machine.row(pid);
        let begin = row.partition_point(|tile| tile.to <= self.a);
        row[begin..].iter().take_while(|tile| tile.from < self.t).copied().collect()
    }

    /// End of the thread's first run, which may have begun before the earlier sighting.
    fn first_run(&self, pid: u32) -> Option<Ns> {
        self.tiles_of(pid).iter().find(|tile| runs(tile)).map(|tile| tile.to.min(self.t))
    }

    /// Start of the thread's first sleep after the earlier sighting.
    fn awake_until(&self, pid: u32) -> Option<Ns> {
        self.tiles_of(pid).iter().find(|tile| matches!(tile.state, State::Asleep(_))).map(|tile| tile.from)
    }

    /// End of the thread's last run.
    fn last_run(&self, pid: u32) -> Option<Ns> {
        self.tiles_of(pid).iter().rfind(|tile| runs(tile)).map(|tile| tile.to.min(self.t))
    }

    /// Time of the last interrupt injected before the guest began to handle it.
    fn injected(&self, vcpu: u32) -> Option<Ns> {
        self.tiles_of(vcpu).iter().rev().find_map(|tile| {
            let State::Running { cpu } = tile.state else { return None };
            let events = self.machine.events(cpu, tile.from.max(self.a), tile.to.min(self.t));
            let injected = |e: &&latpath_flight::Event| matches!(e.what, EventKind::KvmInjVirq(_)) && e.pid == vcpu;
            events.iter().rev().find(injected).map(|e| e.t)
        })
    }

    /// Adds what a vCPU's thread did from `from` to `self.t`.
    pub fn hold(&mut self, from: Ns, hold: Hold) {
        let Hold { vcpu, inside, unknown, asleep, for_waker } = hold;
        let limit = self.a;
        self.a = from.max(limit);
        let row = self.machine.row(vcpu);
        while !self.is_done() {
            let Some(tile) = self.tile_here(&row) else {
                self.add_interval(self.a, unknown.clone());
                break;
            };
            match tile.state {
                State::Running { cpu } => self.ran_guest(vcpu, cpu, tile.from, inside),
                State::Ready { cpu, since, throttled } => self.was_ready(vcpu, cpu, since, throttled, tile.from),
                State::Asleep(sleep) => {
                    let cause = match sleep {
                        Sleep::Stopped | Sleep::Traced | Sleep::Frozen => Cause::Stopped,
                        Sleep::Blocked => Cause::Blocked,
                        _ if self.halted(vcpu, tile.from) => Cause::VcpuHalted,
                        _ => asleep,
                    };
                    let next = row.iter().find(|next| next.from >= self.t);
                    let waker = match next.map(|next| next.state) {
                        Some(State::Ready { since: Since::Woken(w), .. }) if cause != Cause::Stopped => Some(w),
                        _ => None,
                    };
                    let by = waker.map(|w| self.machine.executor(w.cpu, &w.context, w.t));
                    let actor = Some(self.machine.thread(vcpu, self.t));
                    let label = CauseInterval { actor, by, cpu: None, ..CauseInterval::default() };
                    match waker.filter(|w| for_waker && cause == Cause::VcpuHalted && self.was_awake(w, tile.from)) {
                        Some(waker) => self.waited(tile.from, &waker, cause, label),
                        None => self.add(tile.from, cause, label),
                    }
                }
                State::Unknown => self.add_interval(tile.from, unknown.clone()),
            }
        }
        self.a = limit;
    }

    /// Whether the waker is a thread that did not sleep between `from` (or the earlier sighting, if later) and the
    /// wakeup. Such a thread may have waited for a CPU while raising an interrupt for the guest.
    fn was_awake(&self, waker: &Waker, from: Ns) -> bool {
        let Doing::Thread(running) = waker.context else { return false };
        let from = from.max(self.a);
        let row = self.machine.row(running.pid);
        let during: Vec<_> = row.iter().filter(|tile| tile.to > from && tile.from < waker.t).collect();
        let is_awake = |tile: &&ThreadTile| matches!(tile.state, State::Running { .. } | State::Ready { .. });
        during.first().is_some_and(|tile| tile.from <= from) && during.iter().all(is_awake)
    }

    /// Whether the thread had left its guest because of a halt when it fell asleep.
    fn halted(&self, vcpu: u32, slept: Ns) -> bool {
        let row = self.machine.row(vcpu);
        let ran = row[..row.partition_point(|tile| tile.to <= slept)].iter().next_back();
        let Some(ThreadTile { from, state: State::Running { cpu }, .. }) = ran else { return false };
        let exit = self.machine.events(*cpu, *from, slept).iter().rev().find_map(|e| match e.what {
            EventKind::KvmExit { reason: Some(reason), isa, .. } => Some(exit_reason::is_halt(isa, reason)),
            _ => None,
        });
        exit.unwrap_or(false)
    }

    /// Adds the time in which the thread had a CPU, inside and outside its guest.
    fn ran_guest(&mut self, vcpu: u32, cpu: u32, from: Ns, inside: &CauseInterval) {
        let recorded = self.machine.records_guest_exits_of(vcpu);
        let actor = Some(self.machine.thread(vcpu, from));
        let tiles: Vec<_> = self.tiles_back(cpu, from).collect();
        for tile in tiles {
            let label = CauseInterval { actor: actor.clone(), cpu: Some(cpu), ..CauseInterval::default() };
            match tile.doing {
                Doing::Thread(r) if r.pid == vcpu && !r.guest && recorded => {
                    let exit = self.machine.events(cpu, from, tile.to).iter().rev().find_map(|e| match e.what {
                        EventKind::KvmExit { reason, isa, .. } if e.t <= tile.from => Some((reason, isa)),
                        _ => None,
                    });
                    // After a halt, KVM polls for wakeups before it lets the thread sleep.
                    let halts = matches!(exit, Some((Some(reason), isa)) if exit_reason::is_halt(isa, reason));
                    let cause = if halts { Cause::VcpuHalted } else { Cause::VmExit };
                    let (number, name) = match exit {
                        _ if halts => (None, None),
                        Some((Some(reason), isa)) => (Some(u64::from(reason)), exit_reason::recorded_name(isa, reason)),
                        _ => (None, None),
                    };
                    let notes = name.into_iter().map(Note::ExitReason).collect();
                    self.add(tile.from, cause, CauseInterval { number, notes, ..label });
                }
                doing if doing.interrupts() => {
                    let by = Some(self.machine.executor(cpu, &doing, tile.from));
                    self.add(tile.from, Cause::Interrupted, CauseInterval { by, ..label });
                }
                _ => self.add_interval(tile.from, inside.clone()),
            }
        }
    }
}
