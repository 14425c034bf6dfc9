//! Positions of values in messages.

use std::fmt;

/// Maximum position of a value in its data set or structure, and maximum depth of nested structures (`MAX_DEPTH`).
const MAX_VALUES: u16 = 512;
const MAX_DEPTH: usize = 4;

/// The position of a value: its index in the data set, then in each nested structure, all from 1. Frames do not contain
/// names of values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ValuePath(Vec<u16>);

impl ValuePath {
    /// The indexes, outermost first.
    pub(crate) fn numbers(&self) -> &[u16] {
        &self.0
    }
}

impl fmt::Display for ValuePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u16::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

impl std::str::FromStr for ValuePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u16>().ok().filter(|number| (1..=MAX_VALUES).contains(number));
        let path: Option<Vec<u16>> = text.split('.').map(number).collect();
        path.filter(|path| path.len() <= MAX_DEPTH).map(Self).ok_or_else(|| {
            format!(
                "{text:?} is no value of a message: write its number in the data set, e.g. 1, or 2.1 in a structure"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_from_one() {
        for text in ["1", "2.1", "512.1.1.1"] {
            assert_eq!(text.parse::<ValuePath>().unwrap().to_string(), text);
        }
        for text in ["", "0", "1.", "513", "1.1.1.1.1", "stVal"] {
            assert!(text.parse::<ValuePath>().is_err(), "{text}");
        }
    }
}
