//! The queueing disciplines of a namespace's devices: their kinds and drops.

use latpath_net::{qdiscs, Netns, Result, INGRESS, ROOT};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Kinds and drops of a device's queueing disciplines, in both directions. The kernel's 32-bit counters wrap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queueing {
    /// Kind of the device's root queueing discipline, then the kinds below it, without duplicates, e.g. `mq`,
    /// `fq_codel`. In a difference: the kinds at either time.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// Number of packets dropped by the queueing discipline and those below it.
    pub dropped: u32,
    /// Number of packets dropped by filters and actions at ingress (for clsact, also at egress).
    pub ingress_dropped: u32,
}

impl Queueing {
    /// Drops since `earlier`, and the kinds at either time.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut kinds = self.kinds.clone();
        earlier.kinds.iter().for_each(|kind| add_kind(&mut kinds, kind));
        Self {
            kinds,
            dropped: self.dropped.wrapping_sub(earlier.dropped),
            ingress_dropped: self.ingress_dropped.wrapping_sub(earlier.ingress_dropped),
        }
    }
}

/// Lists queueing disciplines by device index. Devices without one are omitted.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel does not list its queueing disciplines.
pub fn queueing(netns: &Netns) -> Result<HashMap<u32, Queueing>> {
    let mut found: HashMap<u32, Queueing> = HashMap::new();
    for qdisc in qdiscs(netns)? {
        let of_device = found.entry(qdisc.ifindex).or_default();
        match (qdisc.parent, qdisc.dropped) {
            // A root's count includes its children's.
            (ROOT, dropped) => {
                of_device.dropped = dropped.unwrap_or(0);
                let below = std::mem::take(&mut of_device.kinds);
                [qdisc.kind].iter().chain(&below).for_each(|kind| add_kind(&mut of_device.kinds, kind));
            }
            (INGRESS, dropped) => of_device.ingress_dropped = dropped.unwrap_or(0),
            _ => add_kind(&mut of_device.kinds, &qdisc.kind),
        }
    }
    Ok(found)
}

fn add_kind(kinds: &mut Vec<String>, kind: &str) {
    if !kind.is_empty() && !kinds.iter().any(|known| known == kind) {
        kinds.push(kind.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_of_some_time_are_those_at_its_end_and_those_that_were_taken_off() {
        let of =
            |kinds: &[&str]| Queueing { kinds: kinds.iter().map(ToString::to_string).collect(), ..Queueing::default() };
        assert_eq!(of(&["mq", "fq_codel"]).since(&of(&["tbf", "fq_codel"])), of(&["mq", "fq_codel", "tbf"]));
    }

    #[test]
    fn a_count_that_wrapped_goes_on() {
        let (then, now) =
            (Queueing { dropped: u32::MAX, ..Queueing::default() }, Queueing { dropped: 4, ..Queueing::default() });
        assert_eq!(now.since(&then).dropped, 5);
    }
}
