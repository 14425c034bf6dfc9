//! Where frames are sent: to one device, or as copies to the two devices of a redundant network.

use latpath_protocols::redundancy::{mark, CopyMark, Lan, Method};
use latpath_wire::{DeviceError, PacketSocket, TxStampCounts};
use std::io::IoSlice;

/// Maximum number of frames per system call.
const MAX: usize = 64;

/// The device or devices that send frames.
#[derive(Debug)]
pub struct Output {
    socket: PacketSocket,
    copies: Option<Copies>,
}

/// The second device, in LAN B, and the next packet's sequence number.
#[derive(Debug)]
struct Copies {
    socket: PacketSocket,
    method: Method,
    sequence: u16,
}

/// Result of [`Output::send`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of frames processed, including refused ones.
    pub done: usize,
    /// Frames that the first device accepted.
    pub taken: usize,
    /// Number of frames and second copies lost because the kernel refused them: a queue was full.
    pub refused: u64,
}

/// A frame to be sent, and its copy for the second device, which is empty if there is none.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub bytes: Vec<u8>,
    second: Vec<u8>,
}

impl From<PacketSocket> for Output {
    fn from(socket: PacketSocket) -> Self {
        Self { socket, copies: None }
    }
}

impl Output {
    /// Sends each frame twice: marked as the copy of LAN A on one device, and of LAN B on the other.
    pub fn redundant([a, b]: [PacketSocket; 2], method: Method) -> Self {
        Self { socket: a, copies: Some(Copies { socket: b, method, sequence: 0 }) }
    }

    /// Counts of requested NIC timestamps; `None` if none were requested.
    pub fn tx_stamps(&self) -> Option<TxStampCounts> {
        let sockets = [Some(&self.socket), self.copies.as_ref().map(|copies| &copies.socket)];
        sockets.into_iter().flatten().filter_map(PacketSocket::tx_stamps).reduce(TxStampCounts::plus)
    }

    /// Makes a built frame ready to be sent: for redundant networks, marks both copies.
    ///
    /// # Errors
    /// The frame is too long for the mark of a copy.
    pub(crate) fn prepare(&mut self, frame: &mut Outgoing) -> Result<(), DeviceError> {
        let Some(copies) = &mut self.copies else { return Ok(()) };
        frame.second.clone_from(&frame.bytes);
        for (lan, bytes) in [(Lan::A, &mut frame.bytes), (Lan::B, &mut frame.second)] {
            let copy = CopyMark { method: copies.method, lan, sequence: copies.sequence };
            mark(bytes, copy).map_err(|_| self.socket.too_long(bytes.len()))?;
        }
        copies.sequence = copies.sequence.wrapping_add(1);
        Ok(())
    }

    /// Sends the first of these frames: as many as one system call accepts or, for redundant networks, up to [`MAX`]
    /// with their copies. If one LAN is down, only its copies are lost.
    ///
    /// # Errors
    /// The device, or the devices of both LANs, are down; a device vanished; a frame is too long; or the kernel reports
    /// another error.
    pub(crate) fn send<'a>(&mut self, frames: impl Iterator<Item = &'a Outgoing> + Clone) -> Result<Sent, DeviceError> {
        let fill = |bytes: fn(&'a Outgoing) -> &'a [u8]| {
            let mut slices: [IoSlice<'a>; MAX] = std::array::from_fn(|_| IoSlice::new(&[]));
            let ready = slices.iter_mut().zip(frames.clone()).map(|(slice, frame)| *slice = IoSlice::new(bytes(frame)));
            let ready = ready.count();
            (slices, ready)
        };
        let (slices, ready) = fill(|frame| &frame.bytes);
        let Some(copies) = &mut self.copies else {
            let sent = self.socket.send(&slices[..ready])?;
            let done = sent.taken + usize::from(sent.refused);
            return Ok(Sent { done, taken: sent.taken, refused: sent.refused.into() });
        };
        let by_a = taken_of_all(&mut self.socket, &slices[..ready]);
        let by_b = taken_of_all(&mut copies.socket, &fill(|frame| &frame.second).0[..ready]);
        let (a, b) = match (by_a, by_b) {
            (Err(DeviceError::Down(_)), Ok(b)) => (0, b),
            (Ok(a), Err(DeviceError::Down(_))) => (a, 0),
            (a, b) => (a?, b?),
        };
        Ok(Sent { done: ready, taken: a, refused: (2 * ready - a - b) as u64 })
    }
}

/// Sends all frames, and returns how many the kernel accepted.
fn taken_of_all(socket: &mut PacketSocket, frames: &[IoSlice<'_>]) -> Result<usize, DeviceError> {
    let (mut at, mut taken) = (0, 0);
    while at < frames.len() {
        let sent = socket.send(&frames[at..])?;
        taken += sent.taken;
        at += sent.taken + usize::from(sent.refused);
    }
    Ok(taken)
}
