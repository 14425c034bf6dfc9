//! Frames with a send time (`SO_TXTIME`), at which the queueing disciplines etf and taprio send or discard them; and
//! timestamps requested for individual frames.
#![allow(unsafe_code)]

use crate::options::{Stamps, RECORDING};
use crate::packet::send_error;
use crate::{DeviceError, PacketSocket, Sent};
use latpath_model::Ns;
use nix::time::ClockId;
use std::fmt;
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::str::FromStr;

/// `SO_TXTIME` and `SCM_TXTIME` in `asm-generic/socket.h`.
const SO_TXTIME: i32 = 61;
/// Control data of a frame: a send time (16 + 8 bytes) and the timestamps to record (16 + 4 bytes, padded to 8).
const CONTROL: usize = 48;

/// The clock for a talker's send times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendClock {
    /// `CLOCK_TAI`, which etf and PTP use.
    #[default]
    Tai,
    /// `CLOCK_REALTIME`.
    Realtime,
    /// `CLOCK_MONOTONIC`.
    Monotonic,
}

impl SendClock {
    /// All clocks.
    pub const ALL: [Self; 3] = [Self::Tai, Self::Realtime, Self::Monotonic];

    /// The kernel's ID of the clock.
    pub fn id(self) -> ClockId {
        match self {
            Self::Tai => ClockId::CLOCK_TAI,
            Self::Realtime => ClockId::CLOCK_REALTIME,
            Self::Monotonic => ClockId::CLOCK_MONOTONIC,
        }
    }

    /// The time of this clock, ns.
    pub fn now(self) -> Ns {
        latpath_linux::read_clock(self.id())
    }
}

impl fmt::Display for SendClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tai => "tai",
            Self::Realtime => "realtime",
            Self::Monotonic => "monotonic",
        })
    }
}

impl FromStr for SendClock {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|clock| clock.to_string() == text);
        found.ok_or_else(|| "a clock is tai, realtime or monotonic".into())
    }
}

/// How a queueing discipline uses a frame's send time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxTimeMode {
    /// The frame is sent at its send time.
    Strict,
    /// The frame is sent as soon as possible, and at its send time at the latest (`SOF_TXTIME_DEADLINE_MODE`).
    Deadline,
}

impl fmt::Display for TxTimeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Strict => "strict",
            Self::Deadline => "deadline",
        })
    }
}

impl FromStr for TxTimeMode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "strict" => Ok(Self::Strict),
            "deadline" => Ok(Self::Deadline),
            _ => Err("a mode is strict or deadline".into()),
        }
    }
}

#[repr(C, align(8))]
struct Control([u8; CONTROL]);

impl Control {
    /// The control messages for a frame, and their length.
    fn new(at: Option<Ns>, stamps: Stamps) -> (Self, usize) {
        let (mut control, mut len) = (Self([0; CONTROL]), 0);
        let mut put = |name: i32, data: &[u8]| {
            // struct cmsghdr: length, level, type; the next message begins at a multiple of 8 bytes.
            let header = [&(16 + data.len()).to_ne_bytes()[..], &libc::SOL_SOCKET.to_ne_bytes(), &name.to_ne_bytes()];
            for bytes in header.into_iter().chain([data]) {
                control.0[len..len + bytes.len()].copy_from_slice(bytes);
                len += bytes.len();
            }
            len = len.next_multiple_of(8);
        };
        if let Some(at) = at {
            put(SO_TXTIME, &at.to_ne_bytes());
        }
        match stamps.flags() & RECORDING {
            0 => {}
            recorded => put(libc::SO_TIMESTAMPING, &recorded.to_ne_bytes()),
        }
        (control, len)
    }
}

impl PacketSocket {
    /// Announces that frames will have send times by this clock. The socket's error queue then receives the frames that
    /// etf discards ([`crate::Queued::Discarded`]).
    ///
    /// # Errors
    /// A privilege is missing (CAP_NET_ADMIN for clocks other than `CLOCK_MONOTONIC`), or the kernel refuses the option
    /// for another reason.
    pub fn announce_send_times(&self, clock: SendClock, mode: TxTimeMode) -> Result<(), DeviceError> {
        let deadline = if mode == TxTimeMode::Deadline { libc::SOF_TXTIME_DEADLINE_MODE } else { 0 };
        let flags = deadline | libc::SOF_TXTIME_REPORT_ERRORS;
        let value = libc::sock_txtime { clockid: clock.id().as_raw(), flags };
        let set = latpath_linux::net::set_option(self.fd(), libc::SOL_SOCKET, SO_TXTIME, &value);
        set.map_err(|cause| match cause.raw_os_error() {
            Some(libc::EPERM) => {
                let cause = io::Error::other("it needs root or CAP_NET_ADMIN; try with sudo");
                self.refused("announcing send times (SO_TXTIME)", cause)
            }
            _ => self.refused("announcing send times (SO_TXTIME)", cause),
        })
    }

    /// Makes the socket deliver the timestamps of sent frames that [`Self::send_at`] requests for individual frames.
    ///
    /// # Errors
    /// A privilege is missing, or the kernel lacks the option.
    pub fn report_stamps(&self, stamps: Stamps) -> Result<(), DeviceError> {
        let flags = (stamps.flags() & !RECORDING) as i32;
        let set = latpath_linux::net::set_option(self.fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &flags);
        set.map_err(|cause| self.refused("asking for timestamps (SO_TIMESTAMPING)", cause))
    }

    /// Sends a frame; optionally with a send time, by the clock of [`Self::announce_send_times`]. Requests the transmit
    /// timestamps that are set in `stamps`.
    ///
    /// # Errors
    /// As for [`Self::send`].
    pub fn send_at(&self, frame: &[u8], at: Option<Ns>, stamps: Stamps) -> Result<Sent, DeviceError> {
        let (mut control, len) = Control::new(at, stamps);
        let mut vector = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        // SAFETY: all zeros is a valid msghdr: no name, no data, no control.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_iov = &mut vector;
        header.msg_iovlen = 1;
        if len > 0 {
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = len as _;
        }
        loop {
            // SAFETY: the header points to one vector over `frame` and to `len` bytes of `control`, which outlive the
            // call; the kernel only reads them.
            let n = unsafe { libc::sendmsg(self.fd().as_raw_fd(), &header, 0) };
            if n >= 0 {
                return Ok(Sent { taken: 1, refused: false });
            }
            match send_error(self.device(), io::Error::last_os_error(), frame.len()) {
                None => continue,
                Some(result) => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_linux::net::control_messages;

    #[test]
    fn a_frames_control_messages_are_its_send_time_and_the_stamps_to_record() {
        let sampled = Stamps { tx_sched: true, tx_driver: true, ..Stamps::default() };
        let (control, len) = Control::new(Some(1_700_000_000_123_456_789), sampled);
        let recorded = libc::SOF_TIMESTAMPING_TX_SCHED | libc::SOF_TIMESTAMPING_TX_SOFTWARE;
        let expected = [
            ((libc::SOL_SOCKET, 61), 1_700_000_000_123_456_789_i64.to_ne_bytes().to_vec()),
            ((libc::SOL_SOCKET, libc::SO_TIMESTAMPING), recorded.to_ne_bytes().to_vec()),
        ];
        let found: Vec<_> = control_messages(&control.0[..len]).map(|(kind, data)| (kind, data.to_vec())).collect();
        assert_eq!(found, expected);
        assert_eq!(Control::new(None, Stamps::default()).1, 0);
        assert_eq!(Control::new(None, Stamps { rx_kernel: true, ..Stamps::default() }).1, 0, "nothing of a sent frame");
    }

    #[test]
    fn clocks_and_modes_are_read_by_the_names_that_they_show() {
        for clock in SendClock::ALL {
            assert_eq!(clock.to_string().parse(), Ok(clock));
            assert!(clock.now() > 0);
        }
        for mode in [TxTimeMode::Strict, TxTimeMode::Deadline] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("utc".parse::<SendClock>().is_err() && "soon".parse::<TxTimeMode>().is_err());
    }
}
