//! The host's virtual machines, as they were when a recording began.

use crate::RunError;
use latpath_partstore::{open_file, replace_file};
use latpath_vms::Vm;
use std::{io::Read, path::Path};

/// The file in a run's directory.
pub(crate) const VMS: &str = "vms.json";
/// A file that is longer was not written by latpath.
const MOST: u64 = 64 << 20;

pub(crate) fn keep(run: &Path, vms: &[Vm]) -> Result<(), RunError> {
    let bytes = serde_json::to_vec(vms).expect("plain structs become JSON");
    Ok(replace_file(run, VMS, &bytes)?)
}

/// None where the run has no such file, or one that is no such file: reports only lack names then.
pub(crate) fn load(run: &Path) -> Vec<Vm> {
    let read = || -> Option<Vec<Vm>> {
        let mut bytes = Vec::new();
        open_file(&run.join(VMS)).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    read().unwrap_or_default()
}
