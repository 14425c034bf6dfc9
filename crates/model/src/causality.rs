//! What a guest recorded, held against its host's record: the guest did it itself, so its vCPU was in the guest then. A moment
//! that maps to a time when it was not, beyond the clock's error bound, says that a clock is wrong.

use crate::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// How a guest's moments stand to what its host recorded of its vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Causality {
    /// Those that were held against the times of their vCPU.
    pub checked: u64,
    /// Those of them that lie where their vCPU was not in the guest, by more than the clock's error bound.
    pub violations: u64,
}

impl Causality {
    /// Counts a moment of the guest, known to `error_bound`, at which its vCPU was out of the guest from one time to another, or in it.
    /// All times are the host's.
    pub fn check(&mut self, t: Ns, error_bound: Ns, absence: Option<(Ns, Ns)>) {
        let (earliest, latest) = (t.saturating_sub(error_bound), t.saturating_add(error_bound));
        self.checked += 1;
        // At an edge of its absence, the vCPU may have been in the guest.
        self.violations += u64::from(absence.is_some_and(|(from, until)| from < earliest && latest < until));
    }
}

impl AddAssign for Causality {
    fn add_assign(&mut self, other: Self) {
        self.checked += other.checked;
        self.violations += other.violations;
    }
}
