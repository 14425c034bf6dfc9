//! JSON with its own checksum at the end, so that a flipped bit is detected.

use latpath_partstore::sum_of;

/// The text around the checksum in a JSON object.
pub(crate) struct Seal {
    pub before: &'static str,
    pub end: &'static str,
}

impl Seal {
    /// Inserts the checksum into an object that ends in `end`.
    pub fn put(&self, object: &mut Vec<u8>) {
        object.truncate(object.len().saturating_sub(self.end.len()));
        let sum = sum_of(object);
        object.extend(format!("{}{sum}\"{}\n", self.before, self.end).bytes());
    }

    /// Whether an object matches the checksum that was read from it. Objects of earlier versions have none and are
    /// accepted.
    pub fn holds(&self, text: &[u8], sum: Option<&str>) -> bool {
        let place = text.windows(self.before.len()).rposition(|w| w == self.before.as_bytes());
        sum.is_none_or(|sum| place.is_some_and(|at| sum_of(&text[..at]) == sum))
    }
}
