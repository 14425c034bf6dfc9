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
use clap::{Args as ClapArgs, Subcommand};

/// Measure round trips, in the NIC's own time where it has one: who spent each part?
#[derive(ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Emit(emit::Args),
    Reflect(reflect::Args),
    Caps(caps::Args),
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    match args.command {
        Command::Emit(args) => emit::run(args),
        Command::Reflect(args) => reflect::run(args),
        Command::Caps(args) => caps::run(args),
    }
}
