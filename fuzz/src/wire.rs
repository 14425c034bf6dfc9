//! The protocol's messages by hand, for seeds.

pub use latpath_testkit::wire::{bytes, list, number, zigzag};

/// A message as targets take it: its length as a step above 4, and of a long one what exceeds 250.
pub fn frame(kind: u64, content: &[Vec<u8>]) -> Vec<u8> {
    let message = bytes(kind, &content.concat());
    match message.len() {
        len @ ..245 => [vec![len as u8 + 5], message].concat(),
        len => {
            // Zeros to the end of the frame would be no message: the rest is a field that nobody knows, of 3 bytes or more.
            let exact = (len - 245) % 8 == 0;
            let more = (len - 245 + if exact { 0 } else { 3 }).div_ceil(8);
            let mut padded = message;
            if !exact {
                padded.extend(bytes(31, &vec![0; 245 + more * 8 - len - 3]));
            }
            [vec![250, more as u8], padded].concat()
        }
    }
}
