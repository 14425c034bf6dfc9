//! Makes text from other processes (names and arguments) safe for a terminal.

/// Maximum number of characters.
const MAX_LETTERS: usize = 256;

/// Escapes control codes and invisible characters (e.g. as `\u{1b}`), and truncates the text to 256 characters.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_LETTERS));
    for (place, letter) in text.chars().enumerate() {
        if place == MAX_LETTERS {
            shown.push('…');
            break;
        }
        match letter {
            '\'' | '"' | '\\' => shown.push(letter),
            // Escapes control codes, direction marks and lone combining marks.
            _ => shown.extend(letter.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn control_codes_are_escaped() {
        assert_eq!(plain("a\x1b[31m\nb\u{202e}"), "a\\u{1b}[31m\\nb\\u{202e}");
        assert_eq!(plain("relay \"A\" Überwachung"), "relay \"A\" Überwachung");
    }

    #[test]
    fn endless_text_is_cut() {
        assert_eq!(plain(&"x".repeat(100_000)).chars().count(), 257);
    }
}
