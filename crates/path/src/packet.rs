//! The path of a packet, step by step.

use crate::layout::constants::{
    EVENT_COPY, EVENT_FUNCTION, EVENT_TRACEPOINT, FLAG_ADOPTED, FLAG_ARRIVED, FLAG_MACVTAP, FLAG_NEW, FLAG_SOCKET,
    FLAG_TAP, TP_KFREE_SKB, TP_NAPI_GRO_FRAGS_ENTRY, TP_NAPI_GRO_RECEIVE_ENTRY, TP_NETIF_RECEIVE_SKB,
    TP_NETIF_RECEIVE_SKB_LIST_ENTRY, TP_NET_DEV_START_XMIT, TP_OVS_DO_EXECUTE_ACTION, TP_OVS_DP_UPCALL,
    TP_SKB_COPY_DATAGRAM_IOVEC,
};
use crate::layout::Event;
use crate::names::Names;
use crate::tracepoints::{MAKERS, TRACEPOINTS};
use latpath_model::text::of_field;
use latpath_model::{Ns, PointKind};
use std::collections::HashMap;

/// Kind of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// A kernel function received the packet.
    Function(String),
    /// A tracepoint, as `system:name`.
    Tracepoint(String),
    /// A function made another skb from this one.
    Copy {
        /// The function.
        by: String,
        /// Index of the new skb in this packet.
        to: usize,
    },
}

impl StepKind {
    /// Name of the function or tracepoint.
    pub fn name(&self) -> &str {
        match self {
            Self::Function(name) | Self::Tracepoint(name) | Self::Copy { by: name, .. } => name,
        }
    }
}

/// One event of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Time of the event, `CLOCK_MONOTONIC`, ns.
    pub t: Ns,
    /// The CPU.
    pub cpu: u16,
    /// PID of the running process; 0 for an idle CPU.
    pub pid: u32,
    /// TID of the running thread.
    pub tid: u32,
    /// The thread's name.
    pub thread: String,
    /// The packet's device, as `name%netns` outside this process's namespace; empty if it has none.
    pub device: String,
    /// Inode number of the device's network namespace.
    pub netns: u32,
    /// Index of the device in its namespace; 0 if the packet has none.
    pub ifindex: u32,
    /// The step's kind.
    pub what: StepKind,
    /// Index of the skb: 0 for the first skb, then its copies in order of creation.
    pub skb: usize,
    /// Length from the current header to the end of the packet, bytes.
    pub len: u32,
    /// Whether only equal bytes relate this skb to the packet.
    pub same_bytes: bool,
    /// For a drop: its reason, and the function that dropped the packet.
    pub drop: Option<(String, String)>,
    /// The point at which `latpath record` would record the packet here.
    pub point: Option<(PointKind, String)>,
}

/// A followed packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Number of the packet, from 0.
    pub number: u32,
    /// Steps, in order of time.
    pub steps: Vec<Step>,
    skbs: HashMap<u64, usize>,
    next: usize,
}

impl Packet {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, steps: Vec::new(), skbs: HashMap::new(), next: 0 }
    }

    /// Time of its first step.
    pub fn began(&self) -> Ns {
        self.steps.first().map_or(0, |s| s.t)
    }

    pub(crate) fn push(&mut self, event: &Event, names: &Names) {
        let new = has(event, FLAG_NEW | FLAG_ADOPTED);
        let skb = match self.skbs.get(&event.skb) {
            Some(known) if !new => *known,
            _ => self.name(event.skb),
        };
        let step = self.step(event, skb, names);
        self.steps.push(step);
    }

    /// Assigns the next index to an skb.
    fn name(&mut self, address: u64) -> usize {
        let name = self.next;
        self.next += 1;
        self.skbs.insert(address, name);
        name
    }

    fn step(&mut self, event: &Event, skb: usize, names: &Names) -> Step {
        let at = event.at as usize;
        let what = match usize::from(event.kind) {
            EVENT_FUNCTION => StepKind::Function(names.function(event.at)),
            EVENT_COPY => StepKind::Copy { by: MAKERS.get(at).map_or("?", |m| m).into(), to: self.name(event.aux) },
            _ => {
                let name = TRACEPOINTS.get(at).map_or_else(|| "?".into(), |t| format!("{}:{}", t.system, t.name));
                StepKind::Tracepoint(name)
            }
        };
        let is_drop = usize::from(event.kind) == EVENT_TRACEPOINT && at == TP_KFREE_SKB;
        let device = of_field(&event.device).into_owned();
        Step {
            t: event.t as Ns,
            cpu: event.cpu,
            pid: event.pid,
            tid: event.tid,
            thread: of_field(&event.comm).into_owned(),
            device: if device.is_empty() { device } else { names.device(&device, event.netns) },
            netns: event.netns,
            ifindex: event.ifindex,
            what,
            skb,
            len: event.len,
            same_bytes: has(event, FLAG_ADOPTED),
            drop: is_drop.then(|| (names.reason(event.reason), names.near(event.aux))),
            point: point(event),
        }
    }

    pub(crate) fn finish(&mut self) {
        // The ring buffer is ordered by reservation, which between CPUs may differ slightly from the order in time.
        self.steps.sort_by_key(|s| s.t);
    }
}

fn has(event: &Event, flags: usize) -> bool {
    usize::from(event.flags) & flags != 0
}

/// The point of `latpath record` at which an event is a sighting, if any: docs/points.md.
fn point(event: &Event) -> Option<(PointKind, String)> {
    if usize::from(event.kind) != EVENT_TRACEPOINT {
        return None;
    }
    let has = |flags| has(event, flags);
    let kind = match event.at as usize {
        TP_NET_DEV_START_XMIT if has(FLAG_MACVTAP) => PointKind::VmWrite,
        TP_NET_DEV_START_XMIT => PointKind::Tx,
        TP_NAPI_GRO_FRAGS_ENTRY
        | TP_NAPI_GRO_RECEIVE_ENTRY
        | TP_NETIF_RECEIVE_SKB
        | TP_NETIF_RECEIVE_SKB_LIST_ENTRY => {
            if has(FLAG_TAP) && !has(FLAG_MACVTAP) {
                PointKind::VmWrite
            } else {
                PointKind::NicRx
            }
        }
        TP_SKB_COPY_DATAGRAM_IOVEC if has(FLAG_TAP) && !has(FLAG_SOCKET) => PointKind::VmRead,
        TP_SKB_COPY_DATAGRAM_IOVEC => PointKind::AppRead,
        TP_OVS_DP_UPCALL if event.aux == MISS => PointKind::OvsUpcall,
        TP_OVS_DP_UPCALL => PointKind::OvsSlow,
        TP_OVS_DO_EXECUTE_ACTION if has(FLAG_ARRIVED | FLAG_SOCKET) => PointKind::OvsExec,
        TP_OVS_DO_EXECUTE_ACTION => PointKind::OvsReturn,
        TP_KFREE_SKB => PointKind::Drop,
        _ => return None,
    };
    let on = if kind.is_named_by_thread() { &event.comm } else { &event.device };
    let device = of_field(on).into_owned();
    Some((kind, if device.is_empty() { "-".into() } else { device }))
}

/// `OVS_PACKET_CMD_MISS` of linux/openvswitch.h: no flow matches.
const MISS: u64 = 1;
