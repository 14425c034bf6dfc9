//! `latpath segments`: lists the points of a recording, their order, and the segments between them.

use super::report::print_as;
use super::{Outcome, Usage};
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_analysis::{layout_of, SegmentsDocument};
use latpath_import::open_recording;
use latpath_journey::{Layout, Route};
use latpath_model::text::printable;
use latpath_model::{PointId, SegmentKind};
use std::fmt::Write;
use std::path::PathBuf;

/// List the points, the path and the segments of a recording.
#[derive(ClapArgs)]
pub struct Args {
    /// The recording: a directory made by latpath record
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Add a segment, e.g. vhost=host/tx@vnet0..host/vm-read@vnet0; can be repeated
    #[arg(long = "segment", value_name = "NAME=FROM..TO")]
    segments: Vec<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let run = open_recording(&args.run)?;
    let layout = layout_of(&run, &args.segments).map_err(Usage)?;
    let name = |id: PointId| run.points()[usize::from(id)].point.to_string();
    // Names of threads and devices, and all names in a run of another user, may contain any characters.
    let document = || SegmentsDocument::of(&layout, run.points());
    print_as(args.json, document, || text(&layout, |id| printable(&name(id))))?;
    for note in &layout.notes {
        eprintln!("latpath: {}", printable(note));
    }
    Ok(Outcome::Done)
}

fn text(layout: &Layout, name: impl Fn(PointId) -> String) -> String {
    let mut out = String::from("Route\n");
    let Route { points: route, off_route, .. } = &layout.route;
    if route.is_empty() {
        out.push_str("  no point saw a packet\n");
    }
    // Writing to a string cannot fail.
    for (i, id) in route.iter().enumerate() {
        let _ = writeln!(out, "  {:>2}  {}", i + 1, name(*id));
    }
    for id in off_route {
        let _ = writeln!(out, "      {} (off the route)", name(*id));
    }
    out.push_str("Segments\n");
    if layout.segments.is_empty() {
        out.push_str("  none: a segment needs two points\n");
    }
    let width = layout.segments.iter().map(|s| s.name.chars().count()).filter(|n| *n < 24).max().unwrap_or(0);
    let number = |id: &PointId| {
        let at = route.iter().position(|p| p == id);
        at.map_or("-".into(), |at| (at + 1).to_string())
    };
    for s in &layout.segments {
        // Segments between neighbours are named by their ends.
        let ends =
            if s.kind == SegmentKind::Step { String::new() } else { format!("  {}..{}", name(s.from), name(s.to)) };
        let _ = writeln!(out, "  {:>2}..{:<2}  {:<width$}{ends}", number(&s.from), number(&s.to), printable(&s.name));
    }
    out
}
