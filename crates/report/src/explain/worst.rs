//! The worst spikes as text: all spikes with the same cause share one entry.

use super::text::shown_fixes;
use crate::page::Page;
use latpath_analysis::explain::{cause_key, name, one_line, row_of, CauseKey, ExplainedSpike, Explanation};
use latpath_cause::RunContext;
use latpath_linux::Cpus;
use latpath_model::Ns;

/// Writes the spikes, grouped by cause; the worst of each group comes first. Their numbers are those that `--packet`
/// accepts.
pub(super) fn worst(page: &mut Page, explanation: &Explanation, context: &RunContext) {
    if explanation.spikes.is_empty() {
        return;
    }
    page.heading("The worst packet of each of the worst spikes (latpath explain RUN --packet N shows one)");
    let mut groups: Vec<(Option<CauseKey>, Vec<usize>)> = Vec::new();
    for (at, spike) in explanation.spikes.iter().enumerate() {
        let of = spike.worst.attribution.first().map(cause_key);
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
