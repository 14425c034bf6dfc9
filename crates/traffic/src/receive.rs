//! Receiving, by copies or from a mapped ring.

use crate::kernel::{CopyReceiver, PacketSocket, Received, RingReceiver};
use crate::DeviceError;
use latpath_linux::realtime;

/// A socket's receiving side.
pub enum Receiver {
    /// The kernel copies each frame (`recvmmsg`).
    Copy(CopyReceiver),
    /// Frames are read where the kernel put them (TPACKET_V2).
    Ring(RingReceiver),
}

impl Receiver {
    /// Receives from this socket, from now on.
    pub fn new(socket: PacketSocket, ring: bool) -> Result<Self, DeviceError> {
        let mut receiver =
            if ring { Self::Ring(RingReceiver::new(socket)?) } else { Self::Copy(CopyReceiver::new(socket)) };
        // Only now, for what came before the ring is there would be lost without a trace.
        receiver.socket().start()?;
        Ok(receiver)
    }

    fn socket(&mut self) -> &mut PacketSocket {
        match self {
            Self::Copy(r) => r.socket(),
            Self::Ring(r) => r.socket(),
        }
    }

    /// Waits at most 100 ms for frames, hands each to `take` and returns how many there were.
    pub fn receive(&mut self, take: &mut dyn FnMut(Received<'_>)) -> Result<usize, DeviceError> {
        match self {
            Self::Copy(r) => r.receive(take),
            Self::Ring(r) => r.receive(take),
        }
    }

    /// Hands over what had arrived before this call and still waits, so that an end loses nothing.
    pub fn drain(&mut self, take: &mut dyn FnMut(Received<'_>)) -> Result<(), DeviceError> {
        let (end, mut beyond) = (realtime(), false);
        while !beyond {
            let n = self.receive(&mut |frame| match frame.arrival {
                Some(t) if t > end => beyond = true,
                _ => take(frame),
            })?;
            beyond |= n == 0;
        }
        Ok(())
    }

    /// Frames that the kernel dropped, because they were not taken fast enough.
    pub fn dropped(&mut self) -> u64 {
        self.socket().dropped()
    }
}
