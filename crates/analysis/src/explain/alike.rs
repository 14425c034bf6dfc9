//! Matches packets and rows of the ranking that have the same cause.

use super::{ExplainedPacket, Explanation};
use latpath_cause::{Actor, Cause, CauseShare};

/// Identity of a cause: cause, machine, and the names of actor, culprit and waiter.
pub type CauseKey = (Cause, String, [Option<String>; 3]);

/// The identity of the cause of a packet or row.
pub fn cause_key(share: &CauseShare) -> CauseKey {
    let name = |actor: Option<&Actor>| actor.map(|actor| actor.name.clone());
    let by = share.by.first().map(|(by, _)| by);
    (share.cause, share.machine.clone(), [name(share.actor.as_ref()), name(by), name(share.waiter.as_ref())])
}

/// Index of the ranking's row with the same cause as the packet's first.
pub fn row_of(packet: &ExplainedPacket, explanation: &Explanation) -> Option<usize> {
    let first = cause_key(packet.attribution.first()?);
    explanation.ranking.iter().position(|ranked| cause_key(&ranked.row) == first)
}
