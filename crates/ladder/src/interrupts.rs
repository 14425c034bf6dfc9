//! Interrupts: raised, accepted, injected, handled.

use crate::event::{Eventfd, Line};
use crate::kicks::set_runs;
use crate::ladder::{Join, Ladder};
use crate::step::Step;
use crate::threads::Mark;
use crate::transfer::{Open, Stage};

impl Ladder {
    /// KVM turns vhost's signal into an interrupt.
    pub(crate) fn irqfd(&mut self, mark: Mark, eventfd: Eventfd) {
        self.remember_call(eventfd, mark.pid);
        let is = |open: &&mut Open| {
            let is_its = open.call == eventfd || open.call == 0;
            open.stage == Stage::Worked && open.server == mark.pid && is_its
        };
        for open in self.open.iter_mut().filter(is) {
            open.by_irqfd = true;
            raise(open, mark, None);
        }
    }

    pub(crate) fn raised(&mut self, mark: Mark, line: Line) {
        // KVM reports the interrupt's line after the irqfd event.
        let unnamed = |open: &&mut Open| open.by_irqfd && open.raiser == mark.pid && open.line.is_none();
        let mut is_named = false;
        for open in self.open.iter_mut().filter(|open| open.stage == Stage::Raised).filter(unnamed) {
            (open.line, is_named) = (Some(line), true);
        }
        if is_named {
            return;
        }
        let own: Vec<usize> = self.indices(|open| open.server == mark.pid && !open.is_round_over);
        if !own.is_empty() {
            return self.raise_own(mark, line, &own);
        }
        let relayed = self.indices(|open| self.is_relay_of(mark.pid, open));
        let marks = self.lookback(mark.pid);
        for at in relayed {
            let open = &mut self.open[at];
            if open.relay.is_none() {
                set_runs(open, (Step::RelayWoken, Step::RelayRuns), open.latest(), marks);
            }
            raise(open, mark, Some(line));
        }
    }

    /// Indices of transfers that have carried their packet and wait for their interrupt.
    fn indices(&self, is: impl Fn(&Open) -> bool) -> Vec<usize> {
        (0..self.open.len()).filter(|at| self.open[*at].stage == Stage::Worked && is(&self.open[*at])).collect()
    }

    /// The server raises the interrupt itself: for the queue with this interrupt, otherwise for the queue served last.
    fn raise_own(&mut self, mark: Mark, line: Line, own: &[usize]) {
        let line_of = |at: &usize| self.lanes[self.open[*at].lane].line;
        let known = own.iter().copied().rfind(|at| line_of(at) == Some(line));
        let unknown = || {
            let latest = |at: &usize| self.open[*at].latest();
            own.iter().copied().filter(|at| line_of(at).is_none()).max_by_key(latest)
        };
        let Some(at) = known.or_else(unknown) else { return };
        if own.len() == 1 {
            let lane = self.open[at].lane;
            self.lanes[lane].line = Some(line);
        }
        raise(&mut self.open[at], mark, Some(line));
    }

    /// Whether this thread relays the transfer's interrupt: it read vhost's eventfd, or vhost woke it.
    fn is_relay_of(&self, pid: u32, open: &Open) -> bool {
        let woken = self.threads.get(pid).and_then(|thread| thread.woken);
        let is_woken = woken.is_some_and(|woken| woken.pid == open.server && woken.t >= open.latest());
        open.relay == Some(pid) || (self.join == Join::Wakeups && open.is_vhost && is_woken)
    }

    /// A vCPU's interrupt controller accepts the interrupt that this thread has just raised.
    pub(crate) fn accepted(&mut self, mark: Mark, vector: u32) {
        self.has_accepts = true;
        let is = |open: &&mut Open| open.stage == Stage::Raised && open.raiser == mark.pid && open.vector.is_none();
        let mut learnt = None;
        for open in self.open.iter_mut().filter(is) {
            open.vector = Some(vector);
            learnt = open.line.map(|line| (open.vm, line));
        }
        if let Some((vm, line)) = learnt {
            self.remember_vector(vm, line, vector);
        }
    }

    /// Hardware delivers the interrupt.
    pub(crate) fn posted(&mut self, mark: Mark, vector: u32) {
        let is = |open: &&mut Open| open.stage == Stage::Raised && open.raiser == mark.pid;
        for open in self.open.iter_mut().filter(is).filter(|open| open.vector.is_none_or(|of| of == vector)) {
            open.set(Step::Posted, mark);
            (open.stage, open.vector) = (Stage::Posted, Some(vector));
        }
    }

    /// The thread that posted an interrupt wakes the vCPU, which was therefore asleep.
    pub(crate) fn wakes_target(&mut self, waker: u32, vcpu: u32) {
        for at in 0..self.open.len() {
            let open = &self.open[at];
            let is_its = open.stage == Stage::Posted && open.raiser == waker && open.target.is_none();
            if is_its && self.is_vcpu(vcpu) && self.may_target(open, vcpu) {
                self.open[at].target = Some(vcpu);
            }
        }
    }

    /// The vCPU enters its guest, which delivers the posted interrupts for which the vCPU was woken.
    pub(crate) fn entered(&mut self, mark: Mark) {
        let mut at = 0;
        while at < self.open.len() {
            let open = &self.open[at];
            let is_its = open.stage == Stage::Posted && open.target == Some(mark.pid);
            if !is_its || open.at(Step::Entered).is_some() || !self.reach(at, mark) {
                at += 1;
                continue;
            }
            self.open[at].set(Step::Entered, mark);
            // For an interrupt line, the handler's read of the device follows, so the transfer stays open.
            match self.open[at].line {
                Some(Line::Wire(_)) => at += 1,
                _ => {
                    let open = self.open.remove(at);
                    self.close(&open);
                }
            }
        }
    }

    /// Closes transfers whose guest received the interrupt and that can have no further events: this vCPU has proceeded
    /// to a later event.
    pub(crate) fn end_before(&mut self, vcpu: u32) {
        let ended: Vec<bool> = (0..self.open.len())
            .map(|at| {
                let open = &self.open[at];
                match open.stage {
                    Stage::Injected => open.target == Some(vcpu),
                    Stage::Posted => open.target.map_or_else(|| self.may_target(open, vcpu), |target| target == vcpu),
                    _ => false,
                }
            })
            .collect();
        let mut ended = ended.into_iter();
        let ended = self.take(|_| ended.next() == Some(true));
        ended.iter().for_each(|open| self.close(open));
    }

    /// The vector of a raised interrupt, if known.
    fn vector_of(&self, open: &Open) -> Option<u32> {
        let line = open.line;
        let learnt = || self.vectors.get(&(open.vm, line?)).copied();
        let of_message = || match line? {
            Line::Message(data) => Some((data & 0xff) as u32),
            Line::Wire(_) => None,
        };
        open.vector.or_else(learnt).or_else(of_message)
    }

    /// Whether this thread may be a vCPU of the transfer's guest.
    fn may_target(&self, open: &Open, pid: u32) -> bool {
        let thread = self.threads.get(pid);
        if let (Some(vm), Some(process)) = (open.vm, thread.and_then(|thread| thread.identity.process)) {
            return vm == process;
        }
        let since = open.at(Step::Raised).map_or(i64::MAX, |mark| mark.t);
        let woken = thread.and_then(|thread| thread.woken);
        let by_raiser = woken.is_some_and(|woken| woken.pid == open.raiser && woken.t >= since);
        by_raiser || open.vcpu.is_none() || open.vcpu == Some(pid)
    }

    /// KVM injects an interrupt into this thread's guest.
    pub(crate) fn injected(&mut self, mark: Mark, vector: u32) {
        self.has_injections = true;
        if self.open.is_empty() {
            return;
        }
        // A transfer still open with this vector belongs to the previous interrupt, whose end was not seen.
        let before = self
            .take(|open| open.stage == Stage::Injected && open.target == Some(mark.pid) && open.vector == Some(vector));
        before.iter().for_each(|open| self.close(open));
        for at in 0..self.open.len() {
            let open = &self.open[at];
            let is_its = match self.vector_of(open) {
                Some(of) => of == vector,
                None => !self.has_accepts,
            };
            if open.stage != Stage::Raised || !is_its || !self.may_target(open, mark.pid) {
                continue;
            }
            self.reach(at, mark);
            let open = &mut self.open[at];
            open.set(Step::Injected, mark);
            (open.stage, open.target, open.vector) = (Stage::Injected, Some(mark.pid), Some(vector));
        }
    }

    /// Sets the time from which the vCPU could take the interrupt. Returns whether it is known.
    fn reach(&mut self, at: usize, mark: Mark) -> bool {
        let open = &mut self.open[at];
        let raised = open.at(Step::Posted).or(open.at(Step::Raised));
        let since = raised.map_or(i64::MAX, |raised| raised.t);
        let reached = self.threads.get(mark.pid).and_then(|thread| thread.reached_since(since));
        let reached = reached.filter(|reached| reached.t <= mark.t);
        if let Some(reached) = reached {
            open.set(Step::Reached, reached);
        }
        reached.is_some()
    }

    /// The guest reads a device's register: the handler of an interrupt line reads the interrupt status.
    pub(crate) fn device_read(&mut self, mark: Mark) {
        let is_wire = |open: &Open| matches!(open.line, Some(Line::Wire(_)));
        let mut at = 0;
        while at < self.open.len() {
            let open = &self.open[at];
            let is_handled = match open.stage {
                Stage::Injected => open.target == Some(mark.pid) && is_wire(open),
                Stage::Posted if is_wire(open) => {
                    open.target.map_or_else(|| self.may_target(open, mark.pid), |target| target == mark.pid)
                }
                // arm64 does not report injections, so the interrupt is still in this stage when it is handled.
                Stage::Raised if !self.has_injections && is_wire(open) && self.may_target(open, mark.pid) => {
                    self.reach(at, mark)
                }
                _ => false,
            };
            match is_handled {
                true => self.handled(at, mark),
                false => at += 1,
            }
        }
    }

    /// The guest ends an interrupt (EOI).
    pub(crate) fn eoi(&mut self, mark: Mark, vector: u32) {
        let is = |open: &Open| {
            let is_delivered = matches!(open.stage, Stage::Injected | Stage::Posted);
            is_delivered && open.target == Some(mark.pid) && open.vector == Some(vector)
        };
        while let Some(at) = self.open.iter().position(is) {
            self.handled(at, mark);
        }
    }

    fn handled(&mut self, at: usize, mark: Mark) {
        let mut open = self.open.remove(at);
        open.set(Step::Handled, mark);
        self.close(&open);
    }
}

fn raise(open: &mut Open, mark: Mark, line: Option<Line>) {
    open.set(Step::Raised, mark);
    (open.stage, open.raiser, open.line) = (Stage::Raised, mark.pid, line);
}
