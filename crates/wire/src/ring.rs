//! The mapped receive ring (TPACKET_V2, Documentation/networking/packet_mmap.rst).
//!
//! V2 is used rather than V3: a V3 block is delivered only when it is full or its timer fires, after at least a
//! millisecond, whereas a V2 frame is delivered immediately.

#![allow(unsafe_code)]

use crate::control::tag_of;
use crate::packet::{PacketSocket, Received, WAIT_MS};
use crate::DeviceError;
use latpath_linux::{realtime, Map};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

const BLOCK: usize = 1 << 18;
const BLOCKS: usize = 64;
/// Slot size for the usual MTU, bytes. `MAX_SLOT` is the largest size, for the longest frames that the parsers can
/// read.
const MIN_SLOT: usize = 2048;
const MAX_SLOT: usize = 16384;
/// Size of a slot beyond the device's MTU, bytes: the kernel's header, the Ethernet header with two tags, and
/// alignment.
const BESIDE_MTU: usize = 128;

/// Size of a slot for frames of this MTU, bytes; longer frames are truncated, and so count as malformed.
fn slot_size(mtu: usize) -> usize {
    mtu.saturating_add(BESIDE_MTU).min(MAX_SLOT).next_power_of_two().max(MIN_SLOT)
}

/// Receives frames from a ring that the kernel shares with this process.
pub struct RingReceiver {
    socket: PacketSocket,
    map: Map,
    slot: usize,
    slots: usize,
    next: usize,
}

impl RingReceiver {
    /// Maps a ring of 16 MiB for this socket: 8192 slots at the usual MTU.
    ///
    /// # Errors
    /// The ring cannot be made or mapped.
    pub fn new(socket: PacketSocket) -> Result<Self, DeviceError> {
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        socket.option("choosing the ring's version", libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let slot = slot_size(socket.device().mtu);
        let slots = BLOCK * BLOCKS / slot;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: slot as u32,
            tp_frame_nr: slots as u32,
        };
        socket.option("making the ring", libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let map = Map::new(BLOCK * BLOCKS, flags, socket.fd().as_raw_fd(), 0)
            .map_err(|e| socket.device().failed("mapping the ring", e))?;
        Ok(Self { socket, map, slot, slots, next: 0 })
    }

    /// The socket.
    pub fn socket(&self) -> &PacketSocket {
        &self.socket
    }

    /// Waits at most 100 ms for frames, calls `take` with each available one, and returns their number.
    ///
    /// # Errors
    /// The device is down or has vanished, or receiving fails for another reason.
    pub fn receive(&mut self, take: &mut dyn FnMut(Received<'_>)) -> Result<usize, DeviceError> {
        let count = self.receive_available(take);
        if count > 0 {
            return Ok(count);
        }
        let mut poll = libc::pollfd { fd: self.socket.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, valid during the call.
        let n = unsafe { libc::poll(&mut poll, 1, WAIT_MS) };
        if n > 0 && poll.revents & (libc::POLLERR | libc::POLLNVAL) != 0 {
            let e = nix::sys::socket::getsockopt(&self.socket.fd(), nix::sys::socket::sockopt::SocketError);
            let e = e.map_or_else(io::Error::from, io::Error::from_raw_os_error);
            return Err(self.socket.device().failed("receiving", e));
        }
        Ok(0)
    }

    /// Calls `take` with each available frame, without a system call, and returns their number.
    pub fn receive_available(&mut self, take: &mut dyn FnMut(Received<'_>)) -> usize {
        let mut count = 0;
        // At most once around the ring, so that a flood of frames cannot keep the caller from checking its stop flag.
        while count < self.slots && self.take_one(take) {
            count += 1;
        }
        count
    }

    fn take_one(&mut self, take: &mut dyn FnMut(Received<'_>)) -> bool {
        // SAFETY: `next` is less than `slots`, so the slot lies in the mapping, which lives as long as self.
        let slot = unsafe { self.map.at().add(self.next * self.slot) };
        // SAFETY: a slot starts with a tpacket2_hdr, whose first field is the status; it is aligned to its size, and
        // both sides access it atomically.
        let status = unsafe { AtomicU32::from_ptr(slot.as_ptr().cast()) };
        // Acquire: makes the kernel's writes before it set the status visible.
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        let had = realtime();
        // SAFETY: the slot belongs to this process until it is returned; the kernel has written the header.
        let h = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let start = usize::from(h.tp_mac).min(self.slot);
        let len = (h.tp_snaplen as usize).min(self.slot - start);
        // SAFETY: inside the slot, which the kernel does not write while it belongs to this process.
        let frame = unsafe { std::slice::from_raw_parts(slot.as_ptr().add(start), len) };
        let arrival = Some(i64::from(h.tp_sec) * 1_000_000_000 + i64::from(h.tp_nsec));
        let tag = tag_of(h.tp_status, h.tp_vlan_tci, h.tp_vlan_tpid);
        take(Received { frame, tag, arrival, nic: None, had });
        // Release: all reads of the frame are complete before the slot is returned.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_room_for_a_frame_of_the_devices_mtu() {
        let sizes = [68, 1500, 1904, 1921, 9000, 65_536, usize::MAX].map(slot_size);
        assert_eq!(sizes, [2048, 2048, 2048, 4096, 16_384, 16_384, 16_384]);
        assert!(sizes.iter().all(|size| BLOCK.is_multiple_of(*size)), "no slot crosses the end of a block");
    }
}
