//! The JSON document of `latpath demo`.

use crate::Report;
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Output of `latpath demo --json`: the report of the recording, and the demo's own results.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DemoDocument {
    /// The report.
    #[serde(flatten)]
    pub report: Report<'static>,
    /// Results in addition to the report.
    pub demo: Demo,
}

/// Results of a demo in addition to the report.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Demo {
    /// The guest; null if the application runs in a network namespace.
    pub guest: Option<DemoGuest>,
    /// Output of `latpath publish --json`.
    pub published: Value,
    /// Output of `latpath subscribe --json`.
    pub application: Value,
    /// Output of `latpath explain --json`.
    pub explanation: Value,
    /// Comparisons with the kernel's counters, in the order of the packets' route.
    pub checks: Vec<Check>,
    /// Whether all comparisons agree.
    pub agree: bool,
}

/// The guest of a demo.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DemoGuest {
    /// Release of its kernel.
    pub kernel: String,
    /// `KVM with vhost`, `KVM` or `emulation (TCG)`.
    pub acceleration: String,
    /// Time from the start of QEMU until the guest answered, ns.
    pub boot_ns: Ns,
}

/// Comparison of a kernel counter with latpath's count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// The event that is counted, e.g. `reached the host`.
    pub what: String,
    /// Source of the kernel's count.
    pub counter: String,
    /// The kernel's count.
    pub kernel: u64,
    /// Point of latpath's count, i.e. where latpath counts.
    pub point: String,
    /// latpath's count; null if the run does not have the point.
    pub latpath: Option<u64>,
    /// Whether the two counts are equal; false if the run does not have the point.
    pub agree: bool,
}

impl Check {
    /// Compares `kernel`, counted by `counter`, with `latpath`, counted at `point`.
    pub fn new(what: &str, counter: String, kernel: u64, point: String, latpath: Option<u64>) -> Self {
        Self { what: what.into(), counter, kernel, point, latpath, agree: latpath == Some(kernel) }
    }
}
