//! Profiles: which settings a machine should have, in TOML.

use crate::accept::Accept;
use crate::condition::Condition;
use crate::selector::Selector;
use crate::variables::{names_in, BUILT_IN};
use latpath_settings::Setting;
use serde::Deserialize;
use std::path::Path;
use toml::Spanned;

/// Maximum size of a profile's file, bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of lines in a profile.
const MAX_LINES: usize = 4096;
/// Maximum length of a profile's name, bytes: it is part of a journal entry's file name.
const MAX_NAME: usize = 64;

/// latpath's own profiles: name and text.
const EMBEDDED: &[(&str, &str)] = &[
    ("sv-hypervisor", include_str!("../profiles/sv-hypervisor.toml")),
    ("sv-guest", include_str!("../profiles/sv-guest.toml")),
    ("ping-interface", include_str!("../profiles/ping-interface.toml")),
    ("tsn-host", include_str!("../profiles/tsn-host.toml")),
];

/// A set of settings for one purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Its name: lower-case letters, digits and dashes.
    pub name: String,
    /// Its purpose, in one sentence.
    pub about: String,
    /// Required variables: without them, the profile cannot be planned.
    pub needs: Vec<String>,
    /// Optional variables; a line that contains an unset variable does not apply.
    pub takes: Vec<String>,
    /// Whether the lines are applied in their order, regardless of disturbance, because each depends on those before
    /// it.
    pub is_ordered: bool,
    /// Its lines; lines with equal disturbance are applied in this order.
    pub lines: Vec<Line>,
    /// The profile's text.
    pub(crate) text: String,
    /// The settings to which the lines are restricted; empty for all.
    pub(crate) only: Vec<Setting>,
}

/// Sets the value of a setting at all places of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The setting.
    pub setting: Setting,
    /// The places.
    pub at: Selector,
    /// The value; may contain variables, e.g. `{isolated}`.
    pub value: String,
    /// Other acceptable values; may contain variables.
    pub accept: Vec<Accept>,
    /// Conditions on the machine, all of which must hold.
    pub when: Vec<Condition>,
    /// The reason, in one sentence.
    pub why: String,
    /// Who recommends it.
    pub source: String,
    /// Line number in the file.
    pub number: usize,
}

/// Why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The name is neither one of latpath's profiles nor a file.
    #[error("{name}: no such profile (latpath has {}); a file's name contains a dot or a slash", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// The names of latpath's own profiles.
        known: Vec<&'static str>,
    },
    /// The file cannot be read.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: String,
        /// The system's error.
        why: String,
    },
    /// The text is not a valid profile.
    #[error("{from}{}: {why}", line.map_or(String::new(), |line| format!(":{line}")))]
    Form {
        /// Path of the file, or the profile's name.
        from: String,
        /// Line number in the file.
        line: Option<usize>,
        /// The fault.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Spanned<String>,
    about: String,
    #[serde(default)]
    needs: Vec<Spanned<String>>,
    #[serde(default)]
    takes: Vec<Spanned<String>>,
    #[serde(default)]
    order: Order,
    #[serde(default, rename = "line")]
    lines: Vec<Spanned<WrittenLine>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    /// Lines are applied in order of disturbance.
    #[default]
    ByDisturbance,
    /// Lines are applied in the file's order.
    AsWritten,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLine {
    setting: Spanned<String>,
    at: Spanned<String>,
    value: Spanned<String>,
    #[serde(default)]
    accept: Vec<Spanned<String>>,
    #[serde(default)]
    when: Vec<Spanned<String>>,
    why: String,
    source: String,
}

impl Profile {
    /// latpath's own profiles.
    pub fn all() -> Vec<Self> {
        EMBEDDED.iter().filter_map(|(name, _)| Self::named(name).ok()).collect()
    }

    /// latpath's own profile with this name.
    ///
    /// # Errors
    /// No embedded profile has this name.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        match EMBEDDED.iter().find(|(known, _)| *known == name) {
            Some((name, text)) => Self::parse(text, name),
            None => {
                let known = EMBEDDED.iter().map(|(name, _)| *name).collect();
                Err(ProfileError::Unknown { name: name.into(), known })
            }
        }
    }

    /// Reads a profile from a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid profile.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let from = path.display().to_string();
        let text = latpath_linux::read_text(path, MAX_BYTES)
            .map_err(|e| ProfileError::File { path: from.clone(), why: e.to_string() })?;
        Self::parse(&text, &from)
    }

    /// Finds a profile by its name or file; a text with a dot or a slash is taken for a file.
    ///
    /// # Errors
    /// No profile has this name, or the file is not a valid profile.
    pub fn find(name: &str) -> Result<Self, ProfileError> {
        match name.contains(['.', '/']) {
            true => Self::read(Path::new(name)),
            false => Self::named(name),
        }
    }

    /// The profile, restricted to its lines for these settings.
    #[must_use]
    pub fn restricted_to(mut self, settings: &[Setting]) -> Self {
        self.lines.retain(|line| settings.contains(&line.setting));
        self.only = settings.to_vec();
        self
    }

    /// Parses a profile's text; `from` names it in errors.
    ///
    /// # Errors
    /// The text is not a valid profile; the error includes the line.
    pub fn parse(text: &str, from: &str) -> Result<Self, ProfileError> {
        let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
        let fault =
            |at: Option<usize>, why: String| ProfileError::Form { from: from.into(), line: at.map(line_of), why };
        let written: Written = toml::from_str(text)
            .map_err(|error| fault(error.span().map(|span| span.start), error.message().trim().to_owned()))?;
        let name = written.name.as_ref();
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_name) || name.starts_with('-') {
            let why =
                format!("{name:?} is not a profile's name: lower-case letters, digits and dashes, {MAX_NAME} at most");
            return Err(fault(Some(written.name.span().start), why));
        }
        if written.lines.len() > MAX_LINES {
            return Err(fault(None, format!("it has more than {MAX_LINES} lines")));
        }
        let declared = |all: Vec<Spanned<String>>| all.into_iter().map(Spanned::into_inner).collect::<Vec<_>>();
        let (needs, takes) = (declared(written.needs), declared(written.takes));
        let is_known = |name: &str| BUILT_IN.contains(&name) || needs.iter().chain(&takes).any(|known| known == name);
        let parse = |line: Spanned<WrittenLine>| -> Result<Line, ProfileError> {
            let number = line_of(line.span().start);
            let line = line.into_inner();
            let texts = [&line.at, &line.value].into_iter().chain(&line.accept).chain(&line.when);
            for text in texts {
                if let Some(unknown) = names_in(text.as_ref()).find(|name| !is_known(name)) {
                    let why = format!("{{{unknown}}} is no variable: name it in needs or takes");
                    return Err(fault(Some(text.span().start), why));
                }
            }
            let of = |text: &Spanned<String>, why: String| fault(Some(text.span().start), why);
            let setting = Setting::of_id(line.setting.as_ref()).ok_or_else(|| {
                of(&line.setting, format!("{}: no such setting (docs/settings.md)", line.setting.as_ref()))
            })?;
            let at = line.at.as_ref().parse::<Selector>().map_err(|why| of(&line.at, why))?;
            let accept = line.accept.iter().map(|text| text.as_ref().parse::<Accept>().map_err(|why| of(text, why)));
            let when = line.when.iter().map(|text| text.as_ref().parse::<Condition>().map_err(|why| of(text, why)));
            Ok(Line {
                setting,
                at,
                accept: accept.collect::<Result<_, _>>()?,
                when: when.collect::<Result<_, _>>()?,
                value: line.value.into_inner(),
                why: line.why,
                source: line.source,
                number,
            })
        };
        let lines = written.lines.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let (name, about, is_ordered) = (written.name.into_inner(), written.about, written.order == Order::AsWritten);
        Ok(Self { name, about, needs, takes, is_ordered, lines, text: text.into(), only: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_profiles_are_read_and_each_line_has_a_reason_and_a_source() {
        assert_eq!(Profile::all().len(), EMBEDDED.len());
        for (name, _) in EMBEDDED {
            let profile = Profile::named(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(profile.name, *name);
            assert!(!profile.lines.is_empty() && profile.about.ends_with('.'), "{name}");
            for line in &profile.lines {
                assert!(line.why.ends_with('.') && !line.source.is_empty(), "{name}:{}", line.number);
            }
        }
    }

    #[test]
    fn an_error_names_file_line_and_fault() {
        let head = "name = \"x\"\nabout = \"A test.\"\n";
        let line = |setting: &str, at: &str, value: &str| {
            format!(
                "{head}[[line]]\nsetting = \"{setting}\"\nat = \"{at}\"\nvalue = \"{value}\"\nwhy = \"\"\nsource = \"\"\n"
            )
        };
        let more = |text: &str| line("swappiness", "machine", "1") + text;
        for (text, number, why) in [
            (line("swapines", "machine", "1"), 4, "swapines: no such setting"),
            (line("swappiness", "planet", "1"), 5, "planet"),
            (line("swappiness", "machine", "{moon}"), 6, "{moon} is no variable"),
            (more("vlaue = 3\n"), 9, "unknown field `vlaue`"),
            (more("accept = [\n\"<=x\"]\n"), 10, "x"),
            (more("when = [\"moon\"]\n"), 9, "moon"),
            (head.replace("\"x\"", "\"a/b\""), 1, "is not a profile's name"),
            ("name = ".into(), 1, ""),
        ] {
            let error = Profile::parse(&text, "p.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("p.toml:{number}: ")) && error.contains(why), "{error}, not {why}");
        }
        let error = Profile::find("nothing").unwrap_err().to_string();
        assert!(error.contains("sv-hypervisor"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_refused_without_a_panic(text in "\\PC{0,200}") {
            let _ = Profile::parse(&text, "x");
            let _ = Profile::parse(&format!("name='a'\nabout='b'\n[[line]]\n{text}"), "x");
        }
    }
}
