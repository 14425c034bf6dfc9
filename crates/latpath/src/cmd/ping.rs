//! `latpath ping`: round trips, and who spent each part of them.

mod caps;
mod emit;
mod freeze;
mod link;
mod reflect;
mod target;

pub(crate) use freeze::EVENTS;

use super::Outcome;
use anyhow::Result;
use clap::{Args as ClapArgs, Parser, Subcommand};
use std::ffi::OsString;

/// Measure round trips, in the NIC's own time where it has one: how long did each part take? HOST alone is emit HOST
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

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    match args.command {
        Command::Emit(args) => emit::run(args),
        Command::Reflect(args) => reflect::run(args),
        Command::Caps(args) => caps::run(args),
        Command::Host(words) => {
            let name = OsString::from("latpath ping");
            emit::run(Emit::try_parse_from(std::iter::once(name).chain(words)).unwrap_or_else(|e| e.exit()).args)
        }
    }
}
