//! Traffic of virtqueues, as counted in virtio's drivers and in vhost.

mod instrument;

use latpath_bpf::Functions;
use latpath_counters::DeviceStatistics;
use latpath_histogram::Histogram;
use latpath_model::Observation;
use latpath_net::Inode;
use latpath_queues::{Queue, Queues as Counted, Side, VirtioDevice};
use latpath_stats::TimeFigures;
use latpath_vms::TapKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub use instrument::{Queues, QueuesOptions};
pub use latpath_queues::QueueCounts;

/// Traffic of all virtqueues in a window.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct QueuesFigures {
    /// Devices whose queues were used: this machine's virtio devices, and the devices that vhost serves for its VMs.
    pub devices: Vec<Device>,
    /// Number of events of queues that did not fit into the table; these queues are missing from the figures.
    pub events_without_room: u64,
    /// Number of buffers whose waiting time is unknown, because too many were in flight.
    pub buffers_untimed: u64,
}

/// One device.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// `driver`: the figures of the driver, with this machine as the guest. `vhost`: those of vhost, with this machine
    /// as the host.
    pub side: Side,
    /// Name, e.g. `virtio0`; for vhost that of the tap, or `null` if it has none.
    pub name: Option<String>,
    /// Names under which users know a virtio device, e.g. `eth0`, `vda`.
    pub known_as: Vec<String>,
    /// Driver of a virtio device, e.g. `virtio_net`.
    pub driver: Option<String>,
    /// For vhost: the VM; `null` if it had ended by the end of the window.
    pub vm: Option<String>,
    /// For vhost: PID of the VM's process.
    pub pid: Option<u32>,
    /// Its queues.
    pub queues: Vec<QueueFigures>,
    /// Network cards and taps: packets to the guest, compared with the device's own counter.
    pub to_guest: Option<Agreement>,
    /// Network cards and taps: packets from the guest, compared with the device's own counter.
    pub from_guest: Option<Agreement>,
}

/// Traffic of a network card's queues in one direction, and the device's own counters over nearly the same window. The
/// queues' bytes exclude virtio's packet headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Agreement {
    /// Number of packets in its queues; `null` for packets from vhost to the guest, each of which may take several
    /// buffers.
    pub packets: Option<u64>,
    /// Number of bytes in its queues.
    pub bytes: u64,
    /// Number of packets that the device counted; a large packet that is segmented later counts as one.
    pub device_packets: u64,
    /// Number of bytes that the device counted.
    pub device_bytes: u64,
}

impl Agreement {
    /// Differences in packets and in bytes: the queues' count minus the device's.
    pub fn difference(self) -> (i64, i64) {
        let packets = self.packets.map_or(0, |packets| packets as i64 - self.device_packets as i64);
        (packets, self.bytes as i64 - self.device_bytes as i64)
    }
}

/// Memory layout of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// One ring per direction.
    #[default]
    Split,
    /// One ring for both directions.
    Packed,
}

/// One queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct QueueFigures {
    /// Name, e.g. `input.0`, `requests`; for vhost `rx 0`, `tx 0`, or the function that serves the queue.
    pub queue: String,
    /// Its index in the device; for vhost, the index of the tap's queue.
    pub number: u32,
    /// Layout of its ring.
    pub layout: Layout,
    /// Its counts.
    #[serde(flatten)]
    pub counts: QueueCounts,
    /// Whether the device reads its buffers.
    pub device_reads: bool,
    /// Whether the device writes to its buffers.
    pub device_writes: bool,
    /// Whether it was deleted in the window.
    pub deleted: bool,
    /// Number of buffers that the driver posted; for vhost, number of buffers that vhost took off the ring, excluding
    /// those that it put back.
    pub posted_buffers: u64,
    /// Advance of the ring's index of posted buffers minus the counted buffers: 0 unless buffers were missed.
    pub posted_index_difference: i64,
    /// Advance of the ring's index of used buffers minus the counted buffers: 0 unless buffers were missed.
    pub used_index_difference: i64,
    /// Sum of the advances of both indices while they were compared with the counts: in buffers; for packed rings, in
    /// descriptors.
    pub index_moved: u64,
    /// For drivers: the name of the interrupt.
    pub interrupt_name: Option<String>,
    /// Time for which the device held each buffer; percentiles have an error of at most 3 %. A buffer that the device
    /// only writes (packets to the guest) mostly waits for data to write, which is no delay.
    pub waited: TimeFigures,
    /// For drivers: descriptors in use when a buffer was posted. For vhost: buffers waiting when vhost took one,
    /// including that one.
    pub occupied: Sizes,
    /// For drivers: buffers posted per kick. For vhost: buffers taken per round of the worker.
    pub per_kick: Sizes,
    /// Buffers used per interrupt.
    pub per_interrupt: Sizes,
}

/// Distribution of sizes; percentiles have an error of at most 3 %.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Sizes {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Minimum.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

impl Sizes {
    fn of(histogram: &Histogram) -> Self {
        let [p50, p99] = histogram.percentiles([500_000, 990_000]);
        Self {
            count: histogram.count(),
            mean: histogram.sum() as f64 / histogram.count().max(1) as f64,
            min: histogram.min() as u64,
            p50: p50 as u64,
            p99: p99 as u64,
            max: histogram.max() as u64,
        }
    }
}

/// Sources of the names of queues and their devices.
#[derive(Default)]
pub struct Names {
    /// Names of the kernel's functions.
    pub functions: Arc<Functions>,
    /// Names of interrupts, by interrupt number.
    pub interrupts: HashMap<u32, String>,
    /// Virtio devices, by index.
    pub devices: HashMap<u32, VirtioDevice>,
    /// Names of VMs, by process ID.
    pub vms: HashMap<u32, String>,
    /// This process's network namespace.
    pub netns: Option<Inode>,
    /// Counters of network devices over the window, by namespace and index.
    pub statistics: DeviceStatistics,
    /// Kinds of the VMs' taps, by namespace and index.
    pub taps: HashMap<(Inode, u32), TapKind>,
}

/// Key of a device: side, process, namespace and index.
type Key = (Side, u32, u32, u32);

impl QueuesFigures {
    /// Computes the figures from the programs' counts.
    pub fn observe(counted: &Counted, names: &Names) -> Observation<Self> {
        let mut devices: BTreeMap<Key, Vec<&Queue>> = BTreeMap::new();
        for queue in &counted.queues {
            devices.entry((queue.side, queue.pid, queue.netns, queue.device)).or_default().push(queue);
        }
        let figures = Self {
            devices: devices.into_iter().map(|(key, queues)| Device::of(key, &queues, names)).collect(),
            events_without_room: counted.no_room,
            buffers_untimed: counted.untimed,
        };
        let mut notes = Vec::new();
        if counted.no_room > 0 {
            notes.push("the table was full: some queues are missing".into());
        }
        if counted.untimed > 0 {
            let buffers = counted.untimed;
            notes.push(format!("how long the device had {buffers} buffers is not known: too many were under way"));
        }
        if counted.window.missed > 0 {
            notes.push(format!("events that the kernel skipped, not counted: {}", counted.window.missed));
        }
        counted.window.observation(figures, notes)
    }
}

impl QueueFigures {
    /// Whether the device only writes to its buffers, so that each buffer waits for data to write.
    pub fn is_filled_by_device(&self) -> bool {
        self.device_writes && !self.device_reads
    }
}

impl Device {
    fn of((side, pid, netns, number): Key, queues: &[&Queue], names: &Names) -> Self {
        let mut figures: Vec<QueueFigures> = queues.iter().map(|queue| QueueFigures::of(queue, names)).collect();
        figures.sort_by(|a, b| (a.number, &a.queue).cmp(&(b.number, &b.queue)));
        match side {
            Side::Driver => {
                let known = names.devices.get(&number).cloned().unwrap_or_default();
                let counted = known.ifindex.and_then(|ifindex| names.statistics.get(&(names.netns?, ifindex)));
                let passed = |is_meant: fn(&Queue) -> bool| {
                    let all: Vec<(u64, u64)> =
                        queues.iter().filter(|q| is_meant(q)).filter_map(|q| q.packets()).collect();
                    (Some(all.iter().map(|(packets, _)| packets).sum()), all.iter().map(|(_, bytes)| bytes).sum())
                };
                Self {
                    side,
                    name: Some(format!("virtio{number}")),
                    known_as: known.names,
                    driver: known.driver,
                    vm: None,
                    pid: None,
                    queues: figures,
                    to_guest: counted.map(|c| agreement(passed(|q| q.directions.writes), (c.rx_packets, c.rx_bytes))),
                    from_guest: counted.map(|c| agreement(passed(|q| q.directions.reads), (c.tx_packets, c.tx_bytes))),
                }
            }
            Side::Vhost => {
                let device = (netns, number);
                let kind = names.taps.get(&device).copied().unwrap_or_default();
                let counted = names.statistics.get(&device).map(|counted| kind.to_and_from_guest(counted));
                // In the ring, each packet is preceded by a header.
                let header = queues.iter().map(|q| u64::from(q.header)).max().unwrap_or(0);
                let written: u64 = queues.iter().filter(|q| !q.directions.reads).map(|q| q.counts.written_bytes).sum();
                let of_reading = |get: fn(&Queue) -> u64| -> u64 {
                    queues.iter().filter(|q| q.directions.reads).map(|q| get(q)).sum()
                };
                let (sent, read) = (of_reading(|q| q.waited.count()), of_reading(|q| q.counts.read_bytes));
                let to_guest = |(packets, bytes): (u64, u64)| {
                    agreement((None, written.saturating_sub(header * packets)), (packets, bytes))
                };
                let from_guest = |counted| agreement((Some(sent), read.saturating_sub(header * sent)), counted);
                Self {
                    side,
                    name: queues.iter().map(|q| q.name.clone()).find(|name| !name.is_empty()),
                    known_as: Vec::new(),
                    driver: None,
                    vm: names.vms.get(&pid).cloned(),
                    pid: (pid != 0).then_some(pid),
                    queues: figures,
                    to_guest: counted.map(|(passed, _)| to_guest(passed)),
                    from_guest: counted.map(|(_, passed)| from_guest(passed)),
                }
            }
        }
    }
}

fn agreement((packets, bytes): (Option<u64>, u64), (device_packets, device_bytes): (u64, u64)) -> Agreement {
    Agreement { packets, bytes, device_packets, device_bytes }
}

impl QueueFigures {
    fn of(queue: &Queue, names: &Names) -> Self {
        let name = match queue.side {
            Side::Driver => queue.name.clone(),
            Side::Vhost => vhost_name(queue, &names.functions),
        };
        let interrupt_name = queue.counts.interrupt.filter(|_| queue.side == Side::Driver);
        Self {
            queue: name,
            number: queue.index,
            layout: if queue.is_packed { Layout::Packed } else { Layout::Split },
            counts: queue.counts,
            device_reads: queue.directions.reads,
            device_writes: queue.directions.writes,
            deleted: queue.gone,
            posted_buffers: queue.posted.saturating_sub(queue.counts.put_back_buffers),
            posted_index_difference: queue.available.difference(),
            used_index_difference: queue.used_up.difference(),
            index_moved: queue.available.forward().saturating_add(queue.used_up.forward()),
            interrupt_name: interrupt_name.and_then(|number| names.interrupts.get(&number).cloned()),
            waited: TimeFigures::of(&queue.waited),
            occupied: Sizes::of(&queue.occupied),
            per_kick: Sizes::of(&queue.per_kick),
            per_interrupt: Sizes::of(&queue.per_interrupt),
        }
    }
}

/// Name of a vhost queue, derived from the function that serves its kicks (`handle_tx_kick`,
/// `vhost_vsock_handle_rx_kick`), because the queue itself has no name.
fn vhost_name(queue: &Queue, functions: &Functions) -> String {
    match functions.at(queue.handler) {
        Some("handle_rx_kick") => format!("rx {}", queue.index),
        Some("handle_tx_kick") => format!("tx {}", queue.index),
        Some(other) => other.replace("_handle", "").replace("_kick", ""),
        None => "queue".into(),
    }
}
