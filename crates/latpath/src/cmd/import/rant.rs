//! `latpath import --format rant`: creates a run of round trips from rant's logs.

use super::{make, refuse, Args};
use crate::cmd::flags::THRESHOLD;
use crate::cmd::interrupt::stop_flag;
use crate::cmd::{Outcome, Usage};
use anyhow::{bail, Result};
use latpath_import::import_rant;
use std::path::Path;

/// Name of the format.
pub const NAME: &str = "rant";

const FORM: &str = "name rant's logs emit=FILE and reflect=FILE (the client's and the server's, of --log)";

pub fn run(args: &Args) -> Result<Outcome> {
    let (mut emit, mut reflect) = (None, None);
    for given in &args.sources {
        let (end, path) = match given.split_once('=') {
            Some(("emit", path)) => (&mut emit, path),
            Some(("reflect", path)) => (&mut reflect, path),
            _ => bail!(Usage(format!("{given:?}: {FORM}"))),
        };
        if path.is_empty() || end.replace(Path::new(path)).is_some() {
            bail!(Usage(format!("{given:?}: {FORM}, each once")));
        }
    }
    let Some(emit) = emit else {
        bail!(Usage(format!("{FORM}: round trips are in the emitter's")));
    };
    let unfit = [
        ("--stream", !args.streams.is_empty()),
        ("--offset", !args.offsets.is_empty()),
        ("--estimate-offset", !args.estimates.is_empty()),
        ("--trace", !args.traces.is_empty()),
        ("--clock-error", args.clock_error.is_some()),
        ("--segment", !args.joining.segments.is_empty()),
    ];
    refuse(&unfit, "rant's logs are round trips between two ends")?;
    let threshold = args.joining.threshold().unwrap_or(THRESHOLD);
    let stop = stop_flag()?;
    make(&args.output, (args.json, args.quiet, args.force), |show| {
        import_rant((emit, reflect), &args.output, threshold, &stop, show)
    })
}
