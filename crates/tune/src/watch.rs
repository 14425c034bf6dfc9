//! What traffic does while settings change.

use crate::plan::Planned;
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::Serialize;

/// Looks at traffic while settings change.
pub trait Watch {
    /// Measures how the traffic is before the first change.
    ///
    /// # Errors
    /// Why the traffic cannot be watched.
    fn begin(&mut self) -> Result<(), String>;

    /// Waits until a step has had its effect, and measures it. `None` if nothing is watched.
    ///
    /// # Errors
    /// Why the effect is not known; the change is then reverted.
    fn settle(&mut self, step: &Planned) -> Result<Option<Effect>, String>;
}

/// The effect of a step on the traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Effect {
    /// Time from the change to the end of the observation, ns.
    pub watched_ns: Ns,
    /// Packets that arrived in that time.
    pub packets: u64,
    /// Packets that were lost in that time.
    pub lost: u64,
    /// Packets that were late in that time.
    pub late: u64,
    /// Latencies before the first change.
    pub before: Figures,
    /// Latencies in that time.
    pub after: Figures,
    /// Why the step is held to have disturbed the traffic; null if it has not.
    pub disturbed: Option<String>,
}

/// Latencies of packets, ns; null where there were no packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Figures {
    /// Median.
    pub p50: Option<Ns>,
    /// 99th percentile.
    pub p99: Option<Ns>,
    /// The longest.
    pub max: Option<Ns>,
}

/// Watches nothing: for a machine without traffic.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWatch;

impl Watch for NoWatch {
    fn begin(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn settle(&mut self, _: &Planned) -> Result<Option<Effect>, String> {
        Ok(None)
    }
}
