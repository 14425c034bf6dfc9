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

impl When {
    /// On the run's own timeline (`CLOCK_MONOTONIC`).
    pub fn of(self, run: &Manifest) -> Ns {
        match self {
            Self::SinceStart(ns) => run.start.monotonic_ns.saturating_add(ns),
            Self::Utc(ns) => ns.saturating_sub(run.utc_offset_ns()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_name_the_same_instant() {
        let mut run = Manifest::default();
        run.start.monotonic_ns = 5_000_000_000;
        run.start.utc_ns = 1_767_323_045_000_000_000;
        let since: When = "1m".parse().unwrap();
        let utc: When = "2026-01-02T03:05:05Z".parse().unwrap();
        assert_eq!(since.of(&run), 65_000_000_000);
        assert_eq!(utc.of(&run), since.of(&run));
        assert!("yesterday".parse::<When>().is_err());
    }
}
