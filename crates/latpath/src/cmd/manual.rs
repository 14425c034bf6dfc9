//! `latpath completions` and `latpath man`, made of the same description of the commands that `--help` prints, and
//! `latpath schema`.

mod pages;

use super::report::print;
use super::Outcome;
use anyhow::{Context, Result};
use clap::{Args as ClapArgs, Command, ValueEnum};
use clap_complete::Shell;
use latpath_compare::Comparison;
use latpath_ladder::LadderReport;
use latpath_report::schema;
use latpath_report::study::Configuration;
use latpath_vms::Found;
use std::path::PathBuf;

/// Print what a shell needs to complete latpath's commands and flags, as for bash: source <(latpath completions bash)
#[derive(ClapArgs)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Write the manual pages, one for each command: latpath man /usr/local/share/man/man1
#[derive(ClapArgs)]
pub struct Man {
    /// A directory that is there
    directory: PathBuf,
}

/// Print the JSON Schema (draft 2020-12) of what a command prints with --json
#[derive(ClapArgs)]
pub struct Schema {
    /// The command
    command: Described,
}

#[derive(Clone, Copy, ValueEnum)]
enum Described {
    Caps,
    Compare,
    Exits,
    Ladder,
    Live,
    Profile,
    Queues,
    Report,
    Study,
    Vms,
}

pub fn print_schema(args: Schema) -> Result<Outcome> {
    let schema = match args.command {
        Described::Caps => schema::<latpath_caps::Caps>("latpath caps --json"),
        Described::Compare => schema::<Comparison>("latpath compare --json"),
        Described::Exits => latpath_report::exits_schema(),
        Described::Ladder => schema::<LadderReport>("latpath ladder --json"),
        Described::Live => latpath_report::live_schema(),
        Described::Profile => latpath_report::schema::<latpath_report::cpu_profile::Document>("latpath profile --json"),
        Described::Queues => schema::<latpath_report::queues::Document>("latpath queues --json"),
        Described::Report => latpath_report::report_schema(),
        Described::Study => schema::<Vec<Configuration>>("latpath study vhost --json"),
        Described::Vms => schema::<Found>("latpath vms --json"),
    };
    print(&(serde_json::to_string_pretty(&schema)? + "\n"))?;
    Ok(Outcome::Done)
}

pub fn completions(args: Completions, mut commands: Command) -> Result<Outcome> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut commands, "latpath", &mut text);
    print(&String::from_utf8_lossy(&text))?;
    Ok(Outcome::Done)
}

pub fn man(args: Man, commands: Command) -> Result<Outcome> {
    pages::write(&args.directory, commands)
        .with_context(|| format!("{}: the manual pages cannot be written", args.directory.display()))?;
    Ok(Outcome::Done)
}
