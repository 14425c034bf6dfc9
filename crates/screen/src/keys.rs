//! Decodes keys from the bytes of a terminal. Unknown sequences are skipped.

/// A key that the screen handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
    Up,
    Down,
    /// Arrow left, or Shift-Tab.
    Left,
    /// Arrow right, or Tab.
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    F1,
    Escape,
    Enter,
}

/// Decodes bytes into keys. Sequences may be split between reads.
#[derive(Default)]
pub struct Decoder {
    pending: Vec<u8>,
}

/// Maximum length of a sequence, bytes; longer ones are discarded.
const MAX_SEQUENCE: usize = 16;

impl Decoder {
    /// Decodes bytes, and returns the keys that they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for &byte in bytes {
            // Ctrl-C is recognised even in the middle of a sequence.
            if byte == 0x03 {
                self.pending.clear();
            }
            self.pending.push(byte);
            match decode(&self.pending) {
                Step::More if self.pending.len() < MAX_SEQUENCE => {}
                Step::More | Step::Nothing => self.pending.clear(),
                Step::Key(key) => {
                    self.pending.clear();
                    keys.push(key);
                }
                // The escape did not start a sequence: it was the Escape key itself.
                Step::EscapeThen => {
                    keys.push(Key::Escape);
                    self.pending = vec![byte];
                    if let Step::Key(key) = decode(&self.pending) {
                        self.pending.clear();
                        keys.push(key);
                    }
                }
            }
        }
        keys
    }

    /// Called after a pause without bytes: a pending escape byte was the Escape key itself. Discards other pending
    /// bytes.
    pub fn pause(&mut self) -> Option<Key> {
        let escape = self.pending == [0x1b];
        self.pending.clear();
        escape.then_some(Key::Escape)
    }

    /// Whether there are pending bytes of an incomplete sequence.
    pub fn waits(&self) -> bool {
        !self.pending.is_empty()
    }
}

enum Step {
    More,
    Nothing,
    Key(Key),
    EscapeThen,
}

fn decode(bytes: &[u8]) -> Step {
    match bytes {
        [0x1b] | [0x1b, b'[' | b'O'] => Step::More,
        // The Linux console sends this for F1 to F5.
        [0x1b, b'[', b'['] => Step::More,
        [0x1b, b'[', b'[', b'A'] => Step::Key(Key::F1),
        [0x1b, b'[', b'[', _] => Step::Nothing,
        [0x1b, b'O', last] => sequence(&[], *last),
        // Control sequence (ECMA-48 5.4): parameters and intermediates up to a final byte.
        [0x1b, b'[', middle @ .., last] => match last {
            0x40..=0x7e => sequence(middle, *last),
            0x20..=0x3f => Step::More,
            _ => Step::Nothing,
        },
        [0x1b, _] => Step::EscapeThen,
        [0x03] => Step::Key(Key::Interrupt),
        [0x1a] => Step::Key(Key::Suspend),
        [0x0c] => Step::Key(Key::Redraw),
        [b'\t'] => Step::Key(Key::Right),
        [b'\r' | b'\n'] => Step::Key(Key::Enter),
        [0x20..=0x7e] => Step::Key(Key::Char(char::from(bytes[0]))),
        [first, ..] if *first >= 0x80 => match std::str::from_utf8(bytes) {
            Ok(text) => text.chars().next().map_or(Step::Nothing, |c| Step::Key(Key::Char(c))),
            Err(e) if e.error_len().is_none() => Step::More,
            Err(_) => Step::Nothing,
        },
        _ => Step::Nothing,
    }
}

fn sequence(middle: &[u8], last: u8) -> Step {
    Step::Key(match (middle, last) {
        (_, b'A') => Key::Up,
        (_, b'B') => Key::Down,
        (_, b'C') => Key::Right,
        (_, b'D' | b'Z') => Key::Left,
        (_, b'H') | (b"1" | b"7", b'~') => Key::Home,
        (_, b'F') | (b"4" | b"8", b'~') => Key::End,
        (b"5", b'~') => Key::PageUp,
        (b"6", b'~') => Key::PageDown,
        (_, b'P') | (b"11", b'~') => Key::F1,
        _ => return Step::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_of_xterm_screen_and_the_linux_console_are_known() {
        let mut d = Decoder::default();
        for (bytes, key) in [
            ("\x1b[A", Key::Up),
            ("\x1bOB", Key::Down),
            ("\x1b[1;5C", Key::Right),
            ("\t", Key::Right),
            ("\x1b[Z", Key::Left),
            ("\x1bOP", Key::F1),
            ("\x1b[11~", Key::F1),
            ("\x1b[[A", Key::F1),
            ("\x1b[1~", Key::Home),
            ("\x1b[6~", Key::PageDown),
            ("\x03", Key::Interrupt),
            ("q", Key::Char('q')),
            ("é", Key::Char('é')),
        ] {
            assert_eq!(d.feed(bytes.as_bytes()), [key], "{bytes:?}");
            assert!(!d.waits(), "{bytes:?}");
        }
    }

    #[test]
    fn a_sequence_split_between_reads_is_one_key() {
        let mut d = Decoder::default();
        assert_eq!(d.feed(b"j\x1b"), [Key::Char('j')]);
        assert_eq!(d.feed(b"["), []);
        assert_eq!(d.feed(b"Ak"), [Key::Up, Key::Char('k')]);
    }

    #[test]
    fn an_escape_alone_is_a_key_once_nothing_follows() {
        let mut d = Decoder::default();
        assert_eq!(d.feed(b"\x1b"), []);
        assert_eq!(d.pause(), Some(Key::Escape));
        assert_eq!(d.pause(), None);
        assert_eq!(d.feed(b"\x1bq"), [Key::Escape, Key::Char('q')]);
    }

    #[test]
    fn what_no_key_sends_is_skipped() {
        let mut d = Decoder::default();
        assert_eq!(d.feed(b"\x1b[200~\xff\x00\x1b[?1;2cq"), [Key::Char('q')]);
    }

    proptest! {
        #[test]
        fn no_bytes_can_fill_the_memory(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut d = Decoder::default();
            d.feed(&bytes);
            prop_assert!(d.pending.len() < MAX_SEQUENCE);
        }

        #[test]
        fn ctrl_c_is_heard_after_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut d = Decoder::default();
            d.feed(&bytes);
            prop_assert_eq!(d.feed(b"\x03"), [Key::Interrupt]);
        }
    }
}
