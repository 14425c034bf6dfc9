//! Checks a guest's records against its host's: the vCPU of each event must have been in the guest at the event's time.
//! An event outside the guest, by more than the clock's error bound, proves that a clock is wrong.

use crate::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Result of checking a guest's events against the host's record of its vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Causality {
    /// Number of events that were checked.
    pub checked: u64,
    /// Number of events at times when their vCPU was not in the guest, by more than the clock's error bound.
    pub violations: u64,
}

impl Causality {
    /// Checks an event of the guest at `t` ± `error_bound`. `absence`: the interval around the event in which its vCPU
    /// was outside the guest, if any. All times are the host's.
    pub fn check(&mut self, t: Ns, error_bound: Ns, absence: Option<(Ns, Ns)>) {
        let (earliest, latest) = (t.saturating_sub(error_bound), t.saturating_add(error_bound));
        self.checked += 1;
        // At the edges of an absence, the vCPU may have been in the guest.
        self.violations += u64::from(absence.is_some_and(|(from, until)| from < earliest && latest < until));
    }
}

impl AddAssign for Causality {
    fn add_assign(&mut self, other: Self) {
        self.checked += other.checked;
        self.violations += other.violations;
    }
}
