//! Every event, in the order of their times, while the kernel goes on writing.

use crate::event::Event;
use crate::recorder::Recorder;
use latpath_linux::monotonic;
use latpath_model::Ns;

/// An event is handed on when it is this old: by then all that were before it have been written.
const SETTLED: Ns = 100_000_000;

/// Something that a [`Tail`] hands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tailed {
    /// An event, and its CPU.
    Event(u32, Event),
    /// So many events of a CPU were overwritten before they were read; those that follow are later than this time.
    Lost(u32, u64, Ns),
}

impl Tailed {
    fn t(&self) -> Ns {
        match self {
            Self::Event(_, event) => event.t,
            Self::Lost(.., t) => *t,
        }
    }
}

/// Where a reader is in each CPU's ring.
#[derive(Debug, Default)]
pub struct Tail {
    next: Vec<u64>,
    pending: Vec<Tailed>,
    /// The time of the last event of each CPU that was read.
    last: Vec<Ns>,
}

impl Tail {
    /// Reads from the recorder's first event on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hands on what has settled since the last call; `all`: also what has not, at the end. To lose nothing, call it before a ring
    /// has overwritten itself.
    pub fn read(&mut self, recorder: &Recorder, all: bool, take: &mut dyn FnMut(&Tailed)) {
        // Before the rings are read: what was not yet in them by now is later.
        let settled = if all { Ns::MAX } else { monotonic() - SETTLED };
        let rings = recorder.rings();
        self.next.resize(rings.cpus, 0);
        self.last.resize(rings.cpus, recorder.started());
        for cpu in 0..rings.cpus {
            let pending = &mut self.pending;
            let read = rings.read_on(cpu, self.next[cpu]);
            self.next[cpu] = read.next;
            if read.lost > 0 {
                pending.push(Tailed::Lost(cpu as u32, read.lost, self.last[cpu]));
            }
            let events = read.events.into_iter().filter(|event| event.t >= recorder.started());
            let last = &mut self.last[cpu];
            let events = events.inspect(|event| *last = (*last).max(event.t));
            pending.extend(events.map(|event| Tailed::Event(cpu as u32, event)));
        }
        self.pending.sort_by_key(Tailed::t);
        let end = self.pending.partition_point(|tailed| tailed.t() < settled);
        self.pending.drain(..end).for_each(|tailed| take(&tailed));
    }
}
