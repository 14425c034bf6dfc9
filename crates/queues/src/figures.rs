//! What was seen, as plain numbers.

use latpath_bpf::Window;
use latpath_histogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of network cards among virtio's devices.
pub const VIRTIO_NET: u32 = 1;

/// The side that counts a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Virtio's driver: this machine is a guest.
    #[default]
    Driver,
    /// vhost: this machine is a guest's host.
    Vhost,
}

/// What the device does with a queue's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directions {
    pub reads: bool,
    pub writes: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// How far it moved since it was first read, modulo 2^64: by a buffer, of packed rings by a descriptor. What was given back moved it
    /// back, maybe behind where it was first read.
    pub moved: u64,
    /// How far what was counted since then should have moved it.
    pub counted: u64,
}

impl Ring {
    /// How far it moved forward.
    pub fn forward(self) -> u64 {
        (self.moved as i64).max(0).unsigned_abs()
    }

    /// Nought where nothing passed unseen.
    pub fn difference(self) -> i64 {
        self.moved.wrapping_sub(self.counted) as i64
    }
}

/// One virtqueue in the window.
#[derive(Clone, Debug)]
pub struct Queue {
    /// The side that counts.
    pub side: Side,
    /// Driver: N of the device `virtioN`. vhost: the tap's index in its network namespace; 0 where it is no tap.
    pub device: u32,
    /// Driver: the device's type ([`VIRTIO_NET`]).
    pub device_id: u32,
    /// vhost: inode number of the tap's network namespace.
    pub netns: u32,
    /// vhost: the process that owns it; 0 where the kernel does not say.
    pub pid: u32,
    /// vhost: the function that serves its kicks, an address.
    pub handler: u64,
    /// Driver: the queue's own name. vhost: the tap's; empty where it is no tap.
    pub name: String,
    /// Driver: its number in the device. vhost: the tap's queue.
    pub index: u32,
    /// Descriptors in the ring.
    pub size: u32,
    /// The layout of its ring: packed, or split.
    pub is_packed: bool,
    /// What buffers were posted.
    pub directions: Directions,
    /// It was deleted in the window.
    pub gone: bool,
    /// Buffers that the driver posted; at vhost: that it took off the ring, with those that it put back.
    pub posted: u64,
    /// vhost: of these, put back, to be taken again.
    pub put_back: u64,
    /// Driver: buffers that did not fit in the ring.
    pub refused: u64,
    /// Bytes in posted buffers that the device reads.
    pub read_bytes: u64,
    /// Room in posted buffers that the device writes to.
    pub write_bytes: u64,
    /// Buffers that the driver got back; at vhost: that it has used.
    pub used: u64,
    /// Bytes that the device says it wrote to them.
    pub used_bytes: u64,
    /// Bytes that the device read in used buffers whose posting was seen: as many as [`Queue::waited`] counts.
    pub done_bytes: u64,
    /// Network cards: bytes of the header before each packet.
    pub header: u32,
    /// Network cards: packets in used buffers of a receive queue.
    pub packets: u64,
    /// The ring's index of what was made available; at vhost: of what it took.
    pub available: Ring,
    /// The ring's index of what was used.
    pub used_up: Ring,
    /// How often the indices began again, as when a queue is reset.
    pub resets: u64,
    pub kicks: u64,
    /// Driver: kicks that were not needed, as the device said.
    pub kicks_suppressed: u64,
    /// vhost: rounds of its worker.
    pub rounds: u64,
    /// Interrupts: those that the driver took; at vhost: those that it signalled.
    pub interrupts: u64,
    /// vhost: interrupts that were not needed, as the driver said.
    pub interrupts_suppressed: u64,
    /// Driver: interrupts that found nothing used, as on a line that several queues share.
    pub interrupts_empty: u64,
    /// vhost: signals that KVM made an interrupt of, without QEMU.
    pub by_irqfd: u64,
    /// Driver: the interrupt's number. vhost: its GSI. `None` where none came.
    pub interrupt: Option<u32>,
    /// How long the device had a buffer: from being added to being got back; at vhost: from being taken to being used.
    pub waited: Histogram,
    /// When a buffer was posted: descriptors in use. At vhost, when a buffer was taken: buffers that were waiting,
    /// this one included.
    pub occupied: Histogram,
    /// Buffers of a kick; at vhost: of a round of its worker.
    pub per_kick: Histogram,
    /// Used buffers of an interrupt.
    pub per_interrupt: Histogram,
}

impl Queue {
    /// Network cards: packets and their bytes, without headers, that the driver received or has finished sending.
    /// `None` of other queues.
    pub fn packets(&self) -> Option<(u64, u64)> {
        let header = |packets: u64| packets * u64::from(self.header);
        match (self.side, self.device_id, self.name.split('.').next()) {
            (Side::Driver, VIRTIO_NET, Some("input")) => {
                Some((self.packets, self.used_bytes.saturating_sub(header(self.packets))))
            }
            (Side::Driver, VIRTIO_NET, Some("output")) => {
                let sent = self.waited.count();
                Some((sent, self.done_bytes.saturating_sub(header(sent))))
            }
            _ => None,
        }
    }
}

impl Queues {
    /// Gives queues whose process the kernel does not say the one that has their tap, by its network namespace and
    /// index.
    pub fn assign_owners(&mut self, owner: impl Fn(u32, u32) -> Option<u32>) {
        let is_unowned = |queue: &&mut Queue| queue.side == Side::Vhost && queue.pid == 0;
        for queue in self.queues.iter_mut().filter(is_unowned) {
            queue.pid = owner(queue.netns, queue.device).unwrap_or(0);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Queues {
    pub window: Window,
    /// Queues in which something happened.
    pub queues: Vec<Queue>,
    /// Events of queues for which there was no room.
    pub no_room: u64,
    /// Buffers whose waiting is not known, because too many were under way.
    pub untimed: u64,
}
