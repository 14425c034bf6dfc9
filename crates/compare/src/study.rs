//! Several groups in one table: the configurations of a study under its loads.

use crate::compare::{footnotes_of, notes_of};
use crate::recording::Recording;
use latpath_histogram::{Bucket, Histogram};
use latpath_model::Ns;
use latpath_stats::{Band, TimeFigures};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Table of a study.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Study {
    /// The segment whose times are shown.
    pub segment: String,
    /// Threshold of `over_threshold`.
    pub threshold_ns: Ns,
    /// Band of `in_band`; absent if the user names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// One row per group, in the order of the command line.
    pub rows: Vec<StudyRow>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Observations that a recording lacks, without evidence that packets were affected.
    pub footnotes: Vec<String>,
}

/// Figures of one group.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StudyRow {
    /// Configuration: `bridge` in `bridge/netperf`.
    pub configuration: String,
    /// Load: `netperf` in `bridge/netperf`; empty if none is named.
    pub load: String,
    /// Number of recordings.
    pub recordings: usize,
    /// Number of packets of all recordings.
    pub packets: u64,
    /// Number of packets that did not arrive; null if unknown.
    pub lost: Option<u64>,
    /// Packets per second of the first recording.
    pub rate_hz: f64,
    /// Times of all recordings together.
    #[serde(flatten)]
    pub times: TimeFigures,
    /// Smallest of the recordings' means.
    pub mean_from_ns: Ns,
    /// Largest of the recordings' means.
    pub mean_to_ns: Ns,
    /// Number of packets over the threshold.
    pub over_threshold: u64,
    /// Number of packets with times in the band; absent without a band.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_band: Option<u64>,
    /// Number of spikes; null if they are too many to be distinguished.
    pub spikes: Option<usize>,
    /// Histogram of the times.
    pub histogram: Vec<Bucket>,
}

/// Creates the table for one segment: `segment` if given, otherwise `total`, or the last segment if there is no
/// `total`.
///
/// # Errors
/// If a recording lacks the segment.
pub fn study(groups: &[(String, Vec<Recording>)], segment: Option<&str>) -> Result<Study, String> {
    let all = || groups.iter().flat_map(|(_, recordings)| recordings);
    let first = all().next().map_or(&[][..], |r| &r.segments);
    let is_total = |s: &&crate::Measured| s.kind == latpath_model::SegmentKind::Total;
    let usual = first.iter().find(is_total).or(first.last()).map_or("total", |s| s.name.as_str());
    let segment = segment.unwrap_or(usual);
    let rows = groups.iter().map(|(name, recordings)| row(name, recordings, segment)).collect::<Result<Vec<_>, _>>()?;
    let mut notes = notes_of(all());
    let mut before: Vec<(&str, &Recording)> = Vec::new();
    for (group, one) in groups.iter().flat_map(|(name, recordings)| recordings.iter().map(move |r| (name.as_str(), r)))
    {
        match before.iter().find(|(_, other)| other.identity == one.identity) {
            Some((other, _)) => notes.push(format!("{}: this recording is in {other} and in {group}", one.path)),
            None => before.push((group, one)),
        }
    }
    let rates = rows.iter().map(|row| row.rate_hz);
    let (least, most) = rates.fold((f64::MAX, 0.0_f64), |(least, most), hz| (least.min(hz), most.max(hz)));
    if most > least * 1.02 {
        notes.push("the packets' rates differ: times at different rates cannot be compared".into());
    }
    let threshold_ns = all().map(|r| r.threshold_ns).max().unwrap_or(0);
    let band = all().flat_map(|r| &r.segments).find_map(|s| s.in_band).map(|(band, _)| band);
    Ok(Study { segment: segment.into(), threshold_ns, band, rows, notes, footnotes: footnotes_of(all()) })
}

fn row(name: &str, recordings: &[Recording], segment: &str) -> Result<StudyRow, String> {
    let (configuration, load) = name.split_once('/').unwrap_or((name, ""));
    let (mut times, mut means, mut over, mut spikes) = (Histogram::new(), Vec::new(), 0, Some(0));
    let mut in_band = None;
    for recording in recordings {
        let found: Vec<_> = recording.segments.iter().filter(|s| s.name == segment).collect();
        if found.is_empty() {
            let known: Vec<_> = recording.segments.iter().map(|s| s.name.as_str()).collect();
            return Err(format!("{}: no segment {segment:?} (there are: {})", recording.path, known.join(", ")));
        }
        let mut one = Histogram::new();
        for measured in found {
            one.merge(&measured.histogram);
            over += measured.over;
            in_band = measured.in_band.map(|(_, n)| n + in_band.unwrap_or(0)).or(in_band);
            spikes = spikes.zip(measured.spikes).map(|(a, b)| a + b);
        }
        means.push(one.mean());
        times.merge(&one);
    }
    Ok(StudyRow {
        configuration: configuration.into(),
        load: load.into(),
        recordings: recordings.len(),
        packets: recordings.iter().map(Recording::packets).sum(),
        lost: recordings.iter().map(Recording::lost).sum(),
        rate_hz: recordings.first().map_or(0.0, Recording::rate_hz),
        times: TimeFigures::of(&times),
        mean_from_ns: means.iter().copied().min().unwrap_or(0),
        mean_to_ns: means.iter().copied().max().unwrap_or(0),
        over_threshold: over,
        in_band,
        spikes,
        histogram: times.buckets(),
    })
}
