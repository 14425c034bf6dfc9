//! Which part of a run: `--from 10s --to 2026-01-02T03:04:05Z`.

use crate::parse_duration;
use latpath_model::Ns;
use latpath_run::Manifest;
use std::{str::FromStr, time::SystemTime};

/// An instant of a run, as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Since the run's start.
    SinceStart(Ns),
    /// UTC, ns since 1970.
    Utc(Ns),
}

/// A text that is no instant.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?}: not a time; write the time since the run's start (90s, 1h30m) or UTC (2026-01-02T03:04:05Z)")]
pub struct BadTime(pub String);

impl FromStr for When {
    type Err = BadTime;

    fn from_str(text: &str) -> Result<Self, BadTime> {
        if let Some(ns) = parse_duration(text) {
            return Ok(Self::SinceStart(ns));
        }
        let time = humantime::parse_rfc3339_weak(text).map_err(|_| BadTime(text.into()))?;
        let since = time.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| BadTime(text.into()))?;
        Ok(Self::Utc(since.as_nanos().try_into().map_err(|_| BadTime(text.into()))?))
    }
}

/// From when to when on the run's own timeline (`CLOCK_MONOTONIC`). Where the time of day was set back, all from the first moment in
/// the span to the last.
///
/// # Errors
/// Where nothing can lie between them.
pub fn span(from: Option<When>, to: Option<When>, run: &Manifest) -> Result<(Ns, Ns), String> {
    let since_start = |at| match at {
        Some(When::SinceStart(ns)) => Some(run.start.monotonic_ns.saturating_add(ns)),
        _ => None,
    };
    let utc = |at| match at {
        Some(When::Utc(ns)) => Some(ns),
        _ => None,
    };
    let (begin, end) = (since_start(from).unwrap_or(Ns::MIN), since_start(to).unwrap_or(Ns::MAX));
    let of_day = (utc(from).unwrap_or(Ns::MIN), utc(to).unwrap_or(Ns::MAX));
    if begin >= end || of_day.0 >= of_day.1 {
        return Err("--from must lie before --to".into());
    }
    if of_day == (Ns::MIN, Ns::MAX) {
        return Ok((begin, end));
    }
    let run_end = run.end.as_ref().map_or(Ns::MAX, |end| end.monotonic_ns.saturating_add(1));
    // A clock that was set forward never showed some times.
    let (first, last) = run.time_of_day().span(of_day.0, of_day.1, run_end).unwrap_or((Ns::MAX, Ns::MAX));
    Ok((begin.max(first), end.min(last)))
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
        for from in [since, utc] {
            assert_eq!(span(Some(from), None, &run).unwrap().0, 65_000_000_000);
            assert_eq!(span(None, Some(from), &run).unwrap().1, 65_000_000_000);
            assert!(span(Some(from), Some(from), &run).is_err());
        }
        assert_eq!(span(None, None, &run), Ok((Ns::MIN, Ns::MAX)));
        run.utc_steps = vec![Step { noticed_at_ns: 70_000_000_000, by_ns: -20_000_000_000 }];
        let (begin, end) = span(Some(utc), Some("2026-01-02T03:05:06Z".parse().unwrap()), &run).unwrap();
        assert_eq!((begin, end), (65_000_000_000, 86_000_000_000), "it was that time twice");
        assert!("yesterday".parse::<When>().is_err());
    }
}
