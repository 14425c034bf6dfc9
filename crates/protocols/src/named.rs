//! Streams that are found by a name in their frames, with the link layer of IEC 61850: Sampled Values and GOOSE.

use crate::options::{bad, number_u16, BadStream, Options};
use crate::protocol::{Field, KernelMatch, OwnBytes, Value};
use std::fmt;

/// Reads a name of at most `most` bytes and the option `appid`.
pub(crate) fn parse(
    name: &str,
    what: &'static str,
    most: usize,
    options: &mut Options<'_>,
) -> Result<(Vec<u8>, Option<u16>), BadStream> {
    let bytes = bytes(name)
        .ok_or_else(|| bad(name, "behind \\x come two hexadecimal digits, behind \\ a comma or another \\"))?;
    if bytes.is_empty() || bytes.len() > most {
        return Err(BadStream::Name { name: name.into(), what, most });
    }
    Ok((bytes, options.take("appid", "an APPID is 0 to 0xffff", number_u16)?))
}

pub(crate) fn write(f: &mut fmt::Formatter<'_>, name: &[u8], appid: Option<u16>) -> fmt::Result {
    write!(f, "{}", text(name).replace(',', "\\,"))?;
    match appid {
        Some(appid) => write!(f, ",appid={appid:#06x}"),
        None => Ok(()),
    }
}

/// A name's bytes as text: distinct names read distinctly, and a terminal obeys none. [`bytes`] reads it back.
pub(crate) fn text(name: &[u8]) -> String {
    let mut text = String::new();
    let hex = |text: &mut String, bytes: &[u8]| bytes.iter().for_each(|b| *text += &format!("\\x{b:02x}"));
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text += "\\\\",
                // What is no letter on a screen: control characters, and what turns the direction of writing.
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

/// The bytes of a name as the user writes it.
fn bytes(text: &str) -> Option<Vec<u8>> {
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

/// `struct iec61850_conf` of the kernel programs.
pub(crate) fn kernel(name: &[u8], appid: Option<u16>) -> KernelMatch {
    KernelMatch { name: Some(name.to_vec()), own: OwnBytes::default().put_optional(appid) }
}

/// The name of a stream and its APPID, as a list shows them.
pub(crate) fn fields(title: &'static str, json: &'static str, name: &[u8], appid: Option<u16>) -> Vec<Field> {
    let appid = Field { title: "APPID", json: "appid", value: Value::Hex(appid.unwrap_or(0)) };
    vec![Field { title, json, value: Value::text(name) }, appid]
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
    fn what_no_name_can_mean_is_refused_with_what_would_be_right() {
        for name in ["a\\q", "a\\", "a\\x1", "a\\xgg"] {
            let error = format!("svid:{name}").parse::<StreamSpec>().unwrap_err().to_string();
            assert!(error.contains("two hexadecimal digits"), "{error}");
        }
    }
}
