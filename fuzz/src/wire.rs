//! Handwritten messages of the protocol, for seeds.

pub use latpath_testkit::wire::{bytes, list, number, zigzag};

/// A message in the targets' input format: a step above 4 with its length and, for a long message, a second byte.
pub fn frame(kind: u64, content: &[Vec<u8>]) -> Vec<u8> {
    let message = bytes(kind, &content.concat());
    match message.len() {
        len @ ..245 => [vec![len as u8 + 5], message].concat(),
        len => {
            // Padding with zeros would make the message invalid, so an unknown field of at least 3 bytes fills the
            // frame.
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
