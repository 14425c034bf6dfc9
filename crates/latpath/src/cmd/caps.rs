//! `latpath caps`: shows which commands work on this machine.

use super::report::print_as;
use super::{style, Outcome, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_caps::{Caps, Setting, Works};
use latpath_stats::text::{wrapped, Table};

/// Say which commands can do their work on this machine, what they lack, and what would help.
///
/// Each command's programs are loaded and attached for a moment; nothing is sent and nothing stays.
#[derive(ClapArgs)]
#[command(
    after_help = "Examples:\n  latpath caps\n  latpath caps --need exits --need ladder    # exit code 3 unless both work"
)]
pub struct Args {
    /// End with exit code 3 where this command does not work at all; several are allowed
    #[arg(long, value_name = "COMMAND")]
    need: Vec<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    if let Some(unknown) = args.need.iter().find(|need| !Caps::known().any(|known| known == **need)) {
        let known: Vec<&str> = Caps::known().collect();
        bail!(Usage(format!("--need {unknown}: not one of {}", known.join(", "))));
    }
    let caps = Caps::of_this_machine();
    print_as(args.json, || &caps, || text(&caps))?;
    match args.need.iter().any(|need| caps.works(need) == Some(Works::No)) {
        true => Ok(Outcome::LimitBroken),
        false => Ok(Outcome::Done),
    }
}

fn text(caps: &Caps) -> String {
    let style = style();
    let mark = style.letters.ellipsis();
    let config = match &caps.config_file {
        Some(file) => format!("its configuration is {file}"),
        None => "its configuration was not found".into(),
    };
    let mut lines = vec![format!("Linux {} on {}; {config}", caps.kernel, caps.architecture), String::new()];
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
    off.for_each(|option| table.row(vec![option.name.clone(), option.needed_for.into()]));
    if !table.rows().is_empty() {
        lines.push(String::new());
        lines.extend(table.lines(0, width, mark));
    }
    lines.push(String::new());
    lines.push("what a NIC can stamp: latpath ping caps -i DEVICE".into());
    lines.join("\n") + "\n"
}
