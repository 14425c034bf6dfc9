//! Sets of CPUs in the kernel's format, e.g. `0-3,8`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, ops::RangeInclusive, str::FromStr};

/// Maximum number of CPUs that Linux supports (CONFIG_NR_CPUS); an unset mask may list more.
const MAX_CPUS: u32 = 1 << 16;
const MAX_RANGES: usize = 1 << 13;

/// A set of CPUs. In JSON it has the kernel's format: `"0-3,8"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(Vec<RangeInclusive<u32>>);

impl Cpus {
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The set for messages, e.g. `CPU 4` or `CPUs 0-2`; `None` if it is empty.
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

    /// CPUs that are in both sets.
    pub fn common(&self, other: &Self) -> Self {
        self.iter().filter(|cpu| other.contains(*cpu)).collect()
    }

    /// Parses a CPU mask in the kernel's format, e.g. `f` or `00000001,00000000`; `None` for other text.
    pub fn of_mask(text: &str) -> Option<Self> {
        let digits: Vec<u32> = text.chars().filter(|c| *c != ',').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
        let of_digit = |(place, digit): (usize, &u32)| {
            let digit = *digit;
            (0..4).filter(move |bit| digit >> bit & 1 == 1).filter_map(move |bit| u32::try_from(4 * place + bit).ok())
        };
        (!digits.is_empty()).then(|| digits.iter().rev().enumerate().flat_map(of_digit).collect())
    }

    /// The CPUs as a mask in 32-bit words without leading zeros, e.g. `3` or `1,00000000`.
    pub fn mask(&self) -> String {
        let last = self.iter().max().unwrap_or(0);
        let word = |n: u32| (0..32).filter(|bit| self.contains(32 * n + bit)).fold(0_u32, |word, bit| word | 1 << bit);
        let mut words: Vec<String> = (0..=last / 32).rev().map(|n| format!("{:08x}", word(n))).collect();
        words[0] = format!("{:x}", word(last / 32));
        words.join(",")
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
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n < MAX_CPUS).ok_or(BadCpus);
        let range = |text: &str| match text.split_once('-') {
            Some((first, last)) => Ok(number(first)?..=number(last)?),
            None => number(text).map(|n| n..=n),
        };
        let parts = text.trim().split(',').filter(|part| !part.is_empty()).take(MAX_RANGES);
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

    #[test]
    fn a_mask_has_commas_and_counts_from_the_right() {
        let list = |text| Cpus::of_mask(text).map(|cpus| cpus.to_string());
        assert_eq!(list("0000000c"), Some("2-3".into()));
        assert_eq!(list("1,00000001"), Some("0,32".into()));
        assert_eq!((list("0"), list(""), list("x")), (Some(String::new()), None, None));
        let mask = |text: &str| text.parse::<Cpus>().unwrap().mask();
        assert_eq!(
            (mask("2-3"), mask("0,32"), mask(""), mask("63")),
            ("c".into(), "1,00000001".into(), "0".into(), "80000000,00000000".into())
        );
    }

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
