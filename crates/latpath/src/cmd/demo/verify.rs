//! Compares the kernel's counters of each device with latpath's counts there, which are independent of them.

use super::processes::{DemoProcesses, Ending, GUEST, RELAY};
use anyhow::{Context, Result};
use latpath_lab::{Guest, LabPath, APPLICATION, GUEST_DEVICE, NIC, PUBLISHER, TAP, VETH};
use latpath_net::Statistics;
use latpath_report::demo::Check;
use latpath_run::{Run, Select};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Counters by device name; the names are unique within a lab.
pub type Devices = BTreeMap<String, Statistics>;

pub fn count_devices(path: &LabPath, guest: Option<&mut Guest>) -> Result<Devices> {
    let mut all = path.publisher.counters()?;
    all.extend(path.hypervisor.counters()?);
    if let Some(application) = &path.application {
        all.extend(application.counters()?);
    }
    if let Some(guest) = guest {
        all.insert(GUEST_DEVICE.into(), guest.counters(&|| false)?);
    }
    Ok(all)
}

/// Waits until all sent frames were read or dropped, or the counters have not changed for a long time: an emulated
/// guest may lag behind, and any machine may delay QEMU or the application.
pub fn wait_for_arrival(
    path: &LabPath,
    mut guest: Option<&mut Guest>,
    before: &Devices,
    processes: &DemoProcesses,
) -> Result<()> {
    let (round, quiet, limit) = (Duration::from_millis(250), Duration::from_secs(5), Duration::from_secs(60));
    let (began, sent) = (Instant::now(), processes.published()?);
    let (mut moved, mut last) = (Instant::now(), None);
    while began.elapsed() < limit && moved.elapsed() < quiet {
        thread::sleep(round);
        let now = count_devices(path, guest.as_deref_mut())?;
        let queued = processes.queued(guest.as_deref_mut(), &|| false)?;
        let since = |device: &str| Some(now.get(device)?.since(before.get(device)?));
        // The tap counts frames that QEMU reads; a veth passes frames on at once.
        let port = since(TAP).or_else(|| since(VETH)).unwrap_or_default();
        let end = since(GUEST_DEVICE).filter(|_| guest.is_some()).or_else(|| since(APPLICATION)).unwrap_or_default();
        let arrived = port.tx_packets + port.tx_dropped >= sent && end.rx_packets + end.rx_dropped >= port.tx_packets;
        let state = Some((now, queued));
        // Requires the same state twice: a frame that the device has counted may not be in the socket yet.
        if arrived && queued == Some(0) && last == state {
            break;
        }
        if last != state {
            (moved, last) = (Instant::now(), state);
        }
    }
    Ok(())
}

/// Counts of the frames, from all sources.
pub struct Evidence {
    devices: Devices,
    published: u64,
    received: u64,
    socket_dropped: u64,
    seen: BTreeMap<String, u64>,
    /// Number of packets last seen at each point of the route.
    last: BTreeMap<String, u64>,
}

impl Evidence {
    /// Gathers the counts of the kernel, the run, the publisher and the application.
    pub fn gather(run: &Path, before: &Devices, after: &Devices, ending: &Ending) -> Result<Self> {
        let nothing = Statistics::default();
        let devices =
            after.iter().map(|(name, c)| (name.clone(), c.since(before.get(name).unwrap_or(&nothing)))).collect();
        let run = Run::open(run)?;
        let points: Vec<String> = run.points().iter().map(|p| p.point.to_string()).collect();
        let order = route(&points);
        let mut seen: BTreeMap<String, u64> = points.iter().map(|p| (p.clone(), 0)).collect();
        let mut last = BTreeMap::new();
        let damaged = run.for_each(&Select::default(), |journey| {
            for (id, point) in points.iter().enumerate() {
                if journey.seen >> id & 1 == 1 {
                    *seen.entry(point.clone()).or_default() += 1;
                }
            }
            if let Some(id) = order.iter().rev().find(|id| journey.seen >> **id & 1 == 1) {
                *last.entry(points[*id].clone()).or_default() += 1;
            }
            true
        });
        if let Some(error) = damaged.into_iter().next() {
            return Err(error).context("read the run");
        }
        Ok(Self {
            devices,
            published: number(&ending.published, "frames_sent"),
            received: number(&ending.application, "received"),
            socket_dropped: number(&ending.application, "socket_dropped"),
            seen,
            last,
        })
    }

    /// All places where both the kernel and latpath count, in the order in which packets pass them.
    pub fn checks(&self) -> Vec<Check> {
        let counter = |device: &str, read: fn(&Statistics) -> u64| self.devices.get(device).map_or(0, read);
        let seen = |what, by: String, kernel, point: String| {
            let latpath = self.seen.get(&point).copied();
            Check::new(what, by, kernel, point, latpath)
        };
        let device = |what, device: &str, name: &str, read: fn(&Statistics) -> u64, point: String| {
            seen(what, format!("{device} {name}"), counter(device, read), point)
        };
        let mut checks = vec![
            seen("sent", "the publisher".into(), self.published, format!("host/tx@{PUBLISHER}")),
            device("left the publisher", PUBLISHER, "tx_packets", |c| c.tx_packets, format!("host/tx@{PUBLISHER}")),
            device("reached the host", NIC, "rx_packets", |c| c.rx_packets, format!("host/nic-rx@{NIC}")),
        ];
        let (port, arrived, relay) = if self.devices.contains_key(TAP) {
            let read = format!("host/vm-read@{TAP}");
            checks.push(device("taken off the tap by the VM", TAP, "tx_packets", |c| c.tx_packets, read));
            (TAP, (GUEST_DEVICE, format!("{GUEST}/nic-rx@{GUEST_DEVICE}")), format!("{GUEST}/app-read@{RELAY}"))
        } else {
            checks.push(device(
                "handed on by the bridge",
                VETH,
                "tx_packets",
                |c| c.tx_packets,
                format!("host/tx@{VETH}"),
            ));
            (VETH, (APPLICATION, format!("host/nic-rx@{APPLICATION}")), format!("host/app-read@{RELAY}"))
        };
        // Compares a kernel counter of drops with the lost packets that were last seen at this point.
        let lost = |what, by: String, kernel, point: String| {
            let latpath = self.seen.contains_key(&point).then(|| self.last.get(&point).copied().unwrap_or(0));
            Check::new(what, by, kernel, format!("last seen at {point}"), latpath)
        };
        let dropped = counter(port, |c| c.tx_dropped);
        checks.push(lost("dropped there", format!("{port} tx_dropped"), dropped, format!("host/tx@{port}")));
        checks.push(device(
            "reached the application's NIC",
            arrived.0,
            "rx_packets",
            |c| c.rx_packets,
            arrived.1.clone(),
        ));
        checks.push(lost("dropped at its socket", "its socket".into(), self.socket_dropped, arrived.1));
        checks.push(seen("received", "the application".into(), self.received, relay));
        checks
    }
}

/// The points in the order in which packets pass them, without side branches (the bridge's own copy, drops).
fn route(points: &[String]) -> Vec<usize> {
    let order = [
        format!("host/tx@{PUBLISHER}"),
        format!("host/nic-rx@{NIC}"),
        format!("host/tx@{TAP}"),
        format!("host/tx@{VETH}"),
        format!("host/vm-read@{TAP}"),
        format!("host/nic-rx@{APPLICATION}"),
        format!("{GUEST}/nic-rx@{GUEST_DEVICE}"),
        format!("{GUEST}/app-read@{RELAY}"),
        format!("host/app-read@{RELAY}"),
    ];
    order.iter().filter_map(|name| points.iter().position(|p| p == name)).collect()
}

fn number(json: &Value, key: &str) -> u64 {
    json[key].as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, rx: u64, tx: u64, tx_dropped: u64) -> (String, Statistics) {
        (name.into(), Statistics { rx_packets: rx, tx_packets: tx, tx_dropped, ..Statistics::default() })
    }

    /// Ten frames sent, two of them dropped at the tap.
    fn evidence() -> Evidence {
        let seen = [
            ("host/tx@lp-pub", 10),
            ("host/nic-rx@nic0", 10),
            ("host/tx@vnet0", 10),
            ("host/vm-read@vnet0", 8),
            ("guest0/nic-rx@eth0", 8),
            ("guest0/app-read@relay", 8),
        ];
        let devices =
            [device(PUBLISHER, 0, 10, 0), device(NIC, 10, 0, 0), device(TAP, 0, 8, 2), device(GUEST_DEVICE, 8, 0, 0)];
        Evidence {
            devices: devices.into(),
            published: 10,
            received: 8,
            socket_dropped: 0,
            seen: seen.map(|(p, n)| (p.to_owned(), n)).into(),
            last: [("host/tx@vnet0".to_owned(), 2), ("guest0/app-read@relay".to_owned(), 8)].into(),
        }
    }

    #[test]
    fn losses_that_the_kernel_counted_agree_with_journeys_that_end_there() {
        let checks = evidence().checks();
        assert!(checks.iter().all(|check| check.agree), "{checks:#?}");
        let dropped = checks.iter().find(|c| c.what == "dropped there").unwrap();
        assert_eq!((dropped.kernel, dropped.latpath), (2, Some(2)));
    }

    #[test]
    fn a_frame_that_latpath_missed_is_a_difference() {
        let mut evidence = evidence();
        evidence.seen.insert("host/nic-rx@nic0".into(), 9);
        let differing: Vec<_> = evidence.checks().into_iter().filter(|c| !c.agree).map(|c| c.what).collect();
        assert_eq!(differing, ["reached the host"]);
    }

    #[test]
    fn a_point_that_was_not_watched_is_no_agreement() {
        let mut evidence = evidence();
        evidence.seen.remove("guest0/nic-rx@eth0");
        let differing: Vec<_> = evidence.checks().into_iter().filter(|c| !c.agree).map(|c| c.what).collect();
        assert_eq!(differing, ["reached the application's NIC", "dropped at its socket"]);
    }
}
