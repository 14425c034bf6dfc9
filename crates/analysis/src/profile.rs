//! Profiles: limits with a name and a source, from a TOML file or built in.

use crate::limit::{BadLimit, Limit, LimitOrigin};
use latpath_journey::segments::split;
use serde::Deserialize;
use std::io::Read;
use std::path::PathBuf;

/// Built-in profiles, by name.
const OWN: [(&str, &str); 4] = [
    ("gptp", include_str!("../profiles/gptp.toml")),
    ("iec61850-8-1", include_str!("../profiles/iec61850-8-1.toml")),
    ("iec61850-9-2", include_str!("../profiles/iec61850-9-2.toml")),
    ("seapath", include_str!("../profiles/seapath.toml")),
];
/// Maximum size of a profile, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Limits of one standard, device or customer.
#[derive(Debug)]
pub struct Profile {
    /// The limits.
    pub limits: Vec<Limit>,
    /// Segments that the limits use in addition to the classic ones, as `NAME=FROM..TO`.
    pub segments: Vec<String>,
}

/// Content of a profile's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, rename = "segment")]
    segments: Vec<Ends>,
    #[serde(default, rename = "limit")]
    limits: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ends {
    name: String,
    from: String,
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    limit: String,
    source: String,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadProfile {
    /// No built-in profile and no file has this name.
    #[error("{0}: no such profile, and no such file (profiles: {known}; or a TOML file, as ./limits.toml)", known = names().collect::<Vec<_>>().join(", "))]
    Unknown(String),
    /// The file cannot be read.
    #[error("{}: cannot be read: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The file is not a profile.
    #[error("{name}: not a profile of limits (docs/limits.md): {why}")]
    Form {
        /// Name of the profile.
        name: String,
        /// The cause, on one line.
        why: String,
    },
    /// An entry is not a limit.
    #[error("{name}: {error}")]
    Limit {
        /// Name of the profile.
        name: String,
        /// The cause.
        error: BadLimit,
    },
}

/// Names of the built-in profiles.
pub fn names() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().map(|(name, _)| name)
}

/// Reads a profile: a built-in one by its name, otherwise a file.
///
/// # Errors
/// If the profile does not exist, cannot be read, or has an entry that is not a limit.
pub fn profile(name: &str) -> Result<Profile, BadProfile> {
    let text = match OWN.iter().find(|(own, _)| *own == name) {
        Some((_, text)) => (*text).to_owned(),
        None => read(name)?,
    };
    let form = |why: String| BadProfile::Form { name: name.into(), why };
    let written: Written = toml::from_str(&text).map_err(|error| form(error.message().into()))?;
    if written.limits.is_empty() {
        return Err(form("it has no [[limit]]".into()));
    }
    let limit = |row: Row| {
        let limit: Limit = row.limit.parse().map_err(|error| BadProfile::Limit { name: name.into(), error })?;
        Ok(limit.of_profile(LimitOrigin { name: row.name, source: row.source }))
    };
    let segment = |Ends { name, from, to }: Ends| {
        let text = format!("{name}={from}..{to}");
        split(&text).map(|_| text.clone()).map_err(form)
    };
    let limits = written.limits.into_iter().map(limit).collect::<Result<_, _>>()?;
    Ok(Profile { limits, segments: written.segments.into_iter().map(segment).collect::<Result<_, _>>()? })
}

fn read(name: &str) -> Result<String, BadProfile> {
    let path = PathBuf::from(name);
    let mut text = String::new();
    match std::fs::File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text)) {
        Ok(_) => Ok(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(BadProfile::Unknown(name.into())),
        Err(error) => Err(BadProfile::File { path, error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latpaths_own_profiles_are_limits_with_a_source() {
        for name in names() {
            let Profile { limits, segments } = profile(name).unwrap();
            assert!(limits.iter().all(|limit| limit.about().is_some_and(|about| !about.source.is_empty())), "{name}");
            let named = segments.iter().map(|text| split(text).unwrap().0);
            assert!(named
                .into_iter()
                .all(|name| limits.iter().any(|l| l.to_string().starts_with(&format!("{name}:")))));
        }
    }

    #[test]
    fn what_is_no_profile_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.toml");
        let why = |text: &str| {
            std::fs::write(&file, text).unwrap();
            profile(file.to_str().unwrap()).unwrap_err().to_string()
        };
        let rest = "name = 'a'\nsource = 'b'\n";
        assert!(why("").contains("it has no [[limit]]"));
        assert!(why(&format!("[[limit]]\n{rest}limit = 'total:max'")).contains("not a limit"));
        assert!(why(&format!("[[limit]]\n{rest}limits = 'lost<=0'")).contains("unknown field `limits`"));
        let segment = "[[segment]]\nname = 'x'\nfrom = ''\nto = 'host/tx@a'\n";
        assert!(why(&format!("{segment}[[limit]]\n{rest}limit = 'x:max<=1s'")).contains("write NAME=FROM..TO"));
        assert!(profile("iec")
            .unwrap_err()
            .to_string()
            .contains("profiles: gptp, iec61850-8-1, iec61850-9-2, seapath"));
        std::fs::write(&file, [0xff]).unwrap();
        assert!(profile(file.to_str().unwrap()).unwrap_err().to_string().contains("cannot be read"));
    }
}
