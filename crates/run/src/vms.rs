//! The host's virtual machines at the start of a recording.

use crate::RunError;
use latpath_partstore::{open_file, replace_file, sum_of, Directory, StoreError};
use latpath_vms::Vm;
use std::{io::Read, path::Path};

/// Name of the file in a run.
pub(crate) const VMS: &str = "vms.json";
/// Maximum size of the file, bytes.
const MOST: u64 = 64 << 20;

/// Returns the file's checksum.
pub(crate) fn keep(run: &Directory, vms: &[Vm]) -> Result<String, RunError> {
    let bytes = serde_json::to_vec(vms).expect("plain structs become JSON");
    replace_file(run, VMS, &bytes)?;
    Ok(sum_of(&bytes))
}

/// Empty if the run has no such file: reports then only lack names. Fails if the checksum differs.
pub(crate) fn load(run: &Path, sum: Option<&str>) -> Result<Vec<Vm>, RunError> {
    let path = run.join(VMS);
    let mut bytes = Vec::new();
    let Ok(file) = open_file(&path) else { return Ok(Vec::new()) };
    file.take(MOST).read_to_end(&mut bytes).map_err(StoreError::read(&path))?;
    if sum.is_some_and(|sum| sum_of(&bytes) != sum) {
        return Err(RunError::damaged(&path, "its sum is wrong; threads have no names"));
    }
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}
