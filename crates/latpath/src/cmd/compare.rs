//! `latpath compare`: shows differences between recordings.

use super::flags::{Selection, THRESHOLD};
use super::report::print;
use super::{limits, style, Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use latpath_analysis::compare::{recording, DifferenceLimit, RecordingOptions};
use latpath_analysis::{digest, Limit, LimitVerdict};
use latpath_compare::{compare, study, Recording};
use latpath_export::{check_target, write_file};
use latpath_import::{is_round_trips, open_recording};
use latpath_model::Ns;
use latpath_report::compare::{comparison_html, comparison_text, study_html, study_text};
use latpath_run::{Deficiency, DeficiencyKind, Run};
use latpath_stats::text::short_stream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Compare recordings: which figures are faster, slower, or not comparable (docs/compare.md).
///
/// With --against, compares two groups: latpath compare NEW1 NEW2 NEW3 --against OLD1 OLD2 OLD3. Without it, shows a
/// table of all named groups: latpath compare bridge/idle=RUN,RUN bridge/netperf=RUN ovs/idle=RUN. A recording is a
/// run, or a log of all transactions of latpath ping. Groups of five or more recordings, of at least ten minutes each,
/// reveal the smallest differences.
#[derive(ClapArgs)]
#[command(mut_arg("threshold", |arg| arg.help(THRESHOLD_HELP)))]
pub struct Args {
    /// Recordings: RUN, or NAME=RUN,RUN for a named group; without --against, NAME or CONFIGURATION/LOAD
    #[arg(value_name = "RECORDING", required = true)]
    recordings: Vec<String>,
    /// Reference recordings: RUN..., or NAME=RUN,RUN
    #[arg(long, value_name = "RECORDING", num_args = 1..)]
    against: Vec<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Compare only this segment; can be repeated. Fewer tests reveal smaller differences. A table shows a single
    /// segment [default: total]
    #[arg(long = "only", value_name = "SEGMENT")]
    only: Vec<String>,
    /// Also compare segments between neighbouring points, or the parts of round trips
    #[arg(long)]
    steps: bool,
    /// Compare each stream separately
    #[arg(long, requires = "against")]
    by_stream: bool,
    /// Compare a stream of the first group with a stream of the reference that has another name, e.g. MU01=MU07; can be
    /// repeated
    #[arg(long = "pair", value_name = "STREAM=STREAM", value_parser = pair, requires = "against")]
    pairs: Vec<(String, String)>,
    #[command(flatten)]
    selection: Selection,
    /// Fail with exit code 3 unless this limit is shown to be kept: the maximum increase of a figure, e.g.
    /// total:p99<=+5% or total:mean<=+20us; or a limit for each new recording alone, e.g. total:max<=3ms
    /// (docs/limits.md)
    #[arg(long = "limit", value_name = "LIMIT", requires = "against")]
    limits: Vec<AnyLimit>,
    /// Write the verdict on each limit to this file, as JUnit XML; "-" writes to stdout
    #[arg(long, value_name = "FILE", requires = "limits")]
    junit: Option<PathBuf>,
    /// Also write a self-contained HTML page with charts to this file; "-" writes it to stdout instead of the text
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Replace existing files: those of --html and --junit
    #[arg(long)]
    force: bool,
}

const THRESHOLD_HELP: &str =
    "Packets are late if they take longer than this, e.g. 200us [default: the greatest of the runs; 200us for logs of ping]";

/// A limit on a difference, or on a single recording.
#[derive(Clone)]
enum AnyLimit {
    Difference(DifferenceLimit),
    Own(Limit),
}

impl FromStr for AnyLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match DifferenceLimit::is_meant(text) {
            true => text.parse().map(Self::Difference).map_err(|e| e.to_string()),
            false => text.parse().map(Self::Own).map_err(|e| e.to_string()),
        }
    }
}

impl Args {
    /// All files to write.
    fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.junit, &self.html].into_iter().filter_map(|path| path.as_deref())
    }

    /// Prints the result, unless a file goes to stdout, and writes the page if requested.
    fn show(
        &self,
        shown: impl FnOnce() -> Result<String>,
        html: impl FnOnce(&[(String, String)]) -> String,
        recordings: &[&Recording],
    ) -> Result<()> {
        if let Some(path) = &self.html {
            let digest = |one: &&Recording| {
                let hash = digest(Path::new(&one.path)).with_context(|| format!("{}: cannot be read", one.path))?;
                Ok((one.path.clone(), hash))
            };
            let digests = recordings.iter().map(digest).collect::<Result<Vec<_>>>()?;
            write_file(path, self.force, |out| out.write_all(html(&digests).as_bytes()))
                .with_context(|| format!("{}: cannot write the page", path.display()))?;
        }
        if !self.files().any(|path| path.as_os_str() == "-") {
            print(&shown()?)?;
        }
        Ok(())
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let both = text.split_once('=').filter(|(a, b)| !a.is_empty() && !b.is_empty());
    both.map(|(a, b)| (a.into(), b.into())).ok_or_else(|| "write a pair as MU01=MU07".into())
}

/// Renames the streams of `b` to the names of the streams of `a` with which they are paired.
fn rename(pairs: &[(String, String)], a: &[Recording], b: &mut [Recording]) -> Result<(), Usage> {
    for other in b {
        let full = |name: &str, all: &[String]| {
            let found = all.iter().find(|stream| *stream == name || short_stream(stream) == name).cloned();
            found.ok_or_else(|| Usage(format!("--pair: no stream {name} (there are: {})", all.join(", "))))
        };
        let streams = a.first().map_or(&[][..], |first| &first.streams);
        let names = pairs.iter().map(|(a, b)| Ok((full(b, &other.streams)?, full(a, streams)?)));
        let names = names.collect::<Result<Vec<_>, Usage>>()?;
        other.rename_streams(&names);
        let mut all = other.streams.clone();
        all.sort();
        if let Some(twice) = all.windows(2).find(|two| two[0] == two[1]) {
            return Err(Usage(format!("--pair: {} would be there twice: {}", twice[0], other.path)));
        }
    }
    Ok(())
}

/// A group of recordings as named by the user.
struct Group {
    name: Option<String>,
    paths: Vec<String>,
}

impl Group {
    fn of(text: &str) -> Self {
        let (name, paths) = match text.split_once('=').filter(|_| !exists(text)) {
            Some((name, paths)) if !name.is_empty() => (Some(name.to_owned()), paths),
            _ => (None, text),
        };
        let paths = match name {
            Some(_) if !exists(paths) => paths.split(',').map(str::to_owned).collect(),
            _ => vec![paths.to_owned()],
        };
        Self { name, paths }
    }
}

fn exists(path: &str) -> bool {
    Path::new(path).symlink_metadata().is_ok()
}

/// All recordings of one side as one group.
fn side(named: &[String], otherwise: &str) -> Result<Group> {
    let groups: Vec<Group> = named.iter().map(|text| Group::of(text)).collect();
    let mut names: Vec<&String> = groups.iter().filter_map(|g| g.name.as_ref()).collect();
    names.dedup();
    if names.len() > 1 {
        let text = format!(
            "{}, {}: one side has one name; without --against all groups stand in one table",
            names[0], names[1]
        );
        return Err(Usage(text).into());
    }
    let name = names.first().map_or(otherwise, |name| name.as_str()).to_owned();
    Ok(Group { name: Some(name), paths: groups.into_iter().flat_map(|g| g.paths).collect() })
}

pub fn run(args: Args) -> Result<Outcome> {
    if args.files().filter(|path| path.as_os_str() == "-").count() > 1 {
        return Err(Usage("--html and --junit cannot both write to stdout".into()).into());
    }
    for path in args.files().filter(|path| path.as_os_str() != "-") {
        check_target(path, args.force).map_err(anyhow::Error::msg)?;
    }
    let mut own: Vec<Limit> = Vec::new();
    let mut differences = Vec::new();
    args.limits.iter().cloned().for_each(|limit| match limit {
        AnyLimit::Difference(limit) => differences.push(limit),
        AnyLimit::Own(limit) => own.push(limit),
    });
    if let Some(limit) = own.iter().find(|limit| limit.counter() == Some("pacing")) {
        return Err(Usage(format!("{limit}: pacing is not measured here (docs/limits.md)")).into());
    }
    let threshold = threshold(&args)?;
    let mut reader = Reader { args: &args, threshold, limits: &own, verdicts: Vec::new() };
    if args.against.is_empty() {
        return table(&args, reader);
    }
    let (a, b) = (side(&args.recordings, "A")?, side(&args.against, "B")?);
    let of_a = reader.group(&a)?;
    reader.limits = &[];
    let mut of_b = reader.group(&b)?;
    rename(&args.pairs, &of_a, &mut of_b)?;
    let name = |group: Group| group.name.unwrap_or_default();
    let page = compare((&name(a), &of_a), (&name(b), &of_b));
    let mut verdicts = reader.verdicts;
    for limit in &differences {
        verdicts.push(limit.check(&page).map_err(|e| Usage(e.to_string()))?);
    }
    let shown = || Ok(if args.json { serde_json::to_string(&page)? + "\n" } else { comparison_text(&page, style()) });
    let recordings: Vec<&Recording> = of_a.iter().chain(&of_b).collect();
    args.show(shown, |digests| comparison_html(&page, &verdicts, digests), &recordings)?;
    let what = format!("{} against {}", page.a.name, page.b.name);
    limits::announce(args.junit.as_deref(), &what, &verdicts, args.force)
}

/// Compares several groups in a table.
fn table(args: &Args, mut reader: Reader) -> Result<Outcome> {
    if args.only.len() > 1 {
        return Err(Usage("a table is of one segment: name --only once".into()).into());
    }
    let mut groups = Vec::new();
    for group in args.recordings.iter().map(|text| Group::of(text)) {
        let recordings = reader.group(&group)?;
        groups.push((group.name.unwrap_or_else(|| group.paths.join(",")), recordings));
    }
    let table = study(&groups, args.only.first().map(String::as_str)).map_err(Usage)?;
    let shown = || Ok(if args.json { serde_json::to_string(&table)? + "\n" } else { study_text(&table, style()) });
    let recordings: Vec<&Recording> = groups.iter().flat_map(|(_, recordings)| recordings).collect();
    args.show(shown, |digests| study_html(&table, digests), &recordings)?;
    Ok(Outcome::Done)
}

/// The threshold for all recordings: the user's, otherwise the maximum threshold of the recordings, whatever their
/// order.
fn threshold(args: &Args) -> Result<Ns> {
    if let Some(threshold) = args.selection.threshold {
        return Ok(threshold);
    }
    let groups = args.recordings.iter().chain(&args.against).map(|text| Group::of(text));
    let mut most = None;
    for path in groups.flat_map(|group| group.paths) {
        let path = Path::new(&path);
        if !is_round_trips(path) {
            most = most.max(Some(Run::open(path)?.manifest().threshold_ns));
        }
    }
    Ok(most.unwrap_or(THRESHOLD))
}

/// Reads recordings, all with the same threshold.
struct Reader<'a> {
    args: &'a Args,
    threshold: Ns,
    /// Limits on each single recording; `verdicts` has the results.
    limits: &'a [Limit],
    verdicts: Vec<LimitVerdict>,
}

impl Reader<'_> {
    fn group(&mut self, group: &Group) -> Result<Vec<Recording>> {
        let mut all: Vec<Recording> = Vec::new();
        for path in &group.paths {
            let one = self.one(Path::new(path))?;
            if let Some(same) = all.iter().find(|other| other.identity == one.identity) {
                let text = format!("{path}: the same recording as {}; a group needs different ones", same.path);
                return Err(Usage(text).into());
            }
            all.push(one);
        }
        Ok(all)
    }

    fn one(&mut self, path: &Path) -> Result<Recording> {
        let args = self.args;
        let run = open_recording(path)?;
        let is_partial = |one: &&Deficiency| one.kind == DeficiencyKind::Missing;
        if let Some(one) = run.deficiencies().iter().find(is_partial).filter(|_| run.manifest().has_round_trips()) {
            bail!("{}: {}; only a log of all can be compared", path.display(), one.text);
        }
        let options = RecordingOptions {
            select: args.selection.select(&run)?,
            threshold_ns: Some(self.threshold),
            band: args.selection.band,
            segments: args.selection.segments.clone(),
            only: args.only.clone(),
            by_stream: args.by_stream,
            steps: args.steps,
            row_limits: limits::row_limits(self.limits),
            exclude: args.selection.exclude(),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
        };
        let (recording, summary) = recording(&run, &options).map_err(Usage)?;
        let of_this = limits::check(self.limits, &summary).into_iter();
        let named = of_this.map(|v| LimitVerdict { limit: format!("{}: {}", path.display(), v.limit), ..v });
        self.verdicts.extend(named);
        Ok(recording)
    }
}
