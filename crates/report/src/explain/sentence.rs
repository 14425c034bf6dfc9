//! How a cause is told: in a sentence, and in a few words for a table.

use crate::page::Page;
use latpath_cause::{Actor, Cause, CauseShare, Row};
use latpath_flight::Class;
use latpath_model::Ns;

/// A name in a list: `vhost of guest7, CPU 4`
pub(crate) fn briefly(page: &Page, actor: &Actor, cpu: Option<u32>) -> String {
    let name = page.clean(&actor.name);
    cpu.map_or_else(|| name.clone(), |cpu| format!("{name}, CPU {cpu}"))
}

/// Culprits that a sentence names one by one.
const NAMED: usize = 3;

/// `6154, FIFO 1`
fn details(page: &Page, actor: &Actor, cpu: Option<u32>) -> String {
    let pid = match actor.pids.as_slice() {
        [] => None,
        [one] => Some(one.to_string()),
        many => Some(format!("{} threads", many.len())),
    };
    let cpu = cpu.map(|cpu| format!("CPU {cpu}"));
    let class = actor.class.map(|class: Class| page.clean(&class.to_string()));
    pid.into_iter().chain(cpu).chain(class).collect::<Vec<_>>().join(", ")
}

/// `vhost of guest7 (5620, CPU 4, SCHED_OTHER)`
pub(crate) fn who(page: &Page, actor: &Actor, cpu: Option<u32>) -> String {
    let name = page.clean(&actor.name);
    match details(page, actor, cpu) {
        details if details.is_empty() => name,
        details => format!("{name} ({details})"),
    }
}

/// `vCPU 0 of guest7 (6154, FIFO 1) 9.100 ms, irq 25 virtio0 2.000 ms, 3 others`; the time only where there are several.
fn culprits(page: &Page, by: &[(Actor, Ns)]) -> String {
    match by {
        [] => "what is not known".into(),
        [(one, _)] => who(page, one, None),
        several => {
            let all = several.iter().map(|(_, ns)| *ns).fold(0, Ns::saturating_add);
            // What took next to nothing needs no name.
            let named: Vec<_> = several.iter().take(NAMED).filter(|(_, ns)| *ns >= all / 100).collect();
            if let ([(one, _)], true) = (named.as_slice(), named.len() < several.len()) {
                return format!("{} and others", who(page, one, None));
            }
            let mut text: Vec<String> =
                named.iter().map(|(m, ns)| format!("{} {}", who(page, m, None), page.duration(*ns))).collect();
            match several.len() - named.len() {
                0 => {}
                1 => text.push("1 other".into()),
                n => text.push(format!("{n} others")),
            }
            text.join(", ")
        }
    }
}

fn note(page: &Page, notes: &[(String, Ns)]) -> String {
    notes.first().map_or(String::new(), |(note, _)| format!(": {}", page.clean(note)))
}

/// What held a packet, in a sentence without a full stop.
pub(crate) fn sentence(page: &Page, held: &CauseShare) -> String {
    let time = page.duration(held.time_ns);
    let actor = held.actor.as_ref().map_or("somebody".to_owned(), |actor| who(page, actor, held.cpu()));
    let by = || culprits(page, &held.by);
    let by_whom = |word: &str| if held.by.is_empty() { String::new() } else { format!("{word}{}", by()) };
    match held.cause {
        Cause::Work => format!("{actor} worked on it for {time}"),
        Cause::Interrupted => format!("{actor} interrupted for {time} by {}", by()),
        Cause::WaitingForCpu if held.by.is_empty() => {
            format!("{actor} ready but not running for {time}{}", note(page, &held.notes))
        }
        Cause::WaitingForCpu => format!("{actor} ready but not running for {time} behind {}", by()),
        Cause::VcpuPreempted => format!("{actor} off its CPU for {time}{}", by_whom(" behind ")),
        Cause::IdleExit => {
            let state = match (&held.state, held.number) {
                (Some(name), _) => format!(" ({})", page.clean(name)),
                (None, Some(n)) => format!(" (state {n})"),
                (None, None) => String::new(),
            };
            format!("{actor} {}, and its CPU took {time} to leave its idle state{state}", ready(held.actor.as_ref()))
        }
        Cause::Throttled => format!("{actor} throttled for {time}: its control group had used up its CPU time"),
        Cause::Stopped => format!("{actor} stopped for {time}{}", note(page, &held.notes)),
        Cause::Blocked => format!("{actor} blocked for {time}{}", by_whom(" until woken by ")),
        Cause::SoftirqWait => format!("{actor} raised and not begun for {time}{}", by_whom(" behind ")),
        Cause::IrqWait => format!("{actor} raised and not served for {time}{}", by_whom(" behind ")),
        Cause::QueuedBehind => {
            let ahead = match held.number {
                Some(1) => "1 packet".into(),
                Some(n) => format!("{} packets", page.count(n)),
                None => "packets".into(),
            };
            format!("queued for {time} behind {ahead} that {actor} served first")
        }
        Cause::PollInterval => format!("{actor} slept for {time} by its own timer: it polls"),
        Cause::Upcall => format!("{actor} had it for {time}: no flow in the kernel matched"),
        Cause::QdiscHeld => format!("held for {time} by a queueing discipline, until {}", by()),
        Cause::VmExit => format!("{actor} out of its guest for {time}{}", reason(page, &held.notes, held.number)),
        Cause::VcpuHalted => format!("{actor} halted for {time}{}", by_whom(" until woken by ")),
        Cause::IrqInjection => format!("an interrupt for {actor} pending for {time} and not taken"),
        Cause::Unexplained => format!("not explained for {time}{}", note(page, &held.notes)),
        other => format!("{actor}: {} for {time}{}{}", other.id(), by_whom(", by "), note(page, &held.notes)),
    }
}

/// `idle state C6`; by number where its name is not known.
pub(crate) fn idle_state(page: &Page, name: Option<&str>, number: Option<u64>) -> Option<String> {
    let shown = name.map(|name| page.clean(name)).or(number.map(|n| n.to_string()))?;
    Some(format!("idle state {shown}"))
}

/// What is a thread's turn is an interrupt's call.
fn ready(actor: Option<&Actor>) -> &'static str {
    match actor {
        Some(actor) if actor.doing.interrupts() => "called for",
        _ => "ready",
    }
}

/// Why a vCPU left its guest: ` (NPF)`, ` (mostly IOIO)`; by number where it has no name.
fn reason(page: &Page, notes: &[(String, Ns)], number: Option<u64>) -> String {
    // Behind the name, which is one word, is what else there is to say of it.
    let mut names: Vec<(&str, Ns)> = Vec::new();
    for (note, ns) in notes {
        let name = note.split("; ").next().unwrap_or(note);
        if name.contains(' ') {
            continue;
        }
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum = sum.saturating_add(*ns),
            None => names.push((name, *ns)),
        }
    }
    match (names.iter().max_by_key(|(_, ns)| *ns), number) {
        (Some((name, _)), _) if names.len() == 1 => format!(" ({})", page.clean(name)),
        (Some((name, _)), _) => format!(" (mostly {})", page.clean(name)),
        (None, Some(number)) => format!(" (exit {number})"),
        (None, None) => String::new(),
    }
}

/// What a row of the ranking is about, without times: `vhost of guest7 behind vCPU 0 of guest7 (FIFO 1)`.
pub(crate) fn subject(page: &Page, row: &Row) -> String {
    let actor = row.actor.as_ref().map_or(String::new(), |actor| page.clean(&actor.name));
    let class = |m: &Actor| m.class.map_or(String::new(), |class| format!(" ({})", page.clean(&class.to_string())));
    let first = row.by.first().map(|(m, _)| format!("{}{}", page.clean(&m.name), class(m)));
    let by = |word: &str| match &first {
        Some(by) => format!(" {word} {by}"),
        None => note(page, &row.notes),
    };
    match row.cause {
        Cause::WaitingForCpu | Cause::VcpuPreempted | Cause::SoftirqWait | Cause::IrqWait => {
            format!("{actor}{}", by("behind"))
        }
        Cause::Interrupted => format!("{actor}{}", by("by")),
        Cause::Blocked | Cause::VcpuHalted => format!("{actor}{}", by("until")),
        Cause::QueuedBehind => {
            let most =
                row.number.filter(|n| *n > 1).map_or(String::new(), |n| format!(", up to {} ahead", page.count(n)));
            format!("served by {actor}{most}")
        }
        Cause::IdleExit => {
            let state = idle_state(page, row.state.as_deref(), row.number);
            format!("{actor}{}", state.map_or(String::new(), |state| format!(", {state}")))
        }
        Cause::QdiscHeld => actor,
        Cause::VmExit => format!("{actor}{}", reason(page, &row.notes, row.number)),
        Cause::Unexplained => row.notes.first().map_or(String::new(), |(note, _)| page.clean(note)),
        _ => actor,
    }
}

/// What a row says of all its packets, in the words of [`sentence`]: `vhost of guest7 ready but not running behind …`.
pub(crate) fn attribution(page: &Page, row: &Row) -> String {
    let cpu = if row.cpus.len() == 1 { row.cpus.first().map(|(cpu, _)| *cpu) } else { None };
    let actor = row.actor.as_ref().map_or("somebody".to_owned(), |actor| who(page, actor, cpu));
    let first = row.by.first().map(|(m, _)| who(page, m, None));
    let by = |word: &str| match &first {
        Some(by) => format!(" {word} {by}"),
        None => note(page, &row.notes),
    };
    match row.cause {
        Cause::Work => format!("{actor} worked for longer than usual"),
        Cause::Interrupted => format!("{actor} interrupted{}", by("by")),
        Cause::WaitingForCpu => format!("{actor} ready but not running{}", by("behind")),
        Cause::VcpuPreempted => format!("{actor} off its CPU{}", by("behind")),
        Cause::IdleExit => {
            let state = row.state.as_ref().map_or(String::new(), |name| format!(" ({})", page.clean(name)));
            format!("{actor} {}, and its CPU slow to leave its idle state{state}", ready(row.actor.as_ref()))
        }
        Cause::Throttled => format!("{actor} throttled: its control group had used up its CPU time"),
        Cause::Stopped => format!("{actor} stopped{}", note(page, &row.notes)),
        Cause::Blocked => format!("{actor} blocked{}", by("until woken by")),
        Cause::SoftirqWait => format!("{actor} raised and not begun{}", by("behind")),
        Cause::IrqWait => format!("{actor} raised and not served{}", by("behind")),
        Cause::QueuedBehind => match row.number {
            Some(n) if n > 1 => format!("queued behind up to {} packets that {actor} served first", page.count(n)),
            _ => format!("queued behind packets that {actor} served first"),
        },
        Cause::PollInterval => format!("{actor} slept by its own timer: it polls"),
        Cause::Upcall => format!("{actor} had to decide: no flow in the kernel matched"),
        Cause::QdiscHeld => "held by a queueing discipline".into(),
        Cause::VmExit => format!("{actor} out of its guest{}", reason(page, &row.notes, row.number)),
        Cause::VcpuHalted => format!("{actor} halted{}", by("until woken by")),
        Cause::IrqInjection => format!("interrupts for {actor} pending and not taken"),
        Cause::Unexplained => format!("not explained{}", note(page, &row.notes)),
        other => format!("{actor}: {}{}", other.id(), by("by")),
    }
}
