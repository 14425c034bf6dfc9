//! The mapped receive ring (TPACKET_V2, Documentation/networking/packet_mmap.rst).
//!
//! V2, not V3: a V3 block is handed over when it is full or its timer fires, at the earliest after a millisecond; a V2 frame as
//! soon as it is there.

use super::socket::{tag_of, PacketSocket, Received, WAIT_MS};
use crate::DeviceError;
use latpath_linux::{realtime, Map};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// A slot's size: header and a frame of some 1960 bytes; longer frames are cut, and then malformed.
const SLOT: usize = 2048;
const BLOCK: usize = 1 << 18;
const BLOCKS: usize = 64;
const SLOTS: usize = BLOCK * BLOCKS / SLOT;

/// Receives frames from a ring that the kernel shares with this process.
pub struct RingReceiver {
    socket: PacketSocket,
    map: Map,
    next: usize,
}

impl RingReceiver {
    /// Maps a ring of 8192 slots (16 MiB) for this socket.
    pub fn new(socket: PacketSocket) -> Result<Self, DeviceError> {
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        socket.option("choosing the ring's version", libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: SLOTS as u32,
        };
        socket.option("making the ring", libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let map = Map::new(BLOCK * BLOCKS, flags, socket.fd().as_raw_fd(), 0)
            .map_err(|e| socket.device().failed("mapping the ring", e))?;
        Ok(Self { socket, map, next: 0 })
    }

    pub fn socket(&mut self) -> &mut PacketSocket {
        &mut self.socket
    }

    /// Waits at most 100 ms for frames, hands each that is there to `take` and returns how many there were.
    pub fn receive(&mut self, take: &mut dyn FnMut(Received<'_>)) -> Result<usize, DeviceError> {
        let mut count = 0;
        // At most one round, so that a flood cannot keep the caller from its stop flag.
        while count < SLOTS && self.take_one(take) {
            count += 1;
        }
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

    fn take_one(&mut self, take: &mut dyn FnMut(Received<'_>)) -> bool {
        // SAFETY: `next` is less than SLOTS, so that the slot lies in the mapping, which lives as long as self.
        let slot = unsafe { self.map.at().add(self.next * SLOT) };
        // SAFETY: a slot starts with a tpacket2_hdr, whose first field is the status; it is aligned to SLOT, and both sides
        // access it atomically.
        let status = unsafe { AtomicU32::from_ptr(slot.as_ptr().cast()) };
        // Acquire: what the kernel wrote before it set the status is seen.
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        let had = realtime();
        // SAFETY: the slot is ours until we give it back; the kernel has written the header.
        let h = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let start = usize::from(h.tp_mac).min(SLOT);
        let len = (h.tp_snaplen as usize).min(SLOT - start);
        // SAFETY: inside the slot, which the kernel does not write while it is ours.
        let frame = unsafe { std::slice::from_raw_parts(slot.as_ptr().add(start), len) };
        let arrival = Some(i64::from(h.tp_sec) * 1_000_000_000 + i64::from(h.tp_nsec));
        take(Received { frame, tag: tag_of(h.tp_status, h.tp_vlan_tci, h.tp_vlan_tpid), arrival, had });
        // Release: nothing of the frame is read after it is given back.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        true
    }
}
