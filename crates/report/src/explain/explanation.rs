//! The document that `latpath explain --json` prints. docs/json.md describes its keys.

use crate::json::RunHead;
use latpath_cause::{Cause, GuestCausality, NoFlow, Process};
use latpath_model::Ns;
use latpath_run::SpikesRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Causes of a run's late packets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExplanationDocument<'a> {
    /// Version of this document: 1.
    pub version: u32,
    /// The run; null for a current recording.
    pub run: Option<RunHead<'a>>,
    /// Counts of late packets and spikes; null for a current recording.
    pub spikes: Option<SpikesRecord>,
    /// Number of explained late packets.
    pub late: u64,
    /// Number of late packets that the captures omit.
    pub more_late: u64,
    /// Total time of the explained packets, ns.
    pub time_ns: Ns,
    /// Part of `time_ns` beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Number of late packets with a hop that no on-time packet took.
    pub without_baseline: u64,
    /// Unexplained share of a packet's excess, the median over the packets, percent.
    pub unexplained_percent: f64,
    /// Packets from which the baseline was computed.
    pub baseline: BaselineCounts,
    /// Sums by cause, the largest first, `unexplained` last.
    pub by_cause: Vec<CauseSum>,
    /// Sums by culprit, the largest first.
    pub by_culprit: Vec<CulpritSum>,
    /// Each fix once; the fix with the largest share comes first.
    pub fixes: Vec<FixOfRows>,
    /// Causes; the largest excess comes first, `unexplained` last.
    pub causes: Vec<CauseOfAll>,
    /// Sum of the causes too small to be listed.
    pub other_causes: OtherCauses,
    /// The worst packets; the most delayed comes first.
    pub packets: Vec<PacketDocument>,
    /// Number of late packets by the reason why Open vSwitch had no flow for them.
    pub no_flow: Vec<NoFlowCount>,
    /// Consistency of each guest's events with its hypervisor's record of the vCPUs.
    pub causality: Vec<GuestCausality>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// Counts of the packets from which the baseline was computed, and of their captures.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BaselineCounts {
    /// Number of on-time packets.
    pub packets: u64,
    /// Number of captures that contain them.
    pub captures: u64,
}

/// Sum of one cause over all late packets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CauseSum {
    /// The cause.
    #[schemars(with = "String")]
    pub cause: Cause,
    /// The cause in words.
    pub phrase: String,
    /// Number of packets for which this is the first cause.
    pub first: u64,
    /// Time beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Share of all excess, percent.
    pub share_percent: f64,
}

/// Sum of one culprit over all late packets and causes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CulpritSum {
    /// The process, or the unit if several of its processes are culprits.
    pub name: String,
    /// Its machine.
    pub machine: String,
    /// The processes, if `name` is a unit.
    pub processes: Vec<String>,
    /// The systemd unit or control group, if it is known and the same for all threads.
    pub unit: Option<String>,
    /// The owner, e.g. `container web (docker)`, if it is known and the same for all threads.
    pub owner: Option<String>,
    /// Names of the threads that differ from the process's name.
    pub threads: Vec<String>,
    /// Thread IDs (TIDs), as far as they were kept.
    pub pids: Vec<u32>,
    /// Whether the culprit is latpath itself.
    pub latpath: bool,
    /// Time beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Share of all excess, percent.
    pub share_percent: f64,
}

/// A fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FixDocument {
    /// The action and its reason: a sentence without a full stop.
    pub what: String,
    /// Commands for it; the first that fits the setup is enough.
    pub commands: Vec<String>,
    /// Names of the settings that it changes.
    pub settings: Vec<String>,
    /// The machine on which to run the commands.
    pub machine: String,
}

/// A fix, with the causes that it would remove.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FixOfRows {
    /// The fix.
    #[serde(flatten)]
    pub fix: FixDocument,
    /// Indexes into `causes`, from 0.
    pub rows: Vec<usize>,
    /// Time of these causes beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Share of all excess, percent.
    pub share_percent: f64,
}

/// A thread, softirq or interrupt.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ActorDocument {
    /// Its role in a virtual machine if it has one, otherwise its name.
    pub name: String,
    /// Thread IDs (TIDs), the latest last; at most 32.
    pub pids: Vec<u32>,
    /// Scheduling class (`SCHED_OTHER`, `FIFO 80`); null if it is unknown or the actor is not a thread.
    pub class: Option<String>,
    /// Whether the actor is latpath itself.
    pub latpath: bool,
    /// The process; null if it is unknown or the actor is not a thread.
    pub process: Option<Process>,
    /// Names of a culprit's threads that differ from the process's name.
    pub threads: Vec<String>,
}

/// A culprit, with the time for which it delayed the actor.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CulpritTime {
    /// The culprit.
    #[serde(flatten)]
    pub actor: ActorDocument,
    /// Its part of the excess, ns.
    pub ns: Ns,
}

/// Time on one CPU.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CpuTime {
    /// The CPU.
    pub cpu: u32,
    /// Time, ns.
    pub ns: Ns,
}

/// Time on one segment.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SegmentTime {
    /// Name of the segment.
    pub name: String,
    /// Its first point.
    pub from: String,
    /// Its last point.
    pub to: String,
    /// Time, ns.
    pub ns: Ns,
}

/// Share of a cause, in one packet or in all packets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CauseDocument {
    /// The cause.
    #[schemars(with = "String")]
    pub cause: Cause,
    /// The machine; empty for `unexplained`.
    pub machine: String,
    /// The thread, softirq or interrupt that had to act for the packet to advance; null if it is unknown.
    pub actor: Option<ActorDocument>,
    /// The thread that slept until the actor had acted; null if the actor itself had to read the packet.
    pub waiter: Option<ActorDocument>,
    /// The culprits that delayed the actor; the one with the longest delay comes first.
    pub by: Vec<CulpritTime>,
    /// Time per CPU, in descending order.
    pub cpus: Vec<CpuTime>,
    /// Time per segment, in descending order.
    pub segments: Vec<SegmentTime>,
    /// Time beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Share of the excess, percent.
    pub share_percent: f64,
    /// Largest `number` of the cause's intervals; the meaning of the number depends on the cause.
    pub number: Option<u64>,
    /// The driver's name of the idle state with that number, if it is known.
    pub idle_state: Option<String>,
    /// Kinds of the device's queueing disciplines, the root first; empty for causes other than `qdisc-held`.
    pub qdiscs: Vec<String>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// A cause, over all late packets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CauseOfAll {
    /// The cause and its share.
    #[serde(flatten)]
    pub share: CauseDocument,
    /// Meaning of the cause.
    pub meaning: String,
    /// Number of late packets in which this cause took more time than the baseline.
    pub packets: u64,
    /// Number of packets for which this is the first cause.
    pub first: u64,
    /// Median excess of the packets for which this is the first cause, ns; if there are none, of all packets with this
    /// cause.
    pub median_ns: Ns,
    /// Maximum excess, ns.
    pub worst_ns: Ns,
    /// Its fixes; the best comes first.
    pub advice: Vec<FixDocument>,
}

/// A cause of one packet.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CauseOfPacket {
    /// The cause and its share.
    #[serde(flatten)]
    pub share: CauseDocument,
    /// Time, ns.
    pub time_ns: Ns,
}

/// Sum of causes too small to be listed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OtherCauses {
    /// Number of causes.
    pub count: u64,
    /// Number of packets whose first cause is one of these.
    pub first: u64,
    /// Time beyond the baseline, ns.
    pub excess_ns: Ns,
}

/// Number of late packets for which Open vSwitch had no flow for one reason.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NoFlowCount {
    /// The reason.
    #[schemars(with = "String")]
    pub reason: NoFlow,
    /// Number of packets.
    pub packets: u64,
}

/// One packet, from point to point.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PacketDocument {
    /// Name of the packet in the form that `--packet` accepts.
    pub packet: String,
    /// Its stream.
    pub stream: String,
    /// Its key in the stream.
    pub key: u32,
    /// Its number in the stream, which does not wrap.
    pub number: u64,
    /// Whether the packet was over the threshold.
    pub late: bool,
    /// Number of the capture file in `spikes` that contains the packet.
    pub spike: u32,
    /// Time of its first sighting, RFC 3339; null if no point saw it.
    pub utc: Option<String>,
    /// Time of its first sighting, ns since 1970 UTC; null if no point saw it.
    pub utc_ns: Option<Ns>,
    /// Time from the first point of its route to the last, ns.
    pub time_ns: Ns,
    /// Part of `time_ns` that on-time packets also take, ns.
    pub baseline_ns: Ns,
    /// Part of `time_ns` beyond the baseline, ns.
    pub excess_ns: Ns,
    /// Part of `time_ns` in ovs-vswitchd, ns.
    pub daemon_ns: Ns,
    /// Recorded visits to ovs-vswitchd, because no flow matched.
    pub visits: Vec<VisitDocument>,
    /// Causes; the first cause, with the largest excess, comes first.
    pub causes: Vec<CauseOfPacket>,
    /// Sightings on the route, and at Open vSwitch's points.
    pub points: Vec<SightingDocument>,
    /// Segments of the route.
    pub segments: Vec<SegmentDocument>,
    /// Fixes of the first cause.
    pub advice: Vec<FixDocument>,
}

/// A sighting of a packet.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SightingDocument {
    /// The point.
    pub point: String,
    /// Time since the packet's first sighting, ns.
    pub since_first_ns: Ns,
    /// The CPU; null if an imported run does not record it.
    pub cpu: Option<u16>,
    /// The thread's TID, 0 on an idle CPU; null if an imported run does not record it.
    pub tid: Option<u32>,
}

/// The hop of a packet from one point of its route to the next.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SegmentDocument {
    /// Name of the segment.
    pub name: String,
    /// Its first point.
    pub from: String,
    /// Its last point.
    pub to: String,
    /// Start of the segment, relative to the packet's first sighting, ns.
    pub since_first_ns: Ns,
    /// Length, ns.
    pub time_ns: Ns,
    /// Consecutive intervals without gaps.
    pub intervals: Vec<IntervalDocument>,
}

/// An interval with one cause.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct IntervalDocument {
    /// Start of the interval, relative to the packet's first sighting, ns.
    pub since_first_ns: Ns,
    /// Length, ns.
    pub time_ns: Ns,
    /// The cause.
    #[schemars(with = "String")]
    pub cause: Cause,
    /// The machine.
    pub machine: String,
    /// CPU on which the actor ran or was to run, if it is known.
    pub cpu: Option<u32>,
    /// The thread, softirq or interrupt that had to act, if it is known.
    pub actor: Option<ActorDocument>,
    /// The thread that slept until the actor had acted.
    pub waiter: Option<ActorDocument>,
    /// The culprit.
    pub by: Option<ActorDocument>,
    /// A number whose meaning depends on the cause.
    pub number: Option<u64>,
    /// The driver's name of the idle state with that number, if it is known.
    pub idle_state: Option<String>,
    /// Note for the reader.
    pub note: Option<String>,
}

/// A visit of a packet to ovs-vswitchd.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VisitDocument {
    /// The machine of the datapath.
    pub machine: String,
    /// Reason why no flow matched, as deduced from the recorded events.
    #[schemars(with = "String")]
    pub reason: NoFlow,
    /// The evidence for this reason.
    pub flow: FlowDocument,
    /// Number of flows in the table at the upcall.
    pub flows: u32,
    /// Number of earlier packets for which the same flow was missing after its removal.
    pub missed_before: u64,
    /// Open vSwitch's limits; null if its database did not answer, and its defaults were assumed.
    pub limits: Option<FlowLimitsDocument>,
    /// Parts of the visit's time; null if they are not recorded.
    pub parts: Option<VisitPartsDocument>,
}

/// State of the flow that would have matched a packet.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum FlowDocument {
    /// The kernel does not report changes of flows.
    Unknown,
    /// The table had no such flow.
    NeverThere {
        /// Length of the period before the upcall for which all flows are known, ns.
        known_for_ns: Ns,
    },
    /// The flow was installed.
    Installed {
        /// Time from the installation to the upcall, ns.
        before_ns: Ns,
    },
    /// The flow was removed.
    Removed(RemovalDocument),
}

/// Removal of a flow.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RemovalDocument {
    /// Time from the removal to the upcall, ns.
    pub before_ns: Ns,
    /// The thread that removed the flow.
    pub by: RemoverDocument,
    /// Number of flows in the table before the removal.
    pub flows: u32,
    /// Whether all flows were removed at once.
    pub all: bool,
    /// Time from the flow's installation to the upcall, if it is known, ns.
    pub installed_before_ns: Option<Ns>,
    /// Number of packets that the flow had matched, if it is known.
    pub packets: Option<u64>,
    /// Time from the last of these packets to the removal, if it is known, ns.
    pub idle_ns: Option<Ns>,
}

/// A thread that removes flows.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RemoverDocument {
    /// Thread ID (TID).
    pub pid: u32,
    /// Name of the thread.
    pub name: String,
    /// Process ID (PID).
    pub process: u32,
}

/// Flow limits of Open vSwitch.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FlowLimitsDocument {
    /// Time without a packet after which a flow is removed, ns.
    pub max_idle_ns: Ns,
    /// Number of flows above which flows are removed sooner.
    pub flow_limit: u64,
}

/// Parts of a visit to ovs-vswitchd.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VisitPartsDocument {
    /// The thread of ovs-vswitchd that handled the packet.
    pub handler: ActorDocument,
    /// Time from the upcall until the handler had read the packet, ns.
    pub to_daemon_ns: Ns,
    /// Part of `to_daemon_ns` in which the handler slept, ns.
    pub asleep_ns: Ns,
    /// Part of `to_daemon_ns` in which the handler was runnable but had no CPU, ns.
    pub ready_ns: Ns,
    /// Part of `to_daemon_ns` in which the handler ran, ns.
    pub running_ns: Ns,
    /// Time from reading the packet until the handler began to send its answer, ns.
    pub in_daemon_ns: Ns,
    /// Time from the answer until the datapath began to execute the answer's actions on the packet, ns.
    pub to_kernel_ns: Ns,
}
