//! Notation of numbers and names in text.

use latpath_model::Ns;
use latpath_stats::units::{of_things, CharacterSet};

/// Character set of a text, and whether only people read it.
#[derive(Clone, Copy, Debug)]
pub struct Notation {
    /// Character set of the output.
    pub letters: CharacterSet,
    /// Whether digits are grouped; programs cannot parse grouped digits.
    pub is_for_people: bool,
}

impl From<CharacterSet> for Notation {
    /// Notation for text that programs may parse.
    fn from(letters: CharacterSet) -> Self {
        Self { letters, is_for_people: false }
    }
}

impl Notation {
    /// A duration with its unit.
    pub fn duration(&self, ns: Ns) -> String {
        self.letters.duration(ns)
    }

    /// A count with its noun: `1 packet`, `12 packets`; the number is written like [`Notation::count`].
    pub fn number_of(&self, n: u64, noun: &str) -> String {
        of_things(&self.count(n), n, noun)
    }

    /// A count; in text for people, at most 14 columns wide.
    pub fn count(&self, n: u64) -> String {
        match self.is_for_people {
            true => self.letters.count_within(n, 14),
            false => n.to_string(),
        }
    }

    /// A rate, in events per second.
    pub fn rate(&self, hz: f64) -> String {
        match self.is_for_people {
            true => self.letters.rate(hz),
            false => self.letters.rate(hz).replace(['\u{202f}', ','], ""),
        }
    }

    /// A string from outside, without control characters and characters that the output cannot show.
    pub fn clean(&self, text: &str) -> String {
        self.letters.clean(text)
    }
}
