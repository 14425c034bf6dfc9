//! Reads every event, in order of time, while the kernel continues to write.

use crate::event::Event;
use crate::recorder::Recorder;
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::time::Duration;

/// Minimum age of returned events, ns. By then, all earlier events have been written.
pub const SETTLED: Ns = 100_000_000;

/// An item returned by a [`Tail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tailed {
    /// An event of a CPU.
    Event(u32, Event),
    /// Events were overwritten before they were read: the CPU, the number of these events, and a time, ns, which is
    /// before all following events of the CPU.
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

/// A reader's position in each CPU's ring.
#[derive(Debug, Default)]
pub struct Tail {
    next: Vec<u64>,
    pending: Vec<Tailed>,
    /// Time of the last event read from each CPU, ns.
    last: Vec<Ns>,
}

impl Tail {
    /// Reads from the recorder's first event on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the events that have settled since the last call. To avoid losses, call it before the kernel has filled
    /// a ring once.
    pub fn read(&mut self, recorder: &Recorder, take: &mut dyn FnMut(&Tailed)) {
        self.read_before(recorder, monotonic() - SETTLED, take);
    }

    /// Like [`Self::read`], but only events before `until`, ns. Returns the time up to which all events were returned.
    pub fn read_until(&mut self, recorder: &Recorder, until: Ns, take: &mut dyn FnMut(&Tailed)) -> Ns {
        let settled = until.min(monotonic() - SETTLED);
        self.read_before(recorder, settled, take);
        settled
    }

    /// Waits a tenth of a second until the events up to now have settled, and returns those that remain.
    pub fn finish(mut self, recorder: &Recorder, take: &mut dyn FnMut(&Tailed)) {
        let end = monotonic();
        std::thread::sleep(Duration::from_nanos(SETTLED as u64));
        self.read_before(recorder, end, take);
    }

    fn read_before(&mut self, recorder: &Recorder, settled: Ns, take: &mut dyn FnMut(&Tailed)) {
        let rings = recorder.rings(Ns::MAX);
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
