//! Receives frames, as copies or from a mapped ring.

use crate::packet::{CopyReceiver, PacketSocket, Received};
use crate::ring::RingReceiver;
use crate::DeviceError;
use latpath_linux::realtime;

/// The receiving side of a socket.
pub enum Receiver {
    /// The kernel copies each frame (`recvmmsg`).
    Copy(CopyReceiver),
    /// Frames are read in place from the kernel's ring (TPACKET_V2).
    Ring(RingReceiver),
}

impl Receiver {
    /// Starts receiving on this socket, from a ring if `ring` is set.
    ///
    /// # Errors
    /// The ring cannot be made, or the socket cannot be bound to the device.
    pub fn new(socket: PacketSocket, ring: bool) -> Result<Self, DeviceError> {
        let receiver =
            if ring { Self::Ring(RingReceiver::new(socket)?) } else { Self::Copy(CopyReceiver::new(socket)) };
        // Started only now: frames that arrive before the ring exists would be lost without being counted.
        receiver.socket().start()?;
        Ok(receiver)
    }

    fn socket(&self) -> &PacketSocket {
        match self {
            Self::Copy(r) => r.socket(),
            Self::Ring(r) => r.socket(),
        }
    }

    /// Waits at most 100 ms for frames, calls `take` with each, and returns their number.
    ///
    /// # Errors
    /// The device is down or has vanished, or receiving fails for another reason.
    pub fn receive(&mut self, take: &mut dyn FnMut(Received<'_>)) -> Result<usize, DeviceError> {
        match self {
            Self::Copy(r) => r.receive(take),
            Self::Ring(r) => r.receive(take),
        }
    }

    /// Calls `take` with all frames that arrived before this call, so that nothing is lost at the end.
    ///
    /// # Errors
    /// The device is down or has vanished, or receiving fails for another reason.
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

    /// Number of frames dropped by the kernel because they were not received fast enough.
    pub fn dropped(&self) -> u64 {
        self.socket().dropped()
    }
}
