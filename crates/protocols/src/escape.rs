//! Escapes names read from packets. Names are arbitrary bytes; different names have different texts, which users can
//! type.

/// A name's bytes as text, without terminal control sequences; different names have different texts. [`bytes`] reverses
/// it.
pub(crate) fn text(name: &[u8]) -> String {
    let mut text = String::new();
    let hex = |text: &mut String, bytes: &[u8]| bytes.iter().for_each(|b| *text += &format!("\\x{b:02x}"));
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text += "\\\\",
                // Characters that are not printable: control characters, and those that change the direction of
                // writing.
                c if !c.is_ascii() && c.escape_debug().len() > 1 || c.is_control() => {
                    hex(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                c => text.push(c),
            }
        }
        hex(&mut text, chunk.invalid());
    }
    text
}

/// The bytes of a name as typed by the user; `None` for an invalid escape.
pub(crate) fn bytes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        (rest, _) = match (first, behind) {
            (b'\\', [b'x', high, low, behind @ ..]) => {
                let digit = |d: &u8| char::from(*d).to_digit(16);
                (behind, bytes.push((digit(high)? << 4 | digit(low)?) as u8))
            }
            (b'\\', [c @ (b'\\' | b','), behind @ ..]) => (behind, bytes.push(*c)),
            (b'\\', _) => return None,
            (c, behind) => (behind, bytes.push(*c)),
        };
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StreamSpec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_of_any_bytes_can_be_typed_back(name in proptest::collection::vec(any::<u8>(), 1..129)) {
            let shown = text(&name);
            prop_assert!(!shown.contains(char::is_control));
            prop_assert_eq!(bytes(&shown), Some(name.clone()));
            let spec: StreamSpec = format!("goose:{}", shown.replace(',', "\\,")).parse().unwrap();
            prop_assert_eq!(spec.matcher.kernel().name, Some(name));
        }
    }

    #[test]
    fn invalid_names_are_refused_with_a_correction() {
        for name in ["a\\q", "a\\", "a\\x1", "a\\xgg"] {
            let error = format!("svid:{name}").parse::<StreamSpec>().unwrap_err().to_string();
            assert!(error.contains("two hexadecimal digits"), "{error}");
        }
    }
}
