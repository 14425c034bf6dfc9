//! `latpath import`: creates a run from captures and logs taken at several points, or a log of round trips.

mod rant;
mod svtrace;

use super::flags::{Joining, THRESHOLD};
use super::interrupt::stop_flag;
use super::progress::Progress;
use super::report::print;
use super::{ns, quoted, Outcome, Usage};
use anyhow::{bail, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::Args as ClapArgs;
use latpath_import::{import, Estimate, Format, ImportError, Offset, Options, Source, Trace};
use latpath_model::{text::printable, StreamSpec};
use latpath_run::{Manifest, Replaced, DURATIONS};
use latpath_stats::units::{bytes, number_of};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Create a run from captures and logs of the same packets at different points.
#[derive(ClapArgs)]
pub struct Args {
    /// Two or more files, each with the point of its packets, in the order of the route: publisher/tx@eth0=pub.pcap
    /// relay/app-read@relay=sub.txt; pcap, pcapng (also .gz) or the log of sv_timestamp_logger. If a file has packets
    /// of several interfaces, the one with the name of the point or its device is read, or FILE,interface=NAME. A
    /// single capture gives the time since the samples (Tmu) if their sender is synchronised to UTC. With --format
    /// rant: its logs as emit=FILE [reflect=FILE]; with --format svtrace: its results as FROM,TO=FILE
    #[arg(value_name = "POINT=FILE", required = true)]
    sources: Vec<String>,
    /// Directory to create for the run
    #[arg(short, long, value_name = "RUN")]
    output: PathBuf,
    /// Only this stream, e.g. svid:MU01 or 'svid:MU*'; can be repeated [default: all streams of the files]
    #[arg(short, long = "stream", value_name = "STREAM")]
    streams: Vec<StreamSpec>,
    /// Format of the files, if their first bytes do not show it; rant: logs of round trips
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    format: Option<ImportedRun>,
    /// Packets per second of svtrace's results, which contain no times of day
    #[arg(long, value_name = "F", value_parser = crate::cmd::values::whole::<u32>(1..=1_000_000))]
    rate: Option<u32>,
    /// Time of the first packet of svtrace's results, e.g. 2024-06-01T12:00:00Z [default: 1970-01-01]
    #[arg(long, value_name = "UTC", value_parser = humantime::parse_rfc3339_weak)]
    start: Option<SystemTime>,
    /// Offset of a machine's clock against that of the first file's machine, and its error bound: relay=250us±20us (or
    /// +-20us) if the clock is ahead; without it, times between machines are taken from the files unchanged and have no
    /// bound
    #[arg(long = "offset", value_name = "MACHINE=TIME[±BOUND]", allow_hyphen_values = true)]
    offsets: Vec<Offset>,
    /// Estimate the offset of a machine's clock from the maximum time that the fastest packet of each 10 s takes to
    /// reach it; the remaining uncertainty is the error bound
    #[arg(long = "estimate-offset", value_name = "MACHINE=TIME")]
    estimates: Vec<Estimate>,
    /// Kernel trace of a machine over the same time: the text of trace-cmd report, perf script or the kernel's trace
    /// file, e.g. relay=trace.txt; its events around late packets are kept for latpath explain. One per machine
    #[arg(long = "trace", value_name = "MACHINE=FILE")]
    traces: Vec<Trace>,
    /// Offset of a trace's clock against that of the machine's packets, and its error bound; negative if it counts from
    /// the machine's boot: relay=-1753000000s±1us
    #[arg(long = "trace-offset", value_name = "MACHINE=TIME[±BOUND]", allow_hyphen_values = true)]
    trace_offsets: Vec<Offset>,
    /// Maximum error of the first file's clock against UTC, e.g. 1us; bounds Tmu, the time from a packet's sample to
    /// its first point
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::time)]
    clock_error: Option<Duration>,
    #[command(flatten)]
    joining: Joining,
    /// Print JSON instead of text: the run's manifest
    #[arg(long)]
    json: bool,
    /// Replace existing files: an earlier run, once the new one is whole
    #[arg(long)]
    force: bool,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

/// The result of the import, and the format of its files.
#[derive(Clone, Copy)]
enum ImportedRun {
    Run(Format),
    RunOfRant,
    RunOfDurations,
}

fn formats() -> impl TypedValueParser<Value = ImportedRun> {
    let of_name = |name: String| match name.as_str() {
        rant::NAME => Ok(ImportedRun::RunOfRant),
        DURATIONS => Ok(ImportedRun::RunOfDurations),
        _ => Format::ALL.into_iter().find(|f| f.name() == name).map(ImportedRun::Run).ok_or("no such format"),
    };
    let names = Format::ALL.map(Format::name).into_iter().chain([DURATIONS, rant::NAME]);
    PossibleValuesParser::new(names).try_map(of_name)
}

pub fn run(args: Args) -> Result<Outcome> {
    let format = match args.format {
        Some(ImportedRun::RunOfRant) => return rant::run(&args),
        Some(ImportedRun::RunOfDurations) => return svtrace::run(args),
        Some(ImportedRun::Run(format)) => Some(format),
        None => None,
    };
    let sources =
        args.sources.iter().map(|text| text.parse::<Source>().map_err(Usage)).collect::<Result<Vec<_>, _>>()?;
    let window = args.joining.window()?;
    for stream in &args.streams {
        let info = stream.matcher.protocol().info();
        if !info.is_listed {
            bail!(Usage(format!(
                "{stream}: only streams that frames name can be imported: {}",
                latpath_model::stream::listed_titles()
            )));
        }
    }
    let given = |estimate: &&Estimate| args.offsets.iter().any(|offset| offset.machine == estimate.machine);
    if let Some(Estimate { machine, .. }) = args.estimates.iter().find(given) {
        bail!(Usage(format!("{machine}: give either --offset or --estimate-offset")));
    }
    let options = Options {
        sources,
        format,
        streams: args.streams,
        offsets: args.offsets,
        estimates: args.estimates,
        traces: args.traces,
        trace_offsets: args.trace_offsets,
        clock_error: args.clock_error.map(ns),
        segments: args.joining.segments.clone(),
        threshold: args.joining.threshold().unwrap_or(THRESHOLD),
        window,
    };
    let stop = stop_flag()?;
    make(&args.output, (args.json, args.quiet, args.force), |show| import(&options, &args.output, &stop, show))
}

/// Refuses options that do not apply to a format, if one is given.
fn refuse(unfit: &[(&str, bool)], why: &str) -> Result<()> {
    match unfit.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Usage(format!("{option}: {why}; leave it out")).into()),
        None => Ok(()),
    }
}

/// Creates a run with progress messages, and prints the result.
fn make(
    output: &Path,
    (json, quiet, force): (bool, bool, bool),
    make: impl FnOnce(&mut dyn FnMut(latpath_import::Progress)) -> Result<Manifest, ImportError>,
) -> Result<Outcome> {
    let replaced = if force { Replaced::set_aside(output)? } else { None };
    let mut progress = Progress::begin(quiet);
    let mut show = |p: latpath_import::Progress| {
        let line = |_| {
            let (read, all, journeys) = (bytes(p.read), bytes(p.bytes), number_of(p.journeys, "journey"));
            Ok::<_, std::convert::Infallible>(format!("{read} of {all} read, {journeys}"))
        };
        progress.show(line).unwrap_or_default();
    };
    let imported = make(&mut show);
    progress.end();
    let manifest = imported.map_err(|error| match error {
        ImportError::SamePoint(_)
        | ImportError::NoMachine { .. }
        | ImportError::FirstMachine { .. }
        | ImportError::NoSuchPoint { .. }
        | ImportError::TwoTraces { .. } => anyhow::Error::new(Usage(error.to_string())),
        error => error.into(),
    })?;
    replaced.into_iter().for_each(Replaced::remove);
    if json {
        print(&(serde_json::to_string(&manifest)? + "\n"))?;
    } else if !quiet {
        manifest.notes.iter().for_each(|note| eprintln!("latpath: {}", printable(note)));
        let (n, path) = (number_of(manifest.journeys, "journey"), output.display());
        eprintln!("imported {n} into {path}; read them with: latpath report {}", quoted(output));
    }
    Ok(Outcome::Done)
}
