//! Kernel events in Perfetto's format, from which Perfetto builds its rows of CPUs, threads and interrupts.

use crate::proto::{
    CpuIdle, Empty, Ftrace, FtraceEvent, IrqHandlerEntry, IrqHandlerExit, SchedMigrateTask, SchedSwitch, SchedWakeup,
    Softirq, TimerEntry, Work, OUT_OF_IDLE,
};
use crate::thread_names::{irq_name, ThreadNames, NOT_RECORDED};
use crate::writer::Writer;
use latpath_flight::{softirq_name, Class, Event, EventKind, Left, Names, Sleep, Snapshot, Vector};
use latpath_model::Ns;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

/// Maximum number of CPUs in Perfetto; it rejects files with larger CPU numbers.
pub(crate) const MAX_CPUS: u32 = 1024;
/// Maximum number of events per bundle.
const BUNDLE: usize = 512;
/// Maximum nesting of contexts; hostile input may have deeper nesting.
const DEEPEST: usize = 16;

/// Conversion of a machine's clock to the host's.
#[derive(Clone, Copy)]
pub(crate) struct Shift {
    /// The machine's clock minus the host's, ns.
    pub offset: Ns,
}

impl Shift {
    /// Time on the host's timeline; `None` if before its start.
    pub fn host(self, t: Ns) -> Option<u64> {
        t.checked_sub(self.offset).and_then(|t| u64::try_from(t).ok()).filter(|t| *t <= Ns::MAX as u64)
    }
}

/// Counts of a machine's kernel events in the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of switches between threads.
    pub switches: u64,
    /// Number of starts and ends of gaps in the record, which are written as switches.
    pub gaps: u64,
    /// Number of other events.
    pub others: u64,
    /// Number of events that Perfetto cannot represent, or that are invalid.
    pub left_out: u64,
}

/// A context that interrupts the running thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Irq(u32),
    Softirq(u32),
    Vector(Vector),
    Hrtimer,
    Timer,
}

impl Context {
    fn is_interrupt(self) -> bool {
        !matches!(self, Self::Softirq(_) | Self::Timer)
    }

    fn exit(self) -> Ftrace {
        match self {
            Self::Irq(irq) => irq_exit(irq as i32),
            Self::Vector(Vector::LocalTimer) => Ftrace::LocalTimerExit(Empty {}),
            Self::Vector(vector) => irq_exit(number_of(vector)),
            Self::Softirq(vec) => Ftrace::SoftirqExit(Softirq { vec: Some(vec) }),
            Self::Hrtimer => Ftrace::HrtimerExpireExit(Empty {}),
            Self::Timer => Ftrace::TimerExpireExit(Empty {}),
        }
    }
}

fn irq_exit(irq: i32) -> Ftrace {
    Ftrace::IrqHandlerExit(IrqHandlerExit { irq: Some(irq), ret: Some(1) })
}

fn irq_entry(irq: i32, name: String) -> Ftrace {
    Ftrace::IrqHandlerEntry(IrqHandlerEntry { irq: Some(irq), name: Some(name) })
}

/// Pseudo-number of an interrupt that belongs to no device: negative, so that it differs from all real ones.
fn number_of(vector: Vector) -> i32 {
    match vector {
        Vector::LocalTimer => -1,
        Vector::Reschedule => -2,
        Vector::CallFunction => -3,
        Vector::CallFunctionSingle => -4,
        Vector::IrqWork => -5,
        Vector::PlatformIpi => -6,
        Vector::Thermal => -7,
        Vector::Ipi => -8,
        Vector::Other(_) => -100,
    }
}

const NMI: i32 = -9;

/// The state of a thread that left its CPU, as sched_switch reports it since Linux 4.14.
fn prev_state(left: Left) -> i64 {
    match left {
        Left::Ready { preempted: true, .. } => 0x100,
        Left::Ready { preempted: false, .. } => 0,
        Left::Asleep(sleep) => match sleep {
            Sleep::Interruptible => 0x1,
            // The kernel encodes frozen threads like this too.
            Sleep::Blocked | Sleep::Frozen => 0x2,
            Sleep::Idle => UNSEEN,
            Sleep::Stopped => 0x4,
            Sleep::Traced => 0x8,
            Sleep::Parked => 0x40,
            Sleep::Ended => 0x10,
            // The sleep is either interruptible or not.
            Sleep::Unknown => 0x3,
        },
    }
}

/// Idle. Also used for a thread if it is unknown how it left its CPU, because this state claims the least.
const UNSEEN: i64 = 0x80;
const NICE_0: i32 = 120;

/// State of the row of a CPU.
#[derive(Default)]
struct Row {
    thread: Option<u32>,
    prio: i32,
    /// End of the part that has been written.
    until: Option<Ns>,
    contexts: Vec<Context>,
}

/// The rows of one machine.
#[derive(Default)]
pub(crate) struct Kernel {
    rows: HashMap<u32, Row>,
    /// See [`Bundles::latest`].
    latest: HashMap<u32, u64>,
    /// Interned function of the work item that each thread runs.
    working: BTreeMap<u32, u64>,
    pub written: Written,
}

/// Context for writing events.
pub(crate) struct Place<'a> {
    pub machine: usize,
    pub name: &'a str,
    pub shift: Shift,
    pub thread_names: &'a ThreadNames,
    pub snapshot: &'a Snapshot,
    pub names: &'a Names,
}

/// Collects events in one bundle per CPU; a bundle is written when it is full.
struct Bundles<'a, 'w> {
    out: &'a mut Writer<'w>,
    place: &'a Place<'a>,
    bundles: BTreeMap<u32, Vec<FtraceEvent>>,
    /// Latest time written for each CPU, on the host's timeline. Times never go back, even if a guest's clock is set
    /// back slightly between captures.
    latest: HashMap<u32, u64>,
}

impl Bundles<'_, '_> {
    fn push(&mut self, cpu: u32, t: Ns, pid: u32, event: Ftrace) -> io::Result<()> {
        let latest = self.latest.entry(cpu).or_default();
        *latest = self.place.shift.host(t).unwrap_or(0).max(*latest);
        let events = self.bundles.entry(cpu).or_default();
        events.push(FtraceEvent { timestamp: Some(*latest), pid: Some(pid), event: Some(event) });
        if events.len() == BUNDLE {
            let events = std::mem::take(events);
            self.out.kernel(self.place.machine, cpu, events)?;
        }
        Ok(())
    }

    /// Interned ID of a function's name.
    fn function(&mut self, address: u64) -> io::Result<Option<u64>> {
        self.out.function(self.place.machine, &self.place.names.of_function(address)).map(Some)
    }
}

/// Converts a TID to Perfetto's type.
fn signed(pid: u32) -> Option<i32> {
    i32::try_from(pid).ok()
}

impl Kernel {
    /// Writes the part of a snapshot that follows earlier ones. Returns the events in that part, each with its CPU, in
    /// order of time.
    pub fn snapshot<'s>(&mut self, out: &mut Writer, place: &Place<'s>) -> io::Result<Vec<(u32, &'s Event)>> {
        let latest = std::mem::take(&mut self.latest);
        let mut out = Bundles { out, place, bundles: BTreeMap::new(), latest };
        let mut taken: Vec<(u32, &Event)> = Vec::new();
        let mut seen = HashSet::new();
        for record in &place.snapshot.window.cpus {
            if record.cpu >= MAX_CPUS || !seen.insert(record.cpu) {
                self.written.left_out += record.events.len() as u64;
                continue;
            }
            let known = self.rows.entry(record.cpu).or_default().until;
            let first = known.map_or(0, |known| record.events.partition_point(|e| e.t <= known));
            let events = &record.events[first..];
            let Some(begin) = events.first() else { continue };
            // The first event identifies the thread that ran when the record began.
            let since = record.since.min(begin.t);
            if known.is_none_or(|known| since > known) {
                if let Some(known) = known {
                    self.gap(&mut out, record.cpu, known)?;
                    // A thread that slept during a work item may have finished the item during the gap, so end all work
                    // items here.
                    for (pid, function) in std::mem::take(&mut self.working) {
                        out.push(record.cpu, known, pid, work_end(function))?;
                    }
                }
                self.appears(&mut out, record.cpu, since, begin.pid)?;
                self.rows.entry(record.cpu).or_default().until = Some(since);
            }
            taken.extend(events.iter().map(|event| (record.cpu, event)));
        }
        // Merge the CPUs' events in order of time, because threads migrate between CPUs.
        taken.sort_by_key(|(_, event)| event.t);
        for (cpu, event) in &taken {
            self.event(&mut out, *cpu, event)?;
        }
        for (cpu, events) in out.bundles {
            out.out.kernel(place.machine, cpu, events)?;
        }
        self.latest = out.latest;
        for record in &place.snapshot.window.cpus {
            if let Some(row) = self.rows.get_mut(&record.cpu) {
                row.until = row.until.max(Some(place.snapshot.window.to));
            }
        }
        Ok(taken)
    }

    /// Begins a gap in the record.
    fn gap(&mut self, out: &mut Bundles, cpu: u32, t: Ns) -> io::Result<()> {
        let row = self.rows.entry(cpu).or_default();
        let pid = row.thread.unwrap_or(0);
        while let Some(context) = row.contexts.pop() {
            out.push(cpu, t, pid, context.exit())?;
        }
        if let Some(thread) = row.thread.take() {
            if let Some(function) = self.working.remove(&thread) {
                out.push(cpu, t, thread, work_end(function))?;
            }
            switch(out, cpu, t, (thread, row.prio, UNSEEN), (NOT_RECORDED, NICE_0))?;
            self.written.gaps += 1;
        }
        Ok(())
    }

    /// Shows a thread whose switch to the CPU was not recorded.
    fn appears(&mut self, out: &mut Bundles, cpu: u32, t: Ns, pid: u32) -> io::Result<()> {
        if switch(out, cpu, t, (NOT_RECORDED, NICE_0, UNSEEN), (pid, NICE_0))? {
            self.written.gaps += 1;
            let row = self.rows.entry(cpu).or_default();
            (row.thread, row.prio) = (Some(pid), NICE_0);
        }
        Ok(())
    }

    fn event(&mut self, out: &mut Bundles, cpu: u32, event: &Event) -> io::Result<()> {
        let row = self.rows.entry(cpu).or_default();
        let (runs, last) = (row.thread, row.until.unwrap_or(event.t));
        if signed(event.pid).is_none() || out.place.shift.host(event.t).is_none() || event.t < last {
            self.written.left_out += 1;
            return Ok(());
        }
        // An NMI's event does not identify the thread.
        if runs != Some(event.pid) && !matches!(event.what, EventKind::Nmi { .. }) {
            // A switch was missed: which thread ran in between is unknown.
            self.gap(out, cpu, last)?;
            self.appears(out, cpu, event.t, event.pid)?;
        }
        let row = self.rows.entry(cpu).or_default();
        row.until = Some(event.t);
        let written = match event.what {
            EventKind::Switch { next, left, prev, next_class } => {
                row.leave_interrupts(out, cpu, event)?;
                let next = (next, next_class.prio.into());
                if switch(out, cpu, event.t, (event.pid, prev.prio.into(), prev_state(left)), next)? {
                    (row.thread, row.prio) = (Some(next.0), next.1);
                    self.written.switches += 1;
                    return Ok(());
                }
                false
            }
            EventKind::Nmi { took } => {
                let from = event.t.saturating_sub(took.max(0)).max(last);
                out.push(cpu, from, event.pid, irq_entry(NMI, "NMI".into()))?;
                out.push(cpu, event.t, event.pid, irq_exit(NMI))?;
                true
            }
            _ => self.other(out, cpu, event)?,
        };
        match written {
            true => self.written.others += 1,
            false => self.written.left_out += 1,
        }
        Ok(())
    }

    fn other(&mut self, out: &mut Bundles, cpu: u32, event: &Event) -> io::Result<bool> {
        let names = out.place.thread_names;
        let row = self.rows.entry(cpu).or_default();
        let waking = |pid: u32, cpu: u32, class: Class| {
            Some(SchedWakeup {
                comm: Some(names.name(pid)),
                pid: Some(signed(pid)?),
                prio: Some(class.prio.into()),
                success: Some(1),
                target_cpu: Some(signed(cpu)?),
            })
        };
        let migrate = |pid: u32, from: u32, to: u32| {
            Some(SchedMigrateTask {
                comm: Some(names.name(pid)),
                pid: Some(signed(pid)?),
                orig_cpu: signed(from),
                dest_cpu: signed(to),
            })
        };
        let simple = match event.what {
            EventKind::Waking { pid, cpu, class } => waking(pid, cpu, class).map(Ftrace::SchedWaking),
            EventKind::Wakeup { pid, cpu, class, .. } => waking(pid, cpu, class).map(Ftrace::SchedWakeup),
            EventKind::Migrate { pid, from, to } => migrate(pid, from, to).map(Ftrace::SchedMigrateTask),
            EventKind::SoftirqRaise(vec) if softirq_name(vec).is_some() => {
                Some(Ftrace::SoftirqRaise(Softirq { vec: Some(vec) }))
            }
            EventKind::Idle(state) => {
                Some(Ftrace::CpuIdle(CpuIdle { state: Some(state.unwrap_or(OUT_OF_IDLE)), cpu_id: Some(cpu) }))
            }
            EventKind::IrqEntry(irq) => {
                let entry = irq_entry(irq as i32, irq_name(out.place.snapshot, irq));
                return row.enter(out, cpu, event, Context::Irq(irq), entry);
            }
            EventKind::VectorEntry(vector) => {
                let entry = match vector {
                    Vector::LocalTimer => Ftrace::LocalTimerEntry(Empty {}),
                    vector => irq_entry(number_of(vector), vector.to_string()),
                };
                return row.enter(out, cpu, event, Context::Vector(vector), entry);
            }
            EventKind::SoftirqEntry(vec) if softirq_name(vec).is_some() => {
                let entry = Ftrace::SoftirqEntry(Softirq { vec: Some(vec) });
                return row.enter(out, cpu, event, Context::Softirq(vec), entry);
            }
            EventKind::HrtimerEntry(address) => {
                let entry = Ftrace::HrtimerExpireEntry(TimerEntry { function: out.function(address)? });
                return row.enter(out, cpu, event, Context::Hrtimer, entry);
            }
            EventKind::TimerEntry(address) => {
                let entry = Ftrace::TimerExpireEntry(TimerEntry { function: out.function(address)? });
                return row.enter(out, cpu, event, Context::Timer, entry);
            }
            EventKind::IrqExit(irq) => return row.leave(out, cpu, event, Context::Irq(irq)),
            EventKind::VectorExit(vector) => return row.leave(out, cpu, event, Context::Vector(vector)),
            EventKind::SoftirqExit(vec) => return row.leave(out, cpu, event, Context::Softirq(vec)),
            EventKind::HrtimerExit => return row.leave(out, cpu, event, Context::Hrtimer),
            EventKind::TimerExit => return row.leave(out, cpu, event, Context::Timer),
            EventKind::WorkStart(address) => {
                let function = out.function(address)?;
                if let Some(before) = function.and_then(|function| self.working.insert(event.pid, function)) {
                    out.push(cpu, event.t, event.pid, work_end(before))?;
                }
                Some(Ftrace::WorkqueueExecuteStart(Work { function }))
            }
            EventKind::WorkEnd => self.working.remove(&event.pid).map(work_end),
            // These events are shown in rows of their own.
            EventKind::NapiPoll { .. }
            | EventKind::NapiWork { .. }
            | EventKind::KvmEntry { .. }
            | EventKind::KvmExit { .. }
            | EventKind::KvmHaltPoll { .. }
            | EventKind::KvmVcpuWakeup { .. }
            | EventKind::KvmInjVirq(_)
            | EventKind::OvsUpcall { .. }
            | EventKind::ReclaimBegin
            | EventKind::ReclaimEnd
            | EventKind::PageFaults(_) => return Ok(true),
            _ => None,
        };
        match simple {
            Some(simple) => out.push(cpu, event.t, event.pid, simple).map(|()| true),
            None => Ok(false),
        }
    }
}

fn work_end(function: u64) -> Ftrace {
    Ftrace::WorkqueueExecuteEnd(Work { function: Some(function) })
}

/// Writes a switch; returns false if one of the threads is invalid.
fn switch(
    out: &mut Bundles,
    cpu: u32,
    t: Ns,
    (prev, prev_prio, state): (u32, i32, i64),
    (next, next_prio): (u32, i32),
) -> io::Result<bool> {
    let (Some(prev_pid), Some(next_pid)) = (signed(prev), signed(next)) else { return Ok(false) };
    let event = SchedSwitch {
        prev_comm: Some(out.place.thread_names.name(prev)),
        prev_pid: Some(prev_pid),
        prev_prio: Some(prev_prio),
        prev_state: Some(state),
        next_comm: Some(out.place.thread_names.name(next)),
        next_pid: Some(next_pid),
        next_prio: Some(next_prio),
    };
    out.push(cpu, t, prev, Ftrace::SchedSwitch(event)).map(|()| true)
}

impl Row {
    /// Closes interrupts: threads cannot be switched inside an interrupt, so the end of an open one was not recorded.
    fn leave_interrupts(&mut self, out: &mut Bundles, cpu: u32, event: &Event) -> io::Result<()> {
        let (lost, left): (Vec<_>, Vec<_>) = self.contexts.drain(..).partition(|context| context.is_interrupt());
        self.contexts = left;
        lost.iter().rev().try_for_each(|context| out.push(cpu, event.t, event.pid, context.exit()))
    }

    fn enter(
        &mut self,
        out: &mut Bundles,
        cpu: u32,
        event: &Event,
        context: Context,
        entry: Ftrace,
    ) -> io::Result<bool> {
        if self.contexts.len() == DEEPEST {
            return Ok(false);
        }
        self.contexts.push(context);
        out.push(cpu, event.t, event.pid, entry).map(|()| true)
    }

    /// Closes a context and all contexts nested in it: Perfetto ends the innermost one, regardless of the exit's name.
    fn leave(&mut self, out: &mut Bundles, cpu: u32, event: &Event, context: Context) -> io::Result<bool> {
        let Some(at) = self.contexts.iter().rposition(|known| *known == context) else { return Ok(false) };
        for context in self.contexts.split_off(at).into_iter().rev() {
            out.push(cpu, event.t, event.pid, context.exit())?;
        }
        Ok(true)
    }
}
