//! The record of one machine on the host's timeline, indexed for queries.

use crate::{irq_interval::IrqIntervals, no_flow::shifted, Executor, Note};
use latpath_capture::MachineSnapshot;
use latpath_flight::{
    Class, CpuRecord, CpuTile, Doing, EventKind, FlowLimits, Names, Running, Snapshot, ThreadTile, Timeline, Upcall,
    Waker, Window,
};
use latpath_model::Ns;
use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    rc::Rc,
};

/// A machine of the capture. All times are on the host's timeline.
pub(crate) struct Machine {
    pub name: String,
    pub error_bound: Ns,
    /// Why there is no record; `None` if there is one.
    pub without: Option<String>,
    /// Whether the record contains wakers, for which the kernel must have the tracepoints.
    pub records_wakers: bool,
    /// IDs of threads whose guest entries and exits are recorded.
    records_guest_exits: HashSet<u32>,
    timeline: Timeline,
    records: Vec<CpuRecord>,
    irq_intervals: Vec<IrqIntervals>,
    pub names: Names,
    /// Upcalls of Open vSwitch.
    pub upcalls: Vec<Upcall>,
    pub flow_limits: Option<FlowLimits>,
    /// Scheduling classes of each thread, each with the time from which it applies.
    classes: HashMap<u32, Vec<(Ns, Class)>>,
    /// Intervals of direct reclaim, by thread ID.
    reclaims: HashMap<u32, Vec<(Ns, Ns)>>,
    rows: RefCell<HashMap<u32, Rc<[ThreadTile]>>>,
}

/// Shifts a time to the host's timeline.
fn own_time(t: Ns, offset: Ns) -> Ns {
    if t == Ns::MAX {
        t
    } else {
        t.saturating_sub(offset)
    }
}

/// Shifts a window to the host's timeline, and extends it back to its earliest event.
fn on_hosts_timeline(window: &Window, offset: Ns) -> Window {
    let own = |t: Ns| own_time(t, offset);
    let record = |cpu: &CpuRecord| {
        let mut record = cpu.clone();
        record.since = own(record.since);
        record.events.iter_mut().for_each(|event| event.t = own(event.t));
        record
    };
    let cpus: Vec<CpuRecord> = window.cpus.iter().map(record).collect();
    let first = cpus.iter().map(|cpu| cpu.since).min().unwrap_or(Ns::MAX);
    Window { from: own(window.from).min(first), to: own(window.to), cpus }
}

impl Machine {
    pub fn new(record: &MachineSnapshot) -> Self {
        let nothing = Snapshot::default();
        let (snapshot, without) = match &record.record {
            Ok(snapshot) => (snapshot, None),
            Err(why) => (&nothing, Some(why.clone())),
        };
        let window = on_hosts_timeline(&snapshot.window, record.offset_ns);
        let timeline = Timeline::of(&window);
        let mut classes: HashMap<u32, Vec<(Ns, Class)>> = HashMap::new();
        let mut events: Vec<_> = window.cpus.iter().flat_map(|cpu| &cpu.events).collect();
        events.sort_by_key(|event| event.t);
        let mut is_of = |t: Ns, pid: u32, class: Class| {
            let known = classes.entry(pid).or_default();
            if known.last().is_none_or(|(_, last)| *last != class) {
                known.push((t, class));
            }
        };
        let mut reclaims: HashMap<u32, Vec<(Ns, Ns)>> = HashMap::new();
        let mut records_wakers = false;
        let mut records_guest_exits = HashSet::new();
        for event in events {
            match event.what {
                EventKind::Switch { next, prev, next_class, .. } => {
                    is_of(event.t, event.pid, prev);
                    is_of(event.t, next, next_class);
                }
                EventKind::Waking { pid, class, .. } | EventKind::Wakeup { pid, class, .. } => {
                    records_wakers |= matches!(event.what, EventKind::Waking { .. });
                    is_of(event.t, pid, class);
                }
                EventKind::ReclaimBegin => reclaims.entry(event.pid).or_default().push((event.t, Ns::MAX)),
                EventKind::ReclaimEnd => {
                    let known = reclaims.entry(event.pid).or_default();
                    match known.last_mut() {
                        Some((_, end)) => *end = event.t.min(*end),
                        None => known.push((Ns::MIN, event.t)),
                    }
                }
                EventKind::KvmEntry { .. } | EventKind::KvmExit { .. } => drop(records_guest_exits.insert(event.pid)),
                _ => {}
            }
        }
        Self {
            name: record.machine.clone(),
            error_bound: record.error_bound_ns.max(0),
            without,
            records_wakers,
            records_guest_exits,
            irq_intervals: window.cpus.iter().map(IrqIntervals::of).collect(),
            records: window.cpus,
            timeline,
            names: snapshot.names(),
            upcalls: snapshot.upcalls.iter().map(|u| shifted(u, |t| own_time(t, record.offset_ns))).collect(),
            flow_limits: snapshot.flow_limits,
            classes,
            reclaims,
            rows: RefCell::default(),
        }
    }

    fn place(&self, cpu: u32) -> Option<usize> {
        self.records.iter().position(|record| record.cpu == cpu)
    }

    /// Activity of a CPU at a time.
    pub fn at(&self, cpu: u32, t: Ns) -> Doing {
        self.timeline.cpu(cpu).map_or(Doing::Unknown, |row| row.at(t))
    }

    /// Activities of a CPU in an interval, without gaps.
    pub fn tiles(&self, cpu: u32, from: Ns, to: Ns) -> Vec<CpuTile> {
        match self.timeline.cpu(cpu) {
            Some(row) => row.between(from, to),
            None if from < to => vec![CpuTile { from, to, doing: Doing::Unknown, thread: None }],
            None => Vec::new(),
        }
    }

    pub fn row(&self, pid: u32) -> Rc<[ThreadTile]> {
        let mut rows = self.rows.borrow_mut();
        rows.entry(pid).or_insert_with(|| self.timeline.thread(pid).into()).clone()
    }

    /// The CPU on which a thread ran right up to `t`, and since when; the record is considered from `from` on.
    pub fn has_run(&self, pid: u32, from: Ns, t: Ns) -> Option<(u32, Ns)> {
        let has = |tile: &CpuTile| tile.thread == Some(pid);
        self.timeline.cpus.iter().find_map(|row| {
            row.between(t.saturating_sub(1), t).last().filter(|tile| has(tile))?;
            let tiles = row.between(from, t);
            let first = tiles.iter().rposition(|tile| !has(tile)).map_or(from, |at| tiles[at].to);
            (first < t).then_some((row.cpu, first))
        })
    }

    /// Intervals of softirqs and interrupts on a CPU.
    pub fn irq_intervals(&self, cpu: u32) -> Option<&IrqIntervals> {
        self.place(cpu).map(|place| &self.irq_intervals[place])
    }

    /// Events of a CPU from `from` up to, but not including, `to`.
    pub fn events(&self, cpu: u32, from: Ns, to: Ns) -> &[latpath_flight::Event] {
        let Some(place) = self.place(cpu) else { return &[] };
        let events = &self.records[place].events;
        let (first, end) = (events.partition_point(|e| e.t < from), events.partition_point(|e| e.t < to));
        events.get(first..end).unwrap_or_default()
    }

    pub fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.records.iter().map(|record| record.cpu)
    }

    /// A thread's intervals of direct reclaim that overlap an interval.
    pub fn reclaims(&self, pid: u32, from: Ns, to: Ns) -> Vec<(Ns, Ns)> {
        let all = self.reclaims.get(&pid).into_iter().flatten();
        all.filter(|(begin, end)| *begin < to && *end > from).copied().collect()
    }

    /// Time at which a woken thread was queued on its CPU.
    pub fn queued(&self, pid: u32, from: Ns, to: Ns) -> Option<Ns> {
        let first = |record: &CpuRecord| {
            let mut events = self.events(record.cpu, from, to).iter();
            events.find(|e| matches!(e.what, EventKind::Wakeup { pid: woken, .. } if woken == pid)).map(|e| e.t)
        };
        self.records.iter().filter_map(first).min()
    }

    /// First time from `from` on at which a CPU passed over this ready thread: it went idle, or ran a thread that the
    /// scheduler never prefers. At `from` itself, only the thread's own switch is considered.
    pub fn passes_over(&self, pid: u32, cpu: u32, from: Ns, to: Ns) -> Option<Ns> {
        let class = self.class(pid, from);
        let mut came_out = false;
        // The thread's own switch at `from` made it ready.
        let later = self.events(cpu, from, to).iter().filter(|e| e.t > from || e.pid == pid);
        for event in later {
            match event.what {
                EventKind::Switch { next: 0, .. } => return Some(event.t),
                EventKind::Switch { next_class, .. } if never_before(next_class, class) => return Some(event.t),
                EventKind::Switch { .. } => came_out = false,
                EventKind::Idle(None) => came_out = true,
                EventKind::Idle(Some(_)) if came_out => return Some(event.t),
                _ => {}
            }
        }
        None
    }

    /// Scheduling class of a thread at a time.
    pub fn class(&self, pid: u32, t: Ns) -> Option<Class> {
        let known = self.classes.get(&pid)?;
        let at = known.partition_point(|(since, _)| *since <= t);
        known.get(at.saturating_sub(1)).map(|(_, class)| *class)
    }

    pub fn thread(&self, pid: u32, t: Ns) -> Executor {
        self.executor(0, &Doing::Thread(Running { pid, class: None, guest: false, work: None }), t)
    }

    /// The executor on a CPU. Its name is the same throughout the capture.
    pub fn executor(&self, cpu: u32, doing: &Doing, t: Ns) -> Executor {
        let (doing, class) = match *doing {
            Doing::Thread(running) => {
                let class = running.class.or_else(|| self.class(running.pid, t));
                (Doing::Thread(Running { class, guest: false, ..running }), class)
            }
            other => (other, None),
        };
        Executor { name: self.names.of_on(&doing, cpu), doing, class }
    }

    /// Name of a thread.
    pub fn name_of(&self, pid: u32) -> Option<String> {
        self.names.thread(pid).map(|thread| thread.name)
    }

    /// Name of a thread's process, if known.
    pub fn process_of(&self, pid: u32) -> Option<String> {
        self.name_of(self.names.thread(pid)?.tgid)
    }

    /// Whether the wakeup came from an expired timer rather than an event.
    pub fn is_timer(waker: &Waker) -> bool {
        use latpath_flight::Vector::LocalTimer;
        matches!(waker.context, Doing::Timer(_) | Doing::Vector(LocalTimer) | Doing::Softirq(TIMER | HRTIMER))
    }

    /// Whether this thread's guest entries and exits are recorded.
    pub fn records_guest_exits_of(&self, pid: u32) -> bool {
        self.records_guest_exits.contains(&pid)
    }

    /// Notes about a tile of a CPU.
    pub fn notes_of(&self, cpu: u32, tile: &CpuTile) -> Vec<Note> {
        let name = || self.executor(cpu, &tile.doing, tile.from).name;
        let note = || format!("the switch away from {} is not recorded", name()).into();
        tile.is_assumed().then(note).into_iter().collect()
    }

    /// Why a CPU's activity is unknown if the sighting has no CPU number.
    pub fn why_cpu_unknown(&self, t: Ns) -> String {
        self.why_not_recorded(t).unwrap_or_else(|| "which CPU had the packet is not known".into())
    }

    /// Why nothing was recorded at a time: the machine has no record, or its record had already ended. Otherwise
    /// `None`, even if the time is before the beginning of the record.
    fn why_not_recorded(&self, t: Ns) -> Option<String> {
        match &self.without {
            Some(why) => Some(format!("no record of {}: {why}", self.name)),
            None => (t >= self.timeline.to).then(|| "it was after the record's end".into()),
        }
    }

    /// Why a CPU's activity at a time is unknown.
    pub fn why_unknown(&self, cpu: Option<u32>, t: Ns) -> String {
        if let Some(why) = self.why_not_recorded(t) {
            return why;
        }
        let Some(cpu) = cpu else {
            let mut later = self.records.iter().filter(|record| t < record.since).peekable();
            return match (later.peek().is_some(), later.any(|record| record.overwritten > 0)) {
                (_, true) => "the records of some CPUs had been overwritten (--flight-buffer keeps more)".into(),
                (true, _) => "the records of some CPUs begin after that time (--flight-budget pauses less)".into(),
                _ => "no event says it".into(),
            };
        };
        let Some(place) = self.place(cpu) else { return format!("CPU {cpu} has no record") };
        let record = &self.records[place];
        match () {
            () if t < record.since && record.overwritten > 0 => {
                format!("the record of CPU {cpu} had been overwritten (events come faster than it has room)")
            }
            () if t < record.since => format!("the record of CPU {cpu} begins later"),
            () if record.unfinished > 0 => format!("{} events of CPU {cpu} could not be read", record.unfinished),
            () => format!("the record does not say what CPU {cpu} did"),
        }
    }
}

/// Whether the scheduler never prefers a thread of class `one` to one of class `other`: an ordinary thread to a
/// real-time thread, or any thread except the kernel's own (FIFO 99: migration/0) to a deadline thread. Priority
/// inheritance may raise an ordinary thread.
pub(crate) fn never_before(one: Class, other: Option<Class>) -> bool {
    let ordinary = matches!(one.policy, 0 | 3 | 5) && one.prio >= 100;
    match other.map(|class| class.policy) {
        Some(6) => ordinary || matches!(one.policy, 1 | 2) && one.prio > 0,
        Some(1 | 2) => ordinary,
        _ => false,
    }
}

/// Softirq numbers (include/linux/interrupt.h).
pub(crate) const TIMER: u32 = 1;
pub(crate) const HRTIMER: u32 = 8;
