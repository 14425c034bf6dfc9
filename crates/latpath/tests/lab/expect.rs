//! Expectations for a report that do not depend on the speed of the machine.

use crate::Outcome;
use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;

/// Output of `latpath report --json`.
pub struct Report(Value);

impl Report {
    /// Wraps a parsed report.
    pub fn new(shown: Value) -> Self {
        Self(shown)
    }

    /// The whole report, for fields without a method here.
    pub fn json(&self) -> &Value {
        &self.0
    }

    /// A short summary for error messages.
    pub fn in_short(&self) -> String {
        let Self(shown) = self;
        format!(
            "{} journeys: {} complete, {} incomplete, lost {}; route {}; off route {}; paths {:?}; sightings {} + {} dropped",
            shown["journeys"],
            shown["complete"],
            shown["incomplete"],
            shown["lost"],
            shown["points"],
            shown["off_route"],
            self.paths(),
            shown["tool"]["sightings"],
            shown["tool"]["sightings_dropped"]
        )
    }

    /// Paths taken by the packets, with the number of journeys of each.
    fn paths(&self) -> Vec<(&str, u64)> {
        let all = self.0["paths"].as_array().into_iter().flatten();
        all.filter_map(|p| Some((p["path"].as_str()?, p["journeys"].as_u64()?))).collect()
    }

    /// A number at the top level of the report.
    pub fn number(&self, key: &str) -> Result<u64> {
        self.0[key].as_u64().with_context(|| format!("the report has no number {key}"))
    }

    /// The points of the route, in order.
    pub fn points(&self) -> Vec<&str> {
        self.0["points"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Expects a journey for each frame, and every point in each journey.
    pub fn expect_all_complete(&self, frames: u64) -> Outcome {
        let all = (self.number("journeys")?, self.number("complete")?, self.number("incomplete")?);
        ensure!(all == (frames, frames, 0), "not {frames} complete journeys: {}", self.in_short());
        ensure!(self.lost() == 0, "packets were lost: {}", self.in_short());
        ensure!(self.0["malformed"] == 0, "malformed: {}", self.0["malformed"]);
        Ok(())
    }

    /// Lost packets, at all places.
    pub fn lost(&self) -> u64 {
        self.0["lost"].as_array().into_iter().flatten().filter_map(|l| l["count"].as_u64()).sum()
    }

    /// Packets lost at a place.
    pub fn lost_at(&self, place: &str) -> u64 {
        let all = self.0["lost"].as_array().into_iter().flatten();
        all.filter(|l| l["place"] == place).filter_map(|l| l["count"].as_u64()).sum()
    }

    /// Packets that took a path through the host.
    pub fn journeys_by(&self, path: &str) -> u64 {
        let all = self.0["paths"].as_array().into_iter().flatten();
        all.filter(|p| p["path"] == path).filter_map(|p| p["journeys"].as_u64()).sum()
    }

    /// Packets of a path whose time in a segment was measured.
    pub fn timed_by(&self, path: &str, segment: &str) -> u64 {
        let all = self.0["paths"].as_array().into_iter().flatten().filter(|p| p["path"] == path);
        let segments = all.flat_map(|p| p["segments"].as_array().into_iter().flatten());
        segments.filter(|s| s["name"] == segment).filter_map(|s| s["count"].as_u64()).sum()
    }

    /// The kernel's most frequent drop reason at a place.
    pub fn reason_of_loss(&self, place: &str) -> Option<&str> {
        let all = self.0["lost"].as_array().into_iter().flatten();
        all.filter(|l| l["place"] == place).max_by_key(|l| l["count"].as_u64())?["reason"].as_str()
    }

    /// The kernel's own count of the losses at a place, as reported.
    pub fn kernel_count(&self, place: &str) -> Option<u64> {
        let mut all = self.0["lost"].as_array().into_iter().flatten();
        all.find(|l| l["place"] == place)?["kernel_count"].as_u64()
    }

    /// The report's section on the first stream whose name starts with `stream`.
    pub fn of_stream(&self, stream: &str) -> Result<Self> {
        let mut all = self.0["streams"].as_array().into_iter().flatten();
        let is_it = |s: &&Value| s["stream"].as_str().is_some_and(|name| name.starts_with(stream));
        let one = all.find(is_it).with_context(|| format!("the report has no stream {stream}"))?;
        Ok(Self(one.clone()))
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
        let segments = self.0["segments"].as_array().context("no segments")?;
        let total = segments.iter().find(|s| s["name"] == "total").context("no total")?;
        let mean = |s: &Value| s["mean_ns"].as_i64().unwrap_or_default();
        let parts: Vec<&Value> = segments.iter().filter(|s| s["name"] != "total").collect();
        let (mut at, mut sum, mut steps) = (&total["from"], 0, 0);
        while at != &total["to"] {
            let next = parts.iter().find(|s| &s["from"] == at && s["to"] != *at);
            let Some(next) = next else { bail!("no segment goes on from {at}") };
            ensure!(next["count"] == total["count"], "{}: {} of {}", next["name"], next["count"], total["count"]);
            sum += mean(next);
            at = &next["to"];
            steps += 1;
            ensure!(steps <= parts.len(), "the segments go round in a circle");
        }
        let off = (sum - mean(total)).unsigned_abs();
        ensure!(off <= steps as u64, "the means differ by {off} ns from the total's");
        Ok(())
    }

    /// Expects that latpath itself dropped no sightings.
    pub fn expect_no_sighting_lost(&self) -> Outcome {
        let dropped = &self.0["tool"]["sightings_dropped"];
        ensure!(dropped == 0, "{dropped} sightings were dropped");
        Ok(())
    }
}
