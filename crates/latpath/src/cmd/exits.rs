//! `latpath exits`: shows exits of vCPUs by reason, their durations, and the time of the vCPUs' threads by activity.

use super::window::{run as watch, Window};
use super::{style, Outcome};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_exits::Options;
use latpath_observe::Exits;
use latpath_report::exits::text;

/// Show why vCPUs leave their guests, for how long, and where their threads' time goes.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    window: Window,
    /// Also show the exits of each vCPU, not only the sum of each VM
    #[arg(long)]
    each: bool,
    /// Also count all events of KVM (kvm:* in perf stat), by VM
    #[arg(long)]
    events: bool,
    /// Measure the cost of the eBPF programs (which increases it slightly)
    #[arg(long)]
    cost: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let options = Options { events: args.events, cost: args.cost, ..Options::default() };
    watch::<Exits>(&args.window, options, args.json, |seen| text(seen, args.each, style()))
}
