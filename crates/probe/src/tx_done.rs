//! The program of tx-done stands where the kernel frees every packet of the machine: it is attached only where it is needed.

use latpath_bpf::Standing;
use latpath_model::Ns;

pub(crate) const TX_DONE: &str = "tx_done";
/// Time after a stream's first packet within which a NIC would have sent one.
const PATIENCE: Ns = 50_000_000;

/// When it is to stand. It is attached at first: the first packet that a NIC sends is not to be missed.
#[derive(Default)]
pub(crate) struct TxDone {
    first: Option<Ns>,
}

impl TxDone {
    /// Detaches the program once packets have come for 50 ms without a NIC that sends one, and attaches it when one does.
    /// `seen`: packets have come by `now`; `needed`: a NIC has sent some.
    pub fn follow(&mut self, program: &mut Standing, now: Ns, seen: bool, needed: bool) {
        if seen {
            self.first.get_or_insert(now);
        }
        match (program.stands(), needed) {
            (true, false) if self.first.is_some_and(|first| now - first > PATIENCE) => program.detach(),
            (false, true) => {
                let attached = program.attach();
                attached.unwrap_or_else(|e| tracing::debug!("{TX_DONE}: {e}"));
            }
            _ => {}
        }
    }
}
