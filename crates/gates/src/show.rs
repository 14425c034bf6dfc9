//! The schedulers that devices have: taprio, etf, mqprio, cbs.

use crate::apply::is_scheduler;
use crate::Result;
use latpath_net::{interfaces, qdiscs, Netns, Qdisc, Shaping, ROOT};
use schemars::JsonSchema;
use serde::Serialize;

/// A scheduler of a device or of one of its queues.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Scheduler {
    /// The device.
    pub device: String,
    /// Position: `root`, or the parent's class, e.g. `8001:2`.
    pub at: String,
    /// Kind: `taprio`, `etf`, `mqprio` or `cbs`.
    pub kind: String,
    /// The clock of its times, as an ID for clock_gettime(2), e.g. 11 for TAI; null if it is the NIC's, and for kinds
    /// without times.
    pub clockid: Option<i32>,
    /// taprio: start of the first cycle, ns; etf: how long before its txtime a packet is passed on, ns.
    pub time_ns: Option<i64>,
    /// taprio: length of a cycle, ns.
    pub cycle_ns: Option<i64>,
    /// taprio: 1 txtime-assist, 2 full offload; etf: 1 deadline mode, 2 offload, 4 no check of the socket; mqprio and
    /// cbs: 1 if offloaded to the NIC.
    pub flags: Option<u32>,
    /// Class of each priority, from priority 0.
    pub class_of_priority: Vec<u8>,
    /// Queues of each class, as `COUNT@FIRST`.
    pub queues: Vec<String>,
    /// taprio: the entries of a cycle.
    pub gates: Vec<Entry>,
    /// cbs: rate of the class, kbit/s.
    pub idle_slope_kbit: Option<i32>,
    /// Number of packets that it dropped; null without a counter.
    pub dropped: Option<u32>,
}

/// An entry of a schedule.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Entry {
    /// Bit n: the gate of class n is open.
    pub mask: u32,
    /// Length of the interval, ns.
    pub interval_ns: u32,
}

/// Lists the schedulers of all devices in this process's network namespace, or of one device.
///
/// # Errors
/// The device does not exist, or the kernel does not list the schedulers.
pub fn show(device: Option<&str>) -> Result<Vec<Scheduler>> {
    let netns = Netns::own()?;
    let names = interfaces(&netns)?;
    if let Some(device) = device.filter(|device| names.iter().all(|known| known.name != **device)) {
        return Err(crate::Error::NoDevice { device: device.into() });
    }
    let name =
        |qdisc: &Qdisc| names.iter().find(|known| known.ifindex == qdisc.ifindex).map(|known| known.name.clone());
    let all = qdiscs(&netns)?;
    let of = |qdisc: &Qdisc| Some(scheduler(name(qdisc)?, qdisc)).filter(|_| is_scheduler(&qdisc.shaping()));
    Ok(all.iter().filter_map(of).filter(|one| device.is_none_or(|device| one.device == device)).collect())
}

fn scheduler(device: String, qdisc: &Qdisc) -> Scheduler {
    let at = match qdisc.parent {
        ROOT => "root".into(),
        parent => format!("{:x}:{:x}", parent >> 16, parent & 0xffff),
    };
    let mut all = Scheduler {
        device,
        at,
        kind: qdisc.kind.clone(),
        clockid: None,
        time_ns: None,
        cycle_ns: None,
        flags: None,
        class_of_priority: Vec::new(),
        queues: Vec::new(),
        gates: Vec::new(),
        idle_slope_kbit: None,
        dropped: qdisc.dropped,
    };
    let (mut classes, shaping) = (None, qdisc.shaping());
    match shaping {
        Shaping::Taprio { classes: of, clockid, base_time_ns, cycle_time_ns, flags, gates, .. } => {
            (all.clockid, all.time_ns, all.cycle_ns) = (clockid, Some(base_time_ns), Some(cycle_time_ns));
            all.flags = Some(flags);
            all.gates = gates.iter().map(|one| Entry { mask: one.open, interval_ns: one.interval_ns }).collect();
            classes = of;
        }
        Shaping::Etf { clockid, delta_ns, flags } => {
            (all.clockid, all.time_ns, all.flags) = (Some(clockid), Some(delta_ns.into()), Some(flags));
        }
        Shaping::Mqprio(of) => {
            all.flags = Some(of.offload.into());
            classes = Some(of);
        }
        Shaping::Cbs { idle_slope_kbit, offload, .. } => {
            (all.idle_slope_kbit, all.flags) = (Some(idle_slope_kbit), Some(offload.into()));
        }
        _ => {}
    }
    if let Some(classes) = classes {
        all.class_of_priority = classes.of_priority.to_vec();
        all.queues = classes.queues.iter().map(|(count, first)| format!("{count}@{first}")).collect();
    }
    all
}
