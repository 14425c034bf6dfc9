//! JSON with a sum of itself at its end, so that a bit that flips in it is found.

use latpath_partstore::sum_of;

/// The text of a JSON object before its checksum, and the text behind it.
pub(crate) struct Seal {
    pub before: &'static str,
    pub end: &'static str,
}

impl Seal {
    /// Adds the sum of an object, whose last bytes are `end`, to it.
    pub fn put(&self, object: &mut Vec<u8>) {
        object.truncate(object.len().saturating_sub(self.end.len()));
        let sum = sum_of(object);
        object.extend(format!("{}{sum}\"{}\n", self.before, self.end).bytes());
    }

    /// Whether an object is as it was written, by the sum that was read from it. One of an earlier latpath has none, and is taken as
    /// it is.
    pub fn holds(&self, text: &[u8], sum: Option<&str>) -> bool {
        let place = text.windows(self.before.len()).rposition(|w| w == self.before.as_bytes());
        sum.is_none_or(|sum| place.is_some_and(|at| sum_of(&text[..at]) == sum))
    }
}
