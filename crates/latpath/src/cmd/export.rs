//! `latpath export`: recordings in other tools' formats.

use super::captures::{Captures, Found};
use super::progress::Progress;
use super::{interrupt, Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::{Args as ClapArgs, Subcommand};
use latpath_capture::{CaptureKind, Packet};
use latpath_model::{Ns, StreamId};
use latpath_perfetto::{Export, Summary};
use latpath_report::{run_context, PacketSelector};
use latpath_run::{Run, SpikeFile};
use latpath_stats::units::{bytes, count};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Write what was recorded in the format of another tool.
#[derive(ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    format: Format,
}

#[derive(Subcommand)]
enum Format {
    Perfetto(Perfetto),
}

/// Late packets and all that the machines did around them, as a trace for the Perfetto UI: CPUs, threads, vCPUs and packets of host
/// and guests on one timeline.
#[derive(ClapArgs)]
pub struct Perfetto {
    /// The recording: a directory made by latpath record
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// File to write; "-" is stdout [default: RUN.pftrace, in this directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The spikes of so many of the worst packets
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    worst: u16,
    /// This spike, by its number; several are allowed
    #[arg(long = "spike", value_name = "N", conflicts_with = "worst")]
    spikes: Vec<u32>,
    /// This packet, late or not: the spikes that it is in, and a row for it alone. As latpath explain takes it: "worst", its number
    /// in the list of the worst, or STREAM:KEY@TIME, as MU01:1234@03:04:05.593 (UTC) or MU01:1234@12.5s (since the run's start)
    #[arg(long, value_name = "PACKET", conflicts_with_all = ["worst", "spikes"])]
    packet: Option<PacketSelector>,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
    /// No progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    match args.format {
        Format::Perfetto(args) => perfetto(args),
    }
}

fn perfetto(args: Perfetto) -> Result<Outcome> {
    let run = Run::open(&args.run)?;
    let path = match &args.output {
        Some(path) => path.clone(),
        None => default_path(&args.run)?,
    };
    let stdout = path.as_os_str() == "-";
    if stdout && io::stdout().is_terminal() {
        bail!(Usage("a trace is nothing for a terminal: name a file with -o, or pipe it to a program".into()));
    }
    if !stdout {
        refuse_what_exists(&path, args.force)?;
    }
    let stop = interrupt::stop_flag()?;
    let mut progress = Progress::begin(args.quiet);
    let Chosen { captures, packets } = chosen(&run, &args, &stop)?;
    let wanted = |p: &Packet| packets.as_ref().is_none_or(|packets| packets.contains(&(p.stream, p.number)));
    let context = run_context(&run);
    let mut write = |out: &mut dyn Write| -> Result<Summary> {
        let mut export = Export::begin(out, context.clone())?;
        for (done, number) in captures.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            progress.tell(|_| {
                let (all, written) = (captures.len(), bytes(export.bytes()));
                Ok::<_, anyhow::Error>(format!("{done} of {all} spikes, {written} written"))
            })?;
            match run.spike(*number) {
                Ok(frozen) if args.packet.is_some() => export.capture_around(&frozen.capture, wanted)?,
                Ok(frozen) => export.capture(&frozen.capture, wanted)?,
                Err(error) => eprintln!("latpath: {error}; the others are in the trace"),
            }
        }
        Ok(export.finish()?.1)
    };
    let summary = match stdout {
        true => match write(&mut BufWriter::new(io::stdout().lock())) {
            // The reader of the pipe has seen enough.
            Err(e) if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) => {
                return Ok(Outcome::Done)
            }
            done => done.context("writing the trace to stdout")?,
        },
        false => write_file(&path, args.force, &mut write)?,
    };
    progress.end();
    if !args.quiet {
        let name = if stdout { "stdout".into() } else { path.display().to_string() };
        eprintln!("{}", info(&summary, &name));
    }
    Ok(Outcome::Done)
}

/// What was written, in a line or two.
fn info(summary: &Summary, name: &str) -> String {
    let plural = |n: u64, what: &str| format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" });
    let mut text = format!(
        "{name}: {} around {}, {}; open it in the Perfetto UI",
        plural(summary.captures, "spike"),
        plural(summary.packets, "packet"),
        bytes(summary.bytes)
    );
    if summary.more_late > 0 {
        text +=
            &format!("\n{} more in these spikes have no row of their own", plural(summary.more_late, "late packet"));
    }
    for (machine, written) in summary.machines.iter().filter(|(_, written)| written.left_out > 0) {
        let left_out = plural(written.left_out, "event");
        text += &format!("\n{left_out} of {machine} left out: Perfetto has no words for them, or they cannot be");
    }
    text
}

fn default_path(run: &Path) -> Result<PathBuf> {
    let name = run.canonicalize().ok().and_then(|run| run.file_name().map(ToOwned::to_owned));
    let mut name = name.with_context(|| format!("{}: it has no name: name a file with -o", run.display()))?;
    name.push(".pftrace");
    Ok(name.into())
}

fn refuse_what_exists(path: &Path, force: bool) -> Result<()> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Ok(found) if force && !found.is_dir() => Ok(()),
        Ok(found) if found.is_dir() => bail!("{}: is a directory; name a file with -o", path.display()),
        _ => bail!("{}: exists already; name another file with -o, or replace it with --force", path.display()),
    }
}

/// The file appears under its name when it is whole: a disk that is full, or Ctrl-C, leaves what was there before.
fn write_file(path: &Path, force: bool, write: &mut dyn FnMut(&mut dyn Write) -> Result<Summary>) -> Result<Summary> {
    // A device or a pipe is written to as it is.
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        let file = OpenOptions::new().write(true).open(path);
        let file = file.with_context(|| format!("{}: cannot write", path.display()))?;
        return write(&mut BufWriter::new(file)).with_context(|| failed(path));
    }
    let mut name = path.file_name().context("name a file with -o")?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let hop = path.with_file_name(name);
    let written = (|| -> Result<Summary> {
        let mut file = BufWriter::new(File::create_new(&hop)?);
        let summary = write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        appear(&hop, path, force)?;
        Ok(summary)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&hop);
    }
    written.with_context(|| failed(path))
}

/// Gives a whole file its name. Without `force`, whoever made a file of that name meanwhile keeps it.
fn appear(hop: &Path, path: &Path, force: bool) -> io::Result<()> {
    if !force {
        match std::fs::hard_link(hop, path) {
            Ok(()) => return std::fs::remove_file(hop),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(e),
            // Some file systems have no links.
            Err(_) => {}
        }
    }
    std::fs::rename(hop, path)
}

fn failed(path: &Path) -> String {
    format!("{}: the trace was not written", path.display())
}

/// Packets, by stream and number.
type Packets = HashSet<(StreamId, u64)>;

/// What is to be written.
struct Chosen {
    /// The captures' numbers, in the order of their times.
    captures: Vec<u32>,
    /// Packets with rows, by stream and number; none for all.
    packets: Option<Packets>,
}

fn chosen(run: &Run, args: &Perfetto, stop: &AtomicBool) -> Result<Chosen> {
    let found = run.spikes();
    for note in &found.notes {
        eprintln!("latpath: {note}");
    }
    let path = args.run.display();
    let mut packets = None;
    let mut files: Vec<&SpikeFile> = if let Some(wanted) = args.packet.as_ref().filter(|_| !found.files.is_empty()) {
        let Found { packet, captures } = Captures::new(run, run.spikes()).find(wanted, &run_context(run))?;
        packets = Some(HashSet::from([(packet.stream, packet.number)]));
        found.files.iter().filter(|file| captures.contains(&file.head.number)).collect()
    } else if args.spikes.is_empty() {
        let (files, worst) = worst(run, &found.files, args.worst.into(), stop)?;
        packets = Some(worst);
        files
    } else {
        let of = |number: &u32| found.files.iter().find(|file| file.head.number == *number);
        let files: Option<Vec<_>> = args.spikes.iter().map(of).collect();
        let known = || {
            let all: Vec<String> = found.files.iter().map(|file| file.head.number.to_string()).collect();
            let shown = all.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
            if all.len() > 20 {
                format!("{shown}, … {}", all[all.len() - 1])
            } else {
                shown
            }
        };
        files.ok_or_else(|| {
            let missing = args.spikes.iter().find(|number| of(number).is_none()).copied().unwrap_or(0);
            Usage(match found.files.is_empty() {
                true => format!("--spike {missing}: {path} has no spikes"),
                false => format!("--spike {missing}: no such spike in {path} (there are: {})", known()),
            })
        })?
    };
    if files.is_empty() {
        let why = match &run.manifest().spikes {
            None => "nothing was frozen around late packets (--no-flight, or an older latpath)",
            Some(_) => "no packet was late; record with a lower --threshold, or with --worst",
        };
        bail!("{path}: no spikes to export: {why}");
    }
    files.sort_by_key(|file| (file.head.from, file.head.number));
    files.dedup_by_key(|file| file.head.number);
    Ok(Chosen { captures: files.into_iter().map(|file| file.head.number).collect(), packets })
}

/// The worst packets, and their captures. A capture is read as long as its worst packet may be one of them.
fn worst<'a>(
    run: &Run,
    files: &'a [SpikeFile],
    most: usize,
    stop: &AtomicBool,
) -> Result<(Vec<&'a SpikeFile>, Packets)> {
    struct Late<'a> {
        took: Ns,
        packet: Option<(StreamId, u64)>,
        file: &'a SpikeFile,
    }
    let mut spikes: Vec<&SpikeFile> = files.iter().filter(|file| file.head.kind == CaptureKind::Spike).collect();
    spikes.sort_by_key(|file| (std::cmp::Reverse(file.head.worst), file.head.number));
    let mut worst: Vec<Late> = Vec::new();
    for file in spikes {
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        if worst.len() >= most && worst[most - 1].took >= file.head.worst {
            break;
        }
        // What cannot be read, or has no room for its late packets, counts by its worst.
        let packets = run.spike(file.head.number).map(|frozen| frozen.capture.packets).unwrap_or_default();
        let late = packets.iter().filter(|packet| packet.late).filter_map(|packet| {
            let took = packet.sightings.last()?.t.saturating_sub(packet.sightings.first()?.t);
            Some(Late { took, packet: Some((packet.stream, packet.number)), file })
        });
        let before = worst.len();
        worst.extend(late);
        if worst.len() == before {
            worst.push(Late { took: file.head.worst, packet: None, file });
        }
        worst.sort_by_key(|late| (std::cmp::Reverse(late.took), late.file.head.number));
        // At the edges of two spikes one may be late in both.
        let mut seen = HashSet::new();
        worst.retain(|late| late.packet.is_none_or(|packet| seen.insert(packet)));
        worst.truncate(most);
    }
    Ok((worst.iter().map(|late| late.file).collect(), worst.iter().filter_map(|late| late.packet).collect()))
}
