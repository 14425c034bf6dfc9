//! Notation of numbers and names in a text.

use latpath_model::Ns;
use latpath_stats::units::{of_things, Letters};

/// Letters of a text, and whether only people read it.
#[derive(Clone, Copy, Debug)]
pub struct Notation {
    /// Letters that the text may contain.
    pub letters: Letters,
    /// Whether digits are grouped, which programs cannot parse.
    pub is_for_people: bool,
}

impl From<Letters> for Notation {
    /// Notation of a text that programs may read.
    fn from(letters: Letters) -> Self {
        Self { letters, is_for_people: false }
    }
}

impl Notation {
    /// A duration with its unit.
    pub fn duration(&self, ns: Ns) -> String {
        self.letters.duration(ns)
    }

    /// A count and its noun: `1 packet`, `12 packets`; the number as [`Notation::count`] writes it.
    pub fn number_of(&self, n: u64, noun: &str) -> String {
        of_things(&self.count(n), n, noun)
    }

    /// A count; for people, at most 14 columns.
    pub fn count(&self, n: u64) -> String {
        match self.is_for_people {
            true => self.letters.count_within(n, 14),
            false => n.to_string(),
        }
    }

    /// Events per second.
    pub fn rate(&self, hz: f64) -> String {
        match self.is_for_people {
            true => self.letters.rate(hz),
            false => self.letters.rate(hz).replace(['\u{202f}', ','], ""),
        }
    }

    /// A text from outside, without control characters and without letters that the output cannot show.
    pub fn clean(&self, text: &str) -> String {
        self.letters.clean(text)
    }
}
