//! What a breach's machine did meanwhile: what ran on the CPUs of the thread that measured, and what kept that thread.
//!
//! The flight recorder runs with the session. Of a breach what was recorded meanwhile is copied: by the thread that measures
//! where that ends the run, else by another one, so that whoever measures goes on at once. After the run it is worked out.

use crate::breach::Happened;
use latpath_flight::{
    Doing, Missing, Names, Options, Recorder, Share, Since, Sleep, StartError, State, ThreadTile, Timeline, Window,
};
use latpath_model::Ns;
use serde::Serialize;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Breaches whose records are kept: the worst.
const MOST: usize = 20;
/// Between two looks.
const REST_NS: Ns = 10_000_000;
/// Rows of what ran on one CPU; the others are added up.
const ROWS: usize = 8;
/// The reflector's thread, by name: where both ends run on one kernel it is on the same timeline.
pub const REFLECTOR: &str = "ping-reflect";
/// Reflectors on one machine that are looked at.
const MOST_REFLECTORS: usize = 4;

/// A breach that is to be looked into.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What it was.
    pub happened: Happened,
    /// The thread that measured, by the kernel's number.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// T1 app, `CLOCK_MONOTONIC`.
    pub from: Ns,
    /// T4 app.
    pub to: Ns,
}

/// A breach that was looked into.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    /// The breach.
    #[serde(flatten)]
    pub happened: Happened,
    /// What went on.
    pub meanwhile: Meanwhile,
}

/// What went on between T1 app and T4 app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Meanwhile {
    /// From one to the other.
    pub window_ns: Ns,
    /// Nothing of it was overwritten before it could be read.
    pub complete: bool,
    /// The CPUs on which the threads below ran or for which they waited.
    pub cpus: Vec<CpuMeanwhile>,
    /// The emitter's thread; where a reflector runs on this machine, its thread too.
    pub threads: Vec<ThreadMeanwhile>,
}

/// What a CPU did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpuMeanwhile {
    /// Its number.
    pub cpu: u32,
    /// What it did, the longest first. They sum to the window.
    pub ran: Vec<Ran>,
}

/// A thread or an interrupt, with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ran {
    /// As it is shown: `rustc (18491)`, `irq 25 virtio0`, `idle`.
    pub what: String,
    /// The thread's number, where it is one.
    pub pid: Option<u32>,
    /// The thread's policy and priority: `FIFO 80`.
    pub class: Option<String>,
    /// How long.
    #[serde(rename = "time_ns")]
    pub ns: Ns,
}

/// Which end a thread is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It sent the probe and took the answer.
    Emitter,
    /// It is a reflector's on this machine.
    Reflector,
}

/// What a thread did. Its times sum to the window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadMeanwhile {
    /// As it is shown: `ping-0 (4711)`.
    pub thread: String,
    /// Its number.
    pub pid: u32,
    /// Which end's.
    pub role: Role,
    /// It ran.
    pub running_ns: Ns,
    /// It would have, but for interrupts.
    pub interrupted_ns: Ns,
    /// Which.
    pub interrupted_by: Vec<Ran>,
    /// It was ready, and did not run.
    pub ready_ns: Ns,
    /// Of that: its control group had used up its time.
    pub throttled_ns: Ns,
    /// What its CPU did instead.
    pub behind: Vec<Ran>,
    /// It waited for something to happen.
    pub asleep_ns: Ns,
    /// Who ended its longest sleep: a thread, or an interrupt.
    pub woken_by: Option<String>,
    /// It was stopped, by a signal or a debugger, or frozen.
    pub stopped_ns: Ns,
    /// Not known.
    pub unknown_ns: Ns,
}

/// Records, and looks into breaches.
pub struct Watcher {
    recorder: Arc<Mutex<Recorder>>,
    asked: SyncSender<Asked>,
    worker: JoinHandle<()>,
    kept: Arc<Kept>,
    missing: Vec<Missing>,
}

/// The worst breaches, with what was recorded meanwhile; worked out after the run, so that nobody waits for that.
#[derive(Default)]
struct Kept {
    windows: Mutex<Vec<(Asked, Window)>>,
    /// A round trip must be longer than this to be kept.
    least: AtomicI64,
    /// The next look, `CLOCK_MONOTONIC`.
    next: AtomicI64,
}

impl Kept {
    /// Whether a breach is to be looked into. The look takes time itself, and must not make the next breach.
    fn wants(&self, asked: &Asked) -> bool {
        asked.to - asked.from > self.least.load(Ordering::Relaxed) && asked.to >= self.next.load(Ordering::Relaxed)
    }

    fn keep(&self, asked: Asked, window: Window) {
        self.next.store(asked.to.saturating_add(REST_NS), Ordering::Relaxed);
        let took = |asked: &Asked| asked.to - asked.from;
        let mut windows = lock(&self.windows);
        windows.push((asked, window));
        if windows.len() > MOST {
            let least = (0..windows.len()).min_by_key(|at| took(&windows[*at].0));
            windows.swap_remove(least.unwrap_or(0));
        }
        if windows.len() == MOST {
            let least = windows.iter().map(|(asked, _)| took(asked)).min();
            self.least.store(least.unwrap_or(0), Ordering::Relaxed);
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watcher {
    /// Starts the recorder.
    ///
    /// # Errors
    /// Where this kernel or user cannot record.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        let recorder = Recorder::start(options)?;
        let missing = recorder.missing().to_vec();
        let (asked, to_do) = sync_channel::<Asked>(1);
        let (recorder, kept) = (Arc::new(Mutex::new(recorder)), Arc::new(Kept::default()));
        let worker = std::thread::Builder::new().name("ping-meanwhile".into());
        let worker = worker.spawn({
            let (recorder, kept) = (Arc::clone(&recorder), Arc::clone(&kept));
            move || {
                for asked in to_do {
                    let window = lock(&recorder).window(asked.from, asked.to);
                    kept.keep(asked, window);
                }
            }
        })?;
        Ok(Self { recorder, asked, worker, kept, missing })
    }

    /// What cannot be told on this kernel.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// A breach: called at once, by the thread that measures. With `at_once` it copies itself what was recorded, which takes
    /// some 0.1 ms, but nothing can be overwritten meanwhile; else it hands that over and does not wait.
    pub fn happened(&self, asked: Asked, at_once: bool) {
        if !self.kept.wants(&asked) {
            return;
        }
        if at_once {
            let window = lock(&self.recorder).window(asked.from, asked.to);
            self.kept.keep(asked, window);
        } else {
            // Where one is being looked into, this one is passed over.
            let _ = self.asked.try_send(asked);
        }
    }

    /// Stops recording. The worst breaches that were looked into, in the order of their times.
    pub fn end(self) -> Vec<Told> {
        drop(self.asked);
        self.worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut windows = std::mem::take(&mut *lock(&self.kept.windows));
        windows.sort_by_key(|(asked, _)| asked.to);
        let recorder = lock(&self.recorder);
        let names = recorder.names();
        let told = windows.into_iter().map(|(asked, window)| {
            let meanwhile = Meanwhile::of(&Timeline::of(&window), &names, &asked);
            Told { happened: asked.happened, meanwhile: Meanwhile { complete: window.is_complete(), ..meanwhile } }
        });
        told.collect()
    }
}

/// Time that nothing else takes: the row of a CPU, shown.
fn ran(shares: &[Share], names: &Names<'_>) -> Vec<Ran> {
    let show = |share: &Share| {
        let class = match share.doing {
            Doing::Thread(running) => running.class.map(|class| class.to_string()),
            _ => None,
        };
        Ran { what: names.of(&share.doing), pid: share.doing.thread(), class, ns: share.ns }
    };
    let mut rows: Vec<Ran> = shares.iter().take(ROWS).map(show).collect();
    if let Some(rest) = shares.get(ROWS..).filter(|rest| !rest.is_empty()) {
        let ns = rest.iter().map(|share| share.ns).sum();
        rows.push(Ran { what: format!("{} others", rest.len()), pid: None, class: None, ns });
    }
    rows
}

/// Adds up what is the same.
fn add(to: &mut Vec<Share>, shares: Vec<Share>) {
    for share in shares {
        let same = |s: &&mut Share| match (s.doing.thread(), share.doing.thread()) {
            (Some(a), Some(b)) => a == b,
            _ => s.doing == share.doing,
        };
        match to.iter_mut().find(same) {
            Some(sum) => sum.ns += share.ns,
            None => to.push(share),
        }
    }
    to.sort_by_key(|share| std::cmp::Reverse(share.ns));
}

impl Told {
    /// The other end is on another kernel: a reflector of this machine is somebody else's.
    pub fn on_another_kernel(&mut self) {
        self.meanwhile.threads.retain(|thread| thread.role == Role::Emitter);
    }
}

impl Meanwhile {
    /// What went on, from the rows of the machine it was on.
    pub fn of(timeline: &Timeline, names: &Names<'_>, asked: &Asked) -> Self {
        let emitter = emitter(names, asked);
        let row = timeline.thread(emitter);
        let reflectors = reflectors(timeline, names, emitter, &row);
        let mut rows = vec![(emitter, Role::Emitter, row)];
        rows.extend(reflectors.into_iter().map(|(pid, row)| (pid, Role::Reflector, row)));
        let mut cpus: Vec<u32> =
            rows.iter().flat_map(|(_, _, row)| row).filter_map(|tile| cpu_of(tile.state)).collect();
        cpus.sort_unstable();
        cpus.dedup();
        let cpu = |cpu| CpuMeanwhile { cpu, ran: self::ran(&timeline.shares(cpu, timeline.from, timeline.to), names) };
        Self {
            window_ns: timeline.to - timeline.from,
            complete: true,
            cpus: cpus.into_iter().map(cpu).collect(),
            threads: rows
                .iter()
                .map(|(pid, role, row)| ThreadMeanwhile::of(timeline, names, *pid, *role, row))
                .collect(),
        }
    }
}

/// The kernel's number of the emitter's thread: in a PID namespace that is not the one it has there.
fn emitter(names: &Names<'_>, asked: &Asked) -> u32 {
    let known = names.thread(asked.tid).is_some_and(|thread| thread.name == asked.name);
    match (known, &names.called(&asked.name)[..]) {
        (false, [only]) => *only,
        _ => asked.tid,
    }
}

/// The reflectors of this machine that ran meanwhile, with their rows. Of several, those that woke the emitter or that it woke:
/// between two namespaces a packet is received by the thread that sends it.
fn reflectors(timeline: &Timeline, names: &Names<'_>, emitter: u32, row: &[ThreadTile]) -> Vec<(u32, Vec<ThreadTile>)> {
    let ran = |row: &[ThreadTile]| row.iter().any(|tile| matches!(tile.state, State::Running { .. }));
    let woken_by = |row: &[ThreadTile], pid: u32| {
        row.iter().any(|tile| matches!(tile.state, State::Ready { since: Since::Woken(by), .. } if by.pid == pid))
    };
    let all = names.called(REFLECTOR).into_iter().map(|pid| (pid, timeline.thread(pid)));
    let mut all: Vec<_> = all.filter(|(_, row)| ran(row)).collect();
    let related = |(pid, theirs): &(u32, Vec<ThreadTile>)| woken_by(row, *pid) || woken_by(theirs, emitter);
    if all.iter().any(related) {
        all.retain(related);
    }
    all.truncate(MOST_REFLECTORS);
    all
}

fn cpu_of(state: State) -> Option<u32> {
    match state {
        State::Running { cpu } => Some(cpu),
        State::Ready { cpu, .. } => cpu,
        _ => None,
    }
}

impl ThreadMeanwhile {
    fn of(timeline: &Timeline, names: &Names<'_>, pid: u32, role: Role, row: &[ThreadTile]) -> Self {
        let mut of = Self {
            thread: names.of_thread(pid),
            pid,
            role,
            running_ns: 0,
            interrupted_ns: 0,
            interrupted_by: Vec::new(),
            ready_ns: 0,
            throttled_ns: 0,
            behind: Vec::new(),
            asleep_ns: 0,
            woken_by: None,
            stopped_ns: 0,
            unknown_ns: 0,
        };
        let (mut interrupts, mut behind, mut longest) = (Vec::new(), Vec::new(), 0);
        for (at, tile) in row.iter().enumerate() {
            let ns = tile.to - tile.from;
            match tile.state {
                State::Running { cpu } => {
                    let mut shares = timeline.shares(cpu, tile.from, tile.to);
                    shares.retain(|share| share.doing.interrupts());
                    let lost: Ns = shares.iter().map(|share| share.ns).sum();
                    of.interrupted_ns += lost;
                    of.running_ns += ns - lost;
                    add(&mut interrupts, shares);
                }
                State::Ready { cpu, throttled, .. } => {
                    of.ready_ns += ns;
                    of.throttled_ns += if throttled { ns } else { 0 };
                    let shares = cpu.map(|cpu| timeline.shares(cpu, tile.from, tile.to));
                    add(&mut behind, shares.unwrap_or_else(|| vec![Share { doing: Doing::Unknown, ns }]));
                }
                State::Asleep(Sleep::Stopped | Sleep::Traced | Sleep::Frozen) => of.stopped_ns += ns,
                State::Asleep(_) => {
                    of.asleep_ns += ns;
                    if ns > longest {
                        longest = ns;
                        of.woken_by = row.get(at + 1).and_then(|next| woken_by(next.state, names));
                    }
                }
                State::Unknown => of.unknown_ns += ns,
            }
        }
        (of.interrupted_by, of.behind) = (ran(&interrupts, names), ran(&behind, names));
        of
    }
}

/// Who, by what came after a sleep.
fn woken_by(state: State, names: &Names<'_>) -> Option<String> {
    let State::Ready { since: Since::Woken(waker), .. } = state else { return None };
    Some(match waker.context {
        context if context.interrupts() && waker.pid != 0 => {
            format!("{} in {}", names.of(&context), names.of_thread(waker.pid))
        }
        Doing::Unknown => names.of_thread(waker.pid),
        context => names.of(&context),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_flight::{Class, CpuRecord, Event, Left, Thread, What};

    const NORMAL: Class = Class { prio: 120, policy: 0 };
    const URGENT: Class = Class { prio: 19, policy: 1 };
    const ASLEEP: Left = Left::Asleep(Sleep::Interruptible);

    fn at(t: Ns, pid: u32, what: What) -> Event {
        Event { t, pid, what }
    }

    fn switch(t: Ns, pid: u32, left: Left, next: u32, next_class: Class) -> Event {
        at(t, pid, What::Switch { next, left, prev: NORMAL, next_class })
    }

    fn asked() -> Asked {
        let happened = Happened { session: 1, sequence: 8, round_trip_ns: None, parts: Vec::new(), longest: None };
        Asked { happened, tid: 7, name: "ping-0".into(), from: 100, to: 1000 }
    }

    fn names(threads: &[(u32, &str)]) -> Names<'static> {
        Names::new(threads.iter().map(|(pid, name)| (*pid, Thread { name: (*name).into(), tgid: *pid })))
    }

    /// The emitter (7) sends and sleeps, is woken by a softirq at 300, and waits for its CPU until 900 behind a hog (9).
    fn held_up() -> Window {
        let cpu0 = vec![
            switch(50, 0, ASLEEP, 7, NORMAL),
            switch(150, 7, ASLEEP, 9, URGENT),
            at(290, 9, What::SoftirqEntry(3)),
            at(300, 9, What::Waking { pid: 7, cpu: 0, class: NORMAL }),
            at(301, 9, What::Wakeup { pid: 7, cpu: 0, class: NORMAL, throttled: false }),
            at(310, 9, What::SoftirqExit(3)),
            at(900, 9, What::Switch { next: 7, left: ASLEEP, prev: URGENT, next_class: NORMAL }),
            at(920, 7, What::IrqEntry(25)),
            at(940, 7, What::IrqExit(25)),
        ];
        Window { from: 100, to: 1000, cpus: vec![CpuRecord { events: cpu0, ..CpuRecord::default() }] }
    }

    #[test]
    fn what_kept_the_emitter_is_named_and_sums_to_the_round_trip() {
        let names = names(&[(7, "ping-0"), (9, "hog")]);
        let meanwhile = Meanwhile::of(&Timeline::of(&held_up()), &names, &asked());
        let [thread] = &meanwhile.threads[..] else { panic!("{meanwhile:?}") };
        assert_eq!(
            (thread.running_ns, thread.interrupted_ns, thread.asleep_ns, thread.ready_ns),
            (50 + 80, 20, 150, 600)
        );
        let hog = Ran { what: "hog (9)".into(), pid: Some(9), class: Some("FIFO 80".into()), ns: 590 };
        assert_eq!(thread.behind[0], hog);
        assert_eq!(thread.behind.iter().map(|r| r.ns).sum::<Ns>(), thread.ready_ns);
        assert_eq!(thread.interrupted_by[0].what, "irq 25");
        assert_eq!(thread.woken_by.as_deref(), Some("softirq NET_RX in hog (9)"));
        let [cpu] = &meanwhile.cpus[..] else { panic!("{meanwhile:?}") };
        assert_eq!((cpu.cpu, cpu.ran.iter().map(|r| r.ns).sum::<Ns>()), (0, 900));
        assert_eq!(cpu.ran[0].what, "hog (9)");
    }

    #[test]
    fn a_reflector_that_ran_here_is_told_of_too() {
        let names = names(&[(7, "ping-0"), (9, REFLECTOR), (12, REFLECTOR)]);
        let meanwhile = Meanwhile::of(&Timeline::of(&held_up()), &names, &asked());
        let roles: Vec<_> = meanwhile.threads.iter().map(|t| (t.pid, t.role)).collect();
        assert_eq!(roles, [(7, Role::Emitter), (9, Role::Reflector)], "the other one did not run");
    }

    #[test]
    fn of_two_reflectors_it_is_the_one_that_woke_the_emitter() {
        let names = names(&[(7, "ping-0"), (9, REFLECTOR), (12, REFLECTOR)]);
        let threads = |before: &[Event]| {
            let mut events = before.to_vec();
            events.extend([switch(120, 0, ASLEEP, 12, NORMAL), switch(800, 12, ASLEEP, 0, NORMAL)]);
            let mut window = held_up();
            window.cpus.push(CpuRecord { cpu: 1, events, ..CpuRecord::default() });
            let threads = Meanwhile::of(&Timeline::of(&window), &names, &asked()).threads;
            threads.iter().map(|t| t.pid).collect::<Vec<_>>()
        };
        assert_eq!(threads(&[]), [7, 9]);
        // The thread on the CPU is the one that wakes.
        let waking = at(110, 0, What::Waking { pid: 12, cpu: 1, class: NORMAL });
        assert_eq!(threads(&[waking]), [7, 9], "an interrupt of the idle CPU woke it");
    }

    #[test]
    fn the_worst_are_kept_and_a_look_is_followed_by_a_rest() {
        let kept = Kept::default();
        let asked = |at: Ns, took: Ns| Asked { from: at, to: at + took, ..asked() };
        for n in 0..MOST as Ns {
            let one = asked(n * 2 * REST_NS, 1000 + n);
            assert!(kept.wants(&one));
            kept.keep(one, Window::default());
        }
        let later = 1000 * REST_NS;
        assert!(!kept.wants(&asked(later, 1000)), "as long as the least that is kept");
        assert!(kept.wants(&asked(later, 1001)));
        kept.keep(asked(later, 5000), Window::default());
        assert!(!kept.wants(&asked(later + 6000, 7000)), "too soon");
        let took: Vec<_> = lock(&kept.windows).iter().map(|(asked, _)| asked.to - asked.from).collect();
        assert!(took.len() == MOST && took.contains(&5000) && !took.contains(&1000), "{took:?}");
    }

    #[test]
    fn in_a_pid_namespace_the_thread_is_found_by_its_name() {
        let asked = Asked { tid: 3, ..asked() };
        let inside = names(&[(7, "ping-0"), (3, "kthreadd")]);
        assert_eq!(Meanwhile::of(&Timeline::of(&held_up()), &inside, &asked).threads[0].pid, 7);
    }

    #[test]
    fn what_is_not_known_is_not_left_out() {
        let empty = Timeline::of(&Window { from: 100, to: 1000, cpus: Vec::new() });
        let meanwhile = Meanwhile::of(&empty, &names(&[(7, "ping-0")]), &asked());
        assert_eq!((meanwhile.threads[0].unknown_ns, meanwhile.cpus.len()), (900, 0));
    }

    #[test]
    fn of_many_rows_the_least_are_added_up() {
        let share = |n| Share { doing: Doing::Irq(n), ns: Ns::from(20 - n) };
        let rows = ran(&(1..=10).map(share).collect::<Vec<_>>(), &names(&[]));
        assert_eq!((rows.len(), rows[8].what.as_str(), rows[8].ns), (9, "2 others", 11 + 10));
    }
}
