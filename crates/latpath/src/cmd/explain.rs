//! `latpath explain`: shows why packets of a recording were late.

use super::report::{print, print_as};
use super::{quoted, style, Outcome, Usage};
use anyhow::{bail, Result};
use clap::{Args as ClapArgs, ValueEnum};
use latpath_analysis::{explain::run_context, Explainer, Explanation, PacketSelector, RunCaptures};
use latpath_capture::CaptureKind;
use latpath_import::open_recording;
use latpath_report::{explanation_document, explanation_text, packet_text, Head};
use latpath_run::Condition;
use latpath_stats::units::duration;
use latpath_stats::utc_steps;
use std::path::PathBuf;

/// Explain why packets of a recording were late: what held them, which thread or interrupt did it, and what fixes it.
#[derive(ClapArgs)]
pub struct Args {
    /// The recording: a directory made by latpath record
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Show the N worst spikes one by one; with --json, the N worst packets
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = crate::cmd::values::whole::<u16>(0..=10_000))]
    worst: u16,
    /// Show only this packet, from point to point: its number in the list of the worst, "worst", or STREAM:KEY@TIME,
    /// e.g. MU01:1234@03:04:05.593 (UTC) or MU01:1234@12.5s (since the run's start)
    #[arg(long, value_name = "PACKET", conflicts_with = "worst")]
    packet: Option<PacketSelector>,
    /// Rank causes by
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = By::Delay)]
    by: By,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// Total delay beyond the baseline
    Delay,
    /// Number of packets whose first cause it is
    Count,
}

pub fn run(args: Args) -> Result<Outcome> {
    let run = open_recording(&args.run)?;
    let manifest = run.manifest();
    let name = args.run.display();
    // The manifest has the spikes only after the first second of a recording, so a run in progress passes.
    let mut captures = RunCaptures::new(&run);
    if captures.files.files.is_empty() && manifest.spikes.is_none() && *run.condition() != Condition::Recording {
        if !manifest.imported.is_empty() {
            bail!(
                "{name}: it was imported without a trace of what the machines did, so the causes are not known; import it again \
                 with --trace (a trace that was taken beside the captures). latpath report {} --worst 10 shows where packets were late",
                quoted(&args.run)
            );
        }
        bail!(
            "{name}: it has no record of what the machines did, so the causes are not known; record again with the \
             flight recorder (without --no-flight, as root). latpath report {} --worst 10 shows where they were late",
            quoted(&args.run)
        );
    }
    let mut explainer = Explainer::new(run_context(&run), args.worst.into());
    captures.learn(&mut explainer);
    let explanation = match &args.packet {
        Some(selector) => {
            let found = captures.find(selector, explainer.context()).map_err(|e| Usage(e.to_string()))?;
            let (capture, packet) = captures.read(&found)?;
            let explained = explainer.one(&capture, &packet);
            if !args.json {
                print(&packet_text(&explained, explainer.context(), style()))?;
                return Ok(Outcome::Done);
            }
            Explanation { worst: vec![explained], ..explainer.explanation() }
        }
        None => {
            captures.each(CaptureKind::Spike, |capture| explainer.add(capture));
            explainer.explanation()
        }
    };
    captures.files.notes.extend(utc_steps(manifest));
    captures.note_starvation();
    let explanation = ranked(explanation, args.by);
    let (files, context) = (&captures.files, explainer.context());
    print_as(
        args.json,
        || explanation_document(Some((&run, files)), &explanation, context),
        || explanation_text(&Head { run: &run, files }, &explanation, context, style()),
    )?;
    if explanation.late == 0 && args.packet.is_none() {
        if captures.unread > 0 {
            bail!("{name}: none of its spikes can be read");
        }
        let so_far = if *run.condition() == Condition::Recording { " so far" } else { "" };
        eprintln!(
            "latpath: {name}: no packet was late{so_far}: none took longer than {}. Record with a lower --threshold, or with \
             --capture-worst N for the worst of each minute, whatever they take",
            duration(manifest.threshold_ns)
        );
    }
    Ok(Outcome::Done)
}

fn ranked(mut explanation: Explanation, by: By) -> Explanation {
    if by == By::Count {
        let is_last = |r: &latpath_analysis::explain::RankedCause| r.row.cause == latpath_cause::Cause::Unexplained;
        explanation
            .ranking
            .sort_by_key(|r| (is_last(r), std::cmp::Reverse((r.row.first, r.row.packets, r.row.excess_ns))));
    }
    explanation
}
