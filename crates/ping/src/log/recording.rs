//! What a log is compared by.

use super::read::{LogFile, ROUND_TRIP, SENT};
use super::LogError;
use latpath_compare::{estimate::spike_rate, Losses, Measured, Recording, Source, Span};
use latpath_model::{Ns, SegmentKind};
use latpath_stats::track::{Spikes, Track};
use latpath_stats::Histogram;
use std::path::Path;

/// The name of the whole of a transaction.
const WHOLE: &str = "round trip";

/// Whether the emitter's clocks take a stamp: `t1_app`, `t4_nic`.
fn is_of_emitter(stamp: &str) -> bool {
    stamp.starts_with("t1") || stamp.starts_with("t4")
}

/// Reads a log of all transactions; `steps`: the parts of round trips too. Times over the threshold are counted.
///
/// # Errors
/// Where it is no log, or cannot be read.
pub fn recording(path: &Path, threshold: Ns, steps: bool) -> Result<Recording, LogError> {
    let log = LogFile::open(path)?;
    let (mut first, mut last, mut rows, mut numbers) = (Ns::MAX, Ns::MIN, 0_u64, (u64::MAX, 0));
    log.rows(&[SENT], |sequence, values| {
        rows += 1;
        numbers = (numbers.0.min(sequence), numbers.1.max(sequence));
        if let Some(sent) = values[0] {
            (first, last) = (first.min(sent), last.max(sent));
        }
    })?;
    let sent = numbers.1.saturating_sub(numbers.0).saturating_add(1);
    if rows > 0 && sent > rows.saturating_add(rows / 1000) {
        let why = format!("it holds {rows} of {sent} transactions; only a log of all can be compared (--log-keep all)");
        return Err(log.wrong(why));
    }
    let is_part = |name: &&str| name.contains("_to_") && name.ends_with("_ns");
    let parts = log.columns.iter().map(String::as_str).filter(is_part).filter(|_| steps);
    let columns: Vec<&str> = [SENT, ROUND_TRIP].into_iter().chain(parts).collect();
    let span = Span::of((first.min(last), last), columns.len() - 1);
    let times = || (Histogram::new(), Track::new(span.stretches, threshold), 0_u64);
    let mut segments: Vec<_> = columns[1..].iter().map(|_| times()).collect();
    let (mut unanswered, mut lost) = (Spikes::default(), 0);
    let unread = log.rows(&columns, |_, values| {
        let Some(sent) = values[0] else { return };
        if values[1].is_none() {
            unanswered.add(sent);
            lost += 1;
        }
        for ((histogram, track, over), time) in segments.iter_mut().zip(&values[1..]) {
            let Some(time) = time else { continue };
            histogram.record(*time);
            track.add(sent, *time);
            *over += u64::from(*time > threshold);
        }
    })?;
    unanswered.tidy();
    let notes = (unread > 0).then(|| format!("{unread} rows cannot be read")).into_iter().collect();
    let segment = |(column, (histogram, track, over)): (&&str, (Histogram, Track, u64))| {
        let ends = column.trim_end_matches("_ns").split_once("_to_");
        let (from, to) = ends.unwrap_or(("t1_app", "t4_app"));
        Measured {
            kind: if *column == ROUND_TRIP { SegmentKind::Total } else { SegmentKind::Step },
            name: if *column == ROUND_TRIP { WHOLE.into() } else { column.trim_end_matches("_ns").into() },
            from: from.into(),
            to: to.into(),
            over,
            // A log does not have the bound of times between both machines.
            error_bound_ns: (is_of_emitter(from) == is_of_emitter(to)).then_some(0),
            ..Measured::of(histogram, track.finish(), span)
        }
    };
    Ok(Recording {
        excluded: None,
        path: path.display().to_string(),
        source: Source::PingLog,
        identity: format!("{first} {last} {rows}"),
        streams: vec!["ping".into()],
        elapsed_ns: span.elapsed,
        threshold_ns: threshold,
        sightings: (0, 0),
        segments: columns[1..].iter().zip(segments).map(segment).collect(),
        losses: vec![Losses { stream: None, packets: rows, lost, rate: spike_rate(&unanswered, span) }],
        notes,
    })
}
