//! A cause as a sentence, and in a few words for a table.

use crate::page::Page;
use latpath_cause::{Actor, Cause, CauseShare, Detail, Link, Note, Row, Subject};
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

fn note(page: &Page, notes: &[(Note, Ns)]) -> String {
    // Of how its times were put together, no sentence needs to speak.
    let said = notes.iter().find(|(note, _)| !note.is_of_times());
    said.map_or(String::new(), |(note, _)| format!(": {}", page.clean(&note.to_string())))
}

/// What a sentence is made of, beside its cause.
struct Words<'a> {
    actor: Option<String>,
    /// What waited for the actor.
    waiter: Option<&'a Actor>,
    /// ` for 14.2 ms`; empty where no time is meant.
    time: String,
    by: Option<String>,
    number: Option<u64>,
    state: Option<&'a str>,
    notes: &'a [(Note, Ns)],
}

fn fill(page: &Page, cause: Cause, words: &Words) -> String {
    let info = cause.info();
    let by = match &words.by {
        Some(by) => format!(" {} {by}", info.link.words()),
        None if info.detail == Detail::Note => String::new(),
        None => note(page, words.notes),
    };
    let detail = match (info.detail, words.number) {
        (Detail::None, _) => String::new(),
        (Detail::Note, _) => note(page, words.notes),
        (Detail::IdleState, number) => {
            let shown = words.state.map(|state| page.clean(state)).or(number.map(|n| format!("state {n}")));
            shown.map_or(String::new(), |shown| format!(" ({shown})"))
        }
        (Detail::ExitReason, number) => reason(page, words.notes, number),
        (Detail::PacketsAhead, Some(n)) if n > 1 && words.time.is_empty() => {
            format!("up to {}", page.number_of(n, "packet"))
        }
        (Detail::PacketsAhead, Some(n)) => page.number_of(n, "packet"),
        (Detail::PacketsAhead, None) => "packets".into(),
    };
    let actor = words.actor.as_deref().unwrap_or("an unknown thread");
    let (mut text, was) = match (info.subject, words.waiter) {
        (Subject::Actor, Some(waiter)) => (format!("{} waited for {actor}, which ", page.clean(&waiter.name)), "was "),
        (Subject::Actor, None) => (format!("{actor} "), ""),
        (Subject::None, _) => (String::new(), ""),
    };
    // What is filled in comes from outside, so each place is filled once.
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

/// What held a packet, as a sentence without a full stop.
pub(crate) fn sentence(page: &Page, share: &CauseShare) -> String {
    let words = Words {
        actor: share.actor.as_ref().map(|actor| who(page, actor, share.cpu())),
        waiter: share.waiter.as_ref(),
        time: format!(" for {}", page.duration(share.time_ns)),
        by: (!share.by.is_empty()).then(|| culprits(page, &share.by)),
        number: share.number,
        state: share.state.as_deref(),
        notes: &share.notes,
    };
    fill(page, share.cause, &words)
}

/// What a row says of all its packets: [`sentence`] without a time. It begins with a capital, unless an actor's name comes first.
pub(crate) fn row_sentence(page: &Page, row: &Row) -> String {
    let cpu = if row.cpus.len() == 1 { row.cpus.first().map(|(cpu, _)| *cpu) } else { None };
    let words = Words {
        actor: row.actor.as_ref().map(|actor| who(page, actor, cpu)),
        waiter: row.waiter.as_ref(),
        time: String::new(),
        by: row.by.first().map(|(actor, _)| who(page, actor, None)),
        number: row.number,
        state: row.state.as_deref(),
        notes: &row.notes,
    };
    let text = fill(page, row.cause, &words);
    match row.cause.info().subject {
        Subject::Actor => text,
        Subject::None => text[..1].to_uppercase() + &text[1..],
    }
}

/// `idle state C6`; by number where its name is not known.
pub(crate) fn idle_state(page: &Page, name: Option<&str>, number: Option<u64>) -> Option<String> {
    let shown = name.map(|name| page.clean(name)).or(number.map(|n| n.to_string()))?;
    Some(format!("idle state {shown}"))
}

/// Why a vCPU left its guest: ` (npf)`, ` (mostly io)`; by number where it has no name.
fn reason(page: &Page, notes: &[(Note, Ns)], number: Option<u64>) -> String {
    let name = |(note, ns): &(Note, Ns)| match note {
        Note::ExitReason(name) => Some((*name, *ns)),
        _ => None,
    };
    let names: Vec<(&str, Ns)> = notes.iter().filter_map(name).collect();
    match (names.iter().max_by_key(|(_, ns)| *ns), number) {
        (Some((name, _)), _) if names.len() == 1 => format!(" ({})", page.clean(name)),
        (Some((name, _)), _) => format!(" (mostly {})", page.clean(name)),
        (None, Some(number)) => format!(" (exit {number})"),
        (None, None) => String::new(),
    }
}

/// What a row of the ranking is about, in a few words: `vhost of guest7 behind vCPU 0 of guest7 (FIFO 1)`.
pub(crate) fn subject(page: &Page, row: &Row) -> String {
    let info = row.cause.info();
    let class = |a: &Actor| a.class.map_or(String::new(), |class| format!(" ({})", page.clean(&class.to_string())));
    let mut text = row.actor.as_ref().map_or(String::new(), |actor| page.clean(&actor.name));
    match (info.link, row.by.first()) {
        (Link::Nobody, _) => {}
        (link, Some((by, _))) => text += &format!(" {} {}{}", link.words(), page.clean(&by.name), class(by)),
        (_, None) if info.detail == Detail::Note => {}
        (_, None) => text += &note(page, &row.notes),
    }
    let detail = match (info.detail, row.number) {
        (Detail::Note, _) => note(page, &row.notes),
        (Detail::IdleState, number) => {
            idle_state(page, row.state.as_deref(), number).map_or(String::new(), |state| format!(", {state}"))
        }
        (Detail::ExitReason, number) => reason(page, &row.notes, number),
        (Detail::PacketsAhead, Some(n)) if n > 1 => format!(", up to {} packets ahead", page.count(n)),
        _ => String::new(),
    };
    text += &detail;
    if let Some(waiter) = &row.waiter {
        text += &format!(", for which {} waited", page.clean(&waiter.name));
    }
    text.trim_start_matches([' ', ',', ':']).to_owned()
}

/// What kept an actor, in a table of steps: `behind vCPU 0 of guest7 (6154, FIFO 1) and others`, `from idle state C6`.
pub(crate) fn culprit_of_step(
    page: &Page,
    cause: Cause,
    by: &[(Actor, Ns)],
    (number, state): (Option<u64>, Option<&str>),
) -> String {
    let info = cause.info();
    match (info.detail, number) {
        (Detail::PacketsAhead, Some(n)) => return format!("after {} that came before", page.number_of(n, "packet")),
        (Detail::ExitReason, Some(n)) => return format!("for reason {n}"),
        (Detail::IdleState, number) => {
            return idle_state(page, state, number).map_or(String::new(), |state| format!("from {state}"));
        }
        _ => {}
    }
    // What took next to nothing of it needs no name.
    let all: Ns = by.iter().map(|(_, ns)| *ns).fold(0, Ns::saturating_add);
    let named = by.iter().take(2).filter(|(_, ns)| *ns >= all / 20);
    let names: Vec<String> = named.map(|(actor, _)| who(page, actor, None)).collect();
    let more = if by.len() > names.len() { " and others" } else { "" };
    match names.is_empty() {
        true => String::new(),
        false => format!("{} {}{more}", info.link.words(), names.join(", ")).trim_start().to_owned(),
    }
}
