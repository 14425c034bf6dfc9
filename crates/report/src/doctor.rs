//! The text of `latpath doctor`.

use crate::cpu_map;
use crate::page::{Page, Style};
use latpath_doctor::{Diagnosis, Finding};
use latpath_stats::units::{duration, number_of};

/// Number of findings that are shown with their details, unless details of all are requested.
const DETAILED: usize = 10;

/// Formats a diagnosis as text; with `all`, each finding has its details.
pub fn text(diagnosis: &Diagnosis, all: bool, style: Style) -> String {
    let mut page = Page::new(style);
    page.line(headline(diagnosis));
    if !diagnosis.map.rows.is_empty() {
        page.heading("CPUs");
        cpu_map::write(&mut page, &diagnosis.map);
    }
    findings(&mut page, diagnosis, all);
    if !diagnosis.lines_left_out.is_empty() && all {
        page.heading("Lines of the profile that do not apply");
        diagnosis.lines_left_out.iter().for_each(|line| {
            let line = page.clean(line);
            page.wrapped("  ".into(), 4, &line);
        });
    }
    if !diagnosis.unseen.is_empty() {
        page.heading("Not read");
        for note in &diagnosis.unseen {
            let note = page.clean(note);
            page.wrapped("  ".into(), 4, &note);
        }
    }
    page.finish()
}

fn headline(diagnosis: &Diagnosis) -> String {
    let role = match (diagnosis.is_guest, diagnosis.vms) {
        (true, 0) => "a virtual machine".into(),
        (_, 0) => "no virtual machine runs".into(),
        (_, n) => number_of(n, "virtual machine"),
    };
    let judged = match &diagnosis.profile {
        Some(profile) => format!("judged by profile {profile}"),
        None => "judged by its structure".into(),
    };
    let Diagnosis { kernel, preemption, .. } = diagnosis;
    let read = number_of(diagnosis.values, "setting");
    format!("Linux {kernel} ({preemption}), {role}; {judged}; {read} read")
}

fn findings(page: &mut Page, diagnosis: &Diagnosis, all: bool) {
    let count = diagnosis.findings.len();
    let met = match diagnosis.lines_met {
        0 => String::new(),
        n => format!("; {} of the profile met", number_of(n, "line")),
    };
    page.heading(&match count {
        0 => format!("Nothing found{met}"),
        n => format!("{}{met}", number_of(n as u64, "finding")),
    });
    let detailed = if all { count } else { DETAILED };
    for (at, finding) in diagnosis.findings.iter().take(detailed).enumerate() {
        one(page, at + 1, finding, !diagnosis.runs.is_empty());
    }
    let rest = &diagnosis.findings[detailed.min(count)..];
    if !rest.is_empty() {
        page.gap();
        page.line(format!("  and {} more; with details: latpath doctor --details", rest.len()));
        for (at, finding) in rest.iter().enumerate() {
            let text = format!("{} ({})", page.clean(&finding.what), finding.severity.name());
            page.wrapped(format!(" {:>3} ", at + 1 + detailed), 7, &text);
        }
    }
}

fn one(page: &mut Page, number: usize, finding: &Finding, has_runs: bool) {
    page.gap();
    let what = page.clean(&finding.what);
    page.wrapped(format!(" {number:>3} "), 5, &format!("{what} ({})", finding.severity.name()));
    let mut item = |name: &str, text: &str| {
        let text = page.clean(text);
        page.wrapped(format!("     {name:<9} "), 15, &text);
    };
    if !finding.now.is_empty() {
        item("now", &format!("{}; should be {}", finding.now, finding.should));
    }
    item("why", &finding.why);
    let costs: Vec<String> =
        finding.cost.iter().map(|share| format!("{} of delay in {}", duration(share.excess_ns), share.run)).collect();
    match costs.is_empty() {
        false => item("cost", &costs.join(", ")),
        true if has_runs => item("cost", "no run shows it"),
        true => {}
    }
    for owner in &finding.owners {
        item("set by", &format!("{owner}: {}", owner.note));
    }
    item("disturbs", &finding.disturbs);
    item("source", &finding.source);
    commands(page, "do", &finding.commands);
    commands(page, "undo", &finding.undo);
}

/// Writes commands without wrapping them, so that they can be copied.
fn commands(page: &mut Page, name: &str, commands: &[String]) {
    for (at, command) in commands.iter().enumerate() {
        let name = if at == 0 { name } else { "" };
        let command = page.clean(command);
        page.line(format!("     {name:<9} {command}"));
    }
}
