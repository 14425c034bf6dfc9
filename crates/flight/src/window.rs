//! Reading the rings while they are written to.

use crate::event::Event;
use crate::layout::{Head, RawEvent};
use latpath_bpf::Mapped;
use latpath_model::Ns;
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};

/// Maximum wait for an event that is being written. Its writer may have lost its CPU, if that is a virtual one.
const PATIENCE: Duration = Duration::from_micros(200);

/// Events before a window that are read too: they show which threads ran and slept when it began.
const BEFORE: usize = 4096;
/// Events after the window that are read too: the next switch identifies a thread that ran throughout.
const BEHIND: usize = 256;

/// Events of all CPUs within a time, and some before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// `CLOCK_MONOTONIC`.
    pub from: Ns,
    /// Exclusive.
    pub to: Ns,
    pub cpus: Vec<CpuRecord>,
}

impl Window {
    /// Whether all events of every CPU in this time are present.
    pub fn is_complete(&self) -> bool {
        self.cpus.iter().all(|cpu| cpu.is_complete(self.from))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuRecord {
    pub cpu: u32,
    /// In the order of their times; also some before the window, which show the state when it began, and a few
    /// after it.
    pub events: Vec<Event>,
    /// From then on all events are present, apart from `unfinished`.
    pub since: Ns,
    /// Events that are not there any more, since the recorder began.
    pub overwritten: u64,
    /// Events that were still being written when they were read.
    pub unfinished: u64,
}

impl CpuRecord {
    /// Whether all events from this time on are present.
    pub fn is_complete(&self, from: Ns) -> bool {
        self.since <= from && self.unfinished == 0
    }
}

/// What a CPU's ring has had since the last time that it was read.
pub(crate) struct ReadOn {
    /// In the order in which they were written.
    pub events: Vec<Event>,
    /// Overwritten before they were read.
    pub lost: u64,
    pub next: u64,
}

/// The rings: memory that the kernel writes to.
pub(crate) struct Rings<'a> {
    pub ring: &'a Mapped<RawEvent>,
    pub heads: &'a Mapped<Head>,
    pub cpus: usize,
    pub shift: u32,
    /// When all programs were attached.
    pub started: Ns,
    /// When the first of them was detached.
    pub until: Ns,
}

impl Rings<'_> {
    fn head(&self, cpu: usize) -> u64 {
        let head = self.heads.field::<u64>(cpu, 0);
        fence(Ordering::Acquire);
        head
    }

    /// The place of a CPU's next event.
    pub fn next(&self, cpu: usize) -> u64 {
        self.head(cpu)
    }

    /// Events of a CPU so far.
    pub fn written(&self, cpu: usize) -> u64 {
        self.head(cpu).saturating_sub(1 << self.shift)
    }

    /// A whole event, if it is written within some time.
    fn event(&self, cpu: usize, at: u64, until: Instant) -> Option<RawEvent> {
        let place = (cpu << self.shift) + (at & ((1 << self.shift) - 1)) as usize;
        loop {
            let raw = self.ring.get(place);
            fence(Ordering::Acquire);
            if raw.generation == (at >> self.shift) as u16 {
                // The generation was the last of it to be written, and may have been the first to be read.
                return Some(self.ring.get(place));
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// When an event was, as far as that can be seen at a glance.
    fn time(&self, cpu: usize, at: u64) -> Ns {
        let place = (cpu << self.shift) + (at & ((1 << self.shift) - 1)) as usize;
        self.ring.field::<u64>(place, 0) as Ns
    }

    /// The places of a window's events, with some before and behind, among those that the ring has.
    fn places(&self, cpu: usize, all: std::ops::Range<u64>, from: Ns, to: Ns) -> std::ops::Range<u64> {
        // Backwards, since the latest are asked for most.
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

    /// All of a CPU's events from a place on, as far as they are written by now.
    pub fn read_on(&self, cpu: usize, next: u64) -> ReadOn {
        let size = 1u64 << self.shift;
        let next = next.max(size);
        let head = self.head(cpu);
        let first = next.max(head.saturating_sub(size));
        let until = Instant::now() + PATIENCE;
        // Events that are being written are read the next time.
        let raws: Vec<RawEvent> = (first..head).map_while(|at| self.event(cpu, at, until)).collect();
        fence(Ordering::Acquire);
        let gone = (self.head(cpu).saturating_sub(size).saturating_sub(first) as usize).min(raws.len());
        let events = raws[gone..].iter().map(RawEvent::decode).collect();
        ReadOn { events, lost: first - next + gone as u64, next: first + raws.len() as u64 }
    }

    /// What a CPU's ring still has of a time.
    pub fn read(&self, cpu: usize, from: Ns, to: Ns) -> CpuRecord {
        if cpu >= self.cpus {
            // It came online after the recorder had begun.
            let overwritten = self.written(cpu);
            return CpuRecord { cpu: cpu as u32, since: Ns::MAX, overwritten, ..CpuRecord::default() };
        }
        let size = 1u64 << self.shift;
        let head = self.head(cpu);
        let oldest_place = head.saturating_sub(size).max(size);
        let places = self.places(cpu, oldest_place..head, from, to);
        // The oldest goes first: it is the next to be overwritten.
        let (first, head) = (places.start, places.end);
        let until = Instant::now() + PATIENCE;
        let mut events = Vec::with_capacity((head.saturating_sub(first)) as usize);
        let mut raws: Vec<Option<RawEvent>> = Vec::with_capacity(events.capacity());
        raws.extend((first..head).map(|at| self.event(cpu, at, until)));
        fence(Ordering::Acquire);
        // Who takes a place first moves the head: what may have been written over while it was read is known by it.
        let gone = (self.head(cpu).saturating_sub(size).saturating_sub(first) as usize).min(raws.len());
        let kept = &raws[gone..];
        events.extend(kept.iter().flatten().map(RawEvent::decode));
        let overwritten = (oldest_place - size).max(self.head(cpu).saturating_sub(size).saturating_sub(size));
        let is_all = first + gone as u64 == size;
        let oldest = events.first().map(|e: &Event| e.t);
        // Before all programs were attached, some recorded ends without a begin.
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
