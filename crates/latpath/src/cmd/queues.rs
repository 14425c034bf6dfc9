//! `latpath queues`: shows the traffic of the virtqueues of this machine's virtio devices, and of the VMs that its
//! vhost serves.

use super::window::{run as watch, Window};
use super::{style, Outcome};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_observe::{Queues, QueuesOptions};
use latpath_report::queues::text;

/// Show what passes through virtqueues: buffers posted and used, bytes, batches, kicks and interrupts, and how long the
/// device held each buffer.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    window: Window,
    /// Measure the cost of the eBPF programs (which increases it slightly)
    #[arg(long)]
    cost: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    watch::<Queues>(&args.window, QueuesOptions { cost: args.cost }, args.json, |seen| text(seen, style()))
}
