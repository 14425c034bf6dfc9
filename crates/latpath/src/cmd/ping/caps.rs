//! `latpath ping caps`: what timestamps a device can make.

use crate::cmd::report::print;
use crate::cmd::Outcome;
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_stamps::Caps;

/// Say what timestamps a device can make, and what of it is true
#[derive(ClapArgs)]
pub struct Args {
    /// The device
    #[arg(short, long, value_name = "IF")]
    interface: String,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    let caps = Caps::of(&args.interface)?;
    print(&format!("{}: driver {}\n", caps.device, caps.driver.as_deref().unwrap_or("unknown")))?;
    Ok(Outcome::Done)
}
