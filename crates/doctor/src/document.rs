//! The JSON document of `latpath doctor`.

use crate::diagnosis::Diagnosis;
use latpath_caps::Caps;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Output of `latpath doctor --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorDocument {
    /// Faults of the machine.
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
    /// Which commands of latpath work on this machine; null unless requested.
    pub capabilities: Option<Caps>,
}
