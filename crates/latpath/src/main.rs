//! The `latpath` command: parses flags, calls the crates and prints their results. The crates measure.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod cmd;
mod config;
mod help;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use cmd::{Outcome, Usage};
use latpath_model::text::printable;
use latpath_undo::{Journal, Kind, Undoer};
use std::process::ExitCode;

/// Follows each packet of a time-critical stream from the wire to the application in a guest: how long each step took,
/// what was lost, and what held late packets.
#[derive(Parser)]
#[command(name = "latpath", version, propagate_version = true, max_term_width = 110, help_template = help::template())]
struct Cli {
    /// Also read flags from this file (docs/config.md) [default: ~/.config/latpath/config.toml,
    /// /etc/latpath/config.toml]
    #[arg(long = config::FLAG, id = config::FLAG, value_name = "FILE", global = true, display_order = 1000)]
    config: Option<std::path::PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// The definition of all commands, with their flags in groups.
fn commands() -> clap::Command {
    help::in_groups(Cli::command())
}

#[derive(Subcommand)]
enum Command {
    Agent(cmd::agent::Args),
    Clocks(cmd::clocks::Args),
    Compare(cmd::compare::Args),
    Completions(cmd::manual::Completions),
    Demo(cmd::demo::Args),
    Doctor(cmd::doctor::Args),
    Exits(cmd::exits::Args),
    Explain(cmd::explain::Args),
    Export(cmd::export::Args),
    Gates(cmd::gates::Args),
    Import(cmd::import::Args),
    Ladder(cmd::ladder::Args),
    Live(cmd::live::Args),
    Man(cmd::manual::Man),
    Mark(cmd::mark::Args),
    Net(cmd::net::Args),
    Path(cmd::path::Args),
    Ping(Box<cmd::ping::Args>),
    Profile(Box<cmd::profile::Args>),
    Publish(cmd::publish::Args),
    Queues(cmd::queues::Args),
    Record(cmd::record::Args),
    Report(cmd::report::Args),
    Schema(cmd::manual::Schema),
    Segments(cmd::segments::Args),
    Streams(cmd::streams::Args),
    Study(cmd::study::Args),
    Subscribe(cmd::subscribe::Args),
    Tune(cmd::tune::Args),
    Vms(cmd::vms::Args),
}

fn dispatch(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Agent(args) => cmd::agent::run(args),
        Command::Clocks(args) => cmd::clocks::run(args),
        Command::Compare(args) => cmd::compare::run(args),
        Command::Completions(args) => cmd::manual::completions(args, commands()),
        Command::Demo(args) => cmd::demo::run(args),
        Command::Doctor(args) => cmd::doctor::run(args),
        Command::Exits(args) => cmd::exits::run(args),
        Command::Explain(args) => cmd::explain::run(args),
        Command::Export(args) => cmd::export::run(args),
        Command::Gates(args) => cmd::gates::run(args),
        Command::Import(args) => cmd::import::run(args),
        Command::Ladder(args) => cmd::ladder::run(args),
        Command::Live(args) => cmd::live::run(args),
        Command::Mark(args) => cmd::mark::run(args),
        Command::Man(args) => cmd::manual::man(args, commands()),
        Command::Net(args) => cmd::net::run(args),
        Command::Path(args) => cmd::path::run(args),
        Command::Ping(args) => cmd::ping::run(*args),
        Command::Profile(args) => cmd::profile::run(*args),
        Command::Publish(args) => cmd::publish::run(args),
        Command::Queues(args) => cmd::queues::run(args),
        Command::Record(args) => cmd::record::run(args),
        Command::Report(args) => cmd::report::run(args),
        Command::Schema(args) => cmd::manual::print_schema(args),
        Command::Segments(args) => cmd::segments::run(args),
        Command::Streams(args) => cmd::streams::run(args),
        Command::Study(args) => cmd::study::run(args),
        Command::Subscribe(args) => cmd::subscribe::run(args),
        Command::Tune(args) => cmd::tune::run(args),
        Command::Vms(args) => cmd::vms::run(args),
    }
}

/// Writes debug logs to stderr if the environment requests them: RUST_LOG=debug.
fn trace() {
    if std::env::var_os("RUST_LOG").is_some_and(|filter| !filter.is_empty()) {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    }
}

/// Text of an error and its causes, without those that the text already contains. For a missing permission, adds how to
/// obtain it.
fn with_causes(error: &anyhow::Error) -> String {
    let text = error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        text if text.contains(&cause) => said,
        _ => said + ": " + &cause,
    });
    let is_denied = text.contains(EACCES) && !nix::unistd::geteuid().is_root();
    let text = without_numbers(&text);
    match is_denied && !["sudo", "root", "; "].iter().any(|advice| text.contains(advice)) {
        true => text + "; it belongs to another user: try as that user, or with sudo",
        false => text,
    }
}

/// End of a system error's text for a missing permission.
const EACCES: &str = "Permission denied (os error 13)";

/// The text without the numbers of system errors, such as ` (os error 2)` after `No such file or directory`.
fn without_numbers(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut parts = text.split(MARK);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()) => out += rest,
            _ => out = out + MARK + part,
        }
    }
    out
}

/// The undoer of each kind of change. The match makes a kind without an undoer a compile error.
fn undoer(kind: Kind) -> &'static dyn Undoer {
    match kind {
        Kind::Tracefs => &latpath_tracefs::Instances,
        Kind::NicTimestamps => &latpath_nic_timestamps::NicTimestamps,
        Kind::Lab => &latpath_lab::Labs,
        Kind::Tuning => &latpath_tune::Tunings::LIVE,
        Kind::Topology => &latpath_topology::Topologies,
        Kind::Gates => &latpath_gates::Gated,
    }
}

/// Undoes the changes that a killed latpath left on this machine. Only root can have made them.
fn undo_what_was_left() {
    if nix::unistd::geteuid().is_root() {
        let notes = Journal::of_this_machine().sweep(&Kind::ALL.map(undoer));
        notes.iter().for_each(|note| eprintln!("latpath: {}", printable(note)));
    }
}

/// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 measured, but a limit set by the user was broken.
fn main() -> ExitCode {
    trace();
    let args = match config::with_file(&commands(), cmd::ping::with_emit(std::env::args_os().collect())) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("latpath: {}", printable(&with_causes(&error)));
            return ExitCode::from(2);
        }
    };
    let parsed = commands().try_get_matches_from(&args).and_then(|matches| Cli::from_arg_matches(&matches));
    let command = match parsed {
        Ok(cli) => cli.command,
        Err(error) => match cmd::values::below_zero(&error, &args) {
            Some(text) => {
                eprintln!("latpath: {}", printable(&text));
                return ExitCode::from(2);
            }
            None => error.exit(),
        },
    };
    let Some(command) = command else {
        eprint!("{}", help::NEXT_STEPS);
        return ExitCode::from(2);
    };
    undo_what_was_left();
    match dispatch(command) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::LimitBroken) => ExitCode::from(3),
        Err(error) => {
            // An error may quote an untrusted file, so each line is made printable; the line breaks are latpath's.
            let text: Vec<String> = with_causes(&error).lines().map(printable).collect();
            eprintln!("latpath: {}", text.join("\n"));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_change_is_undone_by_its_own_undoer() {
        Kind::ALL.into_iter().for_each(|kind| assert_eq!(undoer(kind).kind(), kind));
    }

    #[test]
    fn errors_of_the_system_come_without_their_numbers() {
        let text = "a: No such file or directory (os error 2): b: Permission denied (os error 13); c (os error x)";
        assert_eq!(without_numbers(text), "a: No such file or directory: b: Permission denied; c (os error x)");
        let error = anyhow::Error::new(std::io::Error::from_raw_os_error(libc::ENOENT)).context("x.pcap");
        assert_eq!(with_causes(&error), "x.pcap: No such file or directory");
    }
}
