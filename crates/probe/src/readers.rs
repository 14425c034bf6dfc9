//! Names of reading threads that the user named, which have reserved entries in the table of points.

use crate::layout::constants::MAX_NAMED_READERS;
use crate::layout::ReaderName;

/// Size of a thread's name with its final NUL (TASK_COMM_LEN), bytes.
const COMM: usize = 16;

/// A name or a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    bytes: Vec<u8>,
    is_whole: bool,
}

/// The names given by the user.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedReaders(Vec<Name>);

impl NamedReaders {
    /// Parses names, in which `*` matches any text. Names that begin with `*` reserve nothing.
    pub fn new(names: &[String]) -> Self {
        let name = |text: &String| {
            let (bytes, is_whole) = match text.split_once('*') {
                Some((before, _)) => (before, false),
                None => (text.as_str(), true),
            };
            // The kernel truncates longer names.
            let bytes = bytes.as_bytes()[..bytes.len().min(COMM - 1)].to_vec();
            (!bytes.is_empty()).then_some(Name { bytes, is_whole })
        };
        let mut names: Vec<Name> = names.iter().filter_map(name).collect();
        names.dedup();
        names.truncate(MAX_NAMED_READERS);
        Self(names)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the user named a thread of this name: `is_named_reader` of bpf/points.h.
    pub fn fits(&self, comm: &[u8; COMM]) -> bool {
        self.words().any(|name| {
            let word = |i: usize| u64::from_ne_bytes(comm[8 * i..][..8].try_into().expect("eight bytes"));
            (0..2).all(|i| word(i) & name.mask[i] == name.word[i])
        })
    }

    /// The names in the programs' encoding.
    pub fn words(&self) -> impl Iterator<Item = ReaderName> + '_ {
        self.0.iter().map(|name| {
            let (mut word, mut mask) = ([0; COMM], [0; COMM]);
            word[..name.bytes.len()].copy_from_slice(&name.bytes);
            let known = if name.is_whole { COMM } else { name.bytes.len() };
            mask[..known].fill(0xff);
            let words = |bytes: [u8; COMM]| {
                [0, 8].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes")))
            };
            ReaderName { word: words(word), mask: words(mask) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_named_by_its_name_or_a_prefix() {
        let names = ["relay", "prot*", "*", "sixteen-and-more", ""].map(String::from);
        let named = NamedReaders::new(&names);
        let fits = |name: &str| {
            let mut comm = [0; COMM];
            comm[..name.len()].copy_from_slice(name.as_bytes());
            named.fits(&comm)
        };
        assert_eq!(named.len(), 3);
        let found =
            ["relay", "relay1", "rela", "prot", "protection-unit", "pro", "sixteen-and-mor", "other", ""].map(fits);
        assert_eq!(found, [true, false, false, true, true, false, true, false, false]);
    }
}
