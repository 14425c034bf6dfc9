//! Plans, steps and drifts as text.

use super::super::style;
use latpath_settings::{Disturbance, Writable};
use latpath_stats::text::Table;
use latpath_stats::units::{number_of, CharacterSet};
use latpath_tune::{Applied, AppliedStep, Drift, Figures, Later, Plan, Planned, ProfilesDocument};

/// Maximum length of a value in a table; JSON has the whole.
const MAX_VALUE: usize = 48;

fn letters() -> CharacterSet {
    style().letters
}

fn lines(table: &Table) -> String {
    table.folded(2, style().width, letters().ellipsis()).join("\n") + "\n"
}

/// A value, cleaned and cut.
fn value(text: &str) -> String {
    latpath_stats::text::cut(&letters().clean(text), MAX_VALUE, letters().ellipsis())
}

pub(super) fn profiles(all: &ProfilesDocument) -> String {
    let mut table = Table::new(&["<profile", "<purpose", "<needs"]);
    for head in &all.profiles {
        let needs: Vec<String> = head.needs.iter().map(|name| format!("--{}", name.replace('_', "-"))).collect();
        table.row(vec![head.name.clone(), head.about.clone(), needs.join(" ")]);
    }
    let mut text = lines(&table);
    match &all.applied {
        None => text += "\nonly root sees which profiles are applied\n",
        Some(applied) if applied.is_empty() => text += "\nno profile is applied\n",
        Some(applied) => {
            let mut table = Table::new(&["<applied", ">changes", "<state"]);
            for one in applied {
                let state = if one.unconfirmed { "waits to be confirmed" } else { "until latpath tune undo" };
                table.row(vec![one.subject.clone(), one.changes.to_string(), state.into()]);
            }
            text += &format!("\n{}", lines(&table));
        }
    }
    text
}

pub(super) fn plan(plan: &Plan, why: bool) -> String {
    let cpus = match (&plan.isolated, &plan.housekeeping) {
        (Some(isolated), Some(housekeeping)) => format!("; isolated CPUs {isolated}, housekeeping CPUs {housekeeping}"),
        (Some(isolated), None) => format!("; isolated CPUs {isolated}"),
        _ => String::new(),
    };
    let mut text = format!(
        "{}: {} to make, {} as they should be{cpus}\n",
        plan.profile,
        number_of(plan.changes() as u64, "change"),
        number_of(plan.met.len() as u64, "setting")
    );
    if !plan.steps.is_empty() {
        text += &format!("\nAt once:\n{}", steps(&plan.steps));
    }
    text += &later(&plan.later);
    if !plan.skipped.is_empty() {
        let mut table = Table::new(&["<does not apply", "<at", "<because"]);
        for one in &plan.skipped {
            table.row(vec![one.setting.id().into(), one.at.clone(), one.why.clone()]);
        }
        text += &format!("\n{}", lines(&table));
    }
    for warning in &plan.warnings {
        text += &format!("\nWarning: {}\n", letters().clean(warning));
    }
    if why {
        text += &reasons(plan);
    }
    text
}

/// The steps, and other programs that set the same settings.
fn steps(all: &[Planned]) -> String {
    let mut table = Table::new(&["<setting", "<at", "<now", "<then", "<disturbs", "<lasts"]);
    for step in all {
        let from = step.from().into_iter().map(value).collect::<Vec<_>>().join(" or ");
        let cells = [step.setting.id().into(), letters().clean(&step.at()), from, value(&step.to)];
        let more = [step.disturbs.name().to_owned(), step.lasts.name().into()];
        table.row(cells.into_iter().chain(more).collect());
    }
    let mut text = lines(&table);
    let mut known: Vec<String> = Vec::new();
    for step in all {
        for owner in step.places.iter().flat_map(|place| &place.owners) {
            let note = letters().clean(&format!("{} is also set by {owner}: {}", step.setting, owner.note));
            if !known.contains(&note) {
                text += &format!("  {note}\n");
                known.push(note);
            }
        }
    }
    text
}

/// Changes that latpath cannot make at once, grouped by what they need.
fn later(all: &[Later]) -> String {
    let mut text = String::new();
    for (writable, heading) in [
        (Writable::NextBoot, "With the next start of this machine, on the kernel's command line:"),
        (Writable::ModuleLoad, "With the next load of a kernel module (a start of this machine, or of all VMs):"),
        (Writable::VmStart, "With the next start of a virtual machine:"),
        (Writable::ByCommand, "By these commands:"),
        (Writable::Never, "By other programs:"),
    ] {
        let of: Vec<&Later> = all.iter().filter(|one| one.writable == writable).collect();
        if of.is_empty() {
            continue;
        }
        let mut table = Table::new(&["<setting", "<at", "<now", "<then", "<state", "<by"]);
        for one in of {
            let state = one.state.map_or("", latpath_settings::BootState::name);
            let command = one.command.as_deref().unwrap_or_default();
            table.row(vec![
                one.setting.id().into(),
                letters().clean(&one.target),
                value(&one.from),
                value(&one.to),
                state.into(),
                letters().clean(command),
            ]);
        }
        text += &format!("\n{heading}\n{}", lines(&table));
    }
    text
}

fn reasons(plan: &Plan) -> String {
    let mut text = String::from("\nReasons:\n");
    let of_steps = plan.steps.iter().map(|step| (step.name(), &step.why, &step.source));
    let of_later = plan.later.iter().map(|one| (one.setting.id().to_owned(), &one.why, &one.source));
    let mut known = Vec::new();
    for (name, why, source) in of_steps.chain(of_later) {
        let line = letters().clean(&format!("{name}: {why} ({source})"));
        if !known.contains(&line) {
            text += &format!("  {line}\n");
            known.push(line);
        }
    }
    text
}

/// A line about a step, e.g. `workqueue-cpus: ff -> 03, CPU stall; max 41 us (before 38 us), 0 lost, 0 late`.
pub(super) fn step(done: &AppliedStep) -> String {
    let AppliedStep { step, effect, failed } = done;
    let from = step.from().into_iter().map(value).collect::<Vec<_>>().join(" or ");
    let disturbs = match step.disturbs {
        Disturbance::Nothing => String::new(),
        other => format!(", {}", other.name()),
    };
    let arrow = letters().arrow();
    let mut text = format!("{}: {from} {arrow} {}{disturbs}", letters().clean(&step.name()), value(&step.to));
    if let Some(effect) = effect {
        let one = |figures: &Figures, which: fn(&Figures) -> Option<i64>| {
            which(figures).map_or("-".to_owned(), |ns| letters().duration(ns))
        };
        let both = |name: &str, which: fn(&Figures) -> Option<i64>| {
            format!("{name} {} (before {})", one(&effect.after, which), one(&effect.before, which))
        };
        text += &format!(
            "; {}, {}, {}, {} lost, {} late of {}",
            both("p50", |f| f.p50),
            both("p99", |f| f.p99),
            both("max", |f| f.max),
            effect.lost,
            effect.late,
            number_of(effect.packets, "packet")
        );
    }
    if let Some(why) = failed {
        text += &format!("; NOT SET: {}", letters().clean(why));
    }
    text + "\n"
}

pub(super) fn applied(applied: &Applied) -> String {
    let Some(stopped) = &applied.stopped else {
        let failed = applied.steps.iter().filter(|step| step.failed.is_some()).count();
        let not = if failed > 0 { format!(", {} not set", number_of(failed as u64, "step")) } else { String::new() };
        let made = number_of(applied.steps.len() as u64, "step");
        let undo = if applied.unconfirmed { "" } else { "; latpath tune undo takes it back" };
        return format!("{}: applied in {made}{not}{undo}\n", applied.subject);
    };
    let mut text = format!("{}: stopped at {}: {}\n", applied.subject, stopped.step, letters().clean(&stopped.why));
    applied.reverted.iter().for_each(|message| text += &format!("  taken back: {}\n", letters().clean(message)));
    applied
        .not_reverted
        .iter()
        .for_each(|message| text += &format!("  NOT taken back: {}\n", letters().clean(message)));
    text
}

pub(super) fn undone(name: &str, messages: &[String]) -> String {
    let list: String = messages.iter().map(|message| format!("  {}\n", letters().clean(message))).collect();
    format!("{name}: taken back\n{list}")
}

pub(super) fn drifts(all: &[Drift]) -> String {
    let mut text = String::new();
    for drift in all {
        let name = drift.subject.as_ref().unwrap_or(&drift.profile);
        let met = number_of(drift.met as u64, "setting");
        let changes: usize = drift.drifted.iter().map(|step| step.places.len()).sum();
        text += &match drift.is_none() {
            true => format!("{name}: {met} as they should be\n"),
            false => format!("{name}: {met} as they should be, {} not:\n{}", changes, steps(&drift.drifted)),
        };
        text += &later(&drift.later);
    }
    text
}
