//! What carries probes: UDP, Ethernet frames, AF_XDP; and, in tests, a wire that does whatever real ones do.

use crate::kernel::wait_until;
use crate::transaction::Stamp;
use latpath_model::Ns;
use latpath_nic_timestamps::{Stamps, TxKind};
use std::os::fd::BorrowedFd;

/// How long to wait for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until one comes, at most some 50 ms, so that the caller can look at its clock and its stop flag.
    Some,
    /// Until this moment of `CLOCK_MONOTONIC`, if it comes before that.
    Until(Ns),
}

impl Wait {
    /// How to call the kernel for this wait, after waiting where that is not its part.
    #[inline]
    pub(crate) fn flags(self, fd: BorrowedFd<'_>) -> i32 {
        match self {
            Self::Some => 0,
            Self::No => libc::MSG_DONTWAIT,
            Self::Until(deadline) => {
                wait_until(fd, deadline);
                libc::MSG_DONTWAIT
            }
        }
    }
}

/// The clock of the kernel's stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelClock {
    /// `CLOCK_REALTIME`, as sockets have it.
    Realtime,
    /// `CLOCK_MONOTONIC`, as eBPF programs have it.
    Monotonic,
}

/// One message as it arrived. Its bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived<P> {
    /// The sender's address.
    pub from: P,
    /// Bytes of it.
    pub len: usize,
    /// When the kernel had it, in the clock that [`Transport::kernel_clock`] says.
    pub kernel: Option<Ns>,
    /// When the NIC had it, its PHC.
    pub nic: Option<Ns>,
}

/// What became of a message that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel took it.
    Taken,
    /// A queue was full: it is lost.
    Refused,
}

/// What a look for a message brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got<P> {
    Message(Arrived<P>),
    /// None yet.
    Nothing,
    /// The other end's kernel says that nobody listens there (ICMP port unreachable).
    NobodyThere,
}

/// A message that left, as its stamp names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left<'a> {
    pub message: &'a [u8],
    /// Which of sched, driver and nic; named as the emitter's (T1).
    pub stamp: Stamp,
    /// When: `CLOCK_REALTIME`, or the PHC for the NIC's.
    pub time: Ns,
}

/// What carries messages.
pub trait Transport {
    /// How one at the other end is named.
    type Peer: Copy + Eq + std::hash::Hash + std::fmt::Debug;
    /// What ends it: a device that vanished, and the like.
    type Error: std::error::Error + Send + Sync + 'static;

    fn send(&mut self, to: Self::Peer, message: &[u8]) -> Result<Sent, Self::Error>;

    /// Whether both are of one host, as far as their addresses show it.
    fn are_of_one_host(a: &Self::Peer, b: &Self::Peer) -> bool {
        a == b
    }

    /// Whether an error of [`Self::send`] is of that message alone, which is too long: a reflector goes on with others.
    fn is_of_message(_: &Self::Error) -> bool {
        false
    }

    /// Looks for a message, and puts it into `buffer`.
    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<Self::Peer>, Self::Error>;

    /// Hands over the stamps of messages that left since the last call. Never waits.
    fn left(&mut self, each: &mut dyn FnMut(Left<'_>)) -> Result<(), Self::Error>;

    /// Stamps that it takes of what it sends and receives, as the emitter's: a mask of [`Stamp::bit`] without the
    /// app's.
    fn takes(&self) -> u16;

    /// The clock of the kernel's stamps of messages that arrived.
    fn kernel_clock(&self) -> KernelClock {
        KernelClock::Realtime
    }

    /// Messages that the kernel dropped so far because there was no room for them here.
    fn dropped(&self) -> u64;

    /// Why the kernel refused a message last: a full queue where nothing else is said.
    fn last_refusal(&self) -> Option<std::io::Error> {
        None
    }
}

/// The stamps that a socket was asked for, as the emitter's: a mask of [`Stamp::bit`].
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

/// A stamp of the error queue, as the emitter's.
pub(crate) fn of_sending(kind: TxKind) -> Stamp {
    match kind {
        TxKind::Sched => Stamp::T1Sched,
        TxKind::Driver => Stamp::T1Driver,
        TxKind::Nic => Stamp::T1Nic,
    }
}

/// The reflector's stamp where the emitter's is given: sched, driver and nic of sending, nic and kernel of receiving.
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
