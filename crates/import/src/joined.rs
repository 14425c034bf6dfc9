//! Processes joined packets: stores those that are counted, with the times of their samples if known from frames.

use crate::{
    options::Options,
    trace::{Late, PlacedTrace},
    ImportError,
};
use latpath_journey::copies::{self, CopyPoints};
use latpath_journey::{segments, Journey, Layout, Route, Sampling, Span};
use latpath_model::{Ns, Point, PointId, PointInfo, Sighting, SynchChange, SynchWatch};
use latpath_run::{Manifest, Mark, RunError, Writer};
use latpath_stats::units::number_of;
use std::{path::Path, sync::atomic::AtomicBool};

/// Counts and stores journeys.
pub(crate) struct Joined {
    pub writer: Writer,
    pub span: Span,
    pub layout: Layout,
    pub journeys: u64,
    /// Number of journeys seen at two or more points.
    pub in_two: u64,
    /// Number of journeys for which the time of the sample is known.
    pub sampled: u64,
    /// Number of journeys outside the interval that all files cover.
    pub outside: u64,
    pub sightings: u64,
    /// For each stream, the points that saw a packet of it, as bits.
    pub seen: Vec<u64>,
    /// For each stream, the points that its packets reach as far as known, as bits.
    pub expected: Vec<u64>,
    pub sampling: Sampling,
    /// Detects late packets, if there are traces to explain them.
    pub late: Option<Late>,
    synch: SynchWatch,
    /// The points of the files, and the sampling point, if any.
    points: Vec<PointInfo>,
    /// The points that packets pass, in the order of the files.
    route: Vec<Point>,
    copies: Vec<CopyPoints>,
    /// For each pair of consecutive files: number of packets seen at both points, and of those that reached the second
    /// point first.
    order: Vec<(u64, u64)>,
    /// User-defined segments, with the names of points instead of numbers.
    segments: Vec<String>,
    failed: Option<RunError>,
}

impl Joined {
    /// Creates the run. `begin`: time from which all files contain packets.
    pub fn begin(options: &Options, begin: Ns, manifest: Manifest, path: &Path) -> Result<Self, ImportError> {
        let points = manifest.points.clone();
        let own = own_segments(options)?;
        let mut joined = Self {
            writer: Writer::create(path, manifest)?,
            span: Span::new(begin, begin.saturating_add(options.window)),
            layout: Layout::default(),
            journeys: 0,
            in_two: 0,
            sampled: 0,
            outside: 0,
            sightings: 0,
            seen: Vec::new(),
            expected: Vec::new(),
            sampling: Sampling::default(),
            late: None,
            synch: SynchWatch::default(),
            route: route(&points),
            copies: copies::of_points(&points),
            order: vec![(0, 0); options.sources.len().saturating_sub(1)],
            segments: own,
            points,
            failed: None,
        };
        joined.writer.remove_unless_finished();
        joined.lay_out();
        if !options.traces.is_empty() {
            joined.late = Some(Late::new(options.threshold, options.window, &mut joined.writer)?);
        }
        Ok(joined)
    }

    /// The points in `seen`, in the order of the route.
    pub fn route_of(&self, seen: u64) -> Vec<PointId> {
        self.layout.route.points.iter().copied().filter(|p| seen >> p & 1 == 1).collect()
    }

    /// Updates route and segments.
    pub fn lay_out(&mut self) {
        let mut route = Route::from_points(&self.route, &[], &self.points);
        let points = &route.points;
        let of_stream = |comes_to: &u64| points.iter().copied().filter(|p| comes_to >> p & 1 == 1).collect();
        // Use the expected points, not those seen so far: at first, a new stream's packet has only been seen at its
        // first point.
        route.by_stream = self.expected.iter().map(of_stream).collect();
        self.layout = segments::layout(route, &self.points, &self.segments);
        if let Some(late) = &mut self.late {
            late.set_layout(&self.layout, self.seen.len());
        }
    }

    /// Processes a sighting, and its packet's clock state, before it is joined.
    #[inline]
    pub fn see(&mut self, s: &Sighting, synch: Option<u8>) {
        self.sightings += 1;
        let copies = self.copies.iter().find(|at| at.all() >> s.point & 1 == 1);
        self.seen[usize::from(s.stream)] |= 1 << s.point | copies.map_or(0, |at| 1 << at.first);
        let said = synch.map(|synch| SynchChange { stream: s.stream, key: s.key, t: s.t, synch });
        if said.is_some_and(|said| self.synch.see(s.point, said)) {
            let written = self.take_changes();
            self.failed = self.failed.take().or(written.err());
        }
    }

    #[cold]
    fn take_changes(&mut self) -> Result<(), RunError> {
        let said = self.synch.take_changes();
        if self.sampling.point().is_none() && said.iter().any(SynchChange::is_global) {
            self.sampling.add_point(&mut self.points);
            self.lay_out();
            self.writer.update(|manifest| manifest.points.clone_from(&self.points))?;
        }
        for (before, change) in self.sampling.take(said) {
            let mark = Mark::of_synch(&self.writer.manifest().streams[usize::from(change.stream)], before, &change);
            self.writer.mark(&mark)?;
        }
        Ok(())
    }

    pub fn take(&mut self, journey: &Journey) {
        // At times that not all files cover, a packet only counts if it was seen at all points of its stream.
        let computed = self.copies.iter().fold(0, |mask: u64, at| mask | 1 << at.first | 1 << at.second);
        // A packet that arrived through only one of two LANs has also passed the place.
        let optional = self.copies.iter().fold(0, |mask, at| mask | at.all() | 1 << at.second);
        let is_of = |all: &u64| (journey.seen ^ all) & !optional == 0;
        let of_all = self.expected.get(usize::from(journey.stream)).is_some_and(is_of);
        if !of_all && !self.span.counts(journey, &self.layout.route) {
            self.outside += 1;
            return;
        }
        self.journeys += 1;
        self.in_two += u64::from((journey.seen & !computed).count_ones() > 1);
        for (at, (both, early)) in self.order.iter_mut().enumerate() {
            if let (Some(first), Some(second)) = (journey.at(at as PointId), journey.at(at as PointId + 1)) {
                *both += 1;
                *early += u64::from(second < first);
            }
        }
        if let Some(late) = &mut self.late {
            late.take(journey);
        }
        let Self { sampling, sampled, writer, failed, .. } = self;
        // The timeline is the UTC of the first file's machine.
        sampling.with_sample(journey, Some(0), |journey| {
            *sampled += u64::from(journey.samples != 0);
            if failed.is_none() {
                *failed = writer.push(journey).err();
            }
        });
    }

    /// Tells the detector that all journeys that began before `reached` have been processed.
    pub fn advance_late(&mut self, now: Ns, reached: Ns) {
        if let Some(late) = self.late.as_mut().filter(|_| now < Ns::MAX) {
            late.advance(now, reached);
        }
    }

    /// Reads the traces, and stores their events around late packets. Returns notes for the reader.
    pub fn explain(&mut self, placed: &[PlacedTrace], end: Ns, stop: &AtomicBool) -> Result<Vec<String>, ImportError> {
        match self.late.take() {
            Some(late) => late.finish(placed, &self.points, end, &mut self.writer, stop),
            None => Ok(Vec::new()),
        }
    }

    /// Notes on pairs of points that all packets seem to have passed in reverse order.
    pub fn order_notes(&self) -> Vec<String> {
        let point = |at: usize| &self.points[at].point;
        let is_backwards = |(at, (both, early)): &(usize, &(u64, u64))| {
            // Either LAN may be faster, so for their points the order means nothing.
            *both > 0 && both == early && !point(*at).is_optional()
        };
        let note = |(at, (both, _)): (usize, &(u64, u64))| {
            let (from, to) = (point(at), point(at + 1));
            let clock = if from.machine == to.machine {
                String::new()
            } else {
                format!(", and is the clock of {} right (--offset)", to.machine)
            };
            format!(
                "all {} came to {to} before {from}: are the files in the order of the route{clock}?",
                number_of(*both, "packet")
            )
        };
        self.order.iter().enumerate().filter(is_backwards).map(note).collect()
    }

    /// Returns the first error that occurred while writing the run.
    pub fn check(&mut self) -> Result<(), RunError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// The points that packets pass through, in the order of the files. Points of redundant networks are replaced by the
/// point of the first copies.
fn route(points: &[PointInfo]) -> Vec<Point> {
    let copies = copies::of_points(points);
    let mut route: Vec<Point> = Vec::new();
    for (at, info) in points.iter().enumerate() {
        let first = copies.iter().find(|copies| copies.all() >> at & 1 == 1).map(|copies| usize::from(copies.first));
        let point = first.map_or(&info.point, |first| &points[first].point);
        if point.can_be_on_route() && !route.contains(point) {
            route.push(point.clone());
        }
    }
    route
}

/// The user-defined segments, with names for points given as numbers (in the order of the files, from 1).
fn own_segments(options: &Options) -> Result<Vec<String>, ImportError> {
    let points = &options.sources;
    let named = |text: &String| {
        let Ok((name, from, to)) = segments::split(text) else { return Ok(text.clone()) };
        let point = |end: &str| match end.parse::<usize>() {
            Ok(number @ 1..) if number <= points.len() => Ok(points[number - 1].point.to_string()),
            Ok(_) => Err(ImportError::NoSuchPoint { segment: text.clone(), points: points.len() }),
            Err(_) => Ok(end.to_owned()),
        };
        Ok(format!("{name}={}..{}", point(from)?, point(to)?))
    };
    options.segments.iter().map(named).collect()
}
