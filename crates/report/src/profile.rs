//! Profiles: limits with a name and a source, from a TOML file or from those that latpath has.

use crate::limit::{About, BadLimit, Limit};
use serde::Deserialize;
use std::io::Read;
use std::path::PathBuf;

/// The profiles that latpath has, by name.
const OWN: [(&str, &str); 2] = [
    ("iec61850-9-2", include_str!("../profiles/iec61850-9-2.toml")),
    ("seapath", include_str!("../profiles/seapath.toml")),
];
/// A longer file is no profile.
const MOST_BYTES: u64 = 1 << 20;

/// Limits that belong together.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    #[serde(default, rename = "limit")]
    limits: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    limit: String,
    source: String,
}

/// Why there is no such profile.
#[derive(Debug, thiserror::Error)]
pub enum BadProfile {
    /// It is neither a name nor a file.
    #[error("{0}: no such profile, and no such file (profiles: {known}; or a TOML file, as ./limits.toml)", known = names().collect::<Vec<_>>().join(", "))]
    Unknown(String),
    /// The file cannot be read.
    #[error("{}: cannot be read: {error}", path.display())]
    File {
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The file is none of a profile.
    #[error("{name}: not a profile of limits (docs/limits.md): {why}")]
    Form {
        name: String,
        /// What is wrong, on one line.
        why: String,
    },
    /// A limit in it is none.
    #[error("{name}: {error}")]
    Limit { name: String, error: BadLimit },
}

/// The names of the profiles that latpath has.
pub fn names() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().map(|(name, _)| name)
}

/// The limits of a profile: of latpath's own by its name, else of a file.
///
/// # Errors
/// Where there is none, it cannot be read, or says what is no limit.
pub fn limits(name: &str) -> Result<Vec<Limit>, BadProfile> {
    let text = match OWN.iter().find(|(own, _)| *own == name) {
        Some((_, text)) => (*text).to_owned(),
        None => read(name)?,
    };
    let form = |why: String| BadProfile::Form { name: name.into(), why };
    let profile: Profile = toml::from_str(&text).map_err(|error| form(error.message().into()))?;
    if profile.limits.is_empty() {
        return Err(form("it has no [[limit]]".into()));
    }
    let limit = |row: Row| {
        let limit: Limit = row.limit.parse().map_err(|error| BadProfile::Limit { name: name.into(), error })?;
        Ok(limit.of_profile(About { name: row.name, source: row.source }))
    };
    profile.limits.into_iter().map(limit).collect()
}

fn read(name: &str) -> Result<String, BadProfile> {
    let path = PathBuf::from(name);
    let mut text = String::new();
    match std::fs::File::open(&path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text)) {
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
            let limits = limits(name).unwrap();
            assert!(limits.iter().all(|limit| limit.about().is_some_and(|about| !about.source.is_empty())), "{name}");
        }
    }

    #[test]
    fn what_is_no_profile_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.toml");
        let why = |text: &str| {
            std::fs::write(&file, text).unwrap();
            limits(file.to_str().unwrap()).unwrap_err().to_string()
        };
        let rest = "name = 'a'\nsource = 'b'\n";
        assert!(why("").contains("it has no [[limit]]"));
        assert!(why(&format!("[[limit]]\n{rest}limit = 'total:max'")).contains("not a limit"));
        assert!(why(&format!("[[limit]]\n{rest}limits = 'lost<=0'")).contains("unknown field `limits`"));
        assert!(limits("iec").unwrap_err().to_string().contains("profiles: iec61850-9-2, seapath"));
        std::fs::write(&file, [0xff]).unwrap();
        assert!(limits(file.to_str().unwrap()).unwrap_err().to_string().contains("cannot be read"));
    }
}
