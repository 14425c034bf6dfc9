//! Compares the flight recorder's events with the kernel's own trace, after converting both to the same text.

use anyhow::{bail, Context, Result};
use latpath_flight::{Event, EventKind, Left, Names, Sleep, Vector, Window};
use std::collections::BTreeMap;

/// The recorder's tracepoints that a trace prints as text.
pub const EVENTS: [&str; 34] = [
    "sched/sched_switch",
    "sched/sched_waking",
    "sched/sched_wakeup",
    "sched/sched_wakeup_new",
    "sched/sched_migrate_task",
    "irq/irq_handler_entry",
    "irq/irq_handler_exit",
    "irq/softirq_raise",
    "irq/softirq_entry",
    "irq/softirq_exit",
    "irq_vectors/local_timer_entry",
    "irq_vectors/local_timer_exit",
    "irq_vectors/reschedule_entry",
    "irq_vectors/reschedule_exit",
    "irq_vectors/call_function_entry",
    "irq_vectors/call_function_exit",
    "irq_vectors/call_function_single_entry",
    "irq_vectors/call_function_single_exit",
    "irq_vectors/irq_work_entry",
    "irq_vectors/irq_work_exit",
    "power/cpu_idle",
    "timer/hrtimer_expire_entry",
    "timer/hrtimer_expire_exit",
    "timer/timer_expire_entry",
    "timer/timer_expire_exit",
    "workqueue/workqueue_execute_start",
    "workqueue/workqueue_execute_end",
    "napi/napi_poll",
    "kvm/kvm_entry",
    "kvm/kvm_exit",
    "kvm/kvm_halt_poll_ns",
    "kvm/kvm_vcpu_wakeup",
    "kvm/kvm_inj_virq",
    "openvswitch/ovs_dp_upcall",
];

/// Kinds of events that occur with interrupts off. Nothing can run between the recorder's program and the kernel's own
/// probe on the same tracepoint, so both record these events in the same order.
const CLOSED: [&str; 10] =
    ["switch", "waking", "wakeup", "migrate", "irq", "irq-exit", "raise", "vector", "vector-exit", "kvm-entry"];

/// Maximum number of events at the edges of the window that only one of the two records contains.
const EDGE: usize = 64;

/// An event as text.
#[derive(Clone, Debug)]
pub struct LoggedEvent {
    /// `CLOCK_MONOTONIC`.
    pub t: i64,
    /// ID of the thread on the CPU.
    pub pid: u32,
    /// The event, starting with its kind.
    pub text: String,
    /// Details that the two records word differently.
    pub more: String,
}

impl LoggedEvent {
    /// Kind of the event, the first word of its text.
    pub fn kind(&self) -> &str {
        self.text.split(' ').next().unwrap_or("")
    }

    fn is_same(&self, other: &Self) -> bool {
        self.pid == other.pid && self.text == other.text
    }
}

/// The recorder's events of each CPU.
pub fn of_recorder(window: &Window, names: &Names, from: i64, to: i64) -> BTreeMap<u32, Vec<LoggedEvent>> {
    let mut all: BTreeMap<u32, Vec<LoggedEvent>> = BTreeMap::new();
    for cpu in &window.cpus {
        let mut device = String::new();
        for event in cpu.events.iter().filter(|e| (from..to).contains(&e.t)) {
            let (mut text, mut more) = (String::new(), String::new());
            match event.what {
                EventKind::NapiPoll { name } => {
                    device = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
                    continue;
                }
                EventKind::NapiWork { work, budget, .. } => {
                    let device = if device.is_empty() { "(no_device)" } else { &device };
                    text = format!("napi {device} {work} {budget}");
                }
                EventKind::KvmExit { vcpu, reason, .. } => {
                    text = format!("kvm-exit {}", vcpu.map_or("?".into(), |v| v.to_string()));
                    more = reason.map_or("unknown".into(), |r| format!("{r:#x}"));
                }
                EventKind::Nmi { .. } => continue,
                _ => {}
            }
            if text.is_empty() {
                text = in_words(event, names);
            }
            all.entry(cpu.cpu).or_default().push(LoggedEvent { t: event.t, pid: event.pid, text, more });
        }
    }
    all
}

fn in_words(event: &Event, names: &Names) -> String {
    match event.what {
        EventKind::Switch { next, left, prev, next_class } => {
            let state = match left {
                Left::Ready { preempted: true, .. } => "R+",
                Left::Ready { preempted: false, .. } => "R",
                Left::Asleep(Sleep::Interruptible) => "S",
                // The state that the kernel prints for a task held by its freezer.
                Left::Asleep(Sleep::Blocked | Sleep::Frozen) => "D",
                Left::Asleep(Sleep::Idle) => "I",
                Left::Asleep(Sleep::Stopped) => "T",
                Left::Asleep(Sleep::Traced) => "t",
                Left::Asleep(Sleep::Parked) => "P",
                Left::Asleep(Sleep::Ended) => "X",
                Left::Asleep(Sleep::Unknown) => "?",
            };
            format!("switch {} {} {state} {next} {}", event.pid, prev.prio, next_class.prio)
        }
        EventKind::Waking { pid, cpu, class } => format!("waking {pid} {} {cpu}", class.prio),
        EventKind::Wakeup { pid, cpu, class, .. } => format!("wakeup {pid} {} {cpu}", class.prio),
        EventKind::Migrate { pid, from, to } => format!("migrate {pid} {from} {to}"),
        EventKind::IrqEntry(n) => format!("irq {n}"),
        EventKind::IrqExit(n) => format!("irq-exit {n}"),
        EventKind::SoftirqRaise(n) => format!("raise {n}"),
        EventKind::SoftirqEntry(n) => format!("softirq {n}"),
        EventKind::SoftirqExit(n) => format!("softirq-exit {n}"),
        EventKind::VectorEntry(v) => format!("vector {}", vector(v)),
        EventKind::VectorExit(v) => format!("vector-exit {}", vector(v)),
        EventKind::Idle(state) => format!("idle {}", state.unwrap_or(u32::MAX)),
        EventKind::TimerEntry(f) => format!("timer {}", function(names, f)),
        EventKind::TimerExit => "timer-exit".into(),
        EventKind::HrtimerEntry(f) => format!("hrtimer {}", function(names, f)),
        EventKind::HrtimerExit => "hrtimer-exit".into(),
        EventKind::WorkStart(f) => format!("work {}", function(names, f)),
        EventKind::WorkEnd => "work-end".into(),
        EventKind::KvmEntry { vcpu } => format!("kvm-entry {}", vcpu.map_or("?".into(), |v| v.to_string())),
        EventKind::KvmHaltPoll { vcpu, ns, before } => format!("halt-poll {vcpu} {ns} {before}"),
        EventKind::KvmVcpuWakeup { ns, waited, valid } => {
            format!("vcpu-wakeup {} {ns} {valid}", if waited { "wait" } else { "poll" })
        }
        EventKind::KvmInjVirq(n) => format!("inject {n:#x}"),
        EventKind::OvsUpcall { command } => format!("upcall {command}"),
        other => format!("other {other:?}"),
    }
}

/// Name of a function without its module, which the trace also prints.
fn function(names: &Names, address: u64) -> String {
    names.of_function(address).split([' ', '+']).next().unwrap_or("").to_owned()
}

fn vector(vector: Vector) -> &'static str {
    match vector {
        Vector::LocalTimer => "local_timer",
        Vector::Reschedule => "reschedule",
        Vector::CallFunction => "call_function",
        Vector::CallFunctionSingle => "call_function_single",
        Vector::IrqWork => "irq_work",
        _ => "?",
    }
}

/// Events of each CPU in the kernel's trace, as printed by tracefs.
pub fn of_trace(trace: &str, from: i64, to: i64) -> Result<BTreeMap<u32, Vec<LoggedEvent>>> {
    let mut all: BTreeMap<u32, Vec<LoggedEvent>> = BTreeMap::new();
    for line in trace.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        if line.contains("[LOST ") {
            bail!("the trace has gaps: {line}");
        }
        let (cpu, said) = parse(line).with_context(|| format!("a line of the trace: {line}"))?;
        if (from..to).contains(&said.t) {
            all.entry(cpu).or_default().push(said);
        }
    }
    Ok(all)
}

/// `  CPU 0/KVM-1234    [001] d..2.  46593.061244: sched_switch: prev_comm=…`
fn parse(line: &str) -> Option<(u32, LoggedEvent)> {
    let at = line.find(" [0")?;
    let pid = line[..at].trim_end().rsplit('-').next()?.parse().ok()?;
    let (cpu, rest) = line[at + 2..].split_once(']')?;
    let rest = rest.trim_start().split_once(' ')?.1.trim_start();
    let (time, rest) = rest.split_once(": ")?;
    let (seconds, micros) = time.split_once('.')?;
    let t = seconds.parse::<i64>().ok()? * 1_000_000_000 + micros.parse::<i64>().ok()? * 1_000;
    let (event, fields) = rest.split_once(": ").or_else(|| Some((rest.strip_suffix(':')?, "")))?;
    let (text, more) = trace_in_words(event, fields)?;
    Some((cpu.parse().ok()?, LoggedEvent { t, pid, text, more }))
}

/// The word after `key`.
fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = &text[text.rfind(key)? + key.len()..];
    Some(rest.split([' ', ',', ':']).next().unwrap_or(rest))
}

fn trace_in_words(event: &str, fields: &str) -> Option<(String, String)> {
    let of = |key: &str| after(fields, key);
    let mut more = String::new();
    let text = match event {
        "sched_switch" => {
            let state = of("prev_state=")?;
            // The trace has both Z and X for an exited thread.
            let state = if state.starts_with('Z') { "X" } else { state };
            let (prev, next) = (of("prev_pid=")?, of("next_pid=")?);
            format!("switch {prev} {} {state} {next} {}", of("prev_prio=")?, of("next_prio=")?)
        }
        "sched_waking" => format!("waking {} {} {}", of(" pid=")?, of(" prio=")?, number(of(" target_cpu=")?)?),
        "sched_wakeup" | "sched_wakeup_new" => {
            format!("wakeup {} {} {}", of(" pid=")?, of(" prio=")?, number(of(" target_cpu=")?)?)
        }
        "sched_migrate_task" => format!("migrate {} {} {}", of(" pid=")?, of("orig_cpu=")?, of("dest_cpu=")?),
        "irq_handler_entry" => format!("irq {}", of("irq=")?),
        "irq_handler_exit" => format!("irq-exit {}", of("irq=")?),
        "softirq_raise" => format!("raise {}", of("vec=")?),
        "softirq_entry" => format!("softirq {}", of("vec=")?),
        "softirq_exit" => format!("softirq-exit {}", of("vec=")?),
        "cpu_idle" => format!("idle {}", of("state=")?),
        "timer_expire_entry" => format!("timer {}", of("function=")?),
        "timer_expire_exit" => "timer-exit".into(),
        "hrtimer_expire_entry" => format!("hrtimer {}", of("function=")?),
        "hrtimer_expire_exit" => "hrtimer-exit".into(),
        "workqueue_execute_start" => format!("work {}", of("function ")?),
        "workqueue_execute_end" => "work-end".into(),
        "napi_poll" => format!("napi {} {} {}", of("for device ")?, of(" work ")?, of(" budget ")?),
        "kvm_entry" => format!("kvm-entry {}", of("vcpu ")?),
        "kvm_exit" => {
            more = of("reason ")?.to_owned();
            format!("kvm-exit {}", of("vcpu ")?)
        }
        "kvm_halt_poll_ns" => {
            let before = of("(grow ").or_else(|| of("(shrink "))?;
            format!("halt-poll {} {} {}", of("vcpu ")?, of("halt_poll_ns ")?, before.trim_end_matches(')'))
        }
        "kvm_vcpu_wakeup" => {
            let how = fields.split(' ').next()?;
            format!("vcpu-wakeup {how} {} {}", of("time ")?, fields.ends_with(" valid"))
        }
        "kvm_inj_virq" => format!("inject {}", fields.split(' ').find(|word| word.starts_with("0x"))?),
        "ovs_dp_upcall" => format!("upcall {}", of("upcall_cmd=")?),
        vector => match vector.strip_suffix("_entry") {
            Some(name) => format!("vector {name}"),
            None => format!("vector-exit {}", vector.strip_suffix("_exit")?),
        },
    };
    Some((text, more))
}

/// Parses a number, such as `003`.
fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}

/// The events of one CPU in both records.
pub struct Differ<'a> {
    pub ours: &'a [LoggedEvent],
    pub theirs: &'a [LoggedEvent],
}

impl<'a> Differ<'a> {
    /// Compares the order of all events that occur with interrupts off. Returns the time differences of the pairs,
    /// ns.
    pub fn as_a_whole(&self) -> Result<Vec<u64>, String> {
        let closed = |said: &&LoggedEvent| CLOSED.contains(&said.kind());
        let (ours, theirs): (Vec<_>, Vec<_>) =
            (self.ours.iter().filter(closed).collect(), self.theirs.iter().filter(closed).collect());
        Ok(aligned(&ours, &theirs)?.iter().map(|(a, b)| a.t.abs_diff(b.t)).collect())
    }

    /// Compares the events of one kind; returns their number.
    pub fn of_kind(&self, kind: &str) -> Result<usize, String> {
        let of = |all: &'a [LoggedEvent]| all.iter().filter(|said| said.kind() == kind).collect::<Vec<_>>();
        Ok(aligned(&of(self.ours), &of(self.theirs))?.len())
    }

    /// Compares only the counts of one kind of event, which may differ by up to `missing` plus [`EDGE`]; returns the
    /// recorder's count.
    pub fn count_but(&self, kind: &str, missing: usize) -> Result<usize, String> {
        let of = |all: &[LoggedEvent]| all.iter().filter(|said| said.kind() == kind).count();
        let (ours, theirs) = (of(self.ours), of(self.theirs));
        if ours.abs_diff(theirs) > missing + EDGE {
            return Err(format!("{ours} in the recorder, {theirs} in the kernel's trace"));
        }
        Ok(ours)
    }

    /// All events that are in both records, as pairs.
    pub fn pairs(&self) -> Result<Vec<(&'a LoggedEvent, &'a LoggedEvent)>, String> {
        aligned(&self.ours.iter().collect::<Vec<_>>(), &self.theirs.iter().collect::<Vec<_>>())
    }
}

/// Aligns the records and pairs their equal events. Only up to [`EDGE`] events at the edges may be unpaired.
fn aligned<'a>(
    ours: &[&'a LoggedEvent],
    theirs: &[&'a LoggedEvent],
) -> Result<Vec<(&'a LoggedEvent, &'a LoggedEvent)>, String> {
    let pairs = |skip: usize, skip_theirs: usize| ours.iter().skip(skip).zip(theirs.iter().skip(skip_theirs));
    let same = |skip, skip_theirs| pairs(skip, skip_theirs).take_while(|(a, b)| a.is_same(b)).count();
    let alignments = (0..EDGE).flat_map(|edge| [(edge, 0), (0, edge)]);
    let best =
        alignments.max_by_key(|(skip, skip_theirs)| (same(*skip, *skip_theirs), usize::MAX - skip - skip_theirs));
    let (skip, skip_theirs) = best.unwrap_or_default();
    let found = same(skip, skip_theirs);
    let left = |all: usize, skipped: usize| all.saturating_sub(skipped + found);
    let (ours_left, theirs_left) = (left(ours.len(), skip), left(theirs.len(), skip_theirs));
    if ours_left.min(theirs_left) > 0 || ours_left.max(theirs_left) > EDGE {
        let show = |all: &[&LoggedEvent], skip: usize| {
            let at = skip + found;
            let near = &all[at.saturating_sub(3).min(all.len())..(at + 5).min(all.len())];
            near.iter().map(|s| format!("\n  {} {} {}", s.t, s.pid, s.text)).collect::<String>()
        };
        return Err(format!(
            "{found} the same, then the recorder has{}\nthe kernel's trace{}\n({} and {} in all)",
            show(ours, skip),
            show(theirs, skip_theirs),
            ours.len(),
            theirs.len()
        ));
    }
    Ok(pairs(skip, skip_theirs).take(found).map(|(a, b)| (*a, *b)).collect())
}
