//! `latpath import --format svtrace`: creates a run of durations without times.

use super::{make, refuse, Args};
use crate::cmd::flags::THRESHOLD;
use crate::cmd::interrupt::stop_flag;
use crate::cmd::{ns, Outcome, Usage};
use anyhow::{bail, Result};
use latpath_import::{import_durations, Durations};
use std::time::UNIX_EPOCH;

/// Default name of the stream.
const STREAM: &str = "svid:svtrace";

pub fn run(args: Args) -> Result<Outcome> {
    let [source] = args.sources.as_slice() else {
        bail!(Usage("each of svtrace's results makes a run of its own: name one, FROM,TO=FILE".into()));
    };
    let (from, to, path) = Durations::source(source).map_err(Usage)?;
    let Some(rate) = args.rate else {
        bail!(Usage("svtrace's results have no times: say how many packets came each second, as --rate 4000".into()));
    };
    let unfit = [
        ("--offset", !args.offsets.is_empty()),
        ("--estimate-offset", !args.estimates.is_empty()),
        ("--trace", !args.traces.is_empty()),
        ("--clock-error", args.clock_error.is_some()),
    ];
    refuse(&unfit, "svtrace's results are durations by one clock")?;
    let stream = match args.streams.as_slice() {
        [] => STREAM.parse()?,
        [one] if !one.is_pattern() => one.clone(),
        _ => bail!(Usage("svtrace's results are of one stream: name it, as --stream svid:MU01".into())),
    };
    let start = args.start.and_then(|start| start.duration_since(UNIX_EPOCH).ok()).map_or(0, ns);
    let threshold = args.joining.threshold().unwrap_or(THRESHOLD);
    let options = Durations { from, to, path, stream, rate, start, segments: args.joining.segments, threshold };
    let stop = stop_flag()?;
    make(&args.output, (args.json, args.quiet, args.force), |show| {
        import_durations(&options, &args.output, &stop, show)
    })
}
