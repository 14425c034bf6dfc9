//! The program of tx-done runs for every packet that the machine frees, so it is attached only while needed.

use latpath_model::Ns;

pub(crate) const TX_DONE: &str = "tx_done";
/// Time after the first packet within which a NIC would have sent one, ns.
const PATIENCE: Ns = 50_000_000;

/// Decides when the program is needed. Initially it is, in order not to miss the first packet that a NIC sends.
#[derive(Default)]
pub(crate) struct TxDone {
    first: Option<Ns>,
}

impl TxDone {
    /// Whether the program is needed: not if no NIC has sent a packet within 50 ms of the first packet, until a NIC
    /// sends one. `seen`: packets have arrived by `now`; `nic_sends`: a NIC has sent some.
    pub fn is_needed(&mut self, now: Ns, seen: bool, nic_sends: bool) -> bool {
        if seen {
            self.first.get_or_insert(now);
        }
        nic_sends || self.first.is_none_or(|first| now - first <= PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tx_done_is_attached_unless_no_nic_sends() {
        let mut tx_done = TxDone::default();
        assert!(tx_done.is_needed(10 * PATIENCE, false, false), "no packet yet");
        assert!(tx_done.is_needed(11 * PATIENCE, true, false) && tx_done.is_needed(12 * PATIENCE, false, false));
        assert!(!tx_done.is_needed(12 * PATIENCE + 1, false, false));
        assert!(tx_done.is_needed(20 * PATIENCE, true, true));
    }
}
