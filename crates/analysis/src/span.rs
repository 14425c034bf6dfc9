//! A part of a run: `--from 10s --to 2026-01-02T03:04:05Z`.

use crate::parse_duration;
use latpath_model::Ns;
use latpath_run::{Manifest, Mark};
use std::{str::FromStr, time::SystemTime};

/// An instant of a run, as the user specifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// Time since the run's start, ns.
    SinceStart(Ns),
    /// UTC, ns since 1970.
    Utc(Ns),
    /// A mark, by its text.
    Mark(String),
}

/// A string that does not specify an instant.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?}: not a time; write the time since the run's start (90s, 1h30m), UTC (2026-01-02T03:04:05Z), or a mark (@iperf on)")]
pub struct BadTime(pub String);

impl FromStr for When {
    type Err = BadTime;

    fn from_str(text: &str) -> Result<Self, BadTime> {
        if let Some(mark) = text.strip_prefix('@') {
            return Ok(Self::Mark(mark.into()));
        }
        if let Some(ns) = parse_duration(text) {
            return Ok(Self::SinceStart(ns));
        }
        let time = humantime::parse_rfc3339_weak(text).map_err(|_| BadTime(text.into()))?;
        let since = time.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| BadTime(text.into()))?;
        Ok(Self::Utc(since.as_nanos().try_into().map_err(|_| BadTime(text.into()))?))
    }
}

/// Start and end on the run's timeline (`CLOCK_MONOTONIC`), ns. If the time of day was set back, the span extends from
/// the first matching moment to the last.
///
/// # Errors
/// If the span is empty, or no mark has this text.
pub fn span(from: Option<&When>, to: Option<&When>, run: &Manifest, marks: &[Mark]) -> Result<(Ns, Ns), String> {
    let of_day = |at: Option<&When>| match at {
        Some(When::Utc(ns)) => Some(*ns),
        _ => None,
    };
    let of_run = |at: Option<&When>| match at {
        None | Some(When::Utc(_)) => Ok(None),
        Some(at) => instant(at, run, marks).map(Some),
    };
    let (begin, end) = (of_run(from)?.unwrap_or(Ns::MIN), of_run(to)?.unwrap_or(Ns::MAX));
    let of_day = (of_day(from).unwrap_or(Ns::MIN), of_day(to).unwrap_or(Ns::MAX));
    if begin >= end || of_day.0 >= of_day.1 {
        return Err("--from must lie before --to".into());
    }
    if of_day == (Ns::MIN, Ns::MAX) {
        return Ok((begin, end));
    }
    let run_end = run.end.as_ref().map_or(Ns::MAX, |end| end.monotonic_ns.saturating_add(1));
    // If the clock was set forward, it is possible that no moment of the run matches.
    let (first, last) = run.time_of_day().span(of_day.0, of_day.1, run_end).unwrap_or((Ns::MAX, Ns::MAX));
    Ok((begin.max(first), end.min(last)))
}

/// An instant on the run's timeline, ns. If a time of day occurred twice, or several marks have the same text, the
/// first one counts.
///
/// # Errors
/// If no mark has this text, or the time of day never occurred.
pub fn instant(at: &When, run: &Manifest, marks: &[Mark]) -> Result<Ns, String> {
    match at {
        When::SinceStart(ns) => Ok(run.start.monotonic_ns.saturating_add(*ns)),
        When::Utc(ns) => {
            let span = run.time_of_day().span(*ns, Ns::MAX, Ns::MAX);
            span.map(|(first, _)| first).ok_or_else(|| "it never was that time of day".into())
        }
        When::Mark(text) => match marks.iter().find(|mark| mark.text == *text) {
            Some(mark) => Ok(mark.t_ns),
            None => {
                let known: Vec<_> = marks.iter().map(|mark| format!("@{}", mark.text)).collect();
                Err(match known.is_empty() {
                    true => format!("@{text}: the run has no marks (latpath mark sets some)"),
                    false => format!("@{text}: no such mark (there are: {})", known.join(", ")),
                })
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_clock::Step;

    #[test]
    fn both_forms_name_the_same_instant() {
        let mut run = Manifest::default();
        run.start.monotonic_ns = 5_000_000_000;
        run.start.utc_ns = 1_767_323_045_000_000_000;
        let since: When = "1m".parse().unwrap();
        let utc: When = "2026-01-02T03:05:05Z".parse().unwrap();
        let mark = |t_ns, text: &str| Mark { t_ns, text: text.into() };
        let marks = [mark(65_000_000_000, "iperf on"), mark(66_000_000_000, "iperf on")];
        let marked: When = "@iperf on".parse().unwrap();
        for from in [&since, &utc, &marked] {
            assert_eq!(span(Some(from), None, &run, &marks).unwrap().0, 65_000_000_000);
            assert_eq!(span(None, Some(from), &run, &marks).unwrap().1, 65_000_000_000);
            assert!(span(Some(from), Some(from), &run, &marks).is_err());
            assert_eq!(instant(from, &run, &marks), Ok(65_000_000_000));
        }
        assert_eq!(span(None, None, &run, &marks), Ok((Ns::MIN, Ns::MAX)));
        let unknown = span(Some(&"@iperf off".parse().unwrap()), None, &run, &marks).unwrap_err();
        assert_eq!(unknown, "@iperf off: no such mark (there are: @iperf on, @iperf on)");
        run.utc_steps = vec![Step { noticed_at_ns: 70_000_000_000, by_ns: -20_000_000_000 }];
        let (begin, end) = span(Some(&utc), Some(&"2026-01-02T03:05:06Z".parse().unwrap()), &run, &marks).unwrap();
        assert_eq!((begin, end), (65_000_000_000, 86_000_000_000), "it was that time twice");
        assert!("yesterday".parse::<When>().is_err());
    }
}
