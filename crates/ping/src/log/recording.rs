//! A log as a recording for comparison.

use super::read::{LogFile, NIC_RECEIVED, NIC_SENT, ROUND_TRIP, SENT};
use super::LogError;
use latpath_compare::{Losses, Measured, Recording, Source, Span};
use latpath_model::{Ns, SegmentKind};
use latpath_stats::track::{Lost, Track};
use latpath_stats::Histogram;
use std::path::Path;

/// Name of the segment from T1 app to T4 app.
const WHOLE: &str = "round trip";
/// Name of the segment from T1 nic to T4 nic, by the clock of the emitter's NIC alone.
const BY_NIC: &str = "NIC round trip";

/// Whether the emitter takes this stamp: `t1_app`, `t4_nic`.
fn is_of_emitter(stamp: &str) -> bool {
    stamp.starts_with("t1") || stamp.starts_with("t4")
}

/// Source of a segment's times: a column, or the difference of two.
enum Times<'a> {
    Column(&'a str),
    NicRoundTrip,
}

/// Reads a log of all transactions: round trips, round trips by the emitter's NIC if it has stamps, and with `steps`
/// the segments of round trips. Counts times over the threshold.
///
/// # Errors
/// If the file is not a log, or cannot be read.
pub fn recording(path: &Path, threshold: Ns, steps: bool) -> Result<Recording, LogError> {
    let log = LogFile::open(path)?;
    let (mut first, mut last, mut rows, mut numbers) = ([Ns::MAX; 2], [Ns::MIN; 2], 0_u64, (u64::MAX, 0));
    let mut has_nic = false;
    log.rows(&[SENT, NIC_SENT, NIC_RECEIVED], |sequence, values| {
        rows += 1;
        numbers = (numbers.0.min(sequence), numbers.1.max(sequence));
        has_nic |= values[1].is_some() && values[2].is_some();
        for (at, sent) in values[..2].iter().enumerate() {
            if let Some(sent) = sent {
                (first[at], last[at]) = (first[at].min(*sent), last[at].max(*sent));
            }
        }
    })?;
    // Imported logs may have NIC stamps only.
    let is_by_nic = has_nic && first[0] == Ns::MAX;
    let (first, last) = (first[usize::from(is_by_nic)], last[usize::from(is_by_nic)]);
    let sent = numbers.1.saturating_sub(numbers.0).saturating_add(1);
    if rows > 0 && sent > rows.saturating_add(rows / 1000) {
        let why = format!("it holds {rows} of {sent} transactions; only a log of all can be compared (--log-keep all)");
        return Err(log.wrong(why));
    }
    let is_part = |name: &&str| name.contains("_to_") && name.ends_with("_ns");
    let parts = log.columns.iter().map(String::as_str).filter(is_part).filter(|_| steps).map(Times::Column);
    let wholes = [(!is_by_nic).then_some(Times::Column(ROUND_TRIP)), has_nic.then_some(Times::NicRoundTrip)];
    let compared: Vec<Times> = wholes.into_iter().flatten().chain(parts).collect();
    let columns = compared.iter().filter_map(|times| match times {
        Times::Column(name) => Some(*name),
        Times::NicRoundTrip => None,
    });
    let columns: Vec<&str> =
        [if is_by_nic { NIC_SENT } else { SENT }, NIC_SENT, NIC_RECEIVED].into_iter().chain(columns).collect();
    let span = Span::of((first.min(last), last), compared.len());
    let times = || (Histogram::new(), Track::new(span.intervals, threshold), 0_u64);
    let mut segments: Vec<_> = compared.iter().map(|_| times()).collect();
    let mut unanswered = Lost::new(span.intervals);
    let unread = log.rows(&columns, |_, values| {
        let Some(sent) = values[0] else { return };
        let by_nic = values[1].zip(values[2]).map(|(sent, received)| received.saturating_sub(sent));
        let mut of_columns = values[3..].iter();
        let mut is_first = true;
        for (times, (histogram, track, over)) in compared.iter().zip(&mut segments) {
            let time = match times {
                Times::Column(_) => of_columns.next().copied().flatten(),
                Times::NicRoundTrip => by_nic,
            };
            if std::mem::take(&mut is_first) && time.is_none() {
                unanswered.add(sent);
            }
            let Some(time) = time else { continue };
            histogram.record(time);
            track.add(sent, time);
            *over += u64::from(time > threshold);
        }
    })?;
    let notes = (unread > 0).then(|| format!("{unread} rows cannot be read")).into_iter().collect();
    let segment = |(times, (histogram, track, over)): (&Times, (Histogram, Track, u64))| {
        let (kind, name, from, to) = match times {
            Times::NicRoundTrip if is_by_nic => (SegmentKind::Total, BY_NIC, "t1_nic", "t4_nic"),
            Times::NicRoundTrip => (SegmentKind::Named, BY_NIC, "t1_nic", "t4_nic"),
            Times::Column(ROUND_TRIP) => (SegmentKind::Total, WHOLE, "t1_app", "t4_app"),
            Times::Column(name) => {
                let name = name.trim_end_matches("_ns");
                let (from, to) = name.split_once("_to_").unwrap_or((name, name));
                (SegmentKind::Step, name, from, to)
            }
        };
        // A log does not contain the error bound between the two machines.
        let error_bound_ns = (is_of_emitter(from) == is_of_emitter(to)).then_some(0);
        let measured = Measured::of(histogram, track.finish(), span);
        Measured { kind, name: name.into(), from: from.into(), to: to.into(), error_bound_ns, over, ..measured }
    };
    Ok(Recording {
        excluded: None,
        footnotes: Vec::new(),
        path: path.display().to_string(),
        source: Source::PingLog,
        identity: format!("{first} {last} {rows}"),
        streams: vec!["ping".into()],
        elapsed_ns: span.elapsed,
        threshold_ns: threshold,
        settings: Default::default(),
        sightings: (0, 0),
        segments: compared.iter().zip(segments).map(segment).collect(),
        losses: vec![Losses::of(None, rows, true, unanswered, span)],
        notes,
    })
}
