//! The text of `latpath study vhost`: the configurations side by side, and a summary in sentences.

mod short;

use crate::cpu_profile::{trust, MODES};
use crate::document::{sheet, without_markup, Sheet};
use crate::exits::name_of;
use crate::page::{Page, Style};
use latpath_exits::VcpuState;
use latpath_ladder::{Direction, MeansReport, QueueReport, Step, Times};
use latpath_model::Ns;
use latpath_observe::exits::{ReasonFigures, VcpuFigures};
use latpath_observe::profile::{Diff, Modes, Moved, ProfileFigures};
use latpath_observe::study::{Configuration, Setup, Work};
use latpath_profile::Profile;
use latpath_queues::Side;
use latpath_stats::text::Table;
use latpath_stats::units::{self, CharacterSet};
use std::collections::BTreeMap;

/// Maximum number of exit reasons shown by name; the others share a row.
const MAX_REASONS: usize = 8;

/// Formats a study of a VM's configurations as text.
pub fn study_of_vms_text(all: &[Configuration], style: Style) -> String {
    let mut page = Page::new(style);
    write(&mut page, all);
    page.finish()
}

/// Formats the study as HTML, without charts.
pub fn study_of_vms_html(all: &[Configuration]) -> String {
    let mut page = Page::new(Style { is_for_people: true, ..CharacterSet::Unicode.into() });
    write(&mut page, all);
    let names: Vec<String> = all.iter().map(|one| page.clean(&one.name)).collect();
    sheet(&Sheet {
        title: format!("latpath study vhost: {}", names.join(", ")),
        blocks: page.into_blocks(),
        limits: &[],
        is_weak: false,
        data: without_markup(&serde_json::json!({
            "begin_ms": 0, "slot_ns": 1, "slots": 0, "threshold_ns": 0, "segments": []
        })),
        source: format!("{} configurations", names.len()),
    })
}

fn write(page: &mut Page, all: &[Configuration]) {
    page.heading("In short");
    short::sentences(page, all);
    notes(page, all);
    odd_rates(page, all);
    work(page, all);
    times(page, all);
    exits(page, all);
    queues(page, all);
    ladders(page, all);
    cpu_time(page, all);
    compared(page, all);
}

fn table(page: &Page, first: &str, all: &[Configuration], each: &[&str]) -> Table {
    let mut heads = vec![format!("<{first}")];
    for one in all {
        let name = page.clean(&one.name);
        heads.extend(each.iter().enumerate().map(|(at, what)| match at {
            0 => format!("{name}: {what}"),
            _ => (*what).to_owned(),
        }));
    }
    Table::new(&heads.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A bit rate with its unit: `9.41 Gbit/s`.
fn bits(page: &Page, bits_per_second: f64) -> String {
    let (divisor, unit) = match bits_per_second {
        rate if rate >= 1e9 => (1e9, "Gbit/s"),
        rate if rate >= 1e6 => (1e6, "Mbit/s"),
        _ => (1e3, "kbit/s"),
    };
    page.clean(&format!("{:.2} {unit}", bits_per_second / divisor))
}

/// Writes the notes of the configurations; a note that all have is written once.
fn notes(page: &mut Page, all: &[Configuration]) {
    let of_all = |note: &String| all.iter().all(|one| one.notes.contains(note));
    for (at, one) in all.iter().enumerate() {
        for note in &one.notes {
            match of_all(note) {
                true if at == 0 => page.warning(note),
                true => {}
                false => page.warning(&format!("{}: {note}", one.name)),
            }
        }
    }
}

/// Maximum relative deviation of the load's rate during a measurement from the range of its rates without measurement.
const RATE_TOLERATED: f64 = 0.1;

/// Writes warnings on measurements that changed the rate of the load.
fn odd_rates(page: &mut Page, all: &[Configuration]) {
    for one in all {
        let rates: Vec<f64> = one.alone.iter().map(Work::bits_per_second).collect();
        let (Some(least), Some(most)) =
            (rates.iter().copied().reduce(f64::min), rates.iter().copied().reduce(f64::max))
        else {
            continue;
        };
        for (what, work) in measured(one) {
            let rate = work.bits_per_second();
            if rate < least * (1.0 - RATE_TOLERATED) || rate > most * (1.0 + RATE_TOLERATED) {
                let is_profile = one.profile.as_ref().is_some_and(|part| what == SAMPLED && one.is_starved(&part.work));
                page.warning(&format!(
                    "{}: while {what} the load ran at {}, but by itself at {} to {}{}",
                    one.name,
                    bits(page, rate),
                    bits(page, least),
                    bits(page, most),
                    if is_profile { ": this profile is not shown" } else { "" }
                ));
            }
        }
    }
}

const SAMPLED: &str = "CPUs were sampled";

/// Each measurement, with the work of the load during it.
fn measured(one: &Configuration) -> impl Iterator<Item = (&'static str, Work)> {
    let all = [
        ("exits were counted", one.exits.as_ref().map(|part| part.work)),
        ("transfers were followed", one.ladder.as_ref().map(|part| part.work)),
        ("buffers were counted", one.queues.as_ref().map(|part| part.work)),
        (SAMPLED, one.profile.as_ref().map(|part| part.work)),
    ];
    all.into_iter().filter_map(|(what, work)| Some((what, work?)))
}

/// CPU time of a vCPU's thread: all time except sleeping and waiting for a CPU, ns.
fn busy(figures: &VcpuFigures) -> Ns {
    let mut tiles = figures.tiles;
    [VcpuState::Guest, VcpuState::Kvm, VcpuState::Qemu, VcpuState::Polling]
        .into_iter()
        .map(|tile| *tiles.of(tile))
        .sum()
}

fn words(direction: Direction) -> &'static str {
    match direction {
        Direction::FromGuest => "from the guest",
        Direction::ToGuest => "to the guest",
    }
}

fn work(page: &mut Page, all: &[Configuration]) {
    page.heading("The load");
    let mut table = Table::new(&["<configuration", "<while", "runs", "rate", "from", "to", "bytes", "packets"]);
    for one in all {
        let mut row = |what: &str, works: &[Work]| {
            let mut rates: Vec<f64> = works.iter().map(Work::bits_per_second).collect();
            rates.sort_by(f64::total_cmp);
            let (Some(least), Some(most)) = (rates.first(), rates.last()) else { return };
            let last = works.last().map_or(Default::default(), |work| work.traffic);
            table.row(vec![
                page.clean(&one.name),
                what.into(),
                works.len().to_string(),
                bits(page, rates[rates.len() / 2]),
                bits(page, *least),
                bits(page, *most),
                page.count(last.bytes()),
                page.count(last.packets()),
            ]);
        };
        row("nothing was attached", &one.alone);
        measured(one).for_each(|(what, work)| row(what, &[work]));
    }
    page.table(&table);
}

fn times(page: &mut Page, all: &[Configuration]) {
    if all.iter().all(|one| one.exits.is_none()) {
        return;
    }
    page.heading("Where the vCPUs' time went");
    let mut table = table(page, "time", all, &["of it", "per GB"]);
    for tile in VcpuState::ALL {
        let mut row = vec![tile.name().to_owned()];
        for one in all {
            let cells = one.exits.as_ref().map(|part| {
                let mut tiles = part.figures.all.tiles;
                let (whole, part_ns) = (tiles.sum(), *tiles.of(tile));
                [percent(part_ns, whole), per_gb(page, part_ns, &part.work)]
            });
            row.extend(cells.unwrap_or_default());
        }
        let is_nothing = row[1..].iter().all(|cell| cell.is_empty() || cell == "-");
        if !is_nothing {
            table.row(row);
        }
    }
    page.table(&table);
}

fn percent(part: Ns, whole: Ns) -> String {
    units::percent(part, whole, 1)
}

fn per_gb(page: &Page, ns: Ns, work: &Work) -> String {
    let per_gb = ns as f64 / work.gigabytes();
    match ns {
        0 => "-".into(),
        _ if per_gb.is_finite() => page.duration(per_gb as Ns),
        _ => "-".into(),
    }
}

fn exits(page: &mut Page, all: &[Configuration]) {
    let mut sums: BTreeMap<String, Ns> = BTreeMap::new();
    let of = |one: &Configuration| -> Vec<ReasonFigures> {
        one.exits.as_ref().map(|part| part.figures.all.reasons.clone()).unwrap_or_default()
    };
    for reason in all.iter().flat_map(of) {
        *sums.entry(name_of(&reason)).or_default() += reason.sum_ns;
    }
    if sums.is_empty() {
        return;
    }
    let mut names: Vec<(String, Ns)> = sums.into_iter().collect();
    names.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    page.heading("Exits, by reason");
    let mut table = table(page, "exits for", all, &["number", "per GB", "time per GB"]);
    let named: Vec<&str> = names.iter().take(MAX_REASONS).map(|(name, _)| name.as_str()).collect();
    let mut rows: Vec<(String, Box<dyn Fn(&ReasonFigures) -> bool + '_>)> = Vec::new();
    for shown in &named {
        rows.push((page.clean(shown), Box::new(move |reason| name_of(reason) == **shown)));
    }
    if names.len() > named.len() {
        rows.push(("others".into(), Box::new(|reason| !named.contains(&name_of(reason).as_str()))));
    }
    rows.push(("all without halts".into(), Box::new(|reason| !reason.is_halt)));
    for (label, is_meant) in rows {
        let mut row = vec![label];
        for one in all {
            let (mut count, mut sum) = (0, 0);
            for reason in of(one).iter().filter(|reason| is_meant(reason)) {
                (count, sum) = (count + reason.times.count, sum + reason.sum_ns);
            }
            let Some(part) = &one.exits else {
                row.extend(std::iter::repeat_n(String::new(), 3));
                continue;
            };
            let number_per_gb = count as f64 / part.work.gigabytes();
            row.extend([
                page.count(count),
                if number_per_gb.is_finite() { page.count(number_per_gb as u64) } else { "-".into() },
                per_gb(page, sum, &part.work),
            ]);
        }
        table.row(row);
    }
    page.table(&table);
}

fn queues(page: &mut Page, all: &[Configuration]) {
    if all.iter().all(|one| one.queues.is_none()) {
        return;
    }
    page.heading("Virtqueues");
    let heads = [
        "<configuration",
        "<seen by",
        "<queue",
        "buffers",
        "bytes",
        "kicks (saved)",
        "interrupts (saved)",
        "a kick",
        "held",
    ];
    let mut table = Table::new(&heads);
    for one in all {
        let devices = one.queues.iter().flat_map(|part| &part.figures);
        for (side, queue) in devices.flat_map(|device| device.queues.iter().map(|queue| (device.side, queue))) {
            let saved = |n: u64, saved: u64| format!("{} ({})", page.count(n), page.count(saved));
            table.row(vec![
                page.clean(&one.name),
                if side == Side::Vhost { "vhost".into() } else { "guest".into() },
                page.clean(&queue.queue),
                page.count(queue.counts.used_buffers),
                page.count(queue.counts.written_bytes + queue.counts.read_bytes),
                saved(queue.counts.kicks, queue.counts.kicks_suppressed),
                saved(queue.counts.interrupts, queue.counts.interrupts_suppressed),
                format!("{:.2}", queue.per_kick.mean),
                if queue.is_filled_by_device() { "-".into() } else { page.duration(queue.waited.p50_ns) },
            ]);
        }
    }
    page.table(&table);
    page.line(
        "  saved: those that the other side had said it does not need. a kick: buffers for each (mean); at vhost, for",
    );
    page.line("  each round of its worker. held: how long the device had a buffer (median); -: the device fills them, so that");
    page.line("  they lie ready until packets come.");
}

/// The queue with the most packets in a direction, and the means by which most of its transfers were made.
fn main_ladder(one: &Configuration, direction: Direction) -> Option<(&QueueReport, &MeansReport)> {
    let queues = one.ladder.iter().flat_map(|part| &part.figures.figures.queues);
    let queue = queues.filter(|queue| queue.direction == direction).max_by_key(|queue| queue.packets)?;
    Some((queue, queue.ladders.iter().max_by_key(|means| means.total.count)?))
}

fn ladders(page: &mut Page, all: &[Configuration]) {
    for direction in Direction::ALL {
        let found: Vec<_> = all.iter().map(|one| main_ladder(one, direction)).collect();
        if found.iter().all(Option::is_none) {
            continue;
        }
        page.heading(&format!("One transfer {}", words(direction)));
        let mut table = table(page, "until", all, &["p50", "mean", "share"]);
        let mut row = |name: &str, of: &dyn Fn(&MeansReport) -> Option<Times>| {
            let cells = found.iter().flat_map(|found| {
                let Some(times) = found.and_then(|(_, means)| of(means)) else {
                    return ["-".into(), "-".into(), "-".into()];
                };
                let whole = found.map_or(0, |(_, means)| means.total.sum_ns);
                [page.duration(times.p50_ns), page.duration(times.mean_ns), percent(times.sum_ns, whole)]
            });
            let cells: Vec<String> = cells.collect();
            if cells.iter().any(|cell| cell != "-") {
                table.row(std::iter::once(name.to_owned()).chain(cells).collect());
            }
        };
        for step in Step::ALL {
            let rung = |means: &MeansReport| Some(means.rungs.iter().find(|rung| rung.step == step)?.time);
            row(step.words_of_any(direction), &rung);
        }
        row("total", &|means| Some(means.total));
        page.table(&table);
        page.line("  means are of those transfers that have the step; medians do not add up");
        for (one, found) in all.iter().zip(&found) {
            let Some((queue, means)) = found else { continue };
            let text = format!(
                "{} by these means ({}); {}",
                page.number_of(means.total.count, "transfer"),
                means.variant.words(),
                crate::ladder::work_of(queue, page.letters),
            );
            let name = page.clean(&one.name);
            page.item(&name, &text);
        }
    }
    for one in all {
        let Some(part) = &one.ladder else { continue };
        let (violations, lost) = (part.figures.figures.causality_violations, part.figures.lost_events);
        if violations + lost > 0 {
            page.warning(&format!("{}: {violations} causality violations, {lost} events lost", one.name));
        }
    }
}

/// Maximum number of functions shown, and of system calls.
const MAX_FUNCTIONS: usize = 15;
const MAX_CALLS: usize = 8;

fn cpu_time(page: &mut Page, all: &[Configuration]) {
    let profiles: Vec<Option<Profile>> = all.iter().map(Configuration::profile).collect();
    if profiles.iter().all(Option::is_none) {
        return;
    }
    let works: Vec<Work> = all.iter().map(|one| one.profiled().map_or_else(Work::default, |part| part.work)).collect();
    page.heading("Where all CPUs' time went");
    let mut modes = table(page, "time", all, &["of it", "per GB"]);
    for (name, of) in MODES {
        let cells = profiles.iter().zip(&works).flat_map(|(profile, work)| {
            let Some(modes) = profile.as_ref().map(Modes::of_profile) else { return [String::new(), String::new()] };
            [percent(of(&modes), modes.total_ns()), per_gb(page, of(&modes), work)]
        });
        let cells: Vec<String> = cells.collect();
        if cells.iter().any(|cell| !cell.is_empty() && cell != "-") {
            modes.row(std::iter::once(name.to_owned()).chain(cells).collect());
        }
    }
    page.table(&modes);
    for (one, profile) in all.iter().zip(&profiles) {
        let name = page.clean(&one.name);
        let figures = profile.as_ref().map(|profile| ProfileFigures::observe(profile, 0).figures);
        let lines = figures.map(|figures| trust(&figures, page.letters)).unwrap_or_default();
        lines.iter().for_each(|line| page.item(&name, line));
    }
    if let [Some(first), .., Some(last)] = &profiles[..] {
        let (before, after) = (&all[0].name, &all[all.len() - 1].name);
        moved(page, (before, first, &works[0]), (after, last, &works[works.len() - 1]));
    }
    system_calls(page, all);
}

type Profiled<'a> = (&'a str, &'a Profile, &'a Work);

/// Writes the functions whose time per GB differs most, with their contexts on both sides.
fn moved(page: &mut Page, (a, before, a_work): Profiled, (b, after, b_work): Profiled) {
    let diff = Diff::new(before, after);
    let seconds = |profile: &Profile| profile.window_ns as f64 / 1e9;
    let [a_scale, b_scale] = [seconds(before) / a_work.gigabytes(), seconds(after) / b_work.gigabytes()];
    if !a_scale.is_finite() || !b_scale.is_finite() {
        return;
    }
    let per_gb = |moved: &Moved| {
        let [a, b] = [moved.before_ns_per_s as f64 * a_scale, moved.after_ns_per_s as f64 * b_scale];
        (a as Ns, b as Ns)
    };
    let functions = by_function(&diff, per_gb);
    page.heading("Functions by context, whose time per GB differs most");
    let (a, b) = (page.clean(a), page.clean(b));
    let heads = ["<function", "<in", "<under", &a, "share", &b, "share"];
    let mut table = Table::new(&heads);
    for (moved, (was, is)) in functions.into_iter().take(MAX_FUNCTIONS).flatten() {
        let share = |share: Option<f64>| share.map_or_else(|| "-".into(), |share| format!("{:.0} %", share * 100.0));
        let of = match &moved.guest {
            Some(guest) => format!("{} in {guest}", moved.process),
            None => moved.process.clone(),
        };
        table.row(vec![
            page.clean(&moved.function),
            page.clean(&of),
            page.clean(moved.under.as_deref().unwrap_or("-")),
            page.duration(was),
            share(moved.share_before),
            page.duration(is),
            share(moved.share_after),
        ]);
    }
    page.table(&table);
    page.line("  share: of the function's time, what it ran in this context; contexts of less than 1 % are not shown");
}

/// Contexts of a function, each with at least `MIN_SHARE` of its time on either side, and their times per GB on both
/// sides, ns.
type Contexts<'d> = Vec<(&'d Moved, (Ns, Ns))>;

/// Minimum share of a function's time, on either side, for a context to be shown.
const MIN_SHARE: f64 = 0.01;

/// Groups the contexts by function: first the functions that both sides run, then those that only one side runs, each
/// by the largest difference of a context's time. Omits functions that have no caller in any context, as they are the
/// roots of call chains: system calls, threads.
fn by_function<'d>(diff: &'d Diff, per_gb: impl Fn(&Moved) -> (Ns, Ns)) -> Vec<Contexts<'d>> {
    let mut functions: BTreeMap<(&str, bool, &Option<String>), Contexts> = BTreeMap::new();
    let share = |share: Option<f64>| share.unwrap_or(0.0);
    let is_shown = |moved: &&Moved| share(moved.share_before).max(share(moved.share_after)) >= MIN_SHARE;
    for moved in diff.moved.iter().filter(is_shown) {
        let function = (moved.function.as_str(), moved.in_kernel, &moved.guest);
        functions.entry(function).or_default().push((moved, per_gb(moved)));
    }
    let mut functions: Vec<Contexts> = functions.into_values().collect();
    functions.retain(|contexts| contexts.iter().any(|(moved, _)| moved.under.is_some()));
    let most = |contexts: &Contexts| contexts.iter().map(|(_, (a, b))| (b - a).abs()).max();
    // A function that both sides run, in different contexts, says more about the change than one that only one side
    // runs.
    let is_of_one =
        |contexts: &Contexts| contexts.iter().all(|(_, (a, _))| *a == 0) || contexts.iter().all(|(_, (_, b))| *b == 0);
    functions.sort_by_key(|contexts| (is_of_one(contexts), std::cmp::Reverse(most(contexts))));
    for contexts in &mut functions {
        contexts.sort_by_key(|(_, (a, b))| std::cmp::Reverse(*a.max(b)));
    }
    functions
}

/// Writes the system calls of the VMs' threads that took the most time, by call and the thread's role.
fn system_calls(page: &mut Page, all: &[Configuration]) {
    let mut sums: BTreeMap<(String, String), Vec<(u64, Ns)>> = BTreeMap::new();
    for (at, one) in all.iter().enumerate() {
        for call in one.profiled().into_iter().flat_map(|part| &part.figures.system_calls) {
            let sums = sums.entry((call.call.clone(), call.thread.clone())).or_insert_with(|| vec![(0, 0); all.len()]);
            sums[at] = (sums[at].0 + call.count, sums[at].1 + call.sum_ns);
        }
    }
    if sums.is_empty() {
        return;
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.iter().map(|(_, ns)| ns).sum::<Ns>()));
    page.heading("System calls of the VM's threads (asleep in them, too)");
    let mut heads = vec!["<call".to_owned(), "<by".to_owned()];
    for one in all {
        heads.extend([format!("{}: number", page.clean(&one.name)), "per GB".into(), "time".into()]);
    }
    let mut table = Table::new(&heads.iter().map(String::as_str).collect::<Vec<_>>());
    for ((call, thread), sums) in rows.into_iter().take(MAX_CALLS) {
        let mut row = vec![page.clean(&call), page.clean(&thread)];
        for (one, (count, ns)) in all.iter().zip(sums) {
            let per_gb = count as f64 / one.profiled().map_or(0.0, |part| part.work.gigabytes());
            let per_gb = if per_gb.is_finite() { page.count(per_gb as u64) } else { "-".into() };
            row.extend(match count {
                0 => ["-".into(), "-".into(), "-".into()],
                _ => [page.count(count), per_gb, page.duration(ns)],
            });
        }
        table.row(row);
    }
    page.table(&table);
}

fn compared(page: &mut Page, all: &[Configuration]) {
    page.heading("What was compared");
    for one in all {
        let name = page.clean(&one.name);
        let text = format!("VM {}, Linux {}, latpath {}: {}", one.vm, one.kernel, one.latpath, one.command.join(" "));
        let text = page.clean(&text);
        page.item(&name, &text);
        let text = page.clean(&setup(&one.setup));
        if !text.is_empty() {
            page.item("", &text);
        }
    }
    differences(page, all);
    page.line(
        "  GB: 10^9 bytes that passed the VM's taps, both ways. Each measurement ran the load once more, by itself.",
    );
}

/// Describes the host and software of a VM, as far as known.
fn setup(setup: &Setup) -> String {
    let mut parts: Vec<String> = setup.hypervisor.iter().chain(&setup.machine).cloned().collect();
    if setup.hypervisor.is_none() && setup != &Setup::default() {
        parts.push("hypervisor version not known".into());
    }
    let threads = |what: &str, cpus: &[String]| match cpus {
        [] => None,
        [cpus] => Some(format!("1 {what} on CPUs {cpus}")),
        [first, others @ ..] if others.iter().all(|other| other == first) => {
            Some(format!("{} {what}s on CPUs {first}", cpus.len()))
        }
        _ => Some(format!("{} {what}s on CPUs {}", cpus.len(), cpus.join(" | "))),
    };
    parts.extend(threads("vCPU", &setup.vcpus));
    parts.extend(threads("vhost worker", &setup.vhost_workers));
    if !setup.host_cpus.is_empty() {
        parts.push(format!("the host's CPUs {}", setup.host_cpus));
    }
    parts.extend(setup.halt_poll_ns.map(|ns| format!("halt_poll_ns {ns}")));
    parts.extend(setup.posted_interrupts.map(|is| match is {
        true => "interrupts may be posted".to_owned(),
        false => "interrupts are not posted".to_owned(),
    }));
    parts.join(", ")
}

/// Writes differences between the configurations that the user did not intend to compare.
fn differences(page: &mut Page, all: &[Configuration]) {
    let Some((first, others)) = all.split_first() else { return };
    let parts: [(&str, fn(&Configuration) -> String); 7] = [
        ("the host's kernel", |one| one.kernel.clone()),
        ("the load", |one| one.command.join(" ")),
        ("the hypervisor", |one| one.setup.hypervisor.clone().unwrap_or_default()),
        ("the machine type", |one| one.setup.machine.clone().unwrap_or_default()),
        ("the vCPUs or their CPUs", |one| one.setup.vcpus.join(" | ")),
        ("halt_poll_ns", |one| format!("{:?}", one.setup.halt_poll_ns)),
        ("posted interrupts", |one| format!("{:?}", one.setup.posted_interrupts)),
    ];
    for other in others {
        let differ: Vec<&str> = parts.iter().filter(|(_, of)| of(first) != of(other)).map(|(what, _)| *what).collect();
        if !differ.is_empty() {
            page.warning(&format!("{} and {} also differ in {}", first.name, other.name, differ.join(", ")));
        }
    }
}
