//! A packet's path, step by step.

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A kernel function got the packet.
    Function(String),
    /// A tracepoint, as `system:name`.
    Tracepoint(String),
    /// A function has made another skb of it.
    Copy {
        by: String,
        /// The new skb, as it is called in this packet.
        to: usize,
    },
}

impl What {
    pub fn name(&self) -> &str {
        match self {
            Self::Function(name) | Self::Tracepoint(name) | Self::Copy { by: name, .. } => name,
        }
    }
}

/// One thing that happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When (CLOCK_MONOTONIC).
    pub t: Ns,
    pub cpu: u16,
    /// In which process and thread; 0 for an idle CPU.
    pub pid: u32,
    /// The thread's id.
    pub tid: u32,
    /// The thread's name.
    pub thread: String,
    /// The device it was on, `name%netns` outside this process's namespace; empty if none.
    pub device: String,
    /// Inode number of the device's network namespace.
    pub netns: u32,
    /// The device's index in it, 0 for none.
    pub ifindex: u32,
    pub what: What,
    /// The skb: 0 for the one that was seen first, then its copies as they were made.
    pub skb: usize,
    /// Bytes from the current header to the end.
    pub len: u32,
    /// Whether nothing but its bytes says that this skb is the packet.
    pub same_bytes: bool,
    /// For a drop: why, and in which function.
    pub drop: Option<(String, String)>,
    /// What `latpath record` would call a sighting here.
    pub point: Option<(PointKind, String)>,
}

#[derive(Clone, Debug)]
pub struct Packet {
    /// Its number, from 0.
    pub number: u32,
    /// What happened, in order of time.
    pub steps: Vec<Step>,
    skbs: HashMap<u64, usize>,
    next: usize,
}

impl Packet {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, steps: Vec::new(), skbs: HashMap::new(), next: 0 }
    }

    /// The time of its first step.
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

    /// Gives an skb the next name.
    fn name(&mut self, address: u64) -> usize {
        let name = self.next;
        self.next += 1;
        self.skbs.insert(address, name);
        name
    }

    fn step(&mut self, event: &Event, skb: usize, names: &Names) -> Step {
        let at = event.at as usize;
        let what = match usize::from(event.kind) {
            EVENT_FUNCTION => What::Function(names.function(event.at)),
            EVENT_COPY => What::Copy { by: MAKERS.get(at).map_or("?", |m| m).into(), to: self.name(event.aux) },
            _ => {
                let name = TRACEPOINTS.get(at).map_or_else(|| "?".into(), |t| format!("{}:{}", t.system, t.name));
                What::Tracepoint(name)
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
        // The buffer keeps the order of reservation, which differs between CPUs by less than an event takes.
        self.steps.sort_by_key(|s| s.t);
    }
}

fn has(event: &Event, flags: usize) -> bool {
    usize::from(event.flags) & flags != 0
}

/// The point of `record` that an event is a sighting at: docs/points.md.
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
    let on = if kind == PointKind::AppRead { &event.comm } else { &event.device };
    let device = of_field(on).into_owned();
    Some((kind, if device.is_empty() { "-".into() } else { device }))
}

/// `OVS_PACKET_CMD_MISS` of linux/openvswitch.h: no flow fits.
const MISS: u64 = 1;
