//! Which transactions a log keeps.

use latpath_model::Ns;
use std::{fmt, str::FromStr, time::Duration};

/// Which transactions a log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All: `all`.
    All,
    /// Those whose round trip took longer, and those that got no answer: `over:200us`.
    Over(Ns),
    /// Those of so long a time before a breach or the end: `last:10s`.
    Last(Duration),
}

/// Why a text is no [`Keep`].
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

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |t: Duration| humantime::format_duration(t).to_string().replace(' ', "");
        match self {
            Self::All => f.write_str("all"),
            Self::Over(limit) => write!(f, "over:{}", time(Duration::from_nanos(limit.unsigned_abs()))),
            Self::Last(length) => write!(f, "last:{}", time(*length)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_keep_is_read_as_it_is_written() {
        for (text, keep) in [
            ("all", Keep::All),
            ("over:200us", Keep::Over(200_000)),
            ("last:10s", Keep::Last(Duration::from_secs(10))),
            ("over:1ms500us", Keep::Over(1_500_000)),
        ] {
            assert_eq!(text.parse(), Ok(keep));
            assert_eq!(keep.to_string(), text);
        }
        for text in ["", "ALL", "over", "over:", "over:5", "last:0s", "last:-1s", "last:99999999999s", "first:1s"] {
            assert!(text.parse::<Keep>().is_err(), "{text}");
        }
    }
}
