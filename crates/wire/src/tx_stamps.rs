//! Requests NIC transmit timestamps of some sent frames: for one frame at a time, because many NICs can store only one
//! timestamp, and lose that of a second frame, which may belong to another program.

use crate::message::{sent_stamps, Control};
use latpath_linux::monotonic;
use latpath_model::Ns;
use std::io;
use std::os::fd::BorrowedFd;

/// Time after which a requested timestamp is no longer awaited, ns.
const PATIENCE: Ns = 20_000_000;
/// Maximum number of messages read from the error queue per frame.
const MAX: usize = 8;

/// Counts of frames, by the outcome of requests for NIC timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxStampCounts {
    /// Frames for which a timestamp was requested.
    pub requested: u64,
    /// Frames whose timestamp arrived.
    pub received: u64,
    /// Frames for which no timestamp was requested, because that of an earlier frame was pending.
    pub skipped: u64,
}

impl TxStampCounts {
    /// The sums of the counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            requested: self.requested + other.requested,
            received: self.received + other.received,
            skipped: self.skipped + other.skipped,
        }
    }
}

/// Decides for which frames NIC timestamps are requested.
#[derive(Debug, Default)]
pub struct TxStamps {
    counts: TxStampCounts,
    /// Time until which the pending timestamp is awaited, `CLOCK_MONOTONIC`, ns; `None` if none is pending.
    pending: Option<Ns>,
}

/// A control message that requests the NIC timestamp of a single frame (`SO_TIMESTAMPING`, sock_cmsg_send in the
/// kernel).
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
    /// Whether to request the timestamp of the next frame.
    pub fn is_next(&mut self) -> bool {
        self.pending = self.pending.filter(|until| monotonic() <= *until);
        self.pending.is_none()
    }

    /// Whether a requested timestamp is pending.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Counts sent frames; with `has_request`, the timestamp of the first was requested. The queueing discipline may
    /// send that frame up to `ahead` ns later.
    pub fn sent(&mut self, frames: usize, has_request: bool, ahead: Ns) {
        let requested = usize::from(has_request && frames > 0);
        if requested > 0 {
            self.pending = Some(monotonic().saturating_add(ahead).saturating_add(PATIENCE));
            self.counts.requested += 1;
        }
        self.counts.skipped += (frames - requested) as u64;
    }

    /// Counts timestamps that have arrived.
    pub fn arrived(&mut self, times: u64) {
        if times > 0 {
            self.pending = None;
            self.counts.received += times;
        }
    }

    /// Reads the timestamps that have arrived at a socket that receives no others.
    ///
    /// # Errors
    /// The error queue cannot be read.
    pub(crate) fn collect(&mut self, fd: BorrowedFd<'_>, control: &mut Control) -> io::Result<()> {
        let mut arrived = 0;
        if self.is_pending() {
            sent_stamps(fd, &mut [0; 64], control, MAX, &mut |_, _| arrived += 1)?;
            self.arrived(arrived);
        }
        Ok(())
    }

    /// The counts so far.
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
        stamps.sent(3, true, 0);
        assert!(!stamps.is_next(), "the first one is on its way");
        stamps.sent(1, false, 0);
        stamps.pending = stamps.pending.map(|until| until - PATIENCE - 1);
        assert!(stamps.is_next(), "a time that does not arrive blocks no other");
        stamps.sent(0, true, 0);
        assert!(stamps.is_next(), "the kernel refused the frame");
        stamps.sent(1, true, 1_000_000_000);
        assert!(stamps.pending.is_some_and(|until| until > monotonic() + PATIENCE), "it is in the queueing discipline");
        stamps.arrived(1);
        assert!(stamps.is_next());
        assert_eq!(stamps.counts(), TxStampCounts { requested: 2, received: 1, skipped: 3 });
    }
}
