//! Values that satisfy a profile's line.

use latpath_linux::Cpus;
use latpath_settings::Setting;
use std::fmt;
use std::str::FromStr;

/// A value, or a set of values, that satisfies a line of a profile. Variables have not been replaced yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Exactly this value.
    Exactly(String),
    /// A number no greater than this: `<=10`.
    AtMost(i64),
    /// A number no less than this: `>=8192`.
    AtLeast(i64),
    /// Only CPUs from a list: `within {isolated}`.
    Within(String),
    /// A single CPU from a list: `one of {isolated}`.
    OneOf(String),
    /// SCHED_FIFO with at least this real-time priority: `fifo >=50`.
    Fifo(u32),
    /// Any value: `*`.
    Any,
}

impl FromStr for Accept {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse().map_err(|_| format!("{text}: no whole number"));
        Ok(match text {
            "*" => Self::Any,
            text => match (text.strip_prefix("<="), text.strip_prefix(">="), text.strip_prefix("fifo >=")) {
                (Some(most), ..) => Self::AtMost(number(most)?),
                (_, Some(least), _) => Self::AtLeast(number(least)?),
                (.., Some(least)) => {
                    let priority = number(least)?;
                    Self::Fifo(u32::try_from(priority).map_err(|_| format!("{priority}: no priority"))?)
                }
                _ => match (text.strip_prefix("within "), text.strip_prefix("one of ")) {
                    (Some(list), _) => Self::Within(list.trim().into()),
                    (_, Some(list)) => Self::OneOf(list.trim().into()),
                    _ => Self::Exactly(text.into()),
                },
            },
        })
    }
}

impl fmt::Display for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(value) => f.write_str(value),
            Self::AtMost(most) => write!(f, "<={most}"),
            Self::AtLeast(least) => write!(f, ">={least}"),
            Self::Within(list) => write!(f, "within {list}"),
            Self::OneOf(list) => write!(f, "one of {list}"),
            Self::Fifo(least) => write!(f, "fifo >={least}"),
            Self::Any => f.write_str("*"),
        }
    }
}

impl Accept {
    /// Whether it accepts a value. `fill` replaces variables; it returns `None` if a variable is not set.
    pub(crate) fn accepts(&self, setting: Setting, value: &str, fill: &dyn Fn(&str) -> Option<String>) -> bool {
        let number = value.trim().parse::<i64>();
        let cpus = |list: &str| Some((value.parse::<Cpus>().ok()?, fill(list)?.parse::<Cpus>().ok()?));
        match self {
            Self::Any => true,
            Self::Exactly(wanted) => fill(wanted).is_some_and(|wanted| setting.is_met(value, &wanted)),
            Self::AtMost(most) => number.is_ok_and(|n| n <= *most),
            Self::AtLeast(least) => number.is_ok_and(|n| n >= *least),
            Self::Within(list) => cpus(list).is_some_and(|(own, all)| own.within(&all)),
            Self::OneOf(list) => cpus(list).is_some_and(|(own, all)| own.within(&all) && own.iter().count() == 1),
            Self::Fifo(least) => {
                let priority = value.strip_prefix("fifo ").and_then(|priority| priority.parse::<u32>().ok());
                priority.is_some_and(|priority| priority >= *least)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_accepted_by_number_list_priority_or_text() {
        let accepts = |text: &str, setting, value: &str| {
            let accept: Accept = text.parse().unwrap();
            assert_eq!(accept.to_string(), text);
            accept.accepts(setting, value, &|text| Some(text.replace("{isolated}", "2-5")))
        };
        assert!(accepts("<=10", Setting::Swappiness, "10") && !accepts("<=10", Setting::Swappiness, "11"));
        assert!(accepts(">=8192", Setting::SelinuxAvc, "9000") && !accepts(">=8192", Setting::SelinuxAvc, "x"));
        assert!(accepts("within {isolated}", Setting::ThreadCpus, "2,4"));
        assert!(!accepts("within {isolated}", Setting::ThreadCpus, "1-2"));
        assert!(accepts("one of {isolated}", Setting::ThreadCpus, "4"));
        assert!(!accepts("one of {isolated}", Setting::ThreadCpus, "2-3"));
        assert!(accepts("fifo >=50", Setting::ThreadPriority, "fifo 50"));
        assert!(!accepts("fifo >=50", Setting::ThreadPriority, "other"));
        assert!(accepts("*", Setting::Swappiness, "x") && accepts("2-5", Setting::IrqAffinity, "2,3,4,5"));
        assert!("<=x".parse::<Accept>().is_err());
    }
}
