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
    /// Equals the next tile's `from`.
    pub to: Ns,
    /// The state.
    pub state: State,
}

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The thread was on this CPU. Interrupts may have taken part of the time: see the CPU's timeline.
    Running {
        /// The CPU.
        cpu: u32,
    },
    /// Ready, but not running.
    Ready {
        /// The CPU that it waited for, if known.
        cpu: Option<u32>,
        /// How it became ready.
        since: Since,
        /// Whether its control group had exhausted its quota.
        throttled: bool,
    },
    /// Asleep.
    Asleep(Sleep),
    /// Unknown.
    Unknown,
}

/// How a thread became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// A thread or an interrupt woke it.
    Woken(Waker),
    /// Another thread took its CPU.
    Preempted,
    /// It yielded the CPU.
    Yielded,
    /// Unknown.
    Unknown,
}

/// The waker of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waker {
    /// Time of the wakeup, `CLOCK_MONOTONIC`, ns.
    pub t: Ns,
    /// CPU of the wakeup.
    pub cpu: u32,
    /// The thread that was running there. It is not the cause if an interrupt woke the thread.
    pub pid: u32,
    /// The waking context: thread `pid`, or an interrupt of any kind.
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
    /// All CPUs' events in order of time, each with the index of its CPU in `cpus`.
    events: Vec<(Event, usize)>,
    /// Time since which each CPU's record is complete.
    since: Vec<Ns>,
    /// Time from which all records are complete, disregarding CPUs without a record, which make the window incomplete.
    horizon: Ns,
}

impl Timeline {
    /// Builds the timelines of a window. They are contiguous even if the events are malicious.
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

/// The part of a timeline within an interval; missing parts are filled with unknown tiles.
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
    /// Time at which the thread was last seen on its CPU.
    seen: Ns,
    /// Start of its state; the cursor may be later.
    changed: Ns,
    /// The waker that has begun to wake the thread but not finished, and the CPU on which the thread last ran.
    woken: Option<(Waker, u32)>,
}

impl Fold {
    fn until(&mut self, t: Ns) {
        if let Some(state) = self.state.filter(|_| t > self.cursor) {
            self.tiles.push(ThreadTile { from: self.cursor, to: t, state });
        }
        self.cursor = self.cursor.max(t);
    }

    /// Changes the state. At the thread's first event, the state was `before` since `since`, the time from which no
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
            // The switch away from the thread was missed: it left the CPU at some time after it was last seen there.
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
                    // It was woken while about to sleep, so it does not sleep: it is ready, until a CPU runs it.
                    Left::Asleep(sleep) => match self.woken {
                        Some((waker, target)) => {
                            State::Ready { cpu: Some(target), since: Since::Woken(waker), throttled: false }
                        }
                        None => State::Asleep(sleep),
                    },
                };
                // The CPU has not switched threads before, so the thread has run here since the beginning of the
                // record.
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
                    // Its wakeup was not seen, so it happened before `horizon`; the thread has been ready since then.
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
                    // It has not slept yet. If it still does, the wakeup follows the switch.
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
            // Each event on a CPU contains the running thread.
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
