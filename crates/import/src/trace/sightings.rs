//! Determines the CPU and thread of a packet at a point, if the trace proves them: captures and logs do not contain
//! them.

use super::{
    events::{Place, Reader},
    windows::Cut,
    Packets,
};
use latpath_flight::{CpuTimeline, Doing, Snapshot};
use latpath_model::{Ns, PacketSighting, Passage, Point, PointInfo};
use std::collections::BTreeSet;

/// Maximum time between a packet's sighting and the trace line that reports it, ns.
const NEAR: Ns = 20_000;
/// NET_RX_SOFTIRQ (include/linux/interrupt.h).
const NET_RX: u32 = 3;
/// Maximum length of thread names in the kernel, bytes.
const NAME: usize = 15;

/// Sets the CPUs and threads of the sightings on one machine. `within`: maximum error of its trace's times, ns.
pub(crate) fn fill(
    packets: &mut Packets,
    points: &[PointInfo],
    machine: &str,
    snapshot: &Snapshot,
    (cut, reader): (&Cut, &Reader),
    within: Ns,
) {
    let rows: Vec<CpuTimeline> =
        snapshot.window.cpus.iter().map(|record| CpuTimeline::of(record, snapshot.window.to)).collect();
    let finder = Finder { rows, snapshot, cut, reader, within };
    for seen in packets.iter_mut().flat_map(|packet| &mut packet.sightings) {
        let Some(point) = points.get(usize::from(seen.point)).map(|info| &info.point) else { continue };
        if point.machine == machine {
            finder.find(point, seen);
        }
    }
}

/// Clears the CPUs and threads of all sightings.
pub(crate) fn forget(packets: &mut Packets) {
    for seen in packets.iter_mut().flat_map(|packet| &mut packet.sightings) {
        (seen.cpu, seen.tid) = (None, None);
    }
}

/// The CPU and the thread of a sighting, if known.
type CpuAndThread = (Option<u32>, Option<u32>);

struct Finder<'a> {
    rows: Vec<CpuTimeline>,
    snapshot: &'a Snapshot,
    cut: &'a Cut,
    reader: &'a Reader,
    within: Ns,
}

impl Finder<'_> {
    fn find(&self, point: &Point, seen: &mut PacketSighting) {
        let found = self.by_lines(point, seen.t).or_else(|| {
            if point.kind.is_named_by_thread() {
                self.by_name(point.device_name(), seen.t)
            } else if point.kind.info().passage == Passage::In {
                self.by_softirq(seen.t)
            } else {
                None
            }
        });
        if let Some((cpu, tid)) = found {
            (seen.cpu, seen.tid) = (cpu.and_then(|cpu| u16::try_from(cpu).ok()), tid);
        }
    }

    /// CPU and thread from the lines for such packets at that time, if they all agree.
    fn by_lines(&self, point: &Point, t: Ns) -> Option<CpuAndThread> {
        let kind = point.kind.info();
        let place = match kind.passage {
            Passage::In => Place::Received,
            Passage::Out => Place::Sent,
            Passage::ToApplication | Passage::ToVm if kind.by_thread => Place::Read,
            Passage::ToApplication | Passage::ToVm | Passage::FromVm | Passage::Inside | Passage::Sent => return None,
            Passage::FromApplication | Passage::Dropped | Passage::Sampled | Passage::Planned => return None,
            Passage::VmKicks | Passage::VmSignalled | Passage::InVm => return None,
        };
        let is_devices = |device: Option<usize>| {
            let name = device.and_then(|device| self.reader.devices.get(device));
            place == Place::Read || name.is_some_and(|name| name == point.device_name())
        };
        let (from, to) = (t.saturating_sub(self.within + NEAR), t.saturating_add(self.within + NEAR));
        let first = self.cut.packets.partition_point(|line| line.t < from);
        let lines = self.cut.packets[first..].iter().take_while(|line| line.t <= to);
        // Points of applications are named after their threads.
        let is_threads = |pid: u32| {
            let name = latpath_model::text::cut(point.device_name(), NAME);
            !point.kind.is_named_by_thread() || self.reader.threads.get(&pid).is_some_and(|(known, _)| known == name)
        };
        let lines = lines.filter(|line| line.place == place && is_devices(line.device) && is_threads(line.pid));
        let all: BTreeSet<(u32, u32)> = lines.map(|line| (line.cpu, line.pid)).collect();
        let mut all = all.into_iter();
        let (cpu, pid) = all.next().filter(|_| all.next().is_none())?;
        Some((Some(cpu), Some(pid)))
    }

    /// The thread with this name, if there is exactly one, and the CPU on which it ran, if known.
    fn by_name(&self, name: &str, t: Ns) -> Option<CpuAndThread> {
        let cut = latpath_model::text::cut(name, NAME);
        let mut called = self.snapshot.threads.iter().filter(|(_, thread)| thread.name == cut);
        let (pid, _) = called.next().filter(|_| called.next().is_none())?;
        let runs = |row: &&CpuTimeline| matches!(row.at(t), Doing::Thread(running) if running.pid == *pid);
        Some((self.rows.iter().find(runs).map(|row| row.cpu), Some(*pid)))
    }

    /// The CPU that ran the network softirq at that time, and the thread that this interrupted. `None` unless it is
    /// certain that exactly one CPU ran it.
    fn by_softirq(&self, t: Ns) -> Option<CpuAndThread> {
        let (from, to) = (t.saturating_sub(self.within + NEAR), t.saturating_add(self.within + NEAR));
        // A CPU with an unknown activity may also have run it, so then nothing is proved.
        let mut found = None;
        for row in &self.rows {
            for tile in row.between(from, to) {
                match tile.doing {
                    Doing::Softirq(NET_RX) if found.is_none_or(|(cpu, _)| cpu == row.cpu) => {
                        found = Some((row.cpu, tile.thread));
                    }
                    Doing::Softirq(NET_RX) | Doing::Unknown => return None,
                    _ => {}
                }
            }
        }
        found.map(|(cpu, tid)| (Some(cpu), tid))
    }
}
