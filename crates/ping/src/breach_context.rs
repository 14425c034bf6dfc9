//! Context of a breach: which threads and interrupts ran on the CPUs of the emitter's thread during the round trip, and
//! what that thread was waiting for.
//!
//! The flight recorder runs during the session. On a breach, the recorder's thread copies the events of the round trip
//! while the measuring thread continues, unless the breach ends the run. The context is computed after the run.

use crate::breach::BreachedProbe;
use latpath_flight::{
    Doing, Figures, Missing, Names, Record, Recorder, RecorderThread, Share, Since, Sleep, Snapshot, StartError, State,
    ThreadTile, Timeline,
};
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};

/// Maximum number of breaches whose records are kept: those with the longest round trips.
const MAX: usize = 20;
/// Minimum time between two breaches whose records are copied, ns.
const REST_NS: Ns = 10_000_000;
/// Maximum number of rows per CPU; further rows are summed.
const ROWS: usize = 8;
/// Maximum number of threads named in the row of a process.
const THREADS: usize = 3;
/// Name of the reflector's thread, which is on the same timeline if both ends run on one kernel.
pub const REFLECTOR: &str = "ping-reflect";
/// Maximum number of reflectors on this machine that a context shows.
const MAX_REFLECTORS: usize = 4;

/// Request for the context of a breach.
#[derive(Clone, Debug)]
pub struct BreachRequest {
    /// The breached transaction.
    pub breach: BreachedProbe,
    /// TID of the measuring thread, in its own PID namespace.
    pub tid: u32,
    /// Name of the measuring thread.
    pub name: String,
    /// Time T1 app, `CLOCK_MONOTONIC`, ns.
    pub from: Ns,
    /// Time T4 app, `CLOCK_MONOTONIC`, ns.
    pub to: Ns,
}

/// A breached transaction, and its context if the flight recorder ran.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Breach {
    /// The breached transaction.
    #[serde(flatten)]
    pub probe: BreachedProbe,
    /// Activity of the emitter's machine; omitted if nothing was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<BreachContext>,
}

impl From<BreachedProbe> for Breach {
    fn from(probe: BreachedProbe) -> Self {
        Self { probe, context: None }
    }
}

/// Activity of the machine between T1 app and T4 app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BreachContext {
    /// Length of the window, ns.
    pub window_ns: Ns,
    /// Whether the record is complete, i.e. no event was overwritten before it was read.
    pub complete: bool,
    /// CPUs on which the threads below ran or waited to run.
    pub cpus: Vec<CpuActivity>,
    /// The emitter's thread, and the reflector's if it runs on this machine.
    pub threads: Vec<ThreadActivity>,
}

/// Activity of one CPU in the window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuActivity {
    /// Number of the CPU.
    pub cpu: u32,
    /// Activities, longest first. Their sum is the length of the window.
    pub ran: Vec<RunTime>,
}

/// Run time of a thread, of several threads of one process, or of an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunTime {
    /// Display name, e.g. `rustc (18491)`, `rustc (2 threads: opt cgu.1, opt cgu.2; 18491)`, `irq 25 virtio0`, `idle`.
    pub what: String,
    /// TID of the thread, or PID of the process for several threads; null for other activities, e.g. interrupts.
    pub pid: Option<u32>,
    /// Scheduling policy and priority, e.g. `FIFO 80`; for several threads, those of the thread that ran longest; null
    /// if unknown.
    pub class: Option<String>,
    /// Run time, ns.
    #[serde(rename = "time_ns")]
    pub ns: Ns,
}

/// Role of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sends probes and receives answers.
    #[default]
    Emitter,
    /// Answers probes, on this machine.
    Reflector,
}

/// Activity of a thread. The sum of its times is the length of the window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadActivity {
    /// Display name, e.g. `ping-0 (4711)`.
    pub thread: String,
    /// TID of the thread, in the initial PID namespace.
    pub pid: u32,
    /// Role of the thread.
    pub role: Role,
    /// Time running, ns.
    pub running_ns: Ns,
    /// Time taken by interrupts while the thread was current, ns.
    pub interrupted_ns: Ns,
    /// The interrupts, longest first.
    pub interrupted_by: Vec<RunTime>,
    /// Time ready to run but not running, ns.
    pub ready_ns: Ns,
    /// Part of the ready time during which the control group's quota was exhausted, ns.
    pub throttled_ns: Ns,
    /// Activities of the thread's CPU during the ready time.
    pub behind: Vec<RunTime>,
    /// Time asleep, ns.
    pub asleep_ns: Ns,
    /// Thread or interrupt that ended the longest sleep; null if unknown or without a sleep.
    pub woken_by: Option<String>,
    /// Time stopped by a signal or a debugger, or frozen, ns.
    pub stopped_ns: Ns,
    /// Time during which the state is unknown, because events are missing, ns.
    pub unknown_ns: Ns,
}

/// Records the activity of this machine, and keeps the records of the worst breaches. The contexts are computed after
/// the run, so that the measuring thread does not wait for them.
pub struct ContextRecorder {
    recording: Mutex<Recording>,
    missing: Vec<Missing>,
}

struct Recording {
    thread: RecorderThread,
    under_way: Option<BreachRequest>,
    kept: KeptBreaches,
}

/// The worst breaches so far.
#[derive(Default)]
struct KeptBreaches {
    breaches: Vec<(BreachRequest, Snapshot)>,
    /// A breach is kept only if its round trip took longer than this, ns.
    least: Ns,
    /// Earliest time for the next copy, `CLOCK_MONOTONIC` ns.
    next: Ns,
}

impl KeptBreaches {
    /// Whether to keep the context of a breach: only if its round trip is among the longest, and not soon after another
    /// breach, because copying takes CPU time, which must not cause the next breach.
    fn accepts(&self, request: &BreachRequest) -> bool {
        request.to - request.from > self.least && request.to >= self.next
    }

    fn keep(&mut self, request: BreachRequest, snapshot: Snapshot) {
        self.next = request.to.saturating_add(REST_NS);
        let took = |request: &BreachRequest| request.to - request.from;
        self.breaches.push((request, snapshot));
        if self.breaches.len() > MAX {
            let least = (0..self.breaches.len()).min_by_key(|at| took(&self.breaches[*at].0));
            self.breaches.swap_remove(least.unwrap_or(0));
        }
        if self.breaches.len() == MAX {
            self.least = self.breaches.iter().map(|(request, _)| took(request)).min().unwrap_or(0);
        }
    }
}

/// The recorder, which does not resolve names during the run.
struct RecorderWithoutNames(Recorder);

impl Record for RecorderWithoutNames {
    fn snapshot(&self, from: Ns, to: Ns) -> Snapshot {
        self.0.snapshot_of_threads(from, to)
    }

    fn figures(&self) -> Figures {
        self.0.figures()
    }
}

impl Recording {
    /// Collects the finished copy, if any; with `wait`, waits for a pending one.
    fn collect(&mut self, wait: bool) {
        while self.under_way.is_some() {
            let result = if wait { self.thread.wait().map(Some) } else { self.thread.result() };
            match (result, self.under_way.take()) {
                (Ok(Some((_, snapshot))), Some(request)) => self.kept.keep(request, snapshot),
                (Ok(None), request) => {
                    self.under_way = request;
                    return;
                }
                _ => return,
            }
        }
    }
}

impl ContextRecorder {
    /// Starts the recorder.
    ///
    /// # Errors
    /// If this kernel or user cannot record.
    pub fn start() -> Result<Self, StartError> {
        let recorder = Recorder::start(Recorder::BYTES_PER_CPU)?;
        let missing = recorder.missing();
        let thread = RecorderThread::start(Box::new(RecorderWithoutNames(recorder)), |snapshot| snapshot)?;
        Ok(Self {
            recording: Mutex::new(Recording { thread, under_way: None, kept: KeptBreaches::default() }),
            missing,
        })
    }

    /// Events that this kernel does not offer.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Handles a breach; the measuring thread calls this immediately. With `wait`, returns once the records are copied,
    /// after about 0.1 ms per CPU.
    pub fn breach(&self, request: BreachRequest, wait: bool) {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        recording.collect(false);
        // During a copy, further breaches are skipped, except for the one that ends the run.
        if !recording.kept.accepts(&request) || recording.under_way.is_some() && !wait {
            return;
        }
        recording.collect(wait);
        if recording.thread.request(0, request.from, request.to).is_ok() {
            recording.under_way = Some(request);
        }
        recording.collect(wait);
    }

    /// Stops recording and returns the worst breaches, in order of time.
    pub fn end(self) -> Vec<Breach> {
        let mut recording = self.recording.into_inner().unwrap_or_else(PoisonError::into_inner);
        recording.collect(true);
        let mut breaches = std::mem::take(&mut recording.kept.breaches);
        drop(recording);
        breaches.sort_by_key(|(request, _)| request.to);
        let explained = breaches.into_iter().map(|(request, mut snapshot)| {
            snapshot.add_names();
            let context = BreachContext::of(&Timeline::of(&snapshot.window), &snapshot.names(), &request);
            let complete = snapshot.window.is_complete();
            Breach { probe: request.breach, context: Some(BreachContext { complete, ..context }) }
        });
        explained.collect()
    }
}

/// Display rows of a CPU. Threads of one process share a row, except for vCPU threads in their guest.
fn ran(shares: &[Share], names: &Names) -> Vec<RunTime> {
    let process = |share: &Share| match share.doing {
        Doing::Thread(running) if !running.guest && running.work.is_none() => Some(names.thread(running.pid)?.tgid),
        _ => None,
    };
    let mut rows: Vec<(Option<u32>, Vec<&Share>)> = Vec::new();
    for share in shares {
        let of = process(share);
        match rows.iter_mut().find(|(process, _)| of.is_some() && *process == of) {
            Some((_, threads)) => threads.push(share),
            None => rows.push((of, vec![share])),
        }
    }
    let mut rows: Vec<RunTime> = rows.iter().map(|(process, shares)| row(*process, shares, names)).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.ns));
    if rows.len() > ROWS {
        let rest = rows.split_off(ROWS);
        let ns = rest.iter().map(|row| row.ns).sum();
        rows.push(RunTime { what: format!("{} others", rest.len()), pid: None, class: None, ns });
    }
    rows
}

/// The display row for the threads of a process, or for one thread or interrupt.
fn row(process: Option<u32>, shares: &[&Share], names: &Names) -> RunTime {
    let ns = shares.iter().map(|share| share.ns).sum();
    let class = shares.first().and_then(|share| match share.doing {
        Doing::Thread(running) => running.class.map(|class| class.to_string()),
        _ => None,
    });
    match (process, shares) {
        (Some(process), [_, _, ..]) => {
            let mut threads: Vec<String> = Vec::new();
            for thread in shares.iter().filter_map(|share| names.thread(share.doing.thread()?)) {
                if !threads.contains(&thread.name) {
                    threads.push(thread.name);
                }
            }
            let first = threads.first().cloned().unwrap_or_default();
            let name = names.thread(process).map_or(first, |thread| thread.name);
            threads.retain(|thread| *thread != name);
            let more = if threads.len() > THREADS { ", …" } else { "" };
            threads.truncate(THREADS);
            let of = if threads.is_empty() { String::new() } else { format!(": {}{more}", threads.join(", ")) };
            let what = format!("{name} ({} threads{of}; {process})", shares.len());
            RunTime { what, pid: Some(process), class, ns }
        }
        (_, [share, ..]) => RunTime { what: names.of(&share.doing), pid: share.doing.thread(), class, ns },
        (_, []) => RunTime { what: names.of(&Doing::Unknown), pid: None, class, ns },
    }
}

/// Adds shares; shares of the same activity are summed.
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

impl Breach {
    /// Removes the reflectors on this machine, because the peer runs on another kernel.
    pub fn on_another_kernel(&mut self) {
        if let Some(context) = &mut self.context {
            context.threads.retain(|thread| thread.role == Role::Emitter);
        }
    }
}

impl BreachContext {
    /// Computes the context from the machine's timeline.
    pub fn of(timeline: &Timeline, names: &Names, request: &BreachRequest) -> Self {
        let emitter = emitter(names, request);
        let row = timeline.thread(emitter);
        let reflectors = reflectors(timeline, names, emitter, &row);
        let mut rows = vec![(emitter, Role::Emitter, row)];
        rows.extend(reflectors.into_iter().map(|(pid, row)| (pid, Role::Reflector, row)));
        let mut cpus: Vec<u32> =
            rows.iter().flat_map(|(_, _, row)| row).filter_map(|tile| cpu_of(tile.state)).collect();
        cpus.sort_unstable();
        cpus.dedup();
        let cpu = |cpu| CpuActivity { cpu, ran: self::ran(&timeline.shares(cpu, timeline.from, timeline.to), names) };
        Self {
            window_ns: timeline.to - timeline.from,
            complete: true,
            cpus: cpus.into_iter().map(cpu).collect(),
            threads: rows
                .iter()
                .map(|(pid, role, row)| ThreadActivity::of(timeline, names, *pid, *role, row))
                .collect(),
        }
    }
}

/// TID of the emitter's thread in the initial PID namespace. In another PID namespace, the TID in the request differs,
/// so the thread is then looked up by its name.
fn emitter(names: &Names, request: &BreachRequest) -> u32 {
    let known = names.thread(request.tid).is_some_and(|thread| thread.name == request.name);
    match (known, &names.called(&request.name)[..]) {
        (false, [only]) => *only,
        _ => request.tid,
    }
}

/// The reflectors on this machine that ran during the round trip, with their rows. If there are several, those that
/// woke the emitter or were woken by it, if any: between two namespaces, the sending thread also receives the packet.
fn reflectors(timeline: &Timeline, names: &Names, emitter: u32, row: &[ThreadTile]) -> Vec<(u32, Vec<ThreadTile>)> {
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
    all.truncate(MAX_REFLECTORS);
    all
}

fn cpu_of(state: State) -> Option<u32> {
    match state {
        State::Running { cpu } => Some(cpu),
        State::Ready { cpu, .. } => cpu,
        _ => None,
    }
}

impl ThreadActivity {
    fn of(timeline: &Timeline, names: &Names, pid: u32, role: Role, row: &[ThreadTile]) -> Self {
        let mut of = Self { thread: names.of_thread(pid), pid, role, ..Self::default() };
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

/// Name of the waker, taken from the state that followed a sleep.
fn woken_by(state: State, names: &Names) -> Option<String> {
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
    use latpath_flight::{Class, CpuRecord, Event, EventKind, Left, Thread, Window};

    const NORMAL: Class = Class { prio: 120, policy: 0 };
    const URGENT: Class = Class { prio: 19, policy: 1 };
    const ASLEEP: Left = Left::Asleep(Sleep::Interruptible);

    fn at(t: Ns, pid: u32, what: EventKind) -> Event {
        Event { t, pid, what }
    }

    fn switch(t: Ns, pid: u32, left: Left, next: u32, next_class: Class) -> Event {
        at(t, pid, EventKind::Switch { next, left, prev: NORMAL, next_class })
    }

    fn request() -> BreachRequest {
        let breach =
            BreachedProbe { session: 1, sequence: 8, round_trip_ns: None, segments: Vec::new(), longest: None };
        BreachRequest { breach, tid: 7, name: "ping-0".into(), from: 100, to: 1000 }
    }

    fn names(threads: &[(u32, &str)]) -> Names {
        Names::new(threads.iter().map(|(pid, name)| (*pid, Thread { name: (*name).into(), tgid: *pid })))
    }

    /// The emitter (7) sends, sleeps, is woken by a softirq at 300, and waits for its CPU until 900 behind a hog (9).
    fn delayed() -> Window {
        let cpu0 = vec![
            switch(50, 0, ASLEEP, 7, NORMAL),
            switch(150, 7, ASLEEP, 9, URGENT),
            at(290, 9, EventKind::SoftirqEntry(3)),
            at(300, 9, EventKind::Waking { pid: 7, cpu: 0, class: NORMAL }),
            at(301, 9, EventKind::Wakeup { pid: 7, cpu: 0, class: NORMAL, throttled: false }),
            at(310, 9, EventKind::SoftirqExit(3)),
            at(900, 9, EventKind::Switch { next: 7, left: ASLEEP, prev: URGENT, next_class: NORMAL }),
            at(920, 7, EventKind::IrqEntry(25)),
            at(940, 7, EventKind::IrqExit(25)),
        ];
        Window { from: 100, to: 1000, cpus: vec![CpuRecord { events: cpu0, ..CpuRecord::default() }] }
    }

    #[test]
    fn activities_during_a_breach_are_named_and_sum_to_the_round_trip() {
        let names = names(&[(7, "ping-0"), (9, "hog")]);
        let context = BreachContext::of(&Timeline::of(&delayed()), &names, &request());
        let [thread] = &context.threads[..] else { panic!("{context:?}") };
        assert_eq!(
            (thread.running_ns, thread.interrupted_ns, thread.asleep_ns, thread.ready_ns),
            (50 + 80, 20, 150, 600)
        );
        let hog = RunTime { what: "hog (9)".into(), pid: Some(9), class: Some("FIFO 80".into()), ns: 590 };
        assert_eq!(thread.behind[0], hog);
        assert_eq!(thread.behind.iter().map(|r| r.ns).sum::<Ns>(), thread.ready_ns);
        assert_eq!(thread.interrupted_by[0].what, "irq 25");
        assert_eq!(thread.woken_by.as_deref(), Some("softirq NET_RX in hog (9)"));
        let [cpu] = &context.cpus[..] else { panic!("{context:?}") };
        assert_eq!((cpu.cpu, cpu.ran.iter().map(|r| r.ns).sum::<Ns>()), (0, 900));
        assert_eq!(cpu.ran[0].what, "hog (9)");
    }

    #[test]
    fn a_reflector_that_ran_here_is_shown_too() {
        let names = names(&[(7, "ping-0"), (9, REFLECTOR), (12, REFLECTOR)]);
        let context = BreachContext::of(&Timeline::of(&delayed()), &names, &request());
        let roles: Vec<_> = context.threads.iter().map(|t| (t.pid, t.role)).collect();
        assert_eq!(roles, [(7, Role::Emitter), (9, Role::Reflector)], "the other one did not run");
    }

    #[test]
    fn of_two_reflectors_the_one_that_woke_the_emitter_is_named() {
        let names = names(&[(7, "ping-0"), (9, REFLECTOR), (12, REFLECTOR)]);
        let threads = |before: &[Event]| {
            let mut events = before.to_vec();
            events.extend([switch(120, 0, ASLEEP, 12, NORMAL), switch(800, 12, ASLEEP, 0, NORMAL)]);
            let mut window = delayed();
            window.cpus.push(CpuRecord { cpu: 1, events, ..CpuRecord::default() });
            let threads = BreachContext::of(&Timeline::of(&window), &names, &request()).threads;
            threads.iter().map(|t| t.pid).collect::<Vec<_>>()
        };
        assert_eq!(threads(&[]), [7, 9]);
        // The waker is the context that was running on the CPU: here an interrupt of the idle CPU.
        let waking = at(110, 0, EventKind::Waking { pid: 12, cpu: 1, class: NORMAL });
        assert_eq!(threads(&[waking]), [7, 9], "an interrupt of the idle CPU woke it");
    }

    #[test]
    fn the_worst_are_kept_and_a_copy_is_followed_by_a_rest() {
        let mut kept = KeptBreaches::default();
        let breach = |at: Ns, took: Ns| BreachRequest { from: at, to: at + took, ..request() };
        for n in 0..MAX as Ns {
            let one = breach(n * 2 * REST_NS, 1000 + n);
            assert!(kept.accepts(&one));
            kept.keep(one, Snapshot::default());
        }
        let later = 1000 * REST_NS;
        assert!(!kept.accepts(&breach(later, 1000)), "as long as the least that is kept");
        assert!(kept.accepts(&breach(later, 1001)));
        kept.keep(breach(later, 5000), Snapshot::default());
        assert!(!kept.accepts(&breach(later + 6000, 7000)), "too soon");
        let took: Vec<_> = kept.breaches.iter().map(|(request, _)| request.to - request.from).collect();
        assert!(took.len() == MAX && took.contains(&5000) && !took.contains(&1000), "{took:?}");
    }

    #[test]
    fn in_a_pid_namespace_the_thread_is_found_by_its_name() {
        let request = BreachRequest { tid: 3, ..request() };
        let inside = names(&[(7, "ping-0"), (3, "kthreadd")]);
        assert_eq!(BreachContext::of(&Timeline::of(&delayed()), &inside, &request).threads[0].pid, 7);
    }

    #[test]
    fn unknown_stamps_are_not_omitted() {
        let empty = Timeline::of(&Window { from: 100, to: 1000, cpus: Vec::new() });
        let context = BreachContext::of(&empty, &names(&[(7, "ping-0")]), &request());
        assert_eq!((context.threads[0].unknown_ns, context.cpus.len()), (900, 0));
    }

    #[test]
    fn threads_of_one_process_share_a_row_and_a_vcpu_in_its_guest_has_its_own() {
        let thread = |pid, name: &str, tgid| (pid, Thread { name: name.into(), tgid });
        let names = Names::new([
            thread(20, "rustc", 20),
            thread(21, "opt cgu.1", 20),
            thread(22, "opt cgu.2", 20),
            thread(30, "hog", 30),
            thread(40, "qemu", 40),
            thread(41, "CPU 0/KVM", 40),
        ]);
        let share = |pid, guest, ns| {
            let running = latpath_flight::Running { pid, class: Some(NORMAL), guest, work: None };
            Share { doing: Doing::Thread(running), ns }
        };
        let shares = [
            share(30, false, 50),
            share(21, false, 40),
            share(41, true, 35),
            share(22, false, 30),
            share(40, false, 5),
        ];
        let rows: Vec<(String, Option<u32>, Ns)> =
            ran(&shares, &names).into_iter().map(|row| (row.what, row.pid, row.ns)).collect();
        let row = |what: &str, pid, ns| (what.to_owned(), Some(pid), ns);
        assert_eq!(
            rows,
            [
                row("rustc (2 threads: opt cgu.1, opt cgu.2; 20)", 20, 70),
                row("hog (30)", 30, 50),
                row("CPU 0/KVM (41) in its guest", 41, 35),
                row("qemu (40)", 40, 5),
            ]
        );
    }

    #[test]
    fn the_smallest_of_many_rows_are_summed() {
        let share = |n| Share { doing: Doing::Irq(n), ns: Ns::from(20 - n) };
        let rows = ran(&(1..=10).map(share).collect::<Vec<_>>(), &names(&[]));
        assert_eq!((rows.len(), rows[8].what.as_str(), rows[8].ns), (9, "2 others", 11 + 10));
    }
}
