//! `latpath ping`: measures round trips and their parts.

mod caps;
mod emit;
mod freeze;
mod link;
mod reflect;
mod target;
mod times;

pub(crate) use freeze::EVENTS;

use super::Outcome;
use anyhow::Result;
use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

/// Measure round trips and the time of each part, with the NIC's timestamps if it has any. `ping HOST` means `ping emit
/// HOST`
#[derive(ClapArgs)]
#[command(override_usage = "latpath ping HOST [OPTIONS]\n       latpath ping <COMMAND>")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Emit(emit::Args),
    Reflect(reflect::Args),
    Caps(caps::Args),
    /// `latpath ping HOST …` is `latpath ping emit HOST …`.
    #[command(external_subcommand)]
    Host(Vec<OsString>),
}

#[derive(Parser)]
#[command(name = "latpath ping", max_term_width = 110)]
struct Emit {
    #[command(flatten)]
    args: emit::Args,
}

/// Adds the word `emit` if options precede the host, as in `latpath ping -i eth0 HOST`.
pub fn with_emit(mut args: Vec<OsString>) -> Vec<OsString> {
    const OF_ALL: [&str; 5] = ["-h", "--help", "-V", "--version", "--config"];
    let word = |at: usize| args.get(at).and_then(|word| word.to_str());
    let is_option =
        word(2).is_some_and(|word| word.starts_with('-') && !OF_ALL.iter().any(|all| word.starts_with(all)));
    if word(1) == Some("ping") && is_option {
        args.insert(2, "emit".into());
    }
    args
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    match args.command {
        Command::Emit(args) => emit::run(args),
        Command::Reflect(args) => reflect::run(args),
        Command::Caps(args) => caps::run(args),
        Command::Host(words) => {
            let name = OsString::from("latpath ping");
            let matches = crate::help::in_groups(Emit::command()).try_get_matches_from([vec![name], words].concat());
            let parsed = matches.and_then(|matches| Emit::from_arg_matches(&matches));
            emit::run(parsed.unwrap_or_else(|e| e.exit()).args)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_come_before_the_host() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let same = [
            "latpath ping",
            "latpath ping pa -i eth0",
            "latpath ping --help",
            "latpath -i ping",
            "latpath live -i eth0",
        ];
        for line in same {
            assert_eq!(with_emit(words(line)), words(line), "{line}");
        }
        assert_eq!(with_emit(words("latpath ping -i pa host")), words("latpath ping emit -i pa host"));
    }
}
