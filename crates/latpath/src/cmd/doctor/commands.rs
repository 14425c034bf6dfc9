//! The last part of `latpath doctor`: which of latpath's commands work on this machine.

use super::super::{style, Usage};
use anyhow::{bail, Result};
use latpath_caps::{Caps, Setting, Works};
use latpath_stats::text::{wrapped, Table};

/// Checks the names of commands that the user needs.
pub fn check(needed: &[String]) -> Result<()> {
    if let Some(unknown) = needed.iter().find(|need| !Caps::known().any(|known| known == **need)) {
        let known: Vec<&str> = Caps::known().collect();
        bail!(Usage(format!("--need {unknown}: not one of {}", known.join(", "))));
    }
    Ok(())
}

/// Whether a needed command does not work at all.
pub fn is_missing(caps: &Caps, needed: &[String]) -> bool {
    needed.iter().any(|need| caps.works(need) == Some(Works::No))
}

/// The section about the commands, as text.
pub fn text(caps: &Caps) -> String {
    let style = style();
    let mark = style.letters.ellipsis();
    let config = match &caps.config_file {
        Some(file) => format!("its configuration is {file}"),
        None => "its configuration was not found".into(),
    };
    let mut lines = vec![
        String::new(),
        format!("Commands of latpath on Linux {} ({}); {config}", caps.kernel, caps.architecture),
        String::new(),
    ];
    let width = style.width;
    for command in &caps.commands {
        let works = match command.works {
            Works::Yes => "works",
            Works::Partly => "works in part",
            Works::No => "does not work",
        };
        lines.push(format!("{}: {works}", command.title));
        for lack in &command.lacks {
            let mut said = style.letters.clean(&lack.what);
            if !lack.lost.is_empty() {
                said += &format!("; not shown: {}", lack.lost);
            }
            lines.extend(wrapped("    ".into(), 6, &said, width, mark));
            let remedy = lack
                .remedy
                .iter()
                .flat_map(|remedy| wrapped("      ".into(), 8, &format!("what helps: {remedy}"), width, mark));
            lines.extend(remedy);
        }
        for limit in &command.not_observable {
            lines.extend(wrapped("    ".into(), 6, &format!("not observable on any machine: {limit}"), width, mark));
        }
    }
    let off = caps.options.iter().filter(|option| option.setting == Setting::Off);
    let mut table = Table::new(&["<not in this kernel", "<needed for"]);
    off.for_each(|option| table.row(vec![option.name.clone(), option.needed_for.clone()]));
    if !table.rows().is_empty() {
        lines.push(String::new());
        lines.extend(table.lines(0, width, mark));
    }
    lines.push(String::new());
    lines.push("what a NIC can stamp: latpath ping caps -i DEVICE".into());
    lines.join("\n") + "\n"
}
