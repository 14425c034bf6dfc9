//! Requests a NIC's transmit times of some sent frames: of one frame at a time, because many NICs keep one time only,
//! and lose that of a second frame, which may be another program's.

use crate::message::{sent_stamps, Control};
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::io;
use std::os::fd::BorrowedFd;

/// Time after which a requested time is given up, ns.
const PATIENCE: Ns = 20_000_000;
/// Maximum messages read from the error queue per frame.
const MOST: usize = 8;

/// Counts of frames by what became of their NICs' times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxStampCounts {
    /// Frames whose time was requested.
    pub requested: u64,
    /// Frames whose time arrived.
    pub received: u64,
    /// Frames whose time was not requested, because that of an earlier one was on its way.
    pub skipped: u64,
}

impl TxStampCounts {
    /// The sums of both counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            requested: self.requested + other.requested,
            received: self.received + other.received,
            skipped: self.skipped + other.skipped,
        }
    }
}

/// Decides for which frames the NIC's time is requested.
#[derive(Debug, Default)]
pub(crate) struct TxStamps {
    counts: TxStampCounts,
    /// Time of the pending request.
    pending: Option<Ns>,
    control: Control,
}

/// A control message that requests the NIC's time of one frame (`SO_TIMESTAMPING`, sock_cmsg_send in the kernel).
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestMessage {
    header: libc::cmsghdr,
    flags: u32,
    padding: u32,
}

impl RequestMessage {
    pub const fn new() -> Self {
        /// Length without the padding.
        const LEN: usize = std::mem::size_of::<libc::cmsghdr>() + 4;
        let header =
            libc::cmsghdr { cmsg_len: LEN as _, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SO_TIMESTAMPING };
        Self { header, flags: libc::SOF_TIMESTAMPING_TX_HARDWARE, padding: 0 }
    }
}

impl TxStamps {
    /// Whether to request the time of the next frame.
    pub fn is_next(&mut self) -> bool {
        self.pending = self.pending.filter(|since| monotonic() - since <= PATIENCE);
        self.pending.is_none()
    }

    /// Counts sent frames; with `has_request`, the time of the first was requested.
    pub fn sent(&mut self, frames: usize, has_request: bool) {
        if has_request {
            (self.pending, self.counts.requested) = (Some(monotonic()), self.counts.requested + 1);
        }
        self.counts.skipped += (frames - usize::from(has_request)) as u64;
    }

    /// Reads the times that have arrived.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn collect(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut arrived = 0;
        if self.pending.is_none() {
            return Ok(());
        }
        sent_stamps(fd, &mut [0; 64], &mut self.control, MOST, &mut |_, _| arrived += 1)?;
        if arrived > 0 {
            self.pending = None;
            self.counts.received += arrived;
        }
        Ok(())
    }

    pub fn counts(&self) -> TxStampCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_time_is_requested_at_a_time() {
        let mut stamps = TxStamps::default();
        assert!(stamps.is_next());
        stamps.sent(3, true);
        assert!(!stamps.is_next(), "the first one is on its way");
        stamps.sent(1, false);
        stamps.pending = stamps.pending.map(|since| since - PATIENCE - 1);
        assert!(stamps.is_next(), "a time that does not arrive blocks no other");
        assert_eq!(stamps.counts(), TxStampCounts { requested: 1, received: 0, skipped: 3 });
    }
}
