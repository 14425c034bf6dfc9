//! `latpath import`: makes a run of captures and logs that were taken at several points.

use super::following::{segment, THRESHOLD};
use super::interrupt::stop_flag;
use super::progress::Progress;
use super::report::print;
use super::{ns, Outcome, Usage};
use anyhow::{bail, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::Args as ClapArgs;
use latpath_import::{import, Estimate, Format, ImportError, Offset, Options, Source};
use latpath_model::StreamSpec;
use latpath_stats::units::{bytes, count};
use std::path::PathBuf;
use std::time::Duration;

/// Make a run of captures and logs of the same packets, taken at different points.
#[derive(ClapArgs)]
pub struct Args {
    /// Two files or more, each with the point where its packets were seen, in the order in which packets pass: publisher/tx@eth0=pub.pcap
    /// relay/app-read@relay=sub.txt; pcap, pcapng (also .gz) or the log of sv_timestamp_logger. One capture alone has the time since the
    /// samples (Tmu), where their sender keeps UTC
    #[arg(value_name = "POINT=FILE", required = true)]
    sources: Vec<Source>,
    /// Directory to make for the run
    #[arg(short, long, value_name = "RUN")]
    output: PathBuf,
    /// Stream to import, as svid:MU01 or 'svid:MU*'; several are allowed [default: all that the files name]
    #[arg(short, long = "stream", value_name = "STREAM")]
    streams: Vec<StreamSpec>,
    /// The format of the files, where their first bytes do not show it
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    format: Option<Format>,
    /// How far a machine's clock is ahead of that of the first file's machine, and how wrong that can be: relay=250us±20us (or +-20us);
    /// without it, times between machines are as the files have them, and have no bound
    #[arg(long = "offset", value_name = "MACHINE=TIME[±BOUND]", allow_hyphen_values = true)]
    offsets: Vec<Offset>,
    /// Estimate how far a machine's clock is ahead, given what the fastest packet of each 10 s takes at most to get there; what that
    /// leaves open is the bound
    #[arg(long = "estimate-offset", value_name = "MACHINE=TIME")]
    estimates: Vec<Estimate>,
    /// How far the clock of the first file's machine can be off UTC, as 1us: the bound of Tmu, the time since packets' samples were taken
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    clock_error: Option<Duration>,
    /// A segment of your own, as lan=publisher/tx@eth0..host/nic-rx@eth0; several are allowed
    #[arg(long = "segment", value_name = "NAME=FROM..TO", value_parser = segment)]
    segments: Vec<String>,
    /// Times over this are counted, as 200us [default: 200us]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    threshold: Option<Duration>,
    /// A packet that takes longer than this counts as lost; below the time in which the stream's counter wraps
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    window: Duration,
    /// Print what was imported as JSON: the run's manifest
    #[arg(long)]
    json: bool,
    /// No progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

fn formats() -> impl TypedValueParser<Value = Format> {
    let of_name = |name: String| Format::ALL.into_iter().find(|f| f.name() == name).ok_or("no such format");
    PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(of_name)
}

pub fn run(args: Args) -> Result<Outcome> {
    let window = ns(args.window);
    if !(1_000_000..=4_000_000_000).contains(&window) {
        bail!(Usage("--window is 1ms to 4s".into()));
    }
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
        sources: args.sources,
        format: args.format,
        streams: args.streams,
        offsets: args.offsets,
        estimates: args.estimates,
        clock_error: args.clock_error.map(ns),
        segments: args.segments,
        threshold: args.threshold.map_or(THRESHOLD, ns),
        window,
    };
    let stop = stop_flag()?;
    let mut progress = Progress::begin(args.quiet);
    let show = |p: latpath_import::Progress| {
        let line = |_| {
            let (read, all, journeys) = (bytes(p.read), bytes(p.bytes), count(p.journeys));
            Ok::<_, std::convert::Infallible>(format!("{read} of {all} read, {journeys} journeys"))
        };
        progress.show(line).unwrap_or_default();
    };
    let imported = import(&options, &args.output, &stop, show);
    progress.end();
    let manifest = imported.map_err(|error| match error {
        ImportError::SamePoint(_) | ImportError::NoMachine { .. } => anyhow::Error::new(Usage(error.to_string())),
        error => error.into(),
    })?;
    if args.json {
        print(&(serde_json::to_string(&manifest)? + "\n"))?;
    } else if !args.quiet {
        manifest.notes.iter().for_each(|note| eprintln!("latpath: {note}"));
        let (n, path) = (count(manifest.journeys), args.output.display());
        eprintln!("imported {n} journeys into {path}; read them with: latpath report {path}");
    }
    Ok(Outcome::Done)
}
