//! Expectations for a report that do not depend on the speed of the machine.

use crate::Outcome;
use anyhow::{bail, ensure, Context, Result};
use latpath_model::Point;
use latpath_stats::{figures::packets, Loss, PathFigures, SegmentFigures, Summary};

/// The content of `latpath report --json`, or of a line of `latpath live --json`.
pub struct Report(Summary);

impl Report {
    /// Parses a report.
    pub fn parse(json: &str) -> Result<Self> {
        Ok(Self(serde_json::from_str(json).context("read the report's JSON")?))
    }

    /// All figures.
    pub fn figures(&self) -> &Summary {
        &self.0
    }

    /// A short summary for error messages.
    pub fn in_short(&self) -> String {
        let Self(shown) = self;
        let paths: Vec<_> = shown.paths.iter().map(|path| (path.path.as_str(), path.journeys)).collect();
        format!(
            "{} journeys: {} complete, {} incomplete, lost {:?}; route {:?}; off route {:?}; paths {paths:?}; sightings {} + {} dropped",
            shown.journeys,
            shown.complete,
            shown.incomplete,
            shown.lost,
            self.points(),
            names(&shown.off_route),
            shown.tool.sightings,
            shown.tool.sightings_dropped
        )
    }

    /// The points of the route, in order.
    pub fn points(&self) -> Vec<String> {
        names(&self.0.points)
    }

    /// Expects a journey for each frame, and every point in each journey.
    pub fn expect_all_complete(&self, frames: u64) -> Outcome {
        let Self(shown) = self;
        let all = (shown.journeys, shown.complete, shown.incomplete);
        ensure!(all == (frames, frames, 0), "not {frames} complete journeys: {}", self.in_short());
        ensure!(self.lost() == 0, "packets were lost: {}", self.in_short());
        ensure!(shown.malformed == 0, "malformed: {}", shown.malformed);
        Ok(())
    }

    /// Number of packets lost, at all places.
    pub fn lost(&self) -> u64 {
        packets(&self.0.lost)
    }

    fn losses_at(&self, place: &str) -> Vec<&Loss> {
        self.0.lost.iter().filter(|loss| loss.place == place).collect()
    }

    /// Number of packets lost at a place.
    pub fn lost_at(&self, place: &str) -> u64 {
        self.losses_at(place).iter().map(|loss| loss.count).sum()
    }

    fn of_path<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a PathFigures> {
        self.0.paths.iter().filter(move |figures| figures.path == path)
    }

    /// Number of packets that took this path through the host.
    pub fn journeys_by(&self, path: &str) -> u64 {
        self.of_path(path).map(|figures| figures.journeys).sum()
    }

    /// Number of packets of a path whose time in a segment was measured.
    pub fn timed_by(&self, path: &str, segment: &str) -> u64 {
        let segments = self.of_path(path).flat_map(|figures| &figures.segments);
        segments.filter(|s| s.name == segment).map(|s| s.times.count).sum()
    }

    /// The kernel's most frequent drop reason at a place.
    pub fn reason_of_loss(&self, place: &str) -> Option<&str> {
        self.losses_at(place).into_iter().max_by_key(|loss| loss.count)?.reason.as_deref()
    }

    /// The kernel's own count of the losses at a place, as reported.
    pub fn kernel_count(&self, place: &str) -> Option<u64> {
        self.losses_at(place).first()?.kernel_count
    }

    /// The figures of the first stream whose name starts with `stream`.
    pub fn of_stream(&self, stream: &str) -> Result<Self> {
        let one = self.0.streams.iter().find(|s| s.stream.starts_with(stream));
        let one = one.with_context(|| format!("the report has no stream {stream}"))?.clone();
        Ok(Self(Summary {
            points: one.points,
            journeys: one.journeys,
            complete: one.complete,
            incomplete: one.incomplete,
            lost: one.lost,
            segments: one.segments,
            paths: one.paths,
            ..Summary::default()
        }))
    }

    /// Expects these points on the route, in this order; other points may be between them.
    pub fn expect_route(&self, expected: &[&str]) -> Outcome {
        let points = self.points();
        let mut left = points.iter();
        for point in expected {
            ensure!(left.any(|p| p == point), "{point} is not in its place on the route {points:?}");
        }
        Ok(())
    }

    /// Expects the segments between neighbours on the route to add up to the total: equal counts, and means whose
    /// sum equals the total's mean within the rounding of 1 ns each.
    pub fn expect_segments_to_add_up(&self) -> Outcome {
        let segments = &self.0.segments;
        let total = segments.iter().find(|s| s.name == "total").context("no total")?;
        let parts: Vec<&SegmentFigures> = segments.iter().filter(|s| s.name != "total").collect();
        let (mut at, mut sum, mut steps) = (&total.from, 0, 0);
        while at != &total.to {
            let next = parts.iter().find(|s| s.from == *at && s.to != *at);
            let Some(next) = next else { bail!("no segment goes on from {at}") };
            let (part, whole) = (next.times.count, total.times.count);
            ensure!(part == whole, "{}: {part} of {whole}", next.name);
            sum += next.times.mean_ns;
            at = &next.to;
            steps += 1;
            ensure!(steps <= parts.len(), "the segments go round in a circle");
        }
        let off = (sum - total.times.mean_ns).unsigned_abs();
        ensure!(off <= steps as u64, "the means differ by {off} ns from the total's");
        Ok(())
    }

    /// Expects that latpath itself dropped no sightings.
    pub fn expect_no_sighting_lost(&self) -> Outcome {
        let dropped = self.0.tool.sightings_dropped;
        ensure!(dropped == 0, "{dropped} sightings were dropped");
        Ok(())
    }
}

fn names(points: &[Point]) -> Vec<String> {
    points.iter().map(ToString::to_string).collect()
}
