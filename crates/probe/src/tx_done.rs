//! The program of tx-done stands where the kernel frees every packet of the machine: it is attached only where it is needed.

use latpath_bpf::attach_program;
use latpath_model::Ns;
use std::os::fd::{AsFd, OwnedFd};

/// Time after a stream's first packet within which a NIC would have sent one.
const PATIENCE: Ns = 50_000_000;

/// The program, attached or not.
pub(crate) struct TxDone {
    program: OwnedFd,
    link: Option<OwnedFd>,
    first: Option<Ns>,
}

impl TxDone {
    /// It is attached at first: the first packet that a NIC sends is not to be missed.
    pub fn new(program: OwnedFd, link: OwnedFd) -> Self {
        Self { program, link: Some(link), first: None }
    }

    /// Detaches the program once packets have come for 50 ms without a NIC that sends one, and attaches it when one does.
    /// `seen`: packets have come by `now`; `needed`: a NIC has sent some.
    pub fn follow(&mut self, now: Ns, seen: bool, needed: bool) {
        if seen {
            self.first.get_or_insert(now);
        }
        match (&self.link, needed) {
            (Some(_), false) if self.first.is_some_and(|first| now - first > PATIENCE) => self.link = None,
            (None, true) => match attach_program(self.program.as_fd()) {
                Ok(link) => self.link = Some(link),
                Err(e) => tracing::debug!("tx_done: {e}"),
            },
            _ => {}
        }
    }
}
