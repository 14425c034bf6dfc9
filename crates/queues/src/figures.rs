//! The results, as plain numbers.

use latpath_bpf::Window;
use latpath_histogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Virtio device type of NICs.
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

/// Directions in which the device accesses a queue's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directions {
    /// The device reads buffers of the queue.
    pub reads: bool,
    /// The device writes to buffers of the queue.
    pub writes: bool,
}

/// How far a ring's own index moved, and how many buffers were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Distance that the index moved since its first reading, modulo 2^64: in buffers, or for packed rings in
    /// descriptors. If buffers are put back, it moves backwards, possibly beyond its first reading.
    pub moved: u64,
    /// Distance that the index should have moved, according to the buffers counted since then.
    pub counted: u64,
}

impl Ring {
    /// Distance that the index moved forward; 0 if it moved backward.
    pub fn forward(self) -> u64 {
        (self.moved as i64).max(0).unsigned_abs()
    }

    /// Distance moved minus distance counted; 0 if no buffer passed unseen.
    pub fn difference(self) -> i64 {
        self.moved.wrapping_sub(self.counted) as i64
    }
}

/// Counts of a virtqueue in the window. The names are the keys in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueCounts {
    /// Number of descriptors in its ring.
    pub size: u32,
    /// Bytes in posted buffers for the device to read.
    pub posted_read_bytes: u64,
    /// Bytes in posted buffers that the device may write.
    pub posted_write_bytes: u64,
    /// vhost: buffers that it put back on the ring, to take them again.
    pub put_back_buffers: u64,
    /// Driver: buffers that did not fit in the ring.
    pub refused_buffers: u64,
    /// Buffers returned to the driver; for vhost, buffers that it used.
    pub used_buffers: u64,
    /// Bytes that the device reports as written to used buffers, headers included.
    pub written_bytes: u64,
    /// Bytes that the device read from used buffers whose posting was observed (`waited.count`), headers included.
    pub read_bytes: u64,
    /// Number of times that the indices started again, e.g. because the queue was reset.
    pub index_resets: u64,
    /// Kicks.
    pub kicks: u64,
    /// Driver: kicks that the device had suppressed.
    pub kicks_suppressed: u64,
    /// vhost: rounds of its worker.
    pub rounds: u64,
    /// Driver: interrupts that it handled. vhost: interrupts that it signalled.
    pub interrupts: u64,
    /// vhost: interrupts that the driver had suppressed.
    pub interrupts_suppressed: u64,
    /// Driver: interrupts without a used buffer, e.g. on an interrupt line that several queues share.
    pub interrupts_empty: u64,
    /// vhost: signals that KVM turned into interrupts without QEMU (irqfd).
    pub interrupts_by_irqfd: u64,
    /// Driver: the IRQ number in `/proc/interrupts`. vhost: the GSI in KVM.
    pub interrupt: Option<u32>,
}

/// One virtqueue in the window.
#[derive(Clone, Debug)]
pub struct Queue {
    /// The side that counts.
    pub side: Side,
    /// Driver: N of the device `virtioN`. vhost: the tap's index in its network namespace; 0 if there is no tap.
    pub device: u32,
    /// Driver: the device's type ([`VIRTIO_NET`]).
    pub device_id: u32,
    /// vhost: inode number of the tap's network namespace.
    pub netns: u32,
    /// vhost: the process that owns the queue; 0 if the kernel does not report it.
    pub pid: u32,
    /// vhost: address of the function that serves its kicks.
    pub handler: u64,
    /// Driver: the queue's own name. vhost: the tap's name; empty if there is no tap.
    pub name: String,
    /// Driver: the queue's index in the device. vhost: the index of the tap's queue.
    pub index: u32,
    /// Whether its ring is packed, rather than split.
    pub is_packed: bool,
    /// Directions of the posted buffers.
    pub directions: Directions,
    /// Whether the queue was deleted in the window.
    pub gone: bool,
    /// Driver: buffers posted. vhost: buffers taken off the ring, including those put back.
    pub posted: u64,
    /// NICs: length of the header before each packet, bytes.
    pub header: u32,
    /// NICs: packets in used buffers of a receive queue.
    pub packets: u64,
    /// Driver: the ring's index of available buffers. vhost: its index of taken buffers.
    pub available: Ring,
    /// The ring's index of used buffers.
    pub used_up: Ring,
    /// Its counts.
    pub counts: QueueCounts,
    /// Time that the device held a buffer, ns. Driver: from posting to return. vhost: from taking to use.
    pub waited: Histogram,
    /// Driver: number of descriptors in use when a buffer was posted. vhost: number of buffers waiting when one was
    /// taken, including that one.
    pub occupied: Histogram,
    /// Driver: buffers per kick. vhost: buffers per round of its worker.
    pub per_kick: Histogram,
    /// Used buffers per interrupt.
    pub per_interrupt: Histogram,
}

impl Queue {
    /// For a NIC's queues as seen by the driver: number of packets that the driver received or finished sending, and
    /// their bytes without headers. `None` for other queues, including those of vhost.
    pub fn packets(&self) -> Option<(u64, u64)> {
        let header = |packets: u64| packets * u64::from(self.header);
        match (self.side, self.device_id, self.name.split('.').next()) {
            (Side::Driver, VIRTIO_NET, Some("input")) => {
                Some((self.packets, self.counts.written_bytes.saturating_sub(header(self.packets))))
            }
            (Side::Driver, VIRTIO_NET, Some("output")) => {
                let sent = self.waited.count();
                Some((sent, self.counts.read_bytes.saturating_sub(header(sent))))
            }
            _ => None,
        }
    }
}

impl Queues {
    /// Sets the process of vhost queues for which the kernel does not report it: it is the owner of their tap. `owner`
    /// finds it by the tap's network namespace and index.
    pub fn assign_owners(&mut self, owner: impl Fn(u32, u32) -> Option<u32>) {
        let is_unowned = |queue: &&mut Queue| queue.side == Side::Vhost && queue.pid == 0;
        for queue in self.queues.iter_mut().filter(is_unowned) {
            queue.pid = owner(queue.netns, queue.device).unwrap_or(0);
        }
    }
}

/// Results of a watch.
#[derive(Clone, Debug, Default)]
pub struct Queues {
    /// The window.
    pub window: Window,
    /// Queues that had events.
    pub queues: Vec<Queue>,
    /// Number of events of queues that did not fit into the table.
    pub no_room: u64,
    /// Number of buffers whose waiting time is unknown because too many buffers were outstanding.
    pub untimed: u64,
}
