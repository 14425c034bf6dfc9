//! `latpath report`: reports the figures of a recording.

use super::flags::Selection;
use super::limits::{self, Limits};
use super::{style, Outcome, Usage};
use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use latpath_analysis::{
    digest, explain::ExplainedRun, parse_duration, Analysis, Charts, Chosen, LimitVerdict, SummaryOptions,
};
use latpath_export::{check_target, write_csv, write_file};
use latpath_import::open_recording;
use latpath_model::text::{printable, visible};
use latpath_model::Ns;
use latpath_report::{asciidoc, html, markdown, report_json, text, Findings, Options};
use latpath_run::{Run, Select};
use latpath_stats::Summary;
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Report on a recording: data quality, times per segment, histogram, losses, the worst packets.
#[derive(ClapArgs)]
pub struct Args {
    /// The recording: a directory made by latpath record
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Also write every journey as a line of CSV to this file; "-" writes it to stdout instead of the report
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Also write a self-contained HTML page with charts to this file; "-" writes it to stdout instead of the text
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write the report's tables as Markdown to this file, or to stdout with "-"
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Also write the report's tables as AsciiDoc to this file, or to stdout with "-"
    #[arg(long, value_name = "FILE")]
    asciidoc: Option<PathBuf>,
    /// Title of the documents
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Note at the beginning of the documents' verdict, e.g. 'test=FAT 7.4' or 'serial=1VX2'; can be repeated
    #[arg(long = "note", value_name = "NAME=TEXT", value_parser = note)]
    notes: Vec<(String, String)>,
    /// Replace existing files: those of --csv, --html, --markdown, --asciidoc and --junit
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    selection: Selection,
    /// Also show the figures of each interval of this length, e.g. 1min, for the segments of --histogram
    #[arg(long, value_name = "TIME", value_parser = interval)]
    every: Option<Ns>,
    /// Draw the histogram of this segment; can be repeated [default: total]
    #[arg(long = "histogram", value_name = "SEGMENT")]
    histograms: Vec<String>,
    /// Show the N worst packets
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = crate::cmd::values::whole::<u16>(..=1000))]
    worst: u16,
    #[command(flatten)]
    limits: Limits,
}

fn interval(text: &str) -> Result<Ns, String> {
    match parse_duration(text) {
        Some(every) if every > 0 => Ok(every),
        _ => Err("write a time longer than 0, e.g. 1min or 10s".into()),
    }
}

fn note(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("write a note as NAME=TEXT")?;
    Ok((name.into(), value.into()))
}

/// A document's renderer, and its file.
type Document<'a> = (fn(&Findings) -> String, &'a Path);

impl Args {
    fn documents(&self) -> Vec<Document<'_>> {
        let all: [(fn(&Findings) -> String, _); 3] =
            [(html, &self.html), (markdown, &self.markdown), (asciidoc, &self.asciidoc)];
        all.into_iter().filter_map(|(format, path)| Some((format, path.as_deref()?))).collect()
    }

    /// All files to write.
    fn files(&self) -> Vec<&Path> {
        let data = self.csv.as_deref().into_iter().chain(self.limits.junit.as_deref());
        data.chain(self.documents().iter().map(|(_, path)| *path)).collect()
    }
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

pub fn run(args: Args) -> Result<Outcome> {
    let limits = args.limits.all(args.force)?;
    check_files(&args)?;
    let run = open_recording(&args.run)?;
    let select = args.selection.select(&run)?;
    if let Some(path) = &args.csv {
        let with_threads = Select { cpus_and_threads: true, ..select.clone() };
        write_journeys(&run, &with_threads, path, args.force)?;
        if is_stdout(path) && limits.is_empty() && args.documents().is_empty() {
            return Ok(Outcome::Done);
        }
    }
    let options = SummaryOptions {
        select,
        threshold_ns: args.selection.threshold,
        row_limits: limits::row_limits(&limits),
        band: args.selection.band,
        worst: args.worst.into(),
        segments: args.selection.segments.clone(),
        possible_segments: args.limits.segments()?,
        exclude: args.selection.exclude(),
        every: args.every,
        workers: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let analysis = Analysis::open(&run, options).map_err(Usage)?;
    let (mut summary, charts) = match args.documents().is_empty() {
        true => (analysis.summarise().map_err(Usage)?, Charts::default()),
        false => analysis.summarise_with_charts().map_err(Usage)?,
    };
    for name in &args.histograms {
        if !summary.segments.iter().any(|s| s.name == *name) {
            let known: Vec<&str> = summary.segments.iter().map(|s| s.name.as_str()).collect();
            return Err(Usage(format!("{name:?}: no such segment (there are: {})", known.join(", "))).into());
        }
    }
    let verdicts = limits::check(&limits, &summary);
    let chosen = Chosen {
        profile: args.limits.profile.clone(),
        title: args.title.clone(),
        notes: args.notes.clone(),
        ..Chosen::of(&run, &analysis.options)
    };
    let shows_text = !args.json && !args.files().into_iter().any(is_stdout);
    let is_explained = shows_text || !args.documents().is_empty();
    let explained = is_explained.then(|| analysis.explain(args.worst.into())).flatten();
    write_documents(&args, &run, explained.as_ref(), &summary, &chosen, &charts, &verdicts)?;
    if shows_text {
        summary.late = explained.as_ref().map(|explained| explained.figures(style().letters));
    }
    if !args.files().into_iter().any(is_stdout) {
        let shown = if args.json {
            report_json(&summary, &run, &chosen, &verdicts)? + "\n"
        } else {
            text(
                &summary,
                Some(&run),
                &Options {
                    style: style(),
                    histograms: args.histograms.clone(),
                    covers: chosen.part(),
                    limits: verdicts.clone(),
                },
            )
        };
        print(&shown)?;
    }
    let part = chosen.part().map_or(String::new(), |part| format!(", {part}"));
    args.limits.announce(&format!("{}{part}", args.run.display()), &verdicts, args.force)
}

/// Refuses output files that must not be written, before the run is read.
fn check_files(args: &Args) -> Result<()> {
    let files = args.files();
    if args.force && files.is_empty() {
        return Err(Usage(
            "--force: there is no file to replace; add --csv, --html, --markdown, --asciidoc or --junit".into(),
        )
        .into());
    }
    if args.json && files.iter().copied().any(is_stdout) {
        let why = "--json prints to standard output, and so does a file named -: leave one out, or name a file";
        return Err(Usage(why.into()).into());
    }
    for (at, path) in files.iter().enumerate() {
        if files[..at].contains(path) {
            return Err(Usage(format!("{}: named for two outputs; name a file for each", path.display())).into());
        }
        if !is_stdout(path) && args.limits.junit.as_deref() != Some(*path) {
            check_target(path, args.force).map_err(anyhow::Error::msg)?;
        }
    }
    Ok(())
}

/// Writes the report in the formats that the flags request.
fn write_documents(
    args: &Args,
    run: &Run,
    explained: Option<&ExplainedRun>,
    summary: &Summary,
    chosen: &Chosen,
    charts: &Charts,
    limits: &[LimitVerdict],
) -> Result<()> {
    let documents = args.documents();
    if documents.is_empty() {
        return Ok(());
    }
    let sha256 =
        digest(run.path()).with_context(|| format!("{}: cannot read all of its files", run.path().display()))?;
    let findings = Findings { run, summary, chosen, limits, charts, explained, sha256: &sha256 };
    for (format, path) in documents {
        let written = write_file(path, args.force, |out| out.write_all(format(&findings).as_bytes()));
        match written {
            // The reader has closed the pipe.
            Err(e) if is_stdout(path) && e.kind() == ErrorKind::BrokenPipe => {}
            done => done.with_context(|| format!("{}: cannot write the report", path.display()))?,
        }
    }
    Ok(())
}

/// Writes the journeys as CSV.
fn write_journeys(run: &Run, select: &Select, path: &Path, force: bool) -> Result<()> {
    let damaged = match write_file(path, force, |out| write_csv(run, select, out)) {
        // The reader has closed the pipe.
        Err(e) if is_stdout(path) && e.kind() == ErrorKind::BrokenPipe => return Ok(()),
        done => done.with_context(|| format!("{}: cannot write journeys", path.display()))?,
    };
    let damaged = damaged.iter().map(|error| printable(&error.to_string()));
    damaged.for_each(|error| eprintln!("latpath: {error}; its other journeys are in the CSV"));
    Ok(())
}

/// Prints a result as JSON on one line, or as text; returns what [`print`] returns.
pub(super) fn print_as<T: Serialize>(
    json: bool,
    value: impl FnOnce() -> T,
    text: impl FnOnce() -> String,
) -> Result<bool> {
    print(&match json {
        true => serde_json::to_string(&value())? + "\n",
        false => text(),
    })
}

/// Prints a text, which may contain any names. Returns false if the reader is gone, which is no error.
pub(super) fn print(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(visible(text).as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        done => done.map(|()| true).context("writing to stdout"),
    }
}
