//! Summary in sentences: compares the first configuration with each of the others.

use super::{busy, main_ladder, words};
use crate::page::Page;
use latpath_ladder::{Direction, MeansReport};
use latpath_model::Ns;
use latpath_observe::exits::{VcpuFigures, VmExits};
use latpath_observe::profile::Modes;
use latpath_observe::study::{Configuration, Part};

fn times_as(now: f64, before: f64) -> Option<String> {
    let ratio = now / before;
    ratio.is_finite().then(|| format!("{ratio:.2} times"))
}

/// First sentence if the host was emulated; ratios of times and rates are then left out.
const EMULATED: &str =
    "The host was emulated: counts and the order of events hold; times and rates, and their ratios, say nothing of your \
     machine.";

/// Writes the sentences: each other configuration relative to the first, for the same work.
pub(super) fn sentences(page: &mut Page, all: &[Configuration]) {
    let Some((first, others)) = all.split_first() else { return };
    if others.is_empty() {
        page.line("  There is one configuration only: nothing to compare it with.");
    }
    let is_emulated = all.iter().any(|one| one.emulated);
    if is_emulated {
        page.wrapped("  ".into(), 2, EMULATED);
    }
    for other in others {
        let (name, than) = (page.clean(&other.name), page.clean(&first.name));
        let rates = other.rate().zip(first.rate()).filter(|_| !is_emulated);
        if let Some(more) = rates.and_then(|(now, before)| times_as(now, before)) {
            page.wrapped("  ".into(), 2, &format!("{name} carries {more} the traffic of {than}."));
        }
        let Some((now, before)) = other.exits.as_ref().zip(first.exits.as_ref()) else { continue };
        let per_gb = |part: &Part<VmExits>, value: f64| value / part.work.gigabytes();
        let both = |of: &dyn Fn(&VcpuFigures) -> f64| {
            times_as(per_gb(now, of(&now.figures.all)), per_gb(before, of(&before.figures.all)))
        };
        let outside = both(&|all| all.exit_time_without_halts_ns as f64);
        let count = both(&|all| all.exits as f64);
        let busy = both(&|all| busy(all) as f64);
        if let (Some(count), true) = (&count, is_emulated) {
            let text =
                format!("For the same bytes the vCPUs of {name} leave the guest {count} as often as those of {than}.");
            page.wrapped("  ".into(), 2, &text);
        } else if let (Some(count), Some(outside), Some(busy)) = (count, outside, busy) {
            let text = format!(
                "For the same bytes its vCPUs leave the guest {count} as often, are outside of it without halts for {outside} the \
                 time, and use {busy} the CPU time."
            );
            page.wrapped("  ".into(), 2, &text);
        }
    }
    for other in others {
        if !is_emulated {
            host_time(page, first, other);
        }
        Direction::ALL.into_iter().for_each(|direction| transfer(page, first, other, direction, is_emulated));
    }
}

/// Writes the busy time of all CPUs for the same number of bytes: work saved on one side may have moved to the other.
fn host_time(page: &mut Page, first: &Configuration, other: &Configuration) {
    let per_gb = |one: &Configuration| {
        let busy = Modes::of_profile(&one.profile()?).busy_ns() as f64;
        Some(busy / one.profiled()?.work.gigabytes()).filter(|ns| ns.is_finite())
    };
    let Some((was, is)) = per_gb(first).zip(per_gb(other)) else { return };
    let Some(ratio) = times_as(is, was) else { return };
    let (name, was, is) = (page.clean(&other.name), page.duration(was as Ns), page.duration(is as Ns));
    let text =
        format!("All CPUs of the host together work {is} for each GB with {name}, {ratio} as long ({was} before).");
    page.wrapped("  ".into(), 2, &text);
}

/// Compares the times of a transfer if both configurations' transfers end in the same step.
fn transfer(page: &mut Page, first: &Configuration, other: &Configuration, direction: Direction, is_emulated: bool) {
    let Some(((_, was), (_, is))) = main_ladder(first, direction).zip(main_ladder(other, direction)) else { return };
    let last = |means: &MeansReport| means.rungs.last().map(|rung| rung.step);
    let (of, than) = (words(direction), page.clean(&first.name));
    let name = page.clean(&other.name);
    if was.variant == is.variant {
        let text = format!("Packets {of} go by the same means in {than} and {name}: {}.", is.variant.words());
        page.wrapped("  ".into(), 2, &text);
    }
    let times = times_as(is.total.p50_ns as f64, was.total.p50_ns as f64);
    let text = match (last(was) == last(is), times) {
        (true, _) if is_emulated => return,
        (true, Some(ratio)) => format!("A transfer {of} takes {ratio} as long with {name} (median)."),
        (true, None) => return,
        (false, _) => {
            let ends = |means| last(means).map_or("nothing", |step| step.words_of_any(direction));
            format!(
                "Transfers {of} are not compared: those of {than} are seen until \"{}\", those of {name} until \"{}\".",
                ends(was),
                ends(is)
            )
        }
    };
    page.wrapped("  ".into(), 2, &text);
}
