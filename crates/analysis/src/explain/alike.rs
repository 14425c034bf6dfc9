//! Packets and rows of the ranking with the same cause.

use super::{ExplainedPacket, Explanation};
use latpath_cause::{Actor, Cause, CauseShare};

/// Identity of a cause: cause, machine, and names of actor, culprit and waiter.
pub type CauseKey = (Cause, String, [Option<String>; 3]);

/// The identity of a cause of a packet, or of a row.
pub fn cause_key(share: &CauseShare) -> CauseKey {
    let name = |actor: Option<&Actor>| actor.map(|actor| actor.name.clone());
    let by = share.by.first().map(|(by, _)| by);
    (share.cause, share.machine.clone(), [name(share.actor.as_ref()), name(by), name(share.waiter.as_ref())])
}

/// Index of the row with a packet's first cause in the ranking.
pub fn row_of(packet: &ExplainedPacket, explanation: &Explanation) -> Option<usize> {
    let first = cause_key(packet.attribution.first()?);
    explanation.ranking.iter().position(|ranked| cause_key(&ranked.row) == first)
}
