//! One packet at a glance: a chart of actors by time and machine, and below it every step with its cause.

use super::advice_text::fix;
use crate::page::Page;
use latpath_analysis::explain::{
    briefly, culprit_of_step, date, packet, sentence, visit_parts, why_no_flow, ExplainedPacket,
};
use latpath_cause::{Actor, ActorState, Cause, CauseInterval, Note, PacketTimeline, RunContext};
use latpath_linux::Cpus;
use latpath_model::{Ns, HOST};
use latpath_stats::text::{cut, pad};
use latpath_stats::units::share;
use std::cmp::Reverse;
use unicode_width::UnicodeWidthStr;

/// Maximum number of lanes in the chart.
const LANES: usize = 12;
/// Minimum share of the packet's time, in thousandths, for the lane of an actor that only delayed others.
const WORTH_A_LANE_PER_MILLE: i128 = 10;
/// Maximum width of a lane's name, in columns of the terminal.
const NAME: usize = 34;
/// Minimum width of a lane's name, and of the chart (`MIN_PICTURE`), in columns of the terminal.
const MIN_NAME: usize = 8;
const MIN_PICTURE: usize = 20;
/// Maximum number of steps shown between two points: the longest ones.
const STEPS: usize = 6;
/// Minimum share of the packet's time, in thousandths, for a separate step; shorter steps are summed.
const WORTH_PER_MILLE: i128 = 5;

/// Marks of states in ASCII and Unicode, with their meaning. If several states take the same time in a column, the one
/// that comes later in this list is shown.
const MARKS: [(ActorState, char, char, &str); 5] = [
    (ActorState::Sleeps, '-', '·', "asleep, held"),
    (ActorState::Unknown, '?', '?', "not explained"),
    (ActorState::Waits, '.', '░', "ready, waits"),
    (ActorState::Interrupted, 'x', '▒', "interrupted"),
    (ActorState::Works, '#', '█', "works"),
];

/// Index in [`MARKS`] of a state.
fn mark(state: ActorState) -> usize {
    MARKS.iter().position(|(of, ..)| *of == state).unwrap_or(0)
}

fn sign(page: &Page, mark: usize) -> char {
    let (_, ascii, unicode, _) = MARKS[mark];
    if page.letters.is_ascii() {
        ascii
    } else {
        unicode
    }
}

/// Returns the `most` longest items in their original order, and the others.
fn longest<T>(all: Vec<T>, most: usize, ns: impl Fn(&T) -> Ns) -> (Vec<T>, Vec<T>) {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|at| Reverse(ns(&all[*at])));
    order.truncate(most);
    let (kept, rest): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(at, _)| order.contains(at));
    let items = |of: Vec<(usize, T)>| of.into_iter().map(|(_, item)| item).collect();
    (items(kept), items(rest))
}

pub(crate) fn write(page: &mut Page, explained_packet: &ExplainedPacket, context: &RunContext) {
    let explained = &explained_packet.explained;
    let attribution = &explained_packet.attribution;
    let name = page.clean(&packet(explained.stream, explained.key, context));
    let Some(begin) = explained.begin() else {
        page.line(format!("{name}: no point of its route saw it"));
        return;
    };
    let baseline = match attribution.baseline_ns {
        ns @ 1.. => format!(", baseline {}", page.duration(ns)),
        _ => String::new(),
    };
    let late = if explained.late { "" } else { " (on time)" };
    page.line(format!(
        "{name}  {} UTC  {}{baseline}{late}",
        date(context.utc(begin)).replace('T', " ").replace('Z', ""),
        page.duration(attribution.time_ns)
    ));
    if let Some(first) = attribution.first() {
        let share = share(first.excess_ns.unsigned_abs(), attribution.excess_ns.unsigned_abs());
        let text = format!("{}: {share} of the delay beyond the baseline.", sentence(page, first));
        page.wrapped("  ".into(), 2, &text);
    }
    for (at, advice) in explained_packet.advice.iter().enumerate() {
        fix(page, advice, "", if at == 0 { "  Fix: " } else { "   or: " }, 8);
    }
    for visit in &explained.visits {
        page.wrapped("  No flow: ".into(), 11, &why_no_flow(page, visit));
        visit_parts(page, visit).iter().for_each(|parts| page.wrapped("  ovs-vswitchd: ".into(), 16, parts));
    }
    picture(page, explained_packet, context, begin);
    steps(page, explained_packet, context, begin);
    // The sentence on the first cause already contains the notes of that cause.
    let mut notes: Vec<&Note> = Vec::new();
    for (note, _) in attribution.shares.iter().skip(1).flat_map(|h| &h.notes) {
        if notes.len() < 4 && !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes.iter().for_each(|note| page.warning(&note.to_string()));
}

/// A lane of the chart: an actor on a machine.
#[derive(Default)]
struct Lane {
    machine: String,
    name: String,
    cpus: Vec<u32>,
    /// Start, end, and index in [`MARKS`] of the state.
    marks: Vec<(Ns, Ns, usize)>,
    ns: Ns,
    /// Whether the actor handled the packet.
    acted: bool,
}

fn lanes(explained: &PacketTimeline, context: &RunContext) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    let mut put = |machine: &str, name: String, interval: &CauseInterval, state: ActorState, acted: bool| {
        let CauseInterval { cpu, from, to, .. } = *interval;
        let at = lanes.iter().position(|l| l.machine == machine && l.name == name).unwrap_or_else(|| {
            lanes.push(Lane { machine: machine.into(), name, ..Lane::default() });
            lanes.len() - 1
        });
        let lane = &mut lanes[at];
        lane.cpus.extend(cpu.filter(|cpu| !lane.cpus.contains(cpu)));
        lane.ns = lane.ns.saturating_add(to.saturating_sub(from));
        lane.marks.push((from, to, mark(state)));
        lane.acted |= acted;
    };
    for (_, interval) in explained.intervals() {
        let (machine, info) = (explained.machine(interval), interval.cause.info());
        let actor = interval.actor.as_ref().map_or(String::new(), |executor| context.actor(machine, executor).name);
        put(machine, actor, interval, info.state, true);
        // The thread that ran instead has its own lane.
        if let Some(by) = interval.by.as_ref().filter(|_| info.link.culprit_ran()) {
            put(machine, context.actor(machine, by).name, interval, ActorState::Works, false);
        }
    }
    lanes
}

/// Writes the chart of actors.
fn picture(page: &mut Page, explained_packet: &ExplainedPacket, context: &RunContext, begin: Ns) {
    let total = explained_packet.attribution.time_ns;
    let mut lanes = lanes(&explained_packet.explained, context);
    if total <= 0 || lanes.is_empty() {
        return;
    }
    // Omit short interrupts. Keep the lanes with the most time, in order of appearance.
    let all = lanes.len();
    lanes.retain(|lane| lane.acted || i128::from(lane.ns) * 1000 >= i128::from(total) * WORTH_A_LANE_PER_MILLE);
    let (lanes, _) = longest(lanes, LANES, |lane| lane.ns);
    let left_out = all - lanes.len();
    let ellipsis = page.letters.ellipsis();
    let machine = lanes.iter().map(|l| page.clean(&l.machine).width()).max().unwrap_or(0).min(16);
    // On a narrow page, names are shortened to leave columns for the chart.
    let most = NAME.min(page.width.saturating_sub(2 + machine + 2 + 2 + MIN_PICTURE)).max(MIN_NAME);
    let names: Vec<String> = lanes.iter().map(|lane| cut(&lane_name(page, lane), most, ellipsis)).collect();
    let name = names.iter().map(|n| n.width()).max().unwrap_or(0);
    let columns = page.width.saturating_sub(2 + machine + 2 + name + 2).max(MIN_NAME);
    page.line("");
    let indent = " ".repeat(2 + machine + 2 + name + 2);
    let (middle, end) = (page.duration(total / 2), page.duration(total));
    let gap = columns / 2 - 1;
    let rest = (columns - 1 - gap).saturating_sub(middle.width());
    page.line(format!("{indent}0{}{middle}{end:>rest$}", " ".repeat(gap)));
    let mut used = [false; MARKS.len()];
    for (lane, name_of) in lanes.iter().zip(&names) {
        let mut bar = String::new();
        for mark in marks(lane, begin, total, columns) {
            mark.into_iter().for_each(|mark| used[mark] = true);
            bar.push(mark.map_or(' ', |mark| sign(page, mark)));
        }
        let machine_of = pad(&cut(&page.clean(&lane.machine), machine, ellipsis), machine);
        page.line(format!("  {machine_of}  {}  {bar}", pad(name_of, name)));
    }
    let used = (0..MARKS.len()).rev().filter(|mark| used[*mark]);
    let key: Vec<String> = used.map(|mark| format!("{} {}", sign(page, mark), MARKS[mark].3)).collect();
    let more = match left_out {
        0 => String::new(),
        n => format!("   ({n} more took next to nothing)"),
    };
    page.line(format!("{indent}{}{more}", key.join("   ")));
}

fn lane_name(page: &Page, lane: &Lane) -> String {
    let cpus = lane.cpus.iter().take(4).copied().collect::<Cpus>().named();
    let more = if lane.cpus.len() > 4 { ".." } else { "" };
    let cpu = cpus.map_or(String::new(), |cpus| format!(", {cpus}{more}"));
    let name = if lane.name.is_empty() { "nobody known" } else { &lane.name };
    format!("{}{cpu}", page.clean(name))
}

/// Index of the mark with the most time in each column; `None` for an empty column.
fn marks(lane: &Lane, begin: Ns, total: Ns, columns: usize) -> impl Iterator<Item = Option<usize>> {
    let (whole, columns) = (i128::from(total), columns as i128);
    let scale = |t: Ns| i128::from(t.saturating_sub(begin)) * columns;
    let mut sums = vec![[0_i128; MARKS.len()]; columns as usize];
    for (from, to, mark) in &lane.marks {
        let (from, to) = (scale(*from).max(0), scale(*to).min(whole * columns));
        let last = (to - 1).max(from) / whole;
        for column in (from / whole).min(columns - 1)..=last.min(columns - 1) {
            let (start, end) = (column * whole, (column + 1) * whole);
            sums[column as usize][*mark] += (to.min(end) - from.max(start)).max(1);
        }
    }
    sums.into_iter().map(|sums| (0..MARKS.len()).filter(|mark| sums[*mark] > 0).max_by_key(|mark| sums[*mark]))
}

/// A line of the table: consecutive steps of one kind.
#[derive(Clone)]
struct Step {
    from: Ns,
    cause: Cause,
    machine: usize,
    actor: Option<Actor>,
    cpu: Option<u32>,
    by: Vec<(Actor, Ns)>,
    /// Sum of the times of the steps, without the gaps between them, ns.
    ns: Ns,
    number: Option<u64>,
    state: Option<String>,
}

fn steps_of(explained: &PacketTimeline, context: &RunContext, from: Ns, to: Ns) -> Vec<Step> {
    let step = |(_, interval): (_, &CauseInterval)| {
        let machine = explained.machine(interval);
        let took = interval.to.saturating_sub(interval.from);
        Step {
            from: interval.from,
            cause: interval.cause,
            machine: interval.machine,
            actor: interval.actor.as_ref().map(|executor| context.actor(machine, executor)),
            cpu: interval.cpu,
            by: interval.by.iter().map(|executor| (context.actor(machine, executor), took)).collect(),
            ns: took,
            number: interval.number,
            state: interval.state.clone(),
        }
    };
    explained.intervals().filter(|(_, i)| i.from >= from && i.to <= to).map(step).collect()
}

impl Step {
    fn is_like(&self, other: &Self) -> bool {
        let name = |m: &Option<Actor>| m.as_ref().map(|m| m.name.clone());
        (self.cause, self.machine) == (other.cause, other.machine) && name(&self.actor) == name(&other.actor)
    }

    fn join(&mut self, other: Self) {
        self.ns = self.ns.saturating_add(other.ns);
        if other.number > self.number {
            (self.number, self.state) = (other.number, other.state);
        }
        self.cpu = self.cpu.filter(|cpu| Some(*cpu) == other.cpu);
        for (by, took) in other.by {
            match self.by.iter_mut().find(|(known, _)| known.name == by.name) {
                Some((known, ns)) => {
                    known.update(&by);
                    *ns = ns.saturating_add(took);
                }
                None => self.by.push((by, took)),
            }
        }
    }
}

/// Joins each step with the previous step whose index `at` returns, if any.
fn joined(steps: Vec<Step>, at: impl Fn(&[Step], &Step) -> Option<usize>) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::new();
    for step in steps {
        match at(&all, &step) {
            Some(at) => all[at].join(step),
            None => all.push(step),
        }
    }
    all
}

/// Writes every point, and between points the steps that took the packet's time.
fn steps(page: &mut Page, explained_packet: &ExplainedPacket, context: &RunContext, begin: Ns) {
    let explained = &explained_packet.explained;
    let worth = i128::from(explained_packet.attribution.time_ns) * WORTH_PER_MILLE / 1000;
    page.line("");
    line(page, "at", "took", "");
    let sign = if page.letters.is_ascii() { '*' } else { '●' };
    for (at, seen) in explained.seen.iter().enumerate() {
        if let Some(before) = at.checked_sub(1).map(|i| &explained.seen[i]) {
            between(page, steps_of(explained, context, before.t, seen.t), worth, explained, begin);
        }
        let point = page.clean(&context.point(seen.point));
        let since = page.duration(seen.t.saturating_sub(begin));
        let cpu = seen.cpu.map_or(String::new(), |cpu| format!("  CPU {cpu}"));
        line(page, &since, "", &format!("{sign} {point}{cpu}"));
    }
}

fn line(page: &mut Page, at: &str, took: &str, text: &str) {
    let text = cut(text, page.width - 22, page.letters.ellipsis());
    page.line(format!("  {at:>8}  {took:>8}  {text}"));
}

fn between(page: &mut Page, mut steps: Vec<Step>, worth: i128, explained: &PacketTimeline, begin: Ns) {
    let mut rest = Vec::new();
    // Joins steps of one kind, so that short interruptions do not split a step into many lines.
    if steps.len() > 1 {
        let kinds = joined(steps.clone(), |all, step| all.iter().position(|known| known.is_like(step)));
        let is_worth = |step: &Step| kinds.iter().any(|k| k.is_like(step) && i128::from(k.ns) >= worth);
        (steps, rest) = steps.into_iter().partition(is_worth);
        steps = joined(steps, |all, step| all.len().checked_sub(1).filter(|last| all[*last].is_like(step)));
        if steps.len() > STEPS {
            steps = kinds.into_iter().filter(|kind| i128::from(kind.ns) >= worth).collect();
        }
    }
    let (steps, shorter) = longest(steps, STEPS, |step| step.ns);
    rest.extend(shorter);
    for step in steps {
        let actor = step.actor.as_ref().map_or(String::new(), |a| briefly(page, a, step.cpu));
        let machine = explained.machines.get(step.machine).map_or("", String::as_str);
        let on =
            if machine == HOST || step.actor.is_none() { String::new() } else { format!("{}: ", page.clean(machine)) };
        let mut by = step.by;
        by.sort_by_key(|(_, ns)| Reverse(*ns));
        let behind = culprit_of_step(page, step.cause, &by, (step.number, step.state.as_deref()));
        let gap = if behind.is_empty() || actor.is_empty() { "" } else { " " };
        let text = format!("  {:15}  {on}{actor}{gap}{behind}", step.cause.id());
        line(page, &page.duration(step.from.saturating_sub(begin)), &page.duration(step.ns), &text);
    }
    let sum = rest.iter().fold(0, |sum: Ns, step| sum.saturating_add(step.ns));
    match rest.len() {
        0 => {}
        1 => line(page, "", &page.duration(sum), "  a shorter step"),
        n => line(page, "", &page.duration(sum), &format!("  {n} shorter steps")),
    }
}
