//! Kicks, and the start of service by the queue's server.

use crate::event::{Direction, Eventfd, Line};
use crate::figures::Key;
use crate::ladder::{Join, Ladder};
use crate::step::Step;
use crate::threads::Mark;
use crate::transfer::{Open, Stage};

/// Number of times that the server turns to the queue again after which an open transfer is closed or abandoned.
const PATIENCE: u8 = 8;

impl Ladder {
    /// The guest kicks a queue. `woke`: the thread that the kick woke.
    pub(crate) fn kick(&mut self, mark: Mark, key: Key, woke: Option<u32>) {
        self.forget_other_vms(key, self.threads.process(mark.pid));
        let Some(lane) = self.lane(key) else { return };
        let vm = self.threads.process(mark.pid).or(self.lanes[lane].vm);
        let (begin, reason) = match self.threads.get(mark.pid).and_then(|vcpu| vcpu.exit) {
            Some((exit, reason)) => (exit, Some(reason)),
            None => (mark, None),
        };
        self.end_before(mark.pid);
        self.next_kick(vm, begin);
        let queue = &mut self.lanes[lane];
        queue.kicks += 1;
        queue.vm = queue.vm.or(vm);
        if woke.is_some() && queue.server.is_none() {
            queue.server = woke;
        }
        // The guest offers receive buffers: no packet follows the kick.
        if queue.direction == Some(Direction::ToGuest) {
            return;
        }
        if self.open.iter().any(|open| open.lane == lane && open.stage == Stage::Waiting) {
            self.lanes[lane].coalesced += 1;
            return;
        }
        self.begin(Open { vm, vcpu: Some(mark.pid), reason, ..Open::new(lane, Direction::FromGuest, begin) });
    }

    fn next_kick(&mut self, vm: Option<u32>, begin: Mark) {
        let ended = self.ended.get_mut(&vm).map(std::mem::take).unwrap_or_default();
        for ended in ended.into_iter().flatten() {
            if let Some(group) = self.lanes[ended.lane].groups.get_mut(&ended.variant) {
                if begin.t >= ended.t {
                    group.next_kick.record(begin.t - ended.t);
                }
            }
        }
    }

    /// An eventfd is signalled: a kick if the signalling thread is a vCPU outside its guest.
    pub(crate) fn signalled(&mut self, mark: Mark, eventfd: Eventfd) {
        let worked = |open: &&mut Open| open.stage == Stage::Worked && open.server == mark.pid;
        let open = self.open.iter_mut().filter(worked);
        open.filter(|open| open.call == eventfd || open.call == 0).for_each(|open| open.is_signalled = true);
        let vcpu = self.threads.of(mark.pid);
        let (is_outside, doorbell) = (vcpu.exit.is_some(), vcpu.doorbell.take());
        if self.join != Join::Eventfds || !is_outside || self.is_call(eventfd, mark.pid) {
            return;
        }
        self.kick(mark, Key::Kicks(eventfd), None);
        if let Some(lane) = self.known_lane(Key::Kicks(eventfd)) {
            let queue = &mut self.lanes[lane];
            queue.doorbell = queue.doorbell.or(doorbell);
            self.threads.of(mark.pid).kicked = Some(lane);
        }
    }

    /// User space reads an eventfd: QEMU turns to a queue, or relays vhost's interrupt.
    pub(crate) fn taken(&mut self, mark: Mark, eventfd: Eventfd) {
        if let Some(lane) = self.known_lane(Key::Kicks(eventfd)) {
            self.take_up(mark, lane);
        }
        let (woken, runs) = self.lookback(mark.pid);
        let relayed = |open: &&mut Open| {
            open.stage == Stage::Worked && open.is_vhost && open.is_signalled && open.call == eventfd
        };
        for open in self.open.iter_mut().filter(relayed) {
            open.relay = Some(mark.pid);
            self.threads.of(mark.pid).serves = true;
            set_runs(open, (Step::RelayWoken, Step::RelayRuns), open.latest(), (woken, runs));
        }
    }

    /// A vhost worker turns to a queue.
    pub(crate) fn served(&mut self, mark: Mark, kick: Eventfd, call: Eventfd, direction: Direction) {
        self.remember_call(call, mark.pid);
        self.remember_kick(kick);
        let worker = self.threads.of(mark.pid);
        worker.identity.is_vhost = true;
        worker.call[direction as usize] = call;
        let Some(lane) = self.known_lane(Key::Kicks(kick)) else { return };
        self.lanes[lane].direction = Some(direction);
        self.take_up(mark, lane);
    }

    /// The latest wakeup of a thread, and the latest time at which it began to run.
    pub(crate) fn lookback(&self, pid: u32) -> (Option<Mark>, Option<Mark>) {
        self.threads.get(pid).map_or((None, None), |thread| (thread.woken, thread.runs))
    }

    /// A thread turns to a queue.
    pub(crate) fn take_up(&mut self, mark: Mark, lane: usize) {
        (self.lanes[lane].server, self.lanes[lane].is_in_round) = (Some(mark.pid), true);
        self.threads.of(mark.pid).serves = true;
        for open in self.open.iter_mut().filter(|open| open.lane == lane && open.stage != Stage::Waiting) {
            open.take_ups = open.take_ups.saturating_add(1);
        }
        let is_wire = |open: &Open| matches!(open.line, Some(Line::Wire(_)));
        // Transfers left over from the previous round.
        let over = |open: &Open| {
            let is_relayed = open.is_vhost && open.is_signalled && open.take_ups < PATIENCE;
            match open.stage {
                Stage::Waiting => false,
                Stage::Serving => true,
                Stage::Worked => !is_relayed,
                Stage::Raised | Stage::Injected => open.take_ups >= PATIENCE,
                Stage::Posted => open.target.is_none() && !is_wire(open) || open.take_ups >= PATIENCE,
            }
        };
        let left = self.take(|open| open.lane == lane && over(open));
        for open in &left {
            match open.stage {
                Stage::Serving => self.close_without_packet(open),
                Stage::Worked if !open.is_signalled => self.close(open),
                Stage::Injected | Stage::Posted => self.close(open),
                _ => self.counts.unfinished += 1,
            }
        }
        let is_waiting = |open: &Open| open.lane == lane && open.stage == Stage::Waiting;
        if let Some(at) = self.open.iter().position(is_waiting) {
            self.serve(mark.pid, at);
        }
    }

    /// A thread begins to serve this transfer.
    pub(crate) fn serve(&mut self, pid: u32, at: usize) {
        let marks = self.lookback(pid);
        let is_vhost = self.threads.is_vhost(pid);
        let direction = self.open[at].direction;
        let call = self.threads.get(pid).map_or(0, |thread| thread.call[direction as usize]);
        let open = &mut self.open[at];
        (open.stage, open.server, open.is_vhost, open.call) = (Stage::Serving, pid, is_vhost, call);
        set_runs(open, (Step::Woken, Step::Runs), open.began(), marks);
    }

    /// A server goes to sleep, which ends its round.
    pub(crate) fn round_over(&mut self, pid: u32) {
        if self.threads.get(pid).is_some_and(|thread| thread.serves) {
            self.lanes.iter_mut().filter(|lane| lane.server == Some(pid)).for_each(|lane| lane.is_in_round = false);
        }
        if self.open.is_empty() {
            return;
        }
        let (woken, runs) = self.lookback(pid);
        let has_run_for = |began: i64| match (woken, runs) {
            (Some(woken), Some(runs)) => woken.t >= began && runs.t >= woken.t,
            _ => false,
        };
        let lanes = &self.lanes;
        let mut ended = Vec::new();
        self.open.retain_mut(|open| {
            let is_over = match open.stage {
                Stage::Waiting => lanes[open.lane].server == Some(pid) && has_run_for(open.began()),
                Stage::Serving => open.server == pid,
                Stage::Worked if open.server == pid => {
                    open.is_round_over = true;
                    !(open.is_vhost && open.is_signalled)
                }
                _ => false,
            };
            if is_over {
                ended.push(open.clone());
            }
            !is_over
        });
        for open in &ended {
            match open.stage {
                Stage::Worked => self.close(open),
                _ => self.close_without_packet(open),
            }
        }
    }
}

/// Sets the times at which a thread was woken and ran, if these are not before `since`.
pub(crate) fn set_runs(open: &mut Open, steps: (Step, Step), since: i64, (woken, runs): (Option<Mark>, Option<Mark>)) {
    let woken = woken.filter(|mark| mark.t >= since);
    if let Some(woken) = woken {
        open.set(steps.0, woken);
    }
    if let Some(runs) = runs.filter(|mark| mark.t >= woken.map_or(since, |woken| woken.t)) {
        open.set(steps.1, runs);
    }
}
