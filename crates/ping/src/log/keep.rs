//! Which transactions a log keeps.

use latpath_model::Ns;
use std::{str::FromStr, time::Duration};

/// Which transactions a log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All transactions: `all`.
    All,
    /// Transactions with a longer round trip, or without an answer: `over:200us`.
    Over(Ns),
    /// Transactions within this time span before a breach or the end: `last:10s`.
    Last(Duration),
}

/// Error in parsing a [`Keep`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: write all, over:TIME (as in over:200us) or last:TIME (as in last:10s)")]
pub struct BadKeep(String);

impl FromStr for Keep {
    type Err = BadKeep;

    fn from_str(text: &str) -> Result<Self, BadKeep> {
        let time = |text: &str| humantime::parse_duration(text).ok().filter(|t| i64::try_from(t.as_nanos()).is_ok());
        let keep = match text.split_once(':') {
            None if text == "all" => Some(Self::All),
            Some(("over", limit)) => time(limit).map(|t| Self::Over(t.as_nanos() as Ns)),
            Some(("last", length)) => time(length).filter(|t| !t.is_zero()).map(Self::Last),
            _ => None,
        };
        keep.ok_or_else(|| BadKeep(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_transactions_are_parsed() {
        for (text, keep) in [
            ("all", Keep::All),
            ("over:200us", Keep::Over(200_000)),
            ("last:10s", Keep::Last(Duration::from_secs(10))),
            ("over:1ms500us", Keep::Over(1_500_000)),
        ] {
            assert_eq!(text.parse(), Ok(keep));
        }
        for text in ["", "ALL", "over", "over:", "over:5", "last:0s", "last:-1s", "last:99999999999s", "first:1s"] {
            assert!(text.parse::<Keep>().is_err(), "{text}");
        }
    }
}
