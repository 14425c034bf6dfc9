//! Which packets and rows of the ranking have the same cause.

use super::{ExplainedPacket, Explanation};
use latpath_cause::{Actor, Cause, CauseShare};

/// What packets with the same cause share: cause, machine, actor, culprit, waiter.
pub type CauseKey = (Cause, String, [Option<String>; 3]);

/// The key of a cause in one packet, or of a row.
pub fn cause_key(share: &CauseShare) -> CauseKey {
    let name = |actor: Option<&Actor>| actor.map(|actor| actor.name.clone());
    let by = share.by.first().map(|(by, _)| by);
    (share.cause, share.machine.clone(), [name(share.actor.as_ref()), name(by), name(share.waiter.as_ref())])
}

/// The row of the ranking that has a packet's first cause.
pub fn row_of(packet: &ExplainedPacket, explanation: &Explanation) -> Option<usize> {
    let first = cause_key(packet.attribution.first()?);
    explanation.ranking.iter().position(|ranked| cause_key(&ranked.row) == first)
}
