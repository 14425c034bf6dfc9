//! `latpath export`: writes recordings in the formats of other tools.

use super::progress::Progress;
use super::{interrupt, Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::Args as ClapArgs;
use latpath_analysis::{PacketSelector, SelectError, Selection};
use latpath_export::{check_target, write_file, ExportError, ExportRequest, Exported, Exporter, EXPORTERS};
use latpath_import::open_recording;
use latpath_model::text::printable;
use std::io::{self, ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

/// Write a recording in the format of another tool.
#[derive(ClapArgs)]
pub struct Args {
    /// The format
    #[arg(value_name = "FORMAT", value_parser = formats())]
    format: &'static Exporter,
    /// The recording: a directory made by latpath record
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// File to write; "-" is stdout [default: the run's name with the format's extension, in this directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show the N worst packets, with their spikes [default: 10]
    #[arg(long, value_name = "N", value_parser = crate::cmd::values::whole::<u16>(1..=1000))]
    worst: Option<u16>,
    /// Export this spike, by its number; can be repeated
    #[arg(long = "spike", value_name = "N", conflicts_with = "worst")]
    spikes: Vec<u32>,
    /// Show only this packet, late or not: its spikes, and a row of its own. Written as for latpath explain: "worst",
    /// its number in the list of the worst, or STREAM:KEY@TIME, e.g. MU01:1234@03:04:05.593 (UTC) or MU01:1234@12.5s
    /// (since the run's start)
    #[arg(long, value_name = "PACKET", conflicts_with_all = ["worst", "spikes"])]
    packet: Option<PacketSelector>,
    /// Replace existing files
    #[arg(long)]
    force: bool,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

fn formats() -> impl TypedValueParser<Value = &'static Exporter> {
    let value = |e: &Exporter| PossibleValue::new(e.name).help(e.about);
    let of_name = |name: String| EXPORTERS.iter().find(|e| e.name == name).ok_or("no such format");
    PossibleValuesParser::new(EXPORTERS.iter().map(value)).try_map(of_name)
}

pub fn run(args: Args) -> Result<Outcome> {
    let exporter = args.format;
    let run = open_recording(&args.run)?;
    let path = match &args.output {
        Some(path) => path.clone(),
        None => default_path(&args.run, exporter)?,
    };
    let stdout = path.as_os_str() == "-";
    let noun = exporter.noun;
    if stdout && !exporter.is_text && io::stdout().is_terminal() {
        bail!(Usage(format!("a {noun} is nothing for a terminal: name a file with -o, or pipe it to a program")));
    }
    if !stdout {
        check_target(&path, args.force).map_err(anyhow::Error::msg)?;
    }
    let selection = match (&args.packet, &args.spikes, args.worst) {
        (None, spikes, None) if spikes.is_empty() => Selection::Worst(10),
        _ if !exporter.takes_selection => {
            bail!(Usage(format!("{} writes all of a run: leave out --worst, --spike and --packet", exporter.name)))
        }
        (Some(packet), ..) => Selection::Packet(packet.clone()),
        (None, _, Some(worst)) => Selection::Worst(worst.into()),
        (None, spikes, None) => Selection::Spikes(spikes.clone()),
    };
    let stop = interrupt::stop_flag()?;
    let mut progress = Progress::begin(args.quiet);
    let mut show = |line: String| progress.show(|_| Ok::<_, std::convert::Infallible>(line)).unwrap_or_default();
    let mut request = ExportRequest { run: &run, selection, stop: &stop, progress: &mut show };
    let written = write_file(&path, args.force, |out| (exporter.write)(&mut request, out));
    progress.end();
    let Exported { summary, notes } = match written {
        // The reader has closed the pipe.
        Err(ExportError::Io(e)) if stdout && e.kind() == ErrorKind::BrokenPipe => return Ok(Outcome::Done),
        Err(ExportError::Select(SelectError::Usage(why))) => bail!(Usage(why)),
        Err(ExportError::Select(error)) => bail!(error),
        done => done.with_context(|| format!("{}: the {noun} was not written", name(&path)))?,
    };
    notes.iter().for_each(|note| eprintln!("latpath: {}", printable(note)));
    if !args.quiet {
        eprintln!("{}: {summary}", name(&path));
    }
    Ok(Outcome::Done)
}

fn name(path: &Path) -> String {
    if path.as_os_str() == "-" {
        return "stdout".into();
    }
    path.display().to_string()
}

fn default_path(run: &Path, exporter: &Exporter) -> Result<PathBuf> {
    let name = run.canonicalize().ok().and_then(|run| run.file_name().map(ToOwned::to_owned));
    let mut name = name.with_context(|| format!("{}: it has no name: name a file with -o", run.display()))?;
    name.push(".");
    name.push(exporter.extension);
    Ok(name.into())
}
