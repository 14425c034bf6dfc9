//! The due time of each frame: exact over any length of time, for any rate.

use latpath_model::Ns;
use std::{fmt, str::FromStr};

/// Frames per second, stored in millionths, so that both 4800/s and 0.1/s are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    micro_hz: u64,
}

/// Error: the text is not a valid rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: not a rate; write frames a second, above 0 and up to 100000000 (4800, 0.5, 14.4k)")]
pub struct BadRate(pub String);

impl Pace {
    /// A pace of this many frames per second, at least one.
    pub fn per_second(n: u32) -> Self {
        Self { micro_hz: u64::from(n.max(1)) * 1_000_000 }
    }

    /// Due time of the frame with index `i`, ns after the start. Computed from the start and rounded down, so it does
    /// not drift.
    pub fn due(self, i: u64) -> Ns {
        let t = u128::from(i) * 1_000_000_000_000_000 / u128::from(self.micro_hz);
        Ns::try_from(t).unwrap_or(Ns::MAX)
    }

    /// The deadlines of frames at this pace.
    pub fn deadlines(self) -> Deadlines {
        Deadlines { interval: self.due(1).max(1), per_s: self.hz() }
    }

    /// Frames per second.
    pub fn hz(self) -> f64 {
        self.micro_hz as f64 / 1e6
    }
}

/// The spacing of deadlines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deadlines {
    /// Time between two frames of a publisher, ns: a frame delayed by more than this counts as late.
    pub interval: Ns,
    /// Frames per second of all publishers together.
    pub per_s: f64,
}

impl FromStr for Pace {
    type Err = BadRate;
    fn from_str(s: &str) -> Result<Self, BadRate> {
        let bad = || BadRate(s.into());
        let (number, factor) = s.strip_suffix(['k', 'K']).map_or((s, 1), |number| (number, 1000));
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if part.len() > 6 || !part.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let whole: u64 = whole.parse().map_err(|_| bad())?;
        let part: u64 = format!("{part:0<6}").parse().map_err(|_| bad())?;
        if whole > 100_000_000 || whole + part == 0 {
            return Err(bad());
        }
        let micro_hz = (whole * 1_000_000 + part) * factor;
        if micro_hz / 1_000_000 > 100_000_000 {
            return Err(bad());
        }
        Ok(Self { micro_hz })
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.hz())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rate_drifts() {
        assert_eq!(Pace::per_second(4800).due(4800 * 3600), 3_600_000_000_000);
        assert_eq!(Pace::per_second(4800).due(1), 208_333);
        assert_eq!("0.5".parse::<Pace>().unwrap().due(3), 6_000_000_000);
    }

    #[test]
    fn k_stands_for_a_thousand() {
        for (text, hz) in [("4k", 4_000.0), ("14.4k", 14_400.0), ("0.0005K", 0.5), ("100000k", 1e8)] {
            assert_eq!(text.parse::<Pace>().map(|pace| pace.hz()), Ok(hz), "{text}");
        }
    }

    #[test]
    fn invalid_rates_are_refused() {
        for text in ["k", "0k", "100001k", "4kk", "4 k", "", "0", "-1", "1e6", "0.0000001", "100000001", "4000/s", "."]
        {
            assert_eq!(text.parse::<Pace>(), Err(BadRate(text.into())));
        }
    }
}
