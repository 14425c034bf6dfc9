//! The machines' settings at the start and at the end of a recording.

use crate::{seal::Seal, RunError};
use latpath_partstore::{open_file, replace_file, Directory, StoreError};
use latpath_settings::RunSettings;
use serde::Deserialize;
use std::{io::Read, path::Path};

/// The file in a run's directory.
pub(crate) const SETTINGS: &str = "settings.json";
/// Maximum size of the file, bytes. latpath never writes a larger one.
const MAX: u64 = 64 << 20;
/// Format of the file's checksum.
const SEAL: Seal = Seal { before: ",\"xxh64\":\"", end: "}" };

/// Writes the file atomically: after a crash, either the old or the new version exists.
pub(crate) fn keep(run: &Directory, settings: &RunSettings) -> Result<(), RunError> {
    let mut bytes = serde_json::to_vec(settings).expect("plain structs become JSON");
    SEAL.put(&mut bytes);
    Ok(replace_file(run, SETTINGS, &bytes)?)
}

/// Loads the file. Empty if it cannot be opened, e.g. because the run has none, like runs of earlier versions. Fails if
/// reading fails or the file is damaged.
pub(crate) fn load(run: &Path) -> Result<RunSettings, RunError> {
    let path = run.join(SETTINGS);
    let mut bytes = Vec::new();
    let Ok(file) = open_file(&path) else { return Ok(RunSettings::default()) };
    file.take(MAX).read_to_end(&mut bytes).map_err(StoreError::read(&path))?;
    let damaged = |why: String| RunError::damaged(&path, format!("{why}; the run's settings are not shown"));
    #[derive(Deserialize)]
    struct Sum {
        xxh64: Option<String>,
    }
    let sum: Sum = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
    if sum.xxh64.is_none() || !SEAL.holds(&bytes, sum.xxh64.as_deref()) {
        return Err(damaged("its sum is wrong".into()));
    }
    serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))
}
