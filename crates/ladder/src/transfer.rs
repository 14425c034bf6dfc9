//! One transfer: its observed steps and rungs.

use crate::event::{Direction, Eventfd, Line};
use crate::step::{Step, Variant};
use crate::threads::Mark;
use latpath_model::Ns;

/// A finished transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The observed steps, in order; at least two.
    pub steps: Vec<(Step, Mark)>,
    /// Reason of the vCPU's exit ([`crate::Ladder::reason`]), if it left the guest.
    pub reason: Option<u16>,
    /// The thread that carries the packet: a vhost worker, or a QEMU thread.
    pub server: u32,
}

impl Transfer {
    /// Time from the first step to the last, ns.
    pub fn total(&self) -> Ns {
        self.rungs().map(|(_, time)| time).sum()
    }

    /// Each step except the first, with the time from the previous step, ns; the times sum to [`Self::total`].
    pub fn rungs(&self) -> impl Iterator<Item = (Step, Ns)> + '_ {
        self.steps.windows(2).map(|pair| (pair[1].0, pair[1].1.t - pair[0].1.t))
    }
}

/// Progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The server has not turned to it.
    Waiting,
    /// The server has turned to it, but carried no packet.
    Serving,
    /// The server has carried a packet.
    Worked,
    Raised,
    Injected,
    /// Hardware delivers the interrupt: immediately to a vCPU in its guest, at the next entry to a sleeping vCPU.
    Posted,
}

/// An open transfer.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub lane: usize,
    pub direction: Direction,
    pub stage: Stage,
    /// The guest's process, if known.
    pub vm: Option<u32>,
    pub vcpu: Option<u32>,
    pub reason: Option<u16>,
    pub server: u32,
    pub is_vhost: bool,
    /// The eventfd of its interrupt; 0 for none.
    pub call: Eventfd,
    /// Whether the server has signalled `call`, or woken a thread.
    pub is_signalled: bool,
    pub by_irqfd: bool,
    pub relay: Option<u32>,
    pub raiser: u32,
    pub line: Option<Line>,
    pub vector: Option<u32>,
    /// The vCPU that receives the interrupt.
    pub target: Option<u32>,
    /// Whether the server has slept since it carried the packet.
    pub is_round_over: bool,
    /// Number of times that the server has turned to the queue again since it began to serve the transfer.
    pub take_ups: u8,
    pub marks: [Option<Mark>; Step::ALL.len()],
}

impl Open {
    pub fn new(lane: usize, direction: Direction, begin: Mark) -> Self {
        let mut open = Self {
            lane,
            direction,
            stage: Stage::Waiting,
            vm: None,
            vcpu: None,
            reason: None,
            server: 0,
            is_vhost: false,
            call: 0,
            is_signalled: false,
            by_irqfd: false,
            relay: None,
            raiser: 0,
            line: None,
            vector: None,
            target: None,
            is_round_over: false,
            take_ups: 0,
            marks: [None; Step::ALL.len()],
        };
        open.set(Step::Begin, begin);
        open
    }

    pub fn set(&mut self, step: Step, mark: Mark) {
        self.marks[step as usize] = Some(mark);
    }

    pub fn at(&self, step: Step) -> Option<Mark> {
        self.marks[step as usize]
    }

    /// Time of the latest step.
    pub fn latest(&self) -> Ns {
        self.marks.iter().flatten().map(|mark| mark.t).max().unwrap_or(0)
    }

    /// Time at which the guest received the interrupt, as far as observed.
    pub fn interrupted(&self) -> Ns {
        let steps = [Step::Injected, Step::Entered, Step::Reached, Step::Posted, Step::Raised];
        steps.into_iter().find_map(|step| self.at(step)).map_or_else(|| self.latest(), |mark| mark.t)
    }

    /// Time of the first step, from which the transfer waits for its server.
    pub fn began(&self) -> Ns {
        self.at(Step::Begin).map_or(0, |mark| mark.t)
    }

    /// Its variant.
    pub fn variant(&self) -> Variant {
        match () {
            () if self.at(Step::Raised).is_none() => Variant::NoInterrupt,
            () if !self.is_vhost => Variant::NoVhost,
            () if !self.by_irqfd && self.raiser != self.server => Variant::Relayed,
            () if self.at(Step::Posted).is_some() => Variant::Posted,
            () => Variant::Irqfd,
        }
    }

    /// The finished transfer; `None` if a step precedes the step that causes it.
    pub fn finish(&self) -> Option<Transfer> {
        let steps: Vec<(Step, Mark)> = Step::ALL.into_iter().filter_map(|step| Some((step, self.at(step)?))).collect();
        let in_order = steps.windows(2).all(|pair| pair[0].1.t <= pair[1].1.t);
        in_order.then_some(Transfer { steps, reason: self.reason, server: self.server })
    }
}
