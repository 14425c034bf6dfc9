//! Reads the rings while the kernel writes to them.

use crate::event::Event;
use crate::layout::{Head, RawEvent};
use latpath_bpf::Mapped;
use latpath_model::Ns;
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};

/// Maximum time to wait for an event that is being written: its writer may be a preempted virtual CPU.
const PATIENCE: Duration = Duration::from_micros(200);

/// Number of events read before the window: they show which threads ran and slept at its beginning.
const BEFORE: usize = 4096;
/// Number of events read after the window: the next switch identifies a thread that ran throughout.
const BEHIND: usize = 256;

/// Events of all CPUs within an interval, and some before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// `CLOCK_MONOTONIC`, ns.
    pub from: Ns,
    /// Exclusive.
    pub to: Ns,
    /// The record of each CPU.
    pub cpus: Vec<CpuRecord>,
}

impl Window {
    /// Whether all events of every CPU in the window are present.
    pub fn is_complete(&self) -> bool {
        self.cpus.iter().all(|cpu| cpu.is_complete(self.from))
    }
}

/// The events of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuRecord {
    /// The CPU.
    pub cpu: u32,
    /// Events in order of time, including some before the window, which show the state at its beginning, and a few
    /// after it.
    pub events: Vec<Event>,
    /// Time since which all events are present, except `unfinished` ones.
    pub since: Ns,
    /// Number of events overwritten since the recorder's start.
    pub overwritten: u64,
    /// Number of events that were being written when they were read.
    pub unfinished: u64,
}

impl CpuRecord {
    /// Whether all events from this time on are present.
    pub fn is_complete(&self, from: Ns) -> bool {
        self.since <= from && self.unfinished == 0
    }
}

/// Events of a CPU's ring since the previous read, and the position at which to continue.
pub(crate) struct ReadOn {
    /// Events in the order in which they were written.
    pub events: Vec<Event>,
    /// Number of events overwritten before they were read.
    pub lost: u64,
    pub next: u64,
}

/// The rings: memory to which the kernel writes.
pub(crate) struct Rings<'a> {
    pub ring: &'a Mapped<RawEvent>,
    pub heads: &'a Mapped<Head>,
    pub cpus: usize,
    pub shift: u32,
    /// When all programs were attached.
    pub started: Ns,
    /// When the first program was detached.
    pub until: Ns,
}

impl Rings<'_> {
    fn head(&self, cpu: usize) -> u64 {
        let head = self.heads.field::<u64>(cpu, 0);
        fence(Ordering::Acquire);
        head
    }

    /// Position of a CPU's next event.
    pub fn next(&self, cpu: usize) -> u64 {
        self.head(cpu)
    }

    /// Number of events of a CPU so far.
    pub fn written(&self, cpu: usize) -> u64 {
        self.head(cpu).saturating_sub(1 << self.shift)
    }

    /// Reads a complete event; `None` if it is not complete at `until`.
    fn event(&self, cpu: usize, at: u64, until: Instant) -> Option<RawEvent> {
        let place = (cpu << self.shift) + (at & ((1 << self.shift) - 1)) as usize;
        loop {
            let raw = self.ring.get(place);
            fence(Ordering::Acquire);
            if raw.generation == (at >> self.shift) as u16 {
                // The generation is written last, but may have been read before the rest: read the event again.
                return Some(self.ring.get(place));
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Approximate time of an event, which may be in progress.
    fn time(&self, cpu: usize, at: u64) -> Ns {
        let place = (cpu << self.shift) + (at & ((1 << self.shift) - 1)) as usize;
        self.ring.field::<u64>(place, 0) as Ns
    }

    /// Positions of a window's events, with some before and after it, among those still in the ring.
    fn places(&self, cpu: usize, all: std::ops::Range<u64>, from: Ns, to: Ns) -> std::ops::Range<u64> {
        // Search backward, because recent windows are most common.
        let (mut begin, mut end, mut before) = (all.start, all.end, 0);
        for at in all.clone().rev() {
            let t = self.time(cpu, at);
            if t >= to {
                end = at;
            }
            before += usize::from(t < from);
            if before == BEFORE {
                begin = at;
                break;
            }
        }
        begin..(end + BEHIND as u64).min(all.end).max(begin)
    }

    /// Reads all of a CPU's complete events from a position on.
    pub fn read_on(&self, cpu: usize, next: u64) -> ReadOn {
        let size = 1u64 << self.shift;
        let next = next.max(size);
        let head = self.head(cpu);
        let first = next.max(head.saturating_sub(size));
        let until = Instant::now() + PATIENCE;
        // An event that is still being written, and those after it, are read the next time.
        let raws: Vec<RawEvent> = (first..head).map_while(|at| self.event(cpu, at, until)).collect();
        fence(Ordering::Acquire);
        let gone = (self.head(cpu).saturating_sub(size).saturating_sub(first) as usize).min(raws.len());
        let events = raws[gone..].iter().map(RawEvent::decode).collect();
        ReadOn { events, lost: first - next + gone as u64, next: first + raws.len() as u64 }
    }

    /// Reads the part of an interval that is still in a CPU's ring.
    pub fn read(&self, cpu: usize, from: Ns, to: Ns) -> CpuRecord {
        if cpu >= self.cpus {
            // The CPU came online after the recorder was started, so it has no ring.
            let overwritten = self.written(cpu);
            return CpuRecord { cpu: cpu as u32, since: Ns::MAX, overwritten, ..CpuRecord::default() };
        }
        let size = 1u64 << self.shift;
        let head = self.head(cpu);
        let oldest_place = head.saturating_sub(size).max(size);
        let places = self.places(cpu, oldest_place..head, from, to);
        // Read the oldest events first, because they are overwritten next.
        let (first, head) = (places.start, places.end);
        let until = Instant::now() + PATIENCE;
        let mut events = Vec::with_capacity((head.saturating_sub(first)) as usize);
        let mut raws: Vec<Option<RawEvent>> = Vec::with_capacity(events.capacity());
        raws.extend((first..head).map(|at| self.event(cpu, at, until)));
        fence(Ordering::Acquire);
        // Writers advance the head before they write, so the head limits what may have been overwritten during the
        // read.
        let gone = (self.head(cpu).saturating_sub(size).saturating_sub(first) as usize).min(raws.len());
        let kept = &raws[gone..];
        events.extend(kept.iter().flatten().map(RawEvent::decode));
        let overwritten = (oldest_place - size).max(self.head(cpu).saturating_sub(size).saturating_sub(size));
        let is_all = first + gone as u64 == size;
        let oldest = events.first().map(|e: &Event| e.t);
        // Events from before all programs were attached are dropped: some ends were recorded without a beginning.
        events.retain(|e| e.t >= self.started && e.t < self.until);
        // An interrupt's event may precede the event that it interrupted.
        events.sort_by_key(|e| e.t);
        CpuRecord {
            cpu: cpu as u32,
            since: match (is_all, oldest) {
                (true, _) => self.started,
                (_, Some(oldest)) => oldest.max(self.started),
                (_, None) => Ns::MAX,
            },
            overwritten,
            unfinished: kept.iter().filter(|raw| raw.is_none()).count() as u64,
            events,
        }
    }
}
