//! Sets of CPUs as the kernel writes them: `0-3,8`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, ops::RangeInclusive, str::FromStr};

/// Maximum number of CPUs of Linux (CONFIG_NR_CPUS); an unset mask may list more.
const MOST_CPUS: u32 = 1 << 16;
const MOST_RANGES: usize = 1 << 13;

/// A set of CPUs. In JSON it has the kernel's format: `"0-3,8"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(Vec<RangeInclusive<u32>>);

impl Cpus {
    /// Whether it contains no CPU.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `CPU 4`, `CPUs 0-2`; `None` for an empty set.
    pub fn named(&self) -> Option<String> {
        let mut all = self.iter();
        let first = all.next()?;
        Some(all.next().map_or_else(|| format!("CPU {first}"), |_| format!("CPUs {self}")))
    }

    /// Whether the sets have a CPU in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|a| other.0.iter().any(|b| a.start() <= b.end() && b.start() <= a.end()))
    }

    /// Whether the set contains this CPU.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.iter().any(|r| r.contains(&cpu))
    }

    /// Whether this set is not empty and all of its CPUs are in `other`.
    pub fn within(&self, other: &Self) -> bool {
        !self.is_empty() && self.iter().all(|cpu| other.contains(cpu))
    }

    /// The CPUs, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().cloned().flatten()
    }

    /// CPUs that are not in `other`.
    pub fn without(&self, other: &Self) -> Self {
        self.iter().filter(|cpu| !other.contains(*cpu)).collect()
    }

    /// Adds the CPUs of `other`.
    pub fn join(&mut self, other: Self) {
        self.0.extend(other.0);
        self.0.sort_by_key(|r| *r.start());
        let mut joined: Vec<RangeInclusive<u32>> = Vec::new();
        for range in self.0.drain(..) {
            match joined.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => joined.push(range),
            }
        }
        self.0 = joined;
    }
}

impl FromIterator<u32> for Cpus {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut all = Self::default();
        all.join(Self(cpus.into_iter().map(|cpu| cpu..=cpu).collect()));
        all
    }
}

/// Error: the text is not a list of CPUs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of CPUs, such as 0-3,8")]
pub struct BadCpus;

impl FromStr for Cpus {
    type Err = BadCpus;

    fn from_str(text: &str) -> Result<Self, BadCpus> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n < MOST_CPUS).ok_or(BadCpus);
        let range = |text: &str| match text.split_once('-') {
            Some((first, last)) => Ok(number(first)?..=number(last)?),
            None => number(text).map(|n| n..=n),
        };
        let parts = text.trim().split(',').filter(|part| !part.is_empty()).take(MOST_RANGES);
        let mut cpus = Self(Vec::new());
        let ranges = parts.map(range).collect::<Result<Vec<_>, _>>()?;
        if ranges.iter().any(RangeInclusive::is_empty) {
            return Err(BadCpus);
        }
        cpus.join(Self(ranges));
        Ok(cpus)
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |r: &RangeInclusive<u32>| match (r.start(), r.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        f.pad(&self.0.iter().map(range).collect::<Vec<_>>().join(","))
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(text: &str) -> Cpus {
        text.parse().unwrap()
    }

    #[test]
    fn the_kernels_lists_read_back_as_written() {
        for text in ["0", "0-3", "0-3,8", "1,3,5-63", ""] {
            assert_eq!(cpus(text).to_string(), text);
        }
        assert_eq!(cpus("2-3\n"), cpus("2,3"));
    }

    #[test]
    fn invalid_lists_are_refused() {
        for text in ["a", "3-1", "-1", "1-", "70000", "0x3"] {
            assert_eq!(text.parse::<Cpus>(), Err(BadCpus), "{text}");
        }
    }

    #[test]
    fn sets_are_compared_by_their_cpus() {
        assert!(cpus("2-3").within(&cpus("1,2,3")));
        assert!(!cpus("2-3").within(&cpus("3-9")) && cpus("2-3").overlaps(&cpus("3-9")));
        assert!(!cpus("2-3").overlaps(&cpus("0-1,4")));
        assert!(!cpus("").within(&cpus("0-3")));
        let mut joined = cpus("0-1");
        joined.join(cpus("2,7"));
        assert_eq!(joined.to_string(), "0-2,7");
        assert_eq!(cpus("0-3,8").without(&cpus("1,8-9")), cpus("0,2-3"));
    }
}
