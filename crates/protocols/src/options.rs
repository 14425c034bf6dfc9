//! The options that follow the name in the text of a stream, and the errors in such texts.

/// Reason for which a text is not a valid stream.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadStream {
    /// The prefix before `:` is unknown.
    #[error("{text:?}: not a stream; write {forms}")]
    Form {
        /// The text.
        text: String,
        /// The valid forms.
        forms: String,
    },
    /// The name is empty or too long.
    #[error("{name:?}: {what} has 1 to {most} bytes")]
    Name {
        /// The name.
        name: String,
        /// What the name is, e.g. "a goID".
        what: &'static str,
        /// Maximum length, bytes.
        most: usize,
    },
    /// An option is unknown, or its value is out of range.
    #[error("{option:?} in a stream: {why}")]
    Option {
        /// The option.
        option: String,
        /// The fault and the valid form.
        why: String,
    },
}

pub(crate) fn bad(option: &str, why: impl Into<String>) -> BadStream {
    BadStream::Option { option: option.into(), why: why.into() }
}

/// A stream's options that have not been parsed yet.
#[derive(Debug)]
pub struct Options<'a> {
    pub(crate) left: Vec<(&'a str, &'a str, &'a str)>,
}

impl<'a> Options<'a> {
    pub(crate) fn new(texts: Vec<&'a str>) -> Result<Self, BadStream> {
        let split = |text: &'a str| {
            let (name, value) = text.split_once('=').ok_or_else(|| bad(text, "write name=value"))?;
            Ok((name, value, text))
        };
        Ok(Self { left: texts.into_iter().map(split).collect::<Result<_, _>>()? })
    }

    /// Takes the option `name` (the last, if repeated) and parses its value. `why` describes valid values.
    ///
    /// # Errors
    /// The value does not parse: [`BadStream::Option`] with `why`.
    pub fn take<T>(
        &mut self,
        name: &str,
        why: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, BadStream> {
        let mut value = None;
        for (_, text, whole) in self.left.extract_if(.., |(n, ..)| *n == name) {
            value = Some(read(text).ok_or_else(|| bad(whole, why))?);
        }
        Ok(value)
    }
}

/// Splits at commas that are not escaped.
pub(crate) fn split_options(s: &str) -> (&str, Vec<&str>) {
    let mut chars = s.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            ',' => return (&s[..i], s[i + 1..].split(',').collect()),
            _ => {}
        }
    }
    (s, Vec::new())
}

/// Parses a number, decimal or `0x…`.
pub(crate) fn number_u16(s: &str) -> Option<u16> {
    match s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => s.parse().ok(),
    }
}
