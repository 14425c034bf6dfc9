//! `latpath study`: configurations of a machine, measured by one plan and compared in one table.

mod built_in;
mod folder;
mod lab;
mod plan;
mod vhost;

use super::Outcome;
use anyhow::Result;
use clap::{Args as ClapArgs, Subcommand};

/// Compare ways into VMs, settings and loads by a series of recordings: latpath study PLAN.toml -o STUDY
#[derive(ClapArgs)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    study: Option<Study>,
    #[command(flatten)]
    run: Option<plan::Run>,
}

#[derive(Subcommand)]
enum Study {
    Run(plan::Run),
    Report(plan::Report),
    Example(plan::Example),
    Ways(built_in::Ways),
    Isolation(built_in::Isolation),
    Vhost(vhost::Args),
    #[command(hide = true)]
    Child(plan::Child),
}

pub fn run(args: Args) -> Result<Outcome> {
    match (args.study, args.run) {
        (Some(Study::Run(run)), _) | (None, Some(run)) => plan::run(run),
        (Some(Study::Report(args)), _) => plan::report(args),
        (Some(Study::Example(args)), _) => plan::example(args),
        (Some(Study::Ways(args)), _) => built_in::ways(&args),
        (Some(Study::Isolation(args)), _) => built_in::isolation(&args),
        (Some(Study::Vhost(args)), _) => vhost::run(args),
        (Some(Study::Child(args)), _) => plan::child(&args),
        (None, None) => Err(super::Usage("name a plan: latpath study PLAN.toml -o STUDY".into()).into()),
    }
}

fn say(line: &str) {
    eprintln!("latpath study: {line}");
}
