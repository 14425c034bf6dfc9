//! The timeline of a thread: contiguous tiles.

use crate::cpu::{CpuTimeline, Doing, Share};
use crate::event::{Event, EventKind, Left, Sleep};
use crate::window::Window;
use latpath_model::Ns;

/// An interval in which a thread was in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTile {
    /// `CLOCK_MONOTONIC`, ns.
    pub from: Ns,
    /// The next tile's `from`.
    pub to: Ns,
    /// The state.
    pub state: State,
}

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It had this CPU. Interrupts may have taken part of the time: see the CPU's timeline.
    Running {
        /// The CPU.
        cpu: u32,
    },
    /// Ready, but not running.
    Ready {
        /// The CPU for which it waited, if known.
        cpu: Option<u32>,
        /// The reason for waiting.
        since: Since,
        /// Its control group had exhausted its quota.
        throttled: bool,
    },
    /// Asleep.
    Asleep(Sleep),
    /// Unknown.
    Unknown,
}

/// The event since which a thread has been ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// It was woken.
    Woken(Waker),
    /// Another thread took its CPU.
    Preempted,
    /// It yielded.
    Yielded,
    /// Unknown.
    Unknown,
}

/// The waker of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waker {
    /// Time of the wakeup, `CLOCK_MONOTONIC`, ns.
    pub t: Ns,
    /// The CPU.
    pub cpu: u32,
    /// The thread that ran there; not the cause if an interrupt woke the thread.
    pub pid: u32,
    /// The waking context: that thread, or an interrupt of any kind.
    pub context: Doing,
}

/// The timelines of all CPUs, and the events from which timelines of threads are derived.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Start of the window.
    pub from: Ns,
    /// End of the window.
    pub to: Ns,
    /// A timeline per CPU with events.
    pub cpus: Vec<CpuTimeline>,
    /// All CPUs' events in order of time, each with its CPU's index in `cpus`.
    events: Vec<(Event, usize)>,
    /// Time since which each CPU's record is complete.
    since: Vec<Ns>,
    /// Time since which all records are complete, except CPUs without a record: then the window is incomplete.
    horizon: Ns,
}

impl Timeline {
    /// The timelines of a window. Timelines are contiguous even for hostile events.
    pub fn of(window: &Window) -> Self {
        let rows = |place: usize| window.cpus[place].events.iter().map(move |e| (*e, place));
        let mut events: Vec<_> = (0..window.cpus.len()).flat_map(rows).collect();
        events.sort_by_key(|(e, _)| e.t);
        let since: Vec<Ns> = window.cpus.iter().map(|record| record.since).collect();
        Self {
            from: window.from,
            to: window.to,
            cpus: window.cpus.iter().map(|record| CpuTimeline::of(record, window.to)).collect(),
            events,
            horizon: since.iter().copied().filter(|since| *since != Ns::MAX).max().unwrap_or(Ns::MAX),
            since,
        }
    }

    /// The timeline of a CPU.
    pub fn cpu(&self, cpu: u32) -> Option<&CpuTimeline> {
        self.cpus.iter().find(|row| row.cpu == cpu)
    }

    /// The timeline of a thread, from exactly the window's `from` to exactly its `to`.
    pub fn thread(&self, pid: u32) -> Vec<ThreadTile> {
        let mut fold =
            Fold { pid, tiles: Vec::new(), cursor: Ns::MIN, state: None, woken: None, seen: Ns::MIN, changed: Ns::MAX };
        for (event, place) in self.events.iter().take_while(|(e, _)| e.t < self.to) {
            fold.event(self, event, *place);
        }
        fold.until(self.to);
        cut(&fold.tiles, self.from, self.to)
    }

    /// Total time per activity of a CPU in an interval, longest first.
    pub fn shares(&self, cpu: u32, from: Ns, to: Ns) -> Vec<Share> {
        self.cpu(cpu).map_or(Vec::new(), |row| row.shares(from, to))
    }
}

/// The part of a timeline within an interval; missing parts are unknown.
fn cut(tiles: &[ThreadTile], from: Ns, to: Ns) -> Vec<ThreadTile> {
    let mut found: Vec<ThreadTile> = Vec::new();
    let mut push = |tile: ThreadTile| match found.last_mut() {
        Some(last) if last.state == tile.state => last.to = tile.to,
        _ => found.push(tile),
    };
    let mut cursor = from;
    for tile in tiles.iter().filter(|tile| tile.to > from && tile.from < to) {
        let tile = ThreadTile { from: tile.from.max(from), to: tile.to.min(to), ..*tile };
        if tile.from > cursor {
            push(ThreadTile { from: cursor, to: tile.from, state: State::Unknown });
        }
        cursor = tile.to;
        push(tile);
    }
    if cursor < to {
        push(ThreadTile { from: cursor, to, state: State::Unknown });
    }
    found
}

struct Fold {
    pid: u32,
    tiles: Vec<ThreadTile>,
    cursor: Ns,
    /// `None` until the first event that shows it.
    state: Option<State>,
    /// Time at which it was last seen on its CPU.
    seen: Ns,
    /// Start of its state; the cursor may be later.
    changed: Ns,
    /// A waker that has begun and not finished to wake it, and the CPU.
    woken: Option<(Waker, u32)>,
}

impl Fold {
    fn until(&mut self, t: Ns) {
        if let Some(state) = self.state.filter(|_| t > self.cursor) {
            self.tiles.push(ThreadTile { from: self.cursor, to: t, state });
        }
        self.cursor = self.cursor.max(t);
    }

    /// Changes the state. At the first event, the state `before` is valid back to `since`, the last time at which no
    /// event can be missing.
    fn becomes(&mut self, t: Ns, state: State, before: State, since: Ns) {
        if self.state.is_none() {
            (self.state, self.cursor) = (Some(before), since);
        }
        if self.state != Some(state) {
            self.until(t);
            self.state = Some(state);
            self.changed = t;
        }
    }

    fn event(&mut self, timeline: &Timeline, event: &Event, place: usize) {
        let (t, cpu) = (event.t, timeline.cpus[place].cpu);
        let running = State::Running { cpu };
        let unknown = State::Ready { cpu: None, since: Since::Unknown, throttled: false };
        let asleep = State::Asleep(Sleep::Unknown);
        let (here, horizon) = (timeline.since[place], timeline.horizon);
        let names_a_thread = !matches!(event.what, EventKind::Nmi { .. });
        if names_a_thread && self.state == Some(running) && event.pid != self.pid {
            // Its switch was missed: it left at some time since.
            self.until(self.seen.min(t));
            self.state = Some(State::Unknown);
        }
        match event.what {
            EventKind::Switch { left, .. } if event.pid == self.pid => {
                let state = match left {
                    Left::Ready { preempted, throttled } => State::Ready {
                        cpu: Some(cpu),
                        since: if preempted { Since::Preempted } else { Since::Yielded },
                        throttled,
                    },
                    // It was woken while about to sleep, and does not sleep: it only waits until its CPU notices.
                    Left::Asleep(sleep) => match self.woken {
                        Some((waker, target)) => {
                            State::Ready { cpu: Some(target), since: Since::Woken(waker), throttled: false }
                        }
                        None => State::Asleep(sleep),
                    },
                };
                // It has run here since the beginning, as the CPU has not switched before.
                self.becomes(t, running, running, here);
                self.becomes(t, state, running, here);
            }
            EventKind::Switch { next, .. } if next == self.pid => {
                self.woken = None;
                if let Some(State::Ready { cpu: waits_for @ None, .. }) = &mut self.state {
                    *waits_for = Some(cpu);
                }
                let before = State::Ready { cpu: Some(cpu), since: Since::Unknown, throttled: false };
                if matches!(self.state, Some(State::Asleep(_))) && self.changed < horizon.min(t) {
                    // Its wakeup was not seen, so it precedes the beginning of all CPUs' records; it has been ready
                    // since then.
                    self.state = Some(State::Unknown);
                    self.until(horizon.min(t));
                    self.state = Some(before);
                }
                self.becomes(t, running, before, horizon);
            }
            EventKind::Waking { pid, cpu: target, .. } if pid == self.pid => {
                let context = timeline.cpus[place].at(t);
                let waker = Waker { t, cpu, pid: event.pid, context };
                self.woken = Some((waker, target));
                match self.state {
                    // It had not slept yet. If it still does, the wakeup follows its switch.
                    Some(State::Running { .. } | State::Ready { .. }) => {}
                    _ => {
                        let ready = State::Ready { cpu: Some(target), since: Since::Woken(waker), throttled: false };
                        self.becomes(t, ready, asleep, horizon);
                    }
                }
            }
            EventKind::Wakeup { pid, cpu: target, throttled, .. } if pid == self.pid => {
                let since = self.woken.take().map_or(Since::Unknown, |(waker, _)| Since::Woken(waker));
                match &mut self.state {
                    Some(State::Running { .. }) => {}
                    Some(State::Ready { cpu, throttled: held, .. }) => {
                        (*cpu, *held) = (Some(target), *held || throttled)
                    }
                    _ => self.becomes(t, State::Ready { cpu: Some(target), since, throttled }, asleep, horizon),
                }
            }
            EventKind::Migrate { pid, to, .. } if pid == self.pid => match self.state {
                Some(State::Ready { since, throttled, .. }) => {
                    self.becomes(t, State::Ready { cpu: Some(to), since, throttled }, unknown, horizon);
                }
                None => (self.state, self.cursor) = (Some(State::Unknown), t),
                _ => {}
            },
            // Each event on a CPU shows the running thread.
            _ if event.pid == self.pid && names_a_thread => {
                self.becomes(t, running, running, here);
            }
            _ => {}
        }
        if self.state == Some(running) {
            self.seen = t;
        }
    }
}
