//! The worst spikes in text: one line for all that are alike.

use super::selector::name;
use super::text::{one_line, shown_fixes};
use super::{ExplainedPacket, ExplainedSpike, Explanation};
use crate::page::Page;
use latpath_cause::{Actor, Cause, CauseShare, RunContext};
use latpath_linux::Cpus;
use latpath_model::Ns;

/// What makes spikes alike: cause, machine, actor, culprit, waiter.
type Key = (Cause, String, [Option<String>; 3]);

fn key(share: &CauseShare) -> Key {
    let name = |actor: Option<&Actor>| actor.map(|actor| actor.name.clone());
    let by = share.by.first().map(|(by, _)| by);
    (share.cause, share.machine.clone(), [name(share.actor.as_ref()), name(by), name(share.waiter.as_ref())])
}

/// The row of the ranking that has a packet's first cause.
pub(super) fn row_of(packet: &ExplainedPacket, explanation: &Explanation) -> Option<usize> {
    let first = key(packet.attribution.first()?);
    explanation.ranking.iter().position(|ranked| key(&ranked.row) == first)
}

/// The spikes, those that are alike behind the worst of them. Numbers are those of `--packet`.
pub(super) fn worst(page: &mut Page, explanation: &Explanation, context: &RunContext) {
    if explanation.spikes.is_empty() {
        return;
    }
    page.heading("The worst packet of each of the worst spikes (latpath explain RUN --packet N shows one)");
    let mut groups: Vec<(Option<Key>, Vec<usize>)> = Vec::new();
    for (at, spike) in explanation.spikes.iter().enumerate() {
        let of = spike.worst.attribution.first().map(key);
        match groups.iter_mut().find(|(known, _)| *known == of) {
            Some((_, places)) => places.push(at),
            None => groups.push((of, vec![at])),
        }
    }
    let fixes = shown_fixes(explanation);
    for (_, places) in groups {
        let [first, alike @ ..] = places.as_slice() else { continue };
        let Some(ExplainedSpike { worst, more }) = explanation.spikes.get(*first) else { continue };
        let explained = &worst.explained;
        let name = page.clean(&name(explained.stream, explained.key, explained.begin().unwrap_or(0), context));
        let mut line = format!("{name}  {}", one_line(page, worst, context));
        line += &match more {
            0 => String::new(),
            1 => " 1 more packet was late then.".into(),
            n => format!(" {} more packets were late then.", page.count(*n)),
        };
        let row = row_of(worst, explanation);
        let fix = row.and_then(|row| fixes.iter().position(|fix| fix.rows.contains(&row)));
        line += &fix.map_or(String::new(), |fix| format!(" Fix: see {}.", fix + 1));
        page.wrapped(format!("  {:>2}. ", first + 1), 6, &line);
        let spikes = || alike.iter().filter_map(|at| explanation.spikes.get(*at));
        let times = || spikes().map(|spike| spike.worst.attribution.time_ns);
        let (Some(longest), Some(shortest)) = (times().max(), times().min()) else { continue };
        let numbers: Cpus = alike.iter().map(|at| *at as u32 + 1).collect();
        let more: u64 = spikes().map(|spike| spike.more).sum();
        let also = match more {
            0 => String::new(),
            n => format!("; {} late then", page.number_of(n, "more packet")),
        };
        page.wrapped("      ".into(), 6, &format!("Alike: {numbers}, {}{also}.", range(page, shortest, longest)));
    }
}

fn range(page: &Page, shortest: Ns, longest: Ns) -> String {
    match (page.duration(longest), page.duration(shortest)) {
        (longest, shortest) if longest == shortest => longest,
        (longest, shortest) => format!("{longest} to {shortest}"),
    }
}
