//! The documents that `latpath path --json` prints. docs/path.md describes their keys.

use crate::{paths, points, Counts, Function, Hop, How, Packet, Path, Stage, Step, StepKind};
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Result of a search.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PathDocument {
    /// How the search was attached.
    pub attached: Attached,
    /// The packets, in the order in which they were chosen.
    pub packets: Vec<PacketDocument>,
    /// The packets' paths, the most frequent first.
    pub paths: Vec<Route>,
    /// The points of all paths, without drops.
    pub points: Vec<String>,
    /// Counts of missed events.
    pub lost: LostEvents,
    /// Limits of the search on this machine.
    pub notes: Vec<String>,
}

/// How a search was attached.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Attached {
    /// Kind of attachment: `kprobe-multi`, `kprobes` or `tracepoints`.
    pub with: String,
    /// Number of functions attached to.
    pub functions: usize,
    /// Number of functions to which the search could have attached.
    pub functions_known: usize,
    /// Names of the functions; null if the search attached to all of them.
    pub functions_shown: Option<Vec<String>>,
    /// Number of tracepoints attached to.
    pub tracepoints: usize,
    /// Time until all attachments were made, ns.
    pub took_ns: u64,
}

/// A packet with all its steps.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PacketDocument {
    /// Number of the packet, from 1.
    pub packet: u32,
    /// Time of its first step, ns since 1970 UTC.
    pub time_ns: Ns,
    /// Time of its first step, `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: Ns,
    /// Its steps, in order of time.
    pub steps: Vec<StepDocument>,
}

/// Kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StepName {
    /// Call of a function.
    Function,
    /// Tracepoint.
    Tracepoint,
    /// A function that made a copy.
    Copy,
}

/// A step of a packet.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StepDocument {
    /// Time since the packet's first step, ns.
    pub since_first_ns: Ns,
    /// Time since the previous step, ns.
    pub since_last_ns: Ns,
    /// Number of the CPU.
    pub cpu: u16,
    /// Process ID.
    pub pid: u32,
    /// Thread ID.
    pub tid: u32,
    /// Name of the thread.
    pub thread: String,
    /// Device, e.g. `eth0` or `eth0%NAMESPACE`; null if the packet had none.
    pub device: Option<String>,
    /// Inode number of the network namespace; null if it is unknown.
    pub netns: Option<u32>,
    /// Interface index of the device; null if the packet had none.
    pub ifindex: Option<u32>,
    /// Kind of the step.
    pub kind: StepName,
    /// Name of the function or tracepoint.
    pub name: String,
    /// Index of the skb, from 0 in order of appearance.
    pub skb: usize,
    /// Index of the skb that a copy made; null for other steps.
    pub copy: Option<usize>,
    /// Length of the packet, bytes.
    pub length: u32,
    /// Whether only equal bytes relate the skb to the packet.
    pub same_bytes: bool,
    /// Reason for a drop; null for other steps.
    pub reason: Option<String>,
    /// Function that dropped the packet; null for other steps.
    pub dropped_in: Option<String>,
    /// latpath's point at this step, or null.
    pub point: Option<String>,
}

/// A path that packets took.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// Numbers of the packets, from 1.
    pub packets: Vec<u32>,
    /// Share of all packets, 0 to 1.
    pub share: f64,
    /// Its steps.
    pub hops: Vec<HopDocument>,
    /// Its steps, grouped by device and CPU.
    pub stages: Vec<StageDocument>,
    /// latpath's points on the path.
    pub points: Vec<String>,
}

/// A step of a path.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HopDocument {
    /// Name of the function or tracepoint.
    pub name: String,
    /// Device; null if the packet had none.
    pub device: Option<String>,
    /// Index of the skb.
    pub skb: usize,
    /// Time since the first step, median over the packets, ns.
    pub since_first_p50_ns: Ns,
    /// Time since the previous step, median over the packets, ns.
    pub since_last_p50_ns: Ns,
}

/// Consecutive steps of a path on one device and CPU.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageDocument {
    /// Device; null if the packet had none.
    pub device: Option<String>,
    /// Name of the thread.
    pub thread: String,
    /// Name of the first step.
    pub first: String,
    /// Name of the last step.
    pub last: String,
    /// Number of steps.
    pub hops: usize,
    /// Time from the first step to the last, median over the packets, ns.
    pub took_p50_ns: Ns,
    /// Time since the previous stage, median over the packets, ns.
    pub since_last_p50_ns: Ns,
}

/// Counts of missed events.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LostEvents {
    /// Number of steps that did not fit into the buffer to user space.
    pub events: u64,
    /// Number of copies of packets that did not fit into the table.
    pub copies: u64,
    /// Number of program runs that the kernel skipped.
    pub recursion_misses: u64,
    /// Number of packets whose bytes the programs could not read.
    pub unreadable: u64,
    /// Number of packets for which the filter needed more bytes than the programs read.
    pub beyond_filter: u64,
    /// Number of times that a packet beyond the requested number passed a tracepoint.
    pub packets_not_followed: u64,
    /// Number of times that a packet was examined after the check of its stream, by the filter if there is one.
    pub packets_looked_at: u64,
}

/// Functions to which a search could attach.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FunctionsDocument {
    /// The functions.
    pub functions: Vec<FunctionDocument>,
}

/// A function that takes a packet.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FunctionDocument {
    /// Its name.
    pub name: String,
    /// Its module; null for the kernel itself.
    pub module: Option<String>,
    /// Which of its arguments are packets, counted from 1.
    pub arguments: Vec<u32>,
}

impl PathDocument {
    /// Creates the document of a search. `utc` converts a time of `CLOCK_MONOTONIC` to ns since 1970 UTC.
    pub fn new(packets: &[Packet], counts: &Counts, how: &How, utc: impl Fn(Ns) -> Ns) -> Self {
        let routes = paths(packets);
        let total: usize = routes.iter().map(|route| route.packets.len()).sum();
        Self {
            attached: Attached {
                with: how.with.name().into(),
                functions: how.functions,
                functions_known: how.functions_known,
                functions_shown: how.functions_shown.clone(),
                tracepoints: how.tracepoints,
                took_ns: how.took.as_nanos() as u64,
            },
            packets: packets.iter().map(|packet| PacketDocument::new(packet, &utc)).collect(),
            paths: routes.iter().map(|route| Route::new(route, total)).collect(),
            points: points(&routes).iter().map(ToString::to_string).collect(),
            lost: LostEvents {
                events: counts.events_lost,
                copies: counts.skbs_lost,
                recursion_misses: counts.recursion_misses,
                unreadable: counts.unreadable,
                beyond_filter: counts.beyond,
                packets_not_followed: counts.packets_over,
                packets_looked_at: counts.looked_at,
            },
            notes: how.notes.clone(),
        }
    }
}

impl PacketDocument {
    fn new(packet: &Packet, utc: impl Fn(Ns) -> Ns) -> Self {
        let began = packet.began();
        let before = [began].into_iter().chain(packet.steps.iter().map(|step| step.t));
        let steps = packet.steps.iter().zip(before);
        Self {
            packet: packet.number + 1,
            time_ns: utc(began),
            monotonic_ns: began,
            steps: steps.map(|(step, before)| StepDocument::new(step, began, before)).collect(),
        }
    }
}

/// Name of a device; `None` if the packet had none.
fn device(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.into())
}

impl StepDocument {
    fn new(step: &Step, began: Ns, before: Ns) -> Self {
        let (kind, copy) = match &step.what {
            StepKind::Function(_) => (StepName::Function, None),
            StepKind::Tracepoint(_) => (StepName::Tracepoint, None),
            StepKind::Copy { to, .. } => (StepName::Copy, Some(*to)),
        };
        let (reason, dropped_in) = step.drop.clone().unzip();
        Self {
            since_first_ns: step.t - began,
            since_last_ns: step.t - before,
            cpu: step.cpu,
            pid: step.pid,
            tid: step.tid,
            thread: step.thread.clone(),
            device: device(&step.device),
            netns: Some(step.netns).filter(|netns| *netns != 0),
            ifindex: Some(step.ifindex).filter(|ifindex| *ifindex != 0),
            kind,
            name: step.what.name().into(),
            skb: step.skb,
            copy,
            length: step.len,
            same_bytes: step.same_bytes,
            reason,
            dropped_in,
            point: step.point.as_ref().map(|(kind, device)| format!("host/{kind}@{device}")),
        }
    }
}

impl Route {
    fn new(route: &Path, total: usize) -> Self {
        let hop = |hop: &Hop| HopDocument {
            name: hop.name.clone(),
            device: device(&hop.device),
            skb: hop.skb,
            since_first_p50_ns: hop.since_first,
            since_last_p50_ns: hop.since_last,
        };
        let stage = |stage: &Stage| StageDocument {
            device: device(&stage.device),
            thread: stage.thread.clone(),
            first: stage.first.clone(),
            last: stage.last.clone(),
            hops: stage.hops,
            took_p50_ns: stage.took,
            since_last_p50_ns: stage.since_last,
        };
        Self {
            packets: route.packets.iter().map(|number| number + 1).collect(),
            share: route.packets.len() as f64 / total.max(1) as f64,
            hops: route.hops.iter().map(hop).collect(),
            stages: route.stages.iter().map(stage).collect(),
            points: route.points.iter().map(ToString::to_string).collect(),
        }
    }
}

impl FunctionsDocument {
    /// Creates the document of a list of functions.
    pub fn new(functions: Vec<Function>) -> Self {
        let row = |f: Function| FunctionDocument { arguments: f.arguments().collect(), name: f.name, module: f.module };
        Self { functions: functions.into_iter().map(row).collect() }
    }
}
