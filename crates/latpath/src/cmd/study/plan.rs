//! `latpath study run`, `report` and `example`: a plan's trials, and their table.

use super::folder::write;
use super::say;
use crate::cmd::interrupt::stop_flag;
use crate::cmd::report::{print, print_as};
use crate::cmd::{limits, quoted, style, Outcome, Usage};
use anyhow::{bail, Context, Result};
use clap::Args as ClapArgs;
use latpath_export::check_target;
use latpath_model::text::printable;
use latpath_report::{study_table_asciidoc, study_table_html, study_table_text};
use latpath_stats::units::number_of;
use latpath_study::{
    series, udp_stream, BadPlan, ChildRequest, Estimate, Finish, Phase, Plan, Progress, Study, StudyError, StudyTable,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A commented plan.
const EXAMPLE: &str = include_str!("example.toml");

/// Run the trials of a plan, each a recording, and compare its cells in one table
///
/// The same command continues a study that Ctrl-C, a kill or a reboot interrupted.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  latpath study example > plan.toml
  latpath study plan.toml -o STUDY
  latpath study report STUDY --json")]
pub struct Run {
    /// The plan (latpath study example prints one)
    #[arg(value_name = "PLAN.toml")]
    plan: PathBuf,
    #[command(flatten)]
    target: Target,
}

/// Where a study is kept, and how it is made and shown.
#[derive(ClapArgs)]
pub struct Target {
    /// Keep the trials in this directory; an existing study there is continued
    #[arg(short, long, value_name = "STUDY")]
    output: PathBuf,
    /// Repeat failed trials
    #[arg(long)]
    repeat_failed: bool,
    /// Only print the number of remaining trials and how long they take
    #[arg(long)]
    dry_run: bool,
    /// Replace existing files: trials of another plan
    #[arg(long)]
    force: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Show no progress on stderr
    #[arg(short, long)]
    quiet: bool,
}

/// Show the table of a study, complete or not
#[derive(ClapArgs)]
pub struct Report {
    /// Directory of the study
    #[arg(value_name = "STUDY")]
    study: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Also write a self-contained HTML page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write the table as AsciiDoc to this file, and its charts as SVG files beside it
    #[arg(long, value_name = "FILE")]
    asciidoc: Option<PathBuf>,
    /// Replace existing files: those of --html and --asciidoc
    #[arg(long)]
    force: bool,
}

/// Print a plan with comments
#[derive(ClapArgs)]
pub struct Example {}

/// Arguments of a latpath process that a study starts.
#[derive(ClapArgs)]
pub struct Child {
    request: String,
}

pub fn run(args: Run) -> Result<Outcome> {
    let plan = Plan::read(&args.plan).map_err(bad_plan)?;
    let command = format!("latpath study {}", quoted(&args.plan));
    make(plan, directory_of(&args.plan)?, &args.target, &command)
}

pub fn bad_plan(error: BadPlan) -> anyhow::Error {
    match error {
        BadPlan::File { .. } => error.into(),
        error => Usage(error.to_string()).into(),
    }
}

/// Runs the trials of a plan, whose commands run in `current`; `command` continues the study after an interruption.
pub fn make(plan: Plan, current: PathBuf, target: &Target, command: &str) -> Result<Outcome> {
    let stop = stop_flag()?;
    let program = std::env::current_exe().context("finding latpath's own program file")?;
    let study = Study::open(plan, &target.output, target.force, current, program).map_err(usage)?;
    let estimate = study.estimate()?;
    if !target.quiet || target.dry_run {
        say(&estimated(&study, &estimate));
    }
    if target.dry_run {
        return Ok(Outcome::Done);
    }
    let finish = study.run(&stop, target.repeat_failed, &mut |progress| show(&progress, target.quiet))?;
    // Releases the study: the table reads it like any other reader.
    drop(study);
    if let Finish::Stopped { left } = finish {
        let (left, study) = (number_of(left as u64, "trial"), quoted(&target.output));
        bail!(
            "stopped with {left} left; what is complete is kept. Go on with: {command} -o {study}; \
             latpath study report {study} shows the table so far"
        );
    }
    show_table(&target.output, target.json)
}

pub fn report(args: Report) -> Result<Outcome> {
    for file in [&args.html, &args.asciidoc].into_iter().flatten() {
        check_target(file, args.force).map_err(anyhow::Error::msg)?;
    }
    if args.html.is_some() || args.asciidoc.is_some() {
        write_documents(&args)?;
    }
    show_table(&args.study, args.json)
}

fn write_documents(args: &Report) -> Result<()> {
    let table = StudyTable::of(&args.study).map_err(usage)?;
    let series = series(&args.study)?;
    if let Some(file) = &args.html {
        write(file, args.force, &study_table_html(&table, &series))?;
    }
    if let Some(file) = &args.asciidoc {
        let stem = file.file_stem().map_or_else(|| "study".into(), |stem| stem.to_string_lossy().into_owned());
        // AsciiDoc image macros contain the file name, so characters that are special in a macro are replaced.
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let stem: String = stem.chars().map(plain).collect();
        let (text, pictures) = study_table_asciidoc(&table, &series, &stem);
        for (name, svg) in &pictures {
            write(&file.with_file_name(name), args.force, svg)?;
        }
        write(file, args.force, &text)?;
    }
    Ok(())
}

pub fn example(_: Example) -> Result<Outcome> {
    print(EXAMPLE)?;
    Ok(Outcome::Done)
}

pub fn child(args: &Child) -> Result<Outcome> {
    let request: ChildRequest = serde_json::from_str(&args.request).context("a study's request")?;
    let stop = stop_flag()?;
    let streamed = udp_stream(request, &stop).with_context(|| match request {
        ChildRequest::UdpStream { to, .. } => format!("sending to {to}"),
        ChildRequest::UdpSink { at } => format!("receiving at {at}"),
    })?;
    let mut json = serde_json::to_value(streamed)?;
    json["bits_per_second"] = streamed.bits_per_second().into();
    print(&format!("{json}\n"))?;
    Ok(Outcome::Done)
}

fn show_table(study: &Path, json: bool) -> Result<Outcome> {
    let table = StudyTable::of(study).map_err(usage)?;
    print_as(json, || &table, || study_table_text(&table, style()))?;
    if table.complete == 0 && !table.failed.is_empty() {
        bail!("{}: none of its trials has a recording; the first: {}", study.display(), table.failed[0].reason);
    }
    limits::announce(None, &table.name, &table.limits, false)
}

/// The directory of a plan, in which its commands run.
pub fn directory_of(plan: &Path) -> Result<PathBuf> {
    let file = plan.canonicalize().with_context(|| format!("{}", plan.display()))?;
    Ok(file.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned))
}

fn usage(error: StudyError) -> anyhow::Error {
    match error {
        StudyError::OtherPlan { .. } | StudyError::NoStudy(_) => Usage(error.to_string()).into(),
        error => error.into(),
    }
}

fn whole_seconds(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs_f64().ceil() as u64)).to_string()
}

fn estimated(study: &Study, estimate: &Estimate) -> String {
    let plan = study.plan();
    let cells = number_of(study.cells().len() as u64, "cell");
    let repetitions = number_of(plan.repetitions.into(), "repetition");
    let Estimate { trials, left, set_up, .. } = *estimate;
    format!(
        "{}: {cells}, {repetitions}: {left} of {} to make, about {}: each {} of warm-up, {} of recording, about {} beside (seed {})",
        printable(&plan.name),
        number_of(trials as u64, "trial"),
        whole_seconds(estimate.total()),
        humantime::format_duration(plan.warm_up),
        humantime::format_duration(plan.duration),
        whole_seconds(set_up),
        study.seed()
    )
}

/// Prints the progress: a line for each trial, and each failure.
fn show(progress: &Progress<'_>, quiet: bool) {
    match progress {
        Progress::Trial { number, of, trial, phase: Phase::SettingUp, left } if !quiet => {
            say(&format!("trial {number} of {of}, {trial}; {} left", whole_seconds(*left)));
        }
        Progress::TakingDown { trial } if !quiet => {
            say(&format!("{trial} was interrupted: takes down what it had set up"))
        }
        Progress::Trial { .. } | Progress::TakingDown { .. } => {}
        Progress::NotTakenDown { trial, reason } => {
            say(&printable(&format!("{trial}: what it had set up could not be taken down: {reason}")));
        }
        Progress::Failed { trial, reason, again } => {
            let then = if *again { "tries it again" } else { "goes on without it" };
            say(&printable(&format!("{trial} failed, {then}: {reason}")));
        }
    }
}
