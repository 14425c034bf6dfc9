//! Values of flags: times and whole numbers, and the errors of invalid ones.

use std::ffi::OsString;
use std::ops::{Bound, RangeBounds};
use std::time::Duration;

/// Parses a time of 0 or more.
pub fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "write a time, e.g. 200us, 10s or 1h 30m".into())
}

/// Parses a time above 0.
pub fn some_time(text: &str) -> Result<Duration, String> {
    match time(text) {
        Ok(time) if time.is_zero() => Err("write a time longer than 0, e.g. 10s".into()),
        read => read,
    }
}

/// A parser of whole numbers in a range.
pub fn whole<T: TryFrom<u64>>(range: impl RangeBounds<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    let least = match range.start_bound() {
        Bound::Included(least) => *least,
        Bound::Excluded(below) => below.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let most = match range.end_bound() {
        Bound::Included(most) => Some(*most),
        Bound::Excluded(above) => Some(above.saturating_sub(1)),
        Bound::Unbounded => None,
    };
    move |text| {
        let number = text.parse::<u64>().ok().filter(|n| *n >= least && most.is_none_or(|most| *n <= most));
        number.and_then(|n| T::try_from(n).ok()).ok_or_else(|| match most {
            Some(most) => format!("write a whole number from {least} to {most}"),
            None => format!("write a whole number, {least} or more"),
        })
    }
}

/// The error text if clap mistook a flag's value, a negative number, for a flag. `words`: the command line.
pub fn below_zero(error: &clap::Error, words: &[OsString]) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let Some(ContextValue::String(text)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_number = text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    // clap's error names only the first character of a word like `-12`.
    let word = words.iter().filter_map(|word| word.to_str()).find(|word| word.starts_with(text)).unwrap_or(text);
    (error.kind() == ErrorKind::UnknownArgument && is_number)
        .then(|| format!("{word}: below 0; the times and numbers of flags are 0 or more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_time_is_answered_with_times() {
        assert_eq!(time("1h 30m").unwrap(), Duration::from_secs(5400));
        for text in ["-5s", "", "soon", "5", "5 parsecs"] {
            assert_eq!(time(text).unwrap_err(), "write a time, e.g. 200us, 10s or 1h 30m");
            assert!(some_time(text).is_err());
        }
        assert!(some_time("0s").unwrap_err().contains("longer than 0"));
    }

    #[test]
    fn a_value_below_0_is_named_whole() {
        let command = clap::Command::new("x").arg(clap::Arg::new("t").long("t").value_parser(time));
        let error = |words: &[&str]| command.clone().try_get_matches_from(words).unwrap_err();
        let words = ["x", "--t", "-5s"];
        let text = below_zero(&error(&words), &words.map(OsString::from));
        assert_eq!(text.unwrap(), "-5s: below 0; the times and numbers of flags are 0 or more");
        assert_eq!(below_zero(&error(&["x", "--y"]), &[]), None);
    }

    #[test]
    fn what_is_no_number_is_answered_with_the_range() {
        let streams = whole::<u16>(1..=256);
        assert_eq!((streams("1"), streams("256")), (Ok(1), Ok(256)));
        for text in ["0", "257", "-1", "1.5", "x", ""] {
            assert_eq!(streams(text).unwrap_err(), "write a whole number from 1 to 256");
        }
        assert_eq!(whole::<u64>(1..)("0").unwrap_err(), "write a whole number, 1 or more");
        assert_eq!(whole::<u16>(..=1000)("0"), Ok(0));
        assert!(whole::<u8>(0..)("300").is_err());
    }
}
