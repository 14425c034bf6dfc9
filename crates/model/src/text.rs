//! Sanitises text from outside (a kernel, a device or another machine) for tables and terminals.

use std::borrow::Cow;

/// The first `most` bytes of a string, cut at a character boundary.
pub fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    &text[..end]
}

/// Replaces each control character, each character that changes the direction of writing, and each noncharacter with
/// `?`: none of them is safe in terminals or valid in XML. The result is no longer than the text.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || steers(c) || is_noncharacter(c) { '?' } else { c }).collect()
}

/// Whether the character is DEL or a C1 control character, changes the direction of writing, or ends a line.
fn steers(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether the character is one of the last two code points of a plane, which are noncharacters (Unicode, 23.7). XML
/// 1.0 forbids those of the first plane.
fn is_noncharacter(c: char) -> bool {
    u32::from(c) & 0xfffe == 0xfffe
}

/// Escapes, as in JSON, the characters that control a terminal but that JSON does not escape: DEL, C1 control
/// characters, and those that change the direction of writing or end a line. `text` may be JSON. latpath itself writes
/// none of these characters.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| if steers(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// Quotes a word for a shell, if necessary.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+:@/=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Text of a NUL-terminated field from the kernel, such as a thread's `comm`.
pub fn of_field(field: &[u8]) -> Cow<'_, str> {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!((cut("aé", 2), cut("aé", 3), cut("aé", 0), cut("é", 9)), ("a", "aé", "", "é"));
    }

    #[test]
    fn a_field_is_read_up_to_its_first_nul() {
        assert_eq!((of_field(b"ab\0c\0"), of_field(b"abc"), of_field(b"\0")), ("ab".into(), "abc".into(), "".into()));
    }

    #[test]
    fn control_and_bidirectional_characters_are_escaped_as_in_json() {
        assert_eq!(visible("{\"a\":\"µ\u{9b}2J\u{202e}x\"}\n"), "{\"a\":\"µ\\u009b2J\\u202ex\"}\n");
        assert!(matches!(visible("µ→\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(printable(&of_field(b"a\x1b[2Jb\0zz")), "a?[2Jb");
        assert_eq!(printable("a\u{9b}2J\nb"), "a?2J?b");
        assert_eq!(printable("a\u{202e}b\u{2066}c\u{200f}\u{ffff}\u{1fffe}µ→"), "a?b?c???µ→");
    }
}
