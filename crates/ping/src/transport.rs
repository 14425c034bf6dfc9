//! The trait of transports for probes: UDP, Ethernet frames, AF_XDP, and a simulated wire in tests.

use crate::transaction::Stamp;
use latpath_model::Ns;
use latpath_wire::{wait_for, Stamps, TxKind};
use nix::poll::PollFlags;
use std::os::fd::BorrowedFd;

/// How long to wait for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Returns immediately.
    No,
    /// Waits for a message for at most some 50 ms, so that the caller can check its clock and its stop flag.
    Some,
    /// Like `Some`, but at most until this time (`CLOCK_MONOTONIC` ns).
    Until(Ns),
}

impl Wait {
    /// Waits by ppoll until the deadline, if there is one, and returns the flags for recvmsg.
    #[inline]
    pub(crate) fn flags(self, fd: BorrowedFd<'_>) -> i32 {
        match self {
            Self::Some => 0,
            Self::No => libc::MSG_DONTWAIT,
            Self::Until(deadline) => {
                wait_for(fd, PollFlags::POLLIN, deadline);
                libc::MSG_DONTWAIT
            }
        }
    }
}

/// Clock of the kernel's stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelClock {
    /// `CLOCK_REALTIME`, used by sockets.
    Realtime,
    /// `CLOCK_MONOTONIC`, used by eBPF programs.
    Monotonic,
}

/// A received message. Its bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived<P> {
    /// Address of the sender.
    pub from: P,
    /// Length, bytes.
    pub len: usize,
    /// Kernel stamp, in the clock that [`Transport::kernel_clock`] returns.
    pub kernel: Option<Ns>,
    /// NIC stamp, in its PHC.
    pub nic: Option<Ns>,
}

/// Result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel accepted it.
    Taken,
    /// The kernel refused it, e.g. because a queue was full; the message is lost.
    Refused,
}

/// Result of receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got<P> {
    /// A message.
    Message(Arrived<P>),
    /// No message.
    Nothing,
    /// The peer's kernel reported a closed port (ICMP port unreachable).
    NobodyThere,
}

/// A stamp of a sent message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentStamp<'a> {
    /// The sent message.
    pub message: &'a [u8],
    /// Kind of stamp: sched, driver or nic, expressed as the emitter's (T1).
    pub stamp: Stamp,
    /// Time of the stamp: in `CLOCK_REALTIME`, or in the PHC for a NIC stamp.
    pub time: Ns,
}

/// A transport of messages.
pub trait Transport {
    /// Address of a peer.
    type Peer: Copy + Eq + std::hash::Hash + std::fmt::Debug;
    /// Fatal errors, e.g. a vanished device.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Sends a message without waiting.
    ///
    /// # Errors
    /// If the transport is unusable from now on.
    fn send(&mut self, to: Self::Peer, message: &[u8]) -> Result<Sent, Self::Error>;

    /// Whether both addresses belong to the same host, as far as the addresses show.
    fn are_of_one_host(a: &Self::Peer, b: &Self::Peer) -> bool {
        a == b
    }

    /// Whether an error of [`Self::send`] only means that this message was too long, so that a reflector continues.
    fn is_of_message(_: &Self::Error) -> bool {
        false
    }

    /// Receives a message into `buffer`.
    ///
    /// # Errors
    /// If the transport cannot continue.
    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<Self::Peer>, Self::Error>;

    /// Passes the stamps of messages sent since the last call to `each`, without waiting.
    ///
    /// # Errors
    /// If the transport cannot continue.
    fn left(&mut self, each: &mut dyn FnMut(SentStamp<'_>)) -> Result<(), Self::Error>;

    /// Mask of the stamps that this transport takes ([`Stamp::bit`]), expressed as the emitter's and without the
    /// application's.
    fn takes(&self) -> u16;

    /// Clock of the kernel stamps of received messages.
    fn kernel_clock(&self) -> KernelClock {
        KernelClock::Realtime
    }

    /// Number of messages that the kernel has dropped so far because a buffer was full.
    fn dropped(&self) -> u64;

    /// Error with which the last message was refused; `None` if none was refused, or if the transport does not record
    /// it.
    fn last_refusal(&self) -> Option<std::io::Error> {
        None
    }
}

/// Mask of the stamps that are requested of a socket ([`Stamp::bit`]), expressed as the emitter's.
pub(crate) fn asked_for(stamps: &Stamps) -> u16 {
    let each = [
        (stamps.tx_sched, Stamp::T1Sched),
        (stamps.tx_driver, Stamp::T1Driver),
        (stamps.tx_nic, Stamp::T1Nic),
        (stamps.rx_nic, Stamp::T4Nic),
        (stamps.rx_kernel, Stamp::T4Kernel),
    ];
    each.iter().filter(|(asked, _)| *asked).fold(0, |mask, (_, stamp)| mask | stamp.bit())
}

/// The emitter's stamp that corresponds to a kind of stamp in the error queue.
pub(crate) fn of_sending(kind: TxKind) -> Stamp {
    match kind {
        TxKind::Sched => Stamp::T1Sched,
        TxKind::Driver => Stamp::T1Driver,
        TxKind::Nic => Stamp::T1Nic,
    }
}

/// The reflector's stamp that corresponds to one of the emitter's: T3 for the stamps of sending (sched, driver, nic),
/// T2 for those of receiving (nic, kernel).
pub fn at_reflector(emitters: Stamp) -> Stamp {
    match emitters {
        Stamp::T1Sched => Stamp::T3Sched,
        Stamp::T1Driver => Stamp::T3Driver,
        Stamp::T1Nic => Stamp::T3Nic,
        Stamp::T4Nic => Stamp::T2Nic,
        Stamp::T4Kernel => Stamp::T2Kernel,
        other => other,
    }
}
