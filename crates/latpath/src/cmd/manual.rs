//! `latpath completions` and `latpath man`, generated from the definition of the commands that `--help` prints, and
//! `latpath schema`.

mod pages;

use super::report::print;
use super::Outcome;
use anyhow::{Context, Result};
use clap::{Args as ClapArgs, Command};
use clap_complete::Shell;
use latpath_analysis::SegmentsDocument;
use latpath_compare::Comparison;
use latpath_doctor::DoctorDocument;
use latpath_nic_timestamps::document::CapsDocument;
use latpath_observe::study::Configuration;
use latpath_observe::INSTRUMENTS;
use latpath_path::{FunctionsDocument, PathDocument};
use latpath_ping::document::{EmitDocument, ReflectDocument, SweepDocument};
use latpath_report::demo::DemoDocument;
use latpath_report::{schema, ExplanationDocument};
use latpath_study::StudyTable;
use latpath_timesync::ClocksDocument;
use latpath_traffic::document::{PublishDocument, StreamsDocument, SubscribeDocument};
use latpath_tune::TuneDocument;
use latpath_vms::Guests;
use std::path::PathBuf;

/// Print a shell's completions for latpath's commands and flags; for bash: source <(latpath completions bash)
#[derive(ClapArgs)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Write the manual pages, one for each command: latpath man /usr/local/share/man/man1
#[derive(ClapArgs)]
pub struct Man {
    /// An existing directory
    directory: PathBuf,
}

/// Print the JSON Schema (draft 2020-12) of what a command prints with --json
#[derive(ClapArgs)]
pub struct Schema {
    /// The command
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(names()))]
    command: String,
}

/// A command that prints JSON, and its schema.
type Described = (&'static str, fn() -> schemars::Schema);

/// The commands, besides the instruments, that print JSON of their own type.
const DESCRIBED: [Described; 24] = [
    ("clocks", of::<ClocksDocument>),
    ("compare", of::<Comparison>),
    ("demo", of::<DemoDocument>),
    ("doctor", of::<DoctorDocument>),
    ("explain", of::<ExplanationDocument>),
    ("gates", of::<Vec<latpath_gates::Scheduler>>),
    ("gates-check", of::<latpath_gates::Report>),
    ("live", latpath_report::live_schema),
    ("net", of::<Vec<latpath_topology::Status>>),
    ("path", of::<PathDocument>),
    ("path-list", of::<FunctionsDocument>),
    ("ping-caps", of::<CapsDocument>),
    ("ping-emit", of::<EmitDocument>),
    ("ping-reflect", of::<ReflectDocument>),
    ("ping-sweep", of::<SweepDocument>),
    ("publish", of::<PublishDocument>),
    ("report", latpath_report::report_schema),
    ("segments", of::<SegmentsDocument>),
    ("streams", of::<StreamsDocument>),
    ("study", of::<StudyTable>),
    ("study-vhost", of::<Vec<Configuration>>),
    ("subscribe", of::<SubscribeDocument>),
    ("tune", of::<TuneDocument>),
    ("vms", of::<Guests>),
];

fn of<T: schemars::JsonSchema>() -> schemars::Schema {
    schema::<T>("")
}

fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = described().map(|(name, _)| name).collect();
    names.sort_unstable();
    names
}

fn described() -> impl Iterator<Item = Described> {
    DESCRIBED.into_iter().chain(INSTRUMENTS.iter().map(|entry| (entry.name, entry.schema)))
}

pub fn print_schema(args: Schema) -> Result<Outcome> {
    let (command, schema) = described().find(|(name, _)| *name == args.command).context("no such command")?;
    let mut schema = schema();
    let command = match command {
        "gates-check" => "gates check",
        "net" => "net status",
        "path-list" => "path --list",
        "ping-caps" => "ping caps",
        "ping-emit" => "ping emit",
        "ping-reflect" => "ping reflect",
        "ping-sweep" => "ping emit --sweep-size … --sweep-rate …",
        "study-vhost" => "study vhost",
        other => other,
    };
    schema.insert("title".into(), format!("latpath {command} --json").into());
    print(&(serde_json::to_string_pretty(&schema)? + "\n"))?;
    Ok(Outcome::Done)
}

pub fn completions(args: Completions, mut commands: Command) -> Result<Outcome> {
    let is_bash = args.shell == Shell::Bash;
    if is_bash {
        commands = with_words(commands);
    }
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut commands, "latpath", &mut text);
    let text = String::from_utf8_lossy(&text);
    print(&if is_bash { completed(&text) } else { text.into_owned() })?;
    Ok(Outcome::Done)
}

/// Values of flags that bash completes with a command, each with its placeholder word in clap's output. Names that
/// others choose (files, devices) must not be in a list of words: bash would evaluate a `$(…)` in a name.
const COMPLETED: [(&str, &str); 2] = [
    ("latpath-devices", "$(cd /sys/class/net 2>/dev/null && compgen -d -- \"${cur}\")"),
    ("latpath-profiles", "$(compgen -W \"PROFILES\" -- \"${cur}\") $(compgen -f -- \"${cur}\")"),
];

/// The commands with placeholders for bash, which completes devices, profiles and files.
fn with_words(commands: Command) -> Command {
    commands.mut_args(with_words_of).mut_subcommands(with_words)
}

/// Sets the possible words of a flag's value, by the value's name.
fn with_words_of(arg: clap::Arg) -> clap::Arg {
    let name = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    let words: Vec<&'static str> = match name.unwrap_or_else(|| arg.get_id().as_str().to_uppercase()).as_str() {
        "IF" => vec![COMPLETED[0].0],
        "NAME|FILE" => vec![COMPLETED[1].0],
        "PROFILE" => latpath_protocols::sv::Profile::ALL.map(|profile| profile.name).to_vec(),
        _ => return arg,
    };
    arg.value_parser(clap::builder::PossibleValuesParser::new(words))
}

/// clap's completions for bash, with the placeholders replaced.
fn completed(text: &str) -> String {
    let profiles = latpath_analysis::profile_names().collect::<Vec<_>>().join(" ");
    COMPLETED.iter().fold(text.to_owned(), |text, (word, values)| {
        let of_word = format!("$(compgen -W \"{word}\" -- \"${{cur}}\")");
        text.replace(&of_word, &values.replace("PROFILES", &profiles))
    })
}

pub fn man(args: Man, commands: Command) -> Result<Outcome> {
    pages::write(&args.directory, commands)
        .with_context(|| format!("{}: the manual pages cannot be written", args.directory.display()))?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instrument_has_a_command_of_its_name() {
        let commands = crate::commands();
        let left_out: Vec<_> = INSTRUMENTS
            .iter()
            .map(|entry| entry.name)
            .filter(|name| commands.find_subcommand(name).is_none())
            .collect();
        assert!(left_out.is_empty(), "no command shows {left_out:?}");
    }
}
