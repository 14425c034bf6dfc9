//! Many groups in one table: a study's configurations under its loads.

use crate::compare::{footnotes_of, notes_of};
use crate::recording::Recording;
use latpath_histogram::{Bucket, Histogram};
use latpath_model::Ns;
use latpath_stats::{Band, TimeFigures};
use schemars::JsonSchema;
use serde::Serialize;

/// The table.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Study {
    /// The segment whose times are shown.
    pub segment: String,
    /// What `over_threshold` counts against.
    pub threshold_ns: Ns,
    /// What `in_band` counts; missing where the user names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
    /// A row for each group, in the order in which they were named.
    pub rows: Vec<StudyRow>,
    /// What the reader must know.
    pub notes: Vec<String>,
    /// What could not be seen in some recording, where nothing suggests that packets were affected.
    pub footnotes: Vec<String>,
}

/// One group.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StudyRow {
    /// What was tried: `bridge` of `bridge/netperf`.
    pub configuration: String,
    /// Under which load; empty where none is named.
    pub load: String,
    /// How many recordings.
    pub recordings: usize,
    /// Packets of all of them.
    pub packets: u64,
    /// Those of these that did not arrive.
    pub lost: Option<u64>,
    /// Packets a second, of the first recording.
    pub rate_hz: f64,
    /// The times of all recordings together.
    #[serde(flatten)]
    pub times: TimeFigures,
    /// The least and the greatest mean of a recording.
    pub mean_from_ns: Ns,
    /// The greatest.
    pub mean_to_ns: Ns,
    /// Packets over the threshold.
    pub over_threshold: u64,
    /// Packets whose times are in the band; missing where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_band: Option<u64>,
    /// Spikes; null where they are too many to be distinguished.
    pub spikes: Option<usize>,
    /// The times' histogram.
    pub histogram: Vec<Bucket>,
}

/// Makes the table of one segment; of `total`, or of the last one, where none is named.
///
/// # Errors
/// Where a recording lacks the segment.
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
