//! `latpath record`: every journey, kept on disk, and what all machines did around late packets.

mod spikes;
mod trace;

use super::following::{Absent, End, Flight, What};
use super::limits::{self, Limits};
use super::progress::Progress;
use super::report::print;
use super::{quoted, Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use latpath_analysis::{summarise, SummaryOptions};
use latpath_capture::CaptureKind;
use latpath_follow::{sum, Follow, JourneySink};
use latpath_journey::Journey;
use latpath_linux::background::Background;
use latpath_model::text::printable;
use latpath_model::{PointInfo, SynchChange};
use latpath_run::{ClockSample, Manifest, Mark, Run, RunError, Writer, MANIFEST};
use latpath_stats::units::{bytes, count, number_of};
use latpath_stats::utc_steps;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trace::Trace;

/// Between two looks at the probes; the rings hold far more.
const ROUND: Duration = Duration::from_millis(5);
/// Between two looks at clocks and counters.
const UPDATE: Duration = Duration::from_secs(1);

/// Record every packet's journey into a directory, for report and other tools.
#[derive(ClapArgs)]
pub struct Args {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    flight: Flight,
    #[command(flatten)]
    spikes: spikes::Args,
    /// Stop when the recording takes this much disk, as 20GiB; what is under way then is still written
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    #[command(flatten)]
    limits: Limits,
    /// Directory to make for the recording
    #[arg(short, long, value_name = "RUN")]
    output: PathBuf,
    /// Print JSON instead of text: the run's manifest, at the end
    #[arg(long)]
    json: bool,
    /// No progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

/// `20GiB`, `20G` and `20480M` are the same; `20GB` is a little less.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?}: write a size as 500MiB or 20GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (letter, rest) = unit.split_at(unit.chars().next().map_or(0, char::len_utf8));
    let power = "KMGT".find(letter).filter(|_| !letter.is_empty()).ok_or_else(wrong)? as u32 + 1;
    let base = match rest {
        "" | "iB" => 1024,
        "B" => 1000_u64,
        _ => return Err(wrong()),
    };
    let bytes = number.parse().ok().and_then(|n: u64| n.checked_mul(base.pow(power)));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

pub fn run(mut args: Args) -> Result<Outcome> {
    let background = Background::begin();
    let mut limits = args.limits.all(false)?;
    args.what.add_segments(args.limits.segments()?);
    limits::of_streams(&args.what.all_segments(), &[]).refuse_others(&mut limits)?;
    let mut options = args.what.options(args.quiet)?;
    let retention = args.spikes.retention(args.flight.per_minute());
    options.flight = args.flight.options(options.threshold, args.spikes.max_wait(), retention);
    let mut end = End::new(&args.what)?;
    Writer::refuse_existing(&args.output)?;
    let mut trace = args.spikes.trace_instance.as_deref().map(Trace::prepare).transpose()?;
    let mut follow = Follow::start(options.clone())?;
    // From here on all journeys count; a run that exists is one that records.
    let wait = follow.begin() - latpath_linux::monotonic();
    std::thread::sleep(Duration::from_nanos(wait.max(0) as u64));
    if !background.isolated().is_empty() {
        follow.note(format!("latpath kept off the isolated CPUs {}", background.isolated()));
    }
    follow.keep_background(background);
    let manifest = Manifest { threshold_ns: options.threshold, streams: options.streams.clone(), ..Manifest::begin() };
    let mut recorder = Recorder {
        writer: Writer::create(&args.output, manifest)?,
        seen: vec![0; options.streams.len()],
        failed: None,
    };
    if let Some(retention) = follow.retention() {
        recorder.check(|writer| writer.begin_spikes(retention));
    }
    recorder.update(&mut follow);
    end.begin(&args.what);
    let mut absent = Absent::new(&options.streams, &args.what);
    let mut progress = Progress::begin(args.quiet);
    // Who the host's threads are, while they are there to ask.
    match latpath_vms::find() {
        Ok(found) => recorder.check(|writer| writer.keep_vms(&found.vms)),
        Err(error) => eprintln!("latpath: virtual machines of this host are not named: {error}"),
    }
    let mut updated = Instant::now();
    while !end.is_due(recorder.writer.manifest().journeys) && recorder.failed.is_none() {
        std::thread::sleep(ROUND);
        follow.step(&mut recorder);
        while let Some(request) = follow.next_spotted() {
            if let Some(trace) = &mut trace {
                trace.spotted(&request, &options.streams);
            }
        }
        let spikes = recorder.take_captures(&mut follow);
        recorder.check(|writer| writer.tick());
        if spikes > 0 && args.spikes.stop {
            break;
        }
        if let Some(most) = args.max_size.filter(|most| recorder.writer.bytes() >= *most) {
            let why = format!("the recording ended because it had reached its --max-size of {}", bytes(most));
            eprintln!("latpath: {why}");
            follow.note(why);
            break;
        }
        if updated.elapsed() >= UPDATE {
            updated = Instant::now();
            recorder.update(&mut follow);
            absent.check(|i| recorder.seen[i]);
            absent.check_points(&follow, false);
            progress.show(|elapsed| Ok::<_, anyhow::Error>(line(elapsed, &recorder.writer, &mut follow)))?;
        }
    }
    follow.stop(&mut recorder);
    recorder.take_captures(&mut follow);
    recorder.update(&mut follow);
    absent.check_points(&follow, true);
    let counted = follow.counted();
    recorder.check(|writer| writer.update(|m| m.kernel = Some(counted)));
    progress.end();
    if let Some(trace) = trace {
        trace.end(recorder.writer.directory());
    }
    let path = args.output.display();
    if let Some(error) = recorder.failed {
        let kept = number_of(recorder.writer.stored(), "journey");
        let directory = recorder.writer.directory();
        let before = match directory.open_file(MANIFEST) {
            Ok(_) if directory.has_its_name() => format!("what came before is in {path}: {kept}"),
            Ok(_) => format!("somebody renamed {path} while it was recorded; what came before is in it: {kept}"),
            Err(_) => format!("somebody removed {path} while it was recorded"),
        };
        return Err(error).context(format!("recording stopped; {before}"));
    }
    let directory = recorder.writer.directory().clone();
    let manifest = recorder.writer.finish().context(format!("closing {path}"))?;
    if !directory.has_its_name() {
        bail!("somebody renamed {path} while it was recorded: the run is whole, under another name");
    }
    if args.json {
        print(&(serde_json::to_string(&manifest)? + "\n"))?;
    } else if !args.quiet {
        if let Some(note) = utc_steps(&manifest) {
            eprintln!("latpath: {note}");
        }
        let n = number_of(manifest.journeys, "journey");
        let run = quoted(&args.output);
        eprintln!("recorded {n} in {}; read them with: latpath report {run}", printable(&path.to_string()));
        if let Some(line) = manifest.spikes.as_ref().and_then(spikes::described) {
            eprintln!("{line}: latpath explain {run}");
        }
    }
    if limits.is_empty() {
        return Ok(Outcome::Done);
    }
    let options = SummaryOptions { row_limits: limits::row_limits(&limits), ..SummaryOptions::default() };
    let summary = summarise(&Run::open(&args.output)?, &options).map_err(Usage)?;
    let verdicts = limits::check(&limits, &summary);
    args.limits.announce(&path.to_string(), &verdicts, false)
}

/// The run being written, and the first thing that went wrong with it.
struct Recorder {
    writer: Writer,
    seen: Vec<u64>,
    failed: Option<RunError>,
}

impl JourneySink for Recorder {
    fn journey(&mut self, journey: &Journey, points: &[PointInfo]) {
        if points.len() > self.writer.manifest().points.len() {
            self.check(|writer| writer.update(|m| m.points = points.to_vec()));
        }
        self.seen[usize::from(journey.stream)] += 1;
        self.check(|writer| writer.push(journey));
    }

    fn synch(&mut self, before: u8, change: &SynchChange) {
        let mark = Mark::of_synch(&self.writer.manifest().streams[usize::from(change.stream)], before, change);
        self.check(|writer| writer.mark(&mark));
    }
}

impl Recorder {
    fn check(&mut self, write: impl FnOnce(&mut Writer) -> Result<(), RunError>) {
        if self.failed.is_none() {
            self.failed = write(&mut self.writer).err();
        }
    }

    /// Hands over what was frozen; how many captures with late packets there were.
    fn take_captures(&mut self, follow: &mut Follow) -> usize {
        let mut spikes = 0;
        while let Some(ranked) = follow.next_capture() {
            spikes += usize::from(ranked.capture.kind == CaptureKind::Spike);
            self.writer.push_capture(ranked);
        }
        spikes
    }

    /// Brings the manifest up to date, and adds a sample of each clock.
    fn update(&mut self, follow: &mut Follow) {
        if let Some(late) = follow.late() {
            self.writer.count_spikes(late);
        }
        self.check(|writer| writer.update(|manifest| follow.describe(manifest)));
        let t_ns = latpath_linux::monotonic();
        for machine in self.writer.manifest().machines.clone().into_iter().skip(1) {
            let (clock, offset_ns, error_bound_ns) =
                (machine.clock.machine, machine.clock.offset_ns, machine.clock.error_bound_ns);
            self.writer.clock_sample(ClockSample { clock, t_ns, offset_ns, error_bound_ns });
        }
    }
}

fn line(elapsed: Duration, writer: &Writer, follow: &mut Follow) -> String {
    let dropped = sum(&follow.counters()).dropped;
    let lost = if dropped > 0 { format!(", {} SIGHTINGS DROPPED", count(dropped)) } else { String::new() };
    let journeys = count(writer.manifest().journeys);
    let spikes =
        writer.manifest().spikes.as_ref().and_then(spikes::described).map_or(String::new(), |s| format!(", {s}"));
    format!("{:>5} s  {journeys} journeys, {} written{spikes}{lost}", elapsed.as_secs(), bytes(writer.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_are_not_nothing() {
        let sizes = ["1K", "20GiB", "20G", "5MB"].map(|text| size(text).unwrap());
        assert_eq!(sizes, [1 << 10, 20 << 30, 20 << 30, 5_000_000]);
        for text in ["", "20", "GiB", "0K", "1.5GiB", "20 GiB", "1€", "1Gib", "99999999999T", "-1K"] {
            assert!(size(text).unwrap_err().contains("20GiB"), "{text}");
        }
    }
}
