//! `latpath publish --step`: faults in the samples.

use crate::cmd::ns;
use crate::cmd::values::{some_time, whole};
use latpath_stats::units::duration;
use latpath_traffic::Faults;

/// Default duration of a fault, ns, unless it would exceed half of the time between two faults.
const LASTS: i64 = 100_000_000;

/// Parses `TIME[,for=TIME][,times=N]`.
pub(super) fn parse(text: &str) -> Result<Faults, String> {
    let mut parts = text.split(',');
    let every = ns(some_time(parts.next().unwrap_or_default())?);
    let mut faults = Faults { every, lasts: LASTS.min(every / 2), times: 10 };
    for part in parts {
        match part.split_once('=') {
            Some(("for", time)) => faults.lasts = ns(some_time(time)?),
            Some(("times", number)) => faults.times = whole::<u32>(1..=1000)(number)?,
            _ => return Err(format!("{part:?}: write a step as 2s, or 2s,for=80ms,times=5")),
        }
    }
    match faults.lasts < every {
        true => Ok(faults),
        false => Err("a fault ends before the next one begins: its for= is shorter than the time between two".into()),
    }
}

pub(super) fn described(faults: &Faults) -> String {
    let (every, lasts) = (duration(faults.every), duration(faults.lasts));
    format!("currents x {} for {lasts} every {every}", faults.times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_an_interval_a_duration_and_a_size() {
        assert_eq!(parse("2s"), Ok(Faults { every: 2_000_000_000, lasts: LASTS, times: 10 }));
        assert_eq!(parse("50ms,times=5"), Ok(Faults { every: 50_000_000, lasts: 25_000_000, times: 5 }));
        assert_eq!(described(&parse("1s,for=80ms").unwrap()), "currents x 10 for 80.00 ms every 1.000 s");
        for text in ["", "0s", "1s,for=1s", "1s,times=0", "1s,5", "soon"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
