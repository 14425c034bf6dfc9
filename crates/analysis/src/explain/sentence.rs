//! Causes as sentences, and in short form for tables.

use super::ExplainedPacket;
use crate::Notation;
use latpath_cause::{held_at, Actor, Cause, CauseShare, Detail, Link, Note, Row, RunContext, Subject};
use latpath_flight::Class;
use latpath_model::Ns;

/// An actor in a list: `vhost of guest7, CPU 4`.
pub fn briefly(notation: &Notation, actor: &Actor, cpu: Option<u32>) -> String {
    let name = notation.clean(&actor.name);
    cpu.map_or_else(|| name.clone(), |cpu| format!("{name}, CPU {cpu}"))
}

/// Maximum number of culprits named in a sentence.
const NAMED: usize = 3;

/// Details of an actor: `6154, FIFO 1, pod shop/web-0`.
fn details(notation: &Notation, actor: &Actor, cpu: Option<u32>) -> String {
    let pid = match actor.pids.as_slice() {
        [] => None,
        [one] => Some(one.to_string()),
        many => Some(format!("{} threads", many.len())),
    };
    let cpu = cpu.map(|cpu| format!("CPU {cpu}"));
    let class = actor.class.map(|class: Class| notation.clean(&class.to_string()));
    let owner = actor.process.as_ref().and_then(|process| process.owner.as_deref()).filter(|_| !actor.is_tool);
    // The thread name of a virtual machine already contains the machine's name.
    let owner = owner.filter(|owner| !owner.starts_with("VM ")).map(|owner| notation.clean(owner));
    pid.into_iter().chain(cpu).chain(class).chain(owner).collect::<Vec<_>>().join(", ")
}

/// An actor with details: `vhost of guest7 (5620, CPU 4, SCHED_OTHER)`.
pub fn who(notation: &Notation, actor: &Actor, cpu: Option<u32>) -> String {
    let name = notation.clean(&actor.name);
    match details(notation, actor, cpu) {
        details if details.is_empty() => name,
        details => format!("{name} ({details})"),
    }
}

/// Culprits, with times if there are several: `vCPU 0 of guest7 (6154, FIFO 1) 9.100 ms, irq 25 virtio0 2.000 ms, 3
/// others`.
fn culprits(notation: &Notation, by: &[(Actor, Ns)]) -> String {
    match by {
        [] => "what is not known".into(),
        [(one, _)] => who(notation, one, None),
        several => {
            let all = several.iter().map(|(_, ns)| *ns).fold(0, Ns::saturating_add);
            // Culprits with a negligible share are not named.
            let named: Vec<_> = several.iter().take(NAMED).filter(|(_, ns)| *ns >= all / 100).collect();
            if let ([(one, _)], true) = (named.as_slice(), named.len() < several.len()) {
                return format!("{} and others", who(notation, one, None));
            }
            let mut text: Vec<String> =
                named.iter().map(|(m, ns)| format!("{} {}", who(notation, m, None), notation.duration(*ns))).collect();
            match several.len() - named.len() {
                0 => {}
                1 => text.push("1 other".into()),
                n => text.push(format!("{n} others")),
            }
            text.join(", ")
        }
    }
}

fn note(notation: &Notation, notes: &[(Note, Ns)]) -> String {
    // Notes about the composition of times are not part of sentences.
    let said = notes.iter().find(|(note, _)| !note.is_of_times());
    said.map_or(String::new(), |(note, _)| format!(": {}", notation.clean(&note.to_string())))
}

/// The parts that complete a cause's sentence.
struct Words<'a> {
    actor: Option<String>,
    /// The thread that waited for the actor.
    waiter: Option<&'a Actor>,
    /// ` for 14.2 ms`; empty in a sentence without a time.
    time: String,
    by: Option<String>,
    number: Option<u64>,
    state: Option<&'a str>,
    notes: &'a [(Note, Ns)],
}

fn fill(notation: &Notation, cause: Cause, words: &Words) -> String {
    let info = cause.info();
    let by = match &words.by {
        Some(by) => format!(" {} {by}", info.link.words()),
        None if info.detail == Detail::Note => String::new(),
        None => note(notation, words.notes),
    };
    let detail = match (info.detail, words.number) {
        (Detail::None, _) => String::new(),
        (Detail::Note, _) => note(notation, words.notes),
        (Detail::IdleState, number) => {
            let shown = words.state.map(|state| notation.clean(state)).or(number.map(|n| format!("state {n}")));
            shown.map_or(String::new(), |shown| format!(" ({shown})"))
        }
        (Detail::ExitReason, number) => reason(notation, words.notes, number),
        (Detail::PacketsAhead, Some(n)) if n > 1 && words.time.is_empty() => {
            format!("up to {}", notation.number_of(n, "packet"))
        }
        (Detail::PacketsAhead, Some(n)) => notation.number_of(n, "packet"),
        (Detail::PacketsAhead, None) => "packets".into(),
    };
    let actor = words.actor.as_deref().unwrap_or("an unknown thread");
    let (mut text, was) = match (info.subject, words.waiter) {
        (Subject::Actor, Some(waiter)) => {
            (format!("{} waited for {actor}, which ", notation.clean(&waiter.name)), "was ")
        }
        (Subject::Actor, None) => (format!("{actor} "), ""),
        (Subject::None, _) => (String::new(), ""),
    };
    // Values come from outside the program and may contain braces, so each placeholder is filled only once.
    for piece in info.sentence.split('{') {
        let (place, rest) = piece.split_once('}').unwrap_or(("", piece));
        text += match place {
            "actor" => actor,
            "was" => was,
            "for" => &words.time,
            "by" => &by,
            "detail" => &detail,
            _ => "",
        };
        text += rest;
    }
    text
}

/// A packet's cause as a sentence without a full stop.
pub fn sentence(notation: &Notation, share: &CauseShare) -> String {
    let words = Words {
        actor: share.actor.as_ref().map(|actor| who(notation, actor, share.cpu())),
        waiter: share.waiter.as_ref(),
        time: format!(" for {}", notation.duration(share.time_ns)),
        by: (!share.by.is_empty()).then(|| culprits(notation, &share.by)),
        number: share.number,
        state: share.state.as_deref(),
        notes: &share.notes,
    };
    fill(notation, share.cause, &words)
}

/// A row's cause as a sentence without a time. It begins with a capital letter, or with the actor's name as is.
pub fn row_sentence(notation: &Notation, row: &Row) -> String {
    let cpu = if row.cpus.len() == 1 { row.cpus.first().map(|(cpu, _)| *cpu) } else { None };
    let words = Words {
        actor: row.actor.as_ref().map(|actor| who(notation, actor, cpu)),
        waiter: row.waiter.as_ref(),
        time: String::new(),
        by: row.by.first().map(|(actor, _)| who(notation, actor, None)),
        number: row.number,
        state: row.state.as_deref(),
        notes: &row.notes,
    };
    let text = fill(notation, row.cause, &words);
    match row.cause.info().subject {
        Subject::Actor => text,
        Subject::None => text[..1].to_uppercase() + &text[1..],
    }
}

/// An idle state: `idle state C6`; shows its index if the name is unknown.
pub fn idle_state(notation: &Notation, name: Option<&str>, number: Option<u64>) -> Option<String> {
    let shown = name.map(|name| notation.clean(name)).or(number.map(|n| n.to_string()))?;
    Some(format!("idle state {shown}"))
}

/// The reason for a vCPU's exit: ` (npf)`, ` (mostly io)`; its number if it has no name.
fn reason(notation: &Notation, notes: &[(Note, Ns)], number: Option<u64>) -> String {
    let name = |(note, ns): &(Note, Ns)| match note {
        Note::ExitReason(name) => Some((*name, *ns)),
        _ => None,
    };
    let names: Vec<(&str, Ns)> = notes.iter().filter_map(name).collect();
    match (names.iter().max_by_key(|(_, ns)| *ns), number) {
        (Some((name, _)), _) if names.len() == 1 => format!(" ({})", notation.clean(name)),
        (Some((name, _)), _) => format!(" (mostly {})", notation.clean(name)),
        (None, Some(number)) => format!(" (exit {number})"),
        (None, None) => String::new(),
    }
}

/// A row's actor and culprit: `vhost of guest7 behind vCPU 0 of guest7 (FIFO 1)`.
pub fn subject(notation: &Notation, row: &Row) -> String {
    let info = row.cause.info();
    let class = |a: &Actor| a.class.map_or(String::new(), |class| format!(" ({})", notation.clean(&class.to_string())));
    let mut text = row.actor.as_ref().map_or(String::new(), |actor| notation.clean(&actor.name));
    match (info.link, row.by.first()) {
        (Link::Nobody, _) => {}
        (link, Some((by, _))) => text += &format!(" {} {}{}", link.words(), notation.clean(&by.name), class(by)),
        (_, None) if info.detail == Detail::Note => {}
        (_, None) => text += &note(notation, &row.notes),
    }
    let detail = match (info.detail, row.number) {
        (Detail::Note, _) => note(notation, &row.notes),
        (Detail::IdleState, number) => {
            idle_state(notation, row.state.as_deref(), number).map_or(String::new(), |state| format!(", {state}"))
        }
        (Detail::ExitReason, number) => reason(notation, &row.notes, number),
        (Detail::PacketsAhead, Some(n)) if n > 1 => format!(", up to {} packets ahead", notation.count(n)),
        _ => String::new(),
    };
    text += &detail;
    if let Some(waiter) = &row.waiter {
        text += &format!(", for which {} waited", notation.clean(&waiter.name));
    }
    text.trim_start_matches([' ', ',', ':']).to_owned()
}

/// The culprit as the table of steps shows it: `behind vCPU 0 of guest7 (6154, FIFO 1) and others`, `from idle state
/// C6`.
pub fn culprit_of_step(
    notation: &Notation,
    cause: Cause,
    by: &[(Actor, Ns)],
    (number, state): (Option<u64>, Option<&str>),
) -> String {
    let info = cause.info();
    match (info.detail, number) {
        (Detail::PacketsAhead, Some(n)) => {
            return format!("after {} that came before", notation.number_of(n, "packet"))
        }
        (Detail::ExitReason, Some(n)) => return format!("for reason {n}"),
        (Detail::IdleState, number) => {
            return idle_state(notation, state, number).map_or(String::new(), |state| format!("from {state}"));
        }
        _ => {}
    }
    // Culprits with a negligible share are not named.
    let all: Ns = by.iter().map(|(_, ns)| *ns).fold(0, Ns::saturating_add);
    let named = by.iter().take(2).filter(|(_, ns)| *ns >= all / 20);
    let names: Vec<String> = named.map(|(actor, _)| who(notation, actor, None)).collect();
    let more = if by.len() > names.len() { " and others" } else { "" };
    match names.is_empty() {
        true => String::new(),
        false => format!("{} {}{more}", info.link.words(), names.join(", ")).trim_start().to_owned(),
    }
}

/// Names the device in a sentence about a queueing discipline.
pub fn at_device(notation: &Notation, text: String, share: &CauseShare, context: &RunContext) -> String {
    match held_at(share, context).filter(|_| share.cause == Cause::QdiscHeld) {
        Some(device) => text.replacen(
            "a queueing discipline",
            &format!("the queueing discipline of {}", notation.clean(&device)),
            1,
        ),
        None => text,
    }
}

/// The segment of a hop: its name, or else the points at both ends: `nic-rx@eth0→app-read@relay`.
pub fn place_of_row(hop: (u16, u16), context: &RunContext) -> String {
    if let Some(segment) = context.segment_of(hop) {
        return segment.name.clone();
    }
    let name = |id: u16| {
        let name = context.point(id);
        name.strip_prefix("host/").map_or(name.clone(), str::to_owned)
    };
    format!("{}→{}", name(hop.0), name(hop.1))
}

/// A packet on one line: `14.61 ms in Thyp: vhost of guest7 (5620, CPU 4, SCHED_OTHER) ready but not running for 14.20
/// ms behind …`.
pub fn one_line(notation: &Notation, explained_packet: &ExplainedPacket, context: &RunContext) -> String {
    let total = notation.duration(explained_packet.attribution.time_ns);
    let Some(first) = explained_packet.attribution.first() else {
        return format!("{total}: no longer than the baseline.");
    };
    let at = first
        .hops
        .first()
        .map_or(String::new(), |(hop, _)| format!(" in {}", notation.clean(&place_of_row(*hop, context))));
    let daemon = match explained_packet.explained.with_daemon(&context.points) {
        0 => String::new(),
        ns => format!(", {} of it with ovs-vswitchd", notation.duration(ns)),
    };
    format!("{total}{at}{daemon}: {}.", at_device(notation, sentence(notation, first), first, context))
}
