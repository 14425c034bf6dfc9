//! Figures by which a run is compared.

use crate::summarise::{gather, touched, Gathered, Reading};
use crate::{limit::lacking, Analysis, SummaryOptions};
use latpath_compare::{Excluded, Losses, Measured, Recording, Source, Span};
use latpath_model::{Ns, SegmentKind, StreamId};
use latpath_run::{Run, Select};
use latpath_stats::{track::Lost, units::number_of};
use latpath_stats::{Band, PatternKind, SegmentFigures, Summary, Tracks};

/// Options for reading a run for a comparison.
#[derive(Clone, Debug, Default)]
pub struct RecordingOptions {
    /// The journeys from which the figures are computed.
    pub select: Select,
    /// Threshold of late packets, ns; `None` for the recording's own.
    pub threshold_ns: Option<Ns>,
    /// Band of times whose packets are also counted.
    pub band: Option<Band>,
    /// The user's segments; see [`crate::layout_of`].
    pub segments: Vec<String>,
    /// Names of the compared segments; empty for all.
    pub only: Vec<String>,
    /// Whether each stream is compared separately.
    pub by_stream: bool,
    /// Whether segments from one point to the next are compared too.
    pub steps: bool,
    /// Further thresholds, ns: for each, the longest sequence of consecutive late packets is found.
    pub row_limits: Vec<Ns>,
    /// Kinds of patterns whose packets are excluded.
    pub exclude: Vec<PatternKind>,
    /// Number of threads that read the run; 0 means one.
    pub workers: usize,
}

/// Reads a run for a comparison; also returns the summary, for limits. For a run of hours, each segment takes about 20
/// MiB during the call.
///
/// # Errors
/// If the run lacks the points of one of the user's segments, or a segment in `only`.
pub fn recording(run: &Run, options: &RecordingOptions) -> Result<(Recording, Summary), String> {
    let manifest = run.manifest();
    let mut analysis = Analysis::open(
        run,
        SummaryOptions {
            select: options.select.clone(),
            threshold_ns: options.threshold_ns,
            row_limits: options.row_limits.clone(),
            band: options.band,
            segments: options.segments.clone(),
            workers: options.workers,
            ..SummaryOptions::default()
        },
    )?;
    let mut excluded = None;
    if !options.exclude.is_empty() {
        let with = gather(&analysis, &Reading::of_report(&analysis), |_| (), |(), _| ());
        let (patterns, except) = touched(&with.patterns, &options.exclude);
        analysis.options.select.except = except;
        excluded = Some(Excluded { kinds: options.exclude.clone(), patterns, packets: with.summary.journeys });
    }
    choose(&mut analysis, options)?;
    let select = &analysis.options.select;
    let (first, last) = run.times().unwrap_or_default();
    let covered = (first.max(select.from_ns), last.min(select.to_ns));
    let by_stream = options.by_stream;
    let span = |tracks| Span::of(covered, tracks);
    let make = |setup: &_| Tracks::new(setup, span(Tracks::count(setup, by_stream)).intervals, by_stream);
    let reading = Reading { is_report: false, ..Reading::of_report(&analysis) };
    let Gathered { summary, counted, more, .. } = gather(&analysis, &reading, make, Tracks::add);
    let setup = counted.setup();
    let span = span(Tracks::count(setup, by_stream));
    let tracks = more.into_iter().reduce(|mut all, one| {
        all.merge(one);
        all
    });
    let mut notes = run.notes().to_vec();
    // Deficiencies found while reading the run.
    let found = summary.deficiencies.iter().map(|one| &one.text).filter(|text| !run.notes().contains(text));
    notes.extend(found.cloned());
    if let Some(excluded) = &mut excluded {
        excluded.packets = excluded.packets.saturating_sub(summary.journeys);
        notes.push(note(excluded));
    }
    let mut found = Recording {
        path: run.path().display().to_string(),
        source: if manifest.has_round_trips() { Source::PingLog } else { Source::Run },
        identity: format!("{} {} {}", manifest.host.boot_id, manifest.start.monotonic_ns, manifest.start.utc_ns),
        streams: summary.streams.iter().map(|s| s.stream.clone()).collect(),
        elapsed_ns: span.elapsed,
        threshold_ns: setup.threshold,
        settings: run.settings().clone(),
        sightings: (summary.tool.sightings, summary.tool.sightings_dropped),
        segments: Vec::new(),
        losses: Vec::new(),
        excluded,
        notes,
        footnotes: summary.footnotes.clone(),
    };
    for (id, (tracks, lost)) in tracks.into_iter().flat_map(Tracks::finish).enumerate() {
        let stream = by_stream.then_some(id as StreamId);
        let is_chosen = |id| select.streams.as_ref().is_none_or(|chosen| chosen.contains(&id));
        if !stream.is_none_or(is_chosen) {
            continue;
        }
        let name = stream.and_then(|id| manifest.streams.get(usize::from(id))).map(ToString::to_string);
        found.losses.push(losses(&summary, name.clone(), lost, span));
        let figures = figures(&summary, &name);
        for (at, (segment, track)) in setup.segments.iter().zip(tracks).enumerate() {
            let point = |id: u16| setup.points.get(usize::from(id)).map(|p| p.point.to_string()).unwrap_or_default();
            let (from, to) = (point(segment.from), point(segment.to));
            let is_it = |s: &&SegmentFigures| s.name == segment.name && s.from == from && s.to == to;
            let Some(shown) = figures.iter().find(is_it) else { continue };
            let (histogram, over) = counted.times(at, stream);
            found.segments.push(Measured {
                stream: name.clone(),
                kind: segment.kind,
                name: segment.name.clone(),
                cost_ns: cost(&summary, &from, &to),
                error_bound_ns: summary.is_bound_known(shown).then_some(shown.error_bound_ns),
                lacks: lacking(&summary, &segment.name).map(|one| format!("{}: {}", run.path().display(), one.text)),
                from,
                to,
                over,
                in_band: options.band.zip(shown.in_band),
                ..Measured::of(histogram, track.finish(), span)
            });
        }
    }
    Ok((found, summary))
}

/// A note about the excluded packets.
fn note(excluded: &Excluded) -> String {
    let kinds: Vec<&str> = excluded.kinds.iter().map(|kind| kind.name()).collect();
    let (patterns, packets) = (number_of(excluded.patterns, "pattern"), number_of(excluded.packets, "packet"));
    format!("without {}: {patterns} found, {packets} left out", kinds.join(", "))
}

/// Keeps only the compared segments. Segments from one point to the next are parts of longer segments; they are kept
/// only at the user's request, or if there are no others.
fn choose(analysis: &mut Analysis, options: &RecordingOptions) -> Result<(), String> {
    let segments = &analysis.layout.segments;
    if !options.only.is_empty() {
        let known: Vec<String> = segments.iter().map(|s| s.name.clone()).collect();
        if let Some(none) = options.only.iter().find(|name| !known.contains(name)) {
            let path = analysis.run.path().display();
            return Err(format!("{path}: no segment {none:?} (there are: {})", known.join(", ")));
        }
        analysis.retain_segments(|s| options.only.contains(&s.name));
    } else if !options.steps && segments.iter().any(|s| s.kind != SegmentKind::Step) {
        analysis.retain_segments(|s| s.kind != SegmentKind::Step);
    }
    Ok(())
}

fn figures<'a>(summary: &'a Summary, stream: &Option<String>) -> &'a [SegmentFigures] {
    match stream {
        None => &summary.segments,
        Some(name) => summary.streams.iter().find(|s| s.stream == *name).map_or(&[], |s| &s.segments),
    }
}

fn losses(summary: &Summary, stream: Option<String>, lost: Lost, span: Span) -> Losses {
    let packets = match &stream {
        None => summary.journeys,
        Some(name) => summary.streams.iter().find(|s| s.stream == *name).map_or(0, |s| s.journeys),
    };
    // Losses are unknown if only durations were imported.
    Losses::of(stream, packets, !summary.durations_alone, lost, span)
}

/// Time by which latpath's sightings within a segment delay a packet, ns.
fn cost(summary: &Summary, from: &str, to: &str) -> Ns {
    let number = |point: &str| summary.number(point);
    let points = number(from).zip(number(to)).map_or(1, |(from, to)| to.saturating_sub(from).max(1));
    (summary.tool.ns_per_sighting.min(1 << 30) as Ns).saturating_mul(points as Ns)
}
