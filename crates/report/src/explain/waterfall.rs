//! One packet as a person reads it in ten seconds: which actor acted when, on which machine; and below it every step with its cause.

use super::selector::date;
use super::sentence::{briefly, culprit_of_step, sentence};
use super::ExplainedPacket;
use crate::page::{cut, pad, right, Page, WIDTH};
use latpath_cause::{Actor, ActorState, Cause, CauseInterval, PacketTimeline, RunContext};
use latpath_model::{Ns, HOST};
use unicode_width::UnicodeWidthStr;

/// Rows of the picture.
const LANES: usize = 12;
/// Executor only kept others from acting has a row from so many thousandths of the packet's time on.
const WORTH_A_LANE_PER_MILLE: i128 = 10;
/// Columns of a row's name, at most.
const NAME: usize = 34;
/// Steps between two points that are shown one by one; of more, the longest.
const STEPS: usize = 6;
/// Steps that take less of the packet's time than this many thousandths are summed.
const WORTH_PER_MILLE: i128 = 5;

/// What a row shows at a time. The later of these wins where several fall into one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    Nothing,
    Sleeps,
    Unknown,
    Waits,
    Interrupted,
    Works,
}

impl Mark {
    fn of(cause: Cause) -> Self {
        match cause.info().state {
            ActorState::Works => Self::Works,
            ActorState::Interrupted => Self::Interrupted,
            ActorState::Waits => Self::Waits,
            ActorState::Sleeps => Self::Sleeps,
            ActorState::Unknown => Self::Unknown,
        }
    }

    fn sign(self, ascii: bool) -> char {
        match (self, ascii) {
            (Self::Nothing, _) => ' ',
            (Self::Unknown, _) => '?',
            (Self::Sleeps, true) => '-',
            (Self::Sleeps, false) => '·',
            (Self::Waits, true) => '.',
            (Self::Waits, false) => '░',
            (Self::Interrupted, true) => 'x',
            (Self::Interrupted, false) => '▒',
            (Self::Works, true) => '#',
            (Self::Works, false) => '█',
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Sleeps => "asleep, held",
            Self::Unknown => "not explained",
            Self::Waits => "ready, waits",
            Self::Interrupted => "interrupted",
            Self::Works => "works",
        }
    }
}

/// All of one packet.
pub(crate) fn write(page: &mut Page, explained_packet: &ExplainedPacket, context: &RunContext) {
    let explained = &explained_packet.explained;
    let attribution = &explained_packet.attribution;
    let stream = page.clean(&context.stream(explained.stream));
    let Some(begin) = explained.begin() else {
        page.line(format!("{stream}:{}: no point of its route saw it", explained.key));
        return;
    };
    let baseline = if attribution.baseline_ns > 0 {
        format!(", baseline {}", page.duration(attribution.baseline_ns))
    } else {
        String::new()
    };
    let late = if explained.late { "" } else { " (on time)" };
    page.line(format!(
        "{stream}:{}  {} UTC  {}{baseline}{late}",
        explained.key,
        date(context.utc(begin)).replace('T', " ").replace('Z', ""),
        page.duration(attribution.time_ns)
    ));
    if let Some(first) = attribution.first() {
        let share = page.share(first.excess_ns.unsigned_abs(), attribution.excess_ns.unsigned_abs());
        let text = format!("{}: {share} of the delay beyond the baseline.", sentence(page, first));
        page.wrapped("  ".into(), 2, &text);
    }
    for (at, advice) in explained_packet.advice.iter().enumerate() {
        let on = if advice.machine == HOST || advice.machine.is_empty() {
            String::new()
        } else {
            format!("on {}: ", advice.machine)
        };
        let what = page.clean(&format!("{on}{}", advice.what));
        page.wrapped(if at == 0 { "  Fix: " } else { "   or: " }.into(), 8, &what);
        for command in &advice.commands {
            let command = page.clean(command);
            page.line(format!("          {command}"));
        }
    }
    picture(page, explained_packet, context, begin);
    steps(page, explained_packet, context, begin);
    // What the first cause's sentence says need not be said again.
    let mut notes: Vec<&str> = Vec::new();
    for (note, _) in attribution.shares.iter().skip(1).flat_map(|h| &h.notes).filter(|(note, _)| !note.is_empty()) {
        if notes.len() < 4 && !notes.contains(&note.as_str()) {
            notes.push(note);
        }
    }
    notes.iter().for_each(|note| page.warning(note));
}

/// A row: somebody on a machine.
struct Lane {
    machine: String,
    name: String,
    cpus: Vec<u32>,
    marks: Vec<(Ns, Ns, Mark)>,
    ns: Ns,
    /// The packet was in its hands.
    acted: bool,
}

fn lanes(explained: &PacketTimeline, context: &RunContext) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    let mut put = |machine: &str, name: String, interval: &CauseInterval, mark: Mark, acted: bool| {
        let CauseInterval { cpu, from, to, .. } = *interval;
        let at = lanes.iter().position(|l| l.machine == machine && l.name == name).unwrap_or_else(|| {
            lanes.push(Lane {
                machine: machine.into(),
                name,
                cpus: Vec::new(),
                marks: Vec::new(),
                ns: 0,
                acted: false,
            });
            lanes.len() - 1
        });
        let lane = &mut lanes[at];
        if let Some(cpu) = cpu.filter(|cpu| !lane.cpus.contains(cpu)) {
            lane.cpus.push(cpu);
        }
        lane.ns = lane.ns.saturating_add(to.saturating_sub(from));
        lane.marks.push((from, to, mark));
        lane.acted |= acted;
    };
    for (_, interval) in explained.intervals() {
        let machine = explained.machine(interval);
        let actor = interval.actor.as_ref().map_or(String::new(), |executor| context.actor(machine, executor).name);
        put(machine, actor, interval, Mark::of(interval.cause), true);
        // Executor ran instead, in a row of its own.
        let culprit_ran = interval.cause.info().link.culprit_ran();
        if let Some(by) = interval.by.as_ref().filter(|_| culprit_ran) {
            put(machine, context.actor(machine, by).name, interval, Mark::Works, false);
        }
    }
    lanes
}

/// Executor acted when.
fn picture(page: &mut Page, explained_packet: &ExplainedPacket, context: &RunContext, begin: Ns) {
    let total = explained_packet.attribution.time_ns;
    let mut lanes = lanes(&explained_packet.explained, context);
    if total <= 0 || lanes.is_empty() {
        return;
    }
    // Interrupts of a microsecond do not matter here. Of the rest those that had most of the time, in the order in which they came.
    let all = lanes.len();
    lanes.retain(|lane| lane.acted || i128::from(lane.ns) * 1000 >= i128::from(total) * WORTH_A_LANE_PER_MILLE);
    if lanes.len() > LANES {
        let mut times: Vec<Ns> = lanes.iter().map(|l| l.ns).collect();
        times.sort_unstable_by_key(|ns| std::cmp::Reverse(*ns));
        let bar = times[LANES - 1];
        let mut room = LANES;
        lanes.retain(|lane| {
            let stays = lane.ns >= bar && room > 0;
            room -= usize::from(stays);
            stays
        });
    }
    let left_out = all - lanes.len();
    let names: Vec<String> = lanes.iter().map(|lane| cut(&lane_name(page, lane), NAME, page.ascii())).collect();
    let machine = lanes.iter().map(|l| page.clean(&l.machine).width()).max().unwrap_or(0).min(16);
    let name = names.iter().map(|n| n.width()).max().unwrap_or(0);
    let columns = WIDTH - 2 - machine - 2 - name - 2;
    page.line("");
    let indent = " ".repeat(2 + machine + 2 + name + 2);
    let (middle, end) = (page.duration(total / 2), page.duration(total));
    let gap = columns / 2 - 1;
    let rest = (columns - 1 - gap).saturating_sub(middle.width());
    page.line(format!("{indent}0{}{middle}{}", " ".repeat(gap), right(&end, rest)));
    let mut used: Vec<Mark> = Vec::new();
    for (lane, name_of) in lanes.iter().zip(&names) {
        let bar = bar(lane, begin, total, columns, page.ascii(), &mut used);
        let machine_of = pad(&cut(&page.clean(&lane.machine), machine, page.ascii()), machine);
        page.line(format!("  {machine_of}  {}  {bar}", pad(name_of, name)));
    }
    used.sort_unstable_by_key(|mark| std::cmp::Reverse(*mark));
    let key: Vec<String> = used.iter().map(|mark| format!("{} {}", mark.sign(page.ascii()), mark.meaning())).collect();
    let more = match left_out {
        0 => String::new(),
        1 => "   (1 more took next to nothing)".into(),
        n => format!("   ({n} more took next to nothing)"),
    };
    page.line(format!("{indent}{}{more}", key.join("   ")));
}

fn lane_name(page: &Page, lane: &Lane) -> String {
    let cpus: Vec<String> = lane.cpus.iter().take(4).map(ToString::to_string).collect();
    let cpu = match cpus.len() {
        0 => String::new(),
        1 => format!(", CPU {}", cpus[0]),
        _ => format!(", CPUs {}{}", cpus.join(" "), if lane.cpus.len() > 4 { " .." } else { "" }),
    };
    let name = if lane.name.is_empty() { "nobody known" } else { &lane.name };
    format!("{}{cpu}", page.clean(name))
}

fn bar(lane: &Lane, begin: Ns, total: Ns, columns: usize, ascii: bool, used: &mut Vec<Mark>) -> String {
    // Of each column, what filled most of it; what is shorter than a column shows where nothing else is.
    let mut most: Vec<(i128, Mark)> = vec![(0, Mark::Nothing); columns];
    let scale = |t: Ns| i128::from(t.saturating_sub(begin)) * columns as i128;
    let whole = i128::from(total);
    let mut sums: Vec<[i128; 6]> = vec![[0; 6]; columns];
    for (from, to, mark) in &lane.marks {
        let (from, to) = (scale(*from).max(0), scale(*to).min(whole * columns as i128));
        let (first, last) =
            ((from / whole).min(columns as i128 - 1), ((to - 1).max(from) / whole).min(columns as i128 - 1));
        for column in first..=last {
            let (start, end) = (column * whole, (column + 1) * whole);
            sums[column as usize][*mark as usize] += (to.min(end) - from.max(start)).max(1);
        }
    }
    const ALL: [Mark; 6] = [Mark::Nothing, Mark::Sleeps, Mark::Unknown, Mark::Waits, Mark::Interrupted, Mark::Works];
    for (column, sums) in most.iter_mut().zip(&sums) {
        for mark in ALL {
            let sum = sums[mark as usize];
            if sum > 0 && sum >= column.0 {
                *column = (sum, mark);
            }
        }
    }
    most.iter()
        .map(|(_, mark)| {
            if *mark != Mark::Nothing && !used.contains(mark) {
                used.push(*mark);
            }
            mark.sign(ascii)
        })
        .collect()
}

/// A line: steps of one kind that follow each other.
#[derive(Clone)]
struct Step {
    from: Ns,
    cause: Cause,
    machine: usize,
    actor: Option<Actor>,
    cpu: Option<u32>,
    by: Vec<(Actor, Ns)>,
    /// Without what lies between.
    ns: Ns,
    number: Option<u64>,
    state: Option<String>,
}

fn steps_of(explained: &PacketTimeline, context: &RunContext, from: Ns, to: Ns) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (_, interval) in explained.intervals().filter(|(_, p)| p.from >= from && p.to <= to) {
        let machine = explained.machine(interval);
        let actor = interval.actor.as_ref().map(|executor| context.actor(machine, executor));
        let by = interval.by.as_ref().map(|executor| context.actor(machine, executor));
        let took = interval.to.saturating_sub(interval.from);
        let step = Step {
            from: interval.from,
            cause: interval.cause,
            machine: interval.machine,
            actor,
            cpu: interval.cpu,
            by: by.map(|by| (by, took)).into_iter().collect(),
            ns: took,
            number: interval.number,
            state: interval.state.clone(),
        };
        steps.push(step);
    }
    steps
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

/// Steps of which each is put to the one that `at` says, where it says one.
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

/// Every point, and between two of them what held the packet.
fn steps(page: &mut Page, explained_packet: &ExplainedPacket, context: &RunContext, begin: Ns) {
    let explained = &explained_packet.explained;
    let worth = i128::from(explained_packet.attribution.time_ns) * WORTH_PER_MILLE / 1000;
    page.line("");
    page.line(format!("  {}  {}", right("at", 8), right("took", 8)));
    for (at, seen) in explained.seen.iter().enumerate() {
        if let Some(before) = at.checked_sub(1).map(|i| &explained.seen[i]) {
            between(page, steps_of(explained, context, before.t, seen.t), worth, explained, begin);
        }
        let point = page.clean(&context.point(seen.point));
        let sign = if page.ascii() { '*' } else { '●' };
        let since = page.duration(seen.t.saturating_sub(begin));
        line(page, &since, "", &format!("{sign} {point}  CPU {}", seen.cpu));
    }
}

fn line(page: &mut Page, at: &str, took: &str, text: &str) {
    let text = cut(text, WIDTH - 22, page.ascii());
    page.line(format!("  {}  {}  {text}", right(at, 8), right(took, 8)));
}

fn between(page: &mut Page, mut steps: Vec<Step>, worth: i128, explained: &PacketTimeline, begin: Ns) {
    // Short interruptions do not cut what goes on behind them into many lines.
    let mut rest: (usize, Ns) = (0, 0);
    if steps.len() > 1 {
        let kinds = joined(steps.clone(), |all, step| all.iter().position(|known| known.is_like(step)));
        let is_worth = |step: &Step| kinds.iter().any(|k| k.is_like(step) && i128::from(k.ns) >= worth);
        steps.retain(|step| {
            let stays = is_worth(step);
            if !stays {
                rest = (rest.0 + 1, rest.1.saturating_add(step.ns));
            }
            stays
        });
        steps = joined(steps, |all, step| all.len().checked_sub(1).filter(|last| all[*last].is_like(step)));
        if steps.len() > STEPS {
            steps = kinds.into_iter().filter(|kind| i128::from(kind.ns) >= worth).collect();
        }
    }
    let mut times: Vec<Ns> = steps.iter().map(|s| s.ns).collect();
    times.sort_unstable_by_key(|ns| std::cmp::Reverse(*ns));
    let bar = times.get(STEPS - 1).copied().unwrap_or(0);
    let mut room = STEPS;
    steps.retain(|step| {
        let stays = step.ns >= bar && room > 0;
        match stays {
            true => room -= 1,
            false => rest = (rest.0 + 1, rest.1.saturating_add(step.ns)),
        }
        stays
    });
    for step in &steps {
        let actor = step.actor.as_ref().map_or(String::new(), |a| briefly(page, a, step.cpu));
        let machine = explained.machines.get(step.machine).map_or("", String::as_str);
        let on =
            if machine == HOST || step.actor.is_none() { String::new() } else { format!("{}: ", page.clean(machine)) };
        let behind = behind(page, step);
        let gap = if behind.is_empty() || actor.is_empty() { "" } else { " " };
        let text = format!("  {}  {on}{actor}{gap}{behind}", pad(step.cause.id(), 15));
        line(page, &page.duration(step.from.saturating_sub(begin)), &page.duration(step.ns), &text);
    }
    if rest.0 > 0 {
        let what = if rest.0 == 1 { "a shorter step".to_owned() } else { format!("{} shorter steps", rest.0) };
        line(page, "", &page.duration(rest.1), &format!("  {what}"));
    }
}

fn behind(page: &Page, step: &Step) -> String {
    let mut by = step.by.clone();
    by.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    culprit_of_step(page, step.cause, &by, (step.number, step.state.as_deref()))
}
