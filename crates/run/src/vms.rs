//! The machines' virtual machines at the start of a recording.

use crate::RunError;
use latpath_model::HOST;
use latpath_partstore::{open_file, replace_file, sum_of, Directory, StoreError};
use latpath_vms::{Vm, VmsByMachine};
use serde::Deserialize;
use std::{io::Read, path::Path};

/// Name of the file in a run.
pub(crate) const VMS: &str = "vms.json";
/// Maximum size of the file, bytes.
const MAX: u64 = 64 << 20;

/// Content of the file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    /// Format for runs in which only the host runs virtual machines.
    OfHost(Vec<Vm>),
    ByMachine(VmsByMachine),
}

/// Writes the file, and returns its checksum. Earlier versions can only read the host's list, so that format is used
/// unless another machine has virtual machines.
pub(crate) fn keep(run: &Directory, vms: &VmsByMachine) -> Result<String, RunError> {
    let bytes = match vms.machines().all(|machine| machine == HOST) {
        true => serde_json::to_vec(vms.of(HOST)),
        false => serde_json::to_vec(vms),
    };
    let bytes = bytes.expect("plain structs become JSON");
    replace_file(run, VMS, &bytes)?;
    Ok(sum_of(&bytes))
}

/// Loads the file. Empty if the run has no such file: reports then only lack names. Fails if the checksum differs.
pub(crate) fn load(run: &Path, sum: Option<&str>) -> Result<VmsByMachine, RunError> {
    let path = run.join(VMS);
    let mut bytes = Vec::new();
    let Ok(file) = open_file(&path) else { return Ok(VmsByMachine::default()) };
    file.take(MAX).read_to_end(&mut bytes).map_err(StoreError::read(&path))?;
    if sum.is_some_and(|sum| sum_of(&bytes) != sum) {
        return Err(RunError::damaged(&path, "its sum is wrong; threads have no names"));
    }
    Ok(match serde_json::from_slice(&bytes) {
        Ok(Stored::OfHost(vms)) => vms.into(),
        Ok(Stored::ByMachine(vms)) => vms,
        Err(_) => VmsByMachine::default(),
    })
}
