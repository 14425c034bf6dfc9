//! Upcalls of Open vSwitch: which packets found no flow in a datapath, the history of that flow, and when ovs-vswitchd
//! read the packet and answered. The programs (bpf/upcalls.bpf.c) are only loaded if the kernel has Open vSwitch.

mod history;

pub(crate) use history::MAX_UPCALLS;

use crate::names::Thread;
use crate::upcalls_skel::UpcallsSkelBuilder;
use history::History;
use latpath_bpf::{
    function_hook as function, module_hook as module, AttachedProgram, Hook, Hooks, Mapped, Missing, Programs, Purpose,
};
use latpath_linux::{monotonic, proc::Root};
use latpath_model::Ns;
use latpath_vms::ovs_config;
use libbpf_rs::skel::Skel;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use nix::time::{clock_getres, ClockId};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Interval between readings of Open vSwitch's configuration, ns.
const LIMITS_EVERY: Ns = 10_000_000_000;

/// A packet that found no flow in a datapath of Open vSwitch, and was sent to ovs-vswitchd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcall {
    /// Time of the upcall, `CLOCK_MONOTONIC`, ns.
    pub t: Ns,
    /// The CPU.
    pub cpu: u32,
    /// Number of flows in the datapath's table.
    pub flows: u32,
    /// State of the flow that would have matched the packet.
    pub flow: FlowState,
    /// Number of earlier packets that would have matched the same flow after its removal.
    pub missed_before: u64,
    /// The ovs-vswitchd handler thread that read the upcall, and when, ns.
    pub read: Option<(u32, Ns)>,
    /// Time at which that handler next began to send messages to the kernel, ns.
    pub answered: Option<Ns>,
}

/// State of the flow that would have matched a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// Unknown: this kernel does not report changes to flows.
    Unknown,
    /// The table has had no flow for the packet since this time, from which all changes to flows are known.
    NeverThere {
        /// The time, ns.
        since: Ns,
    },
    /// The flow was installed just after the packet had been looked up.
    Installed {
        /// The time, ns.
        at: Ns,
    },
    /// The flow was removed.
    Removed(Removal),
}

/// The removal of a flow, or of all flows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Time of the removal, ns.
    pub at: Ns,
    /// The thread that removed it.
    pub pid: u32,
    /// Name and process ID of that thread.
    pub by: Thread,
    /// Number of flows in the table before the removal.
    pub flows: u32,
    /// Whether all flows of the table were removed at once.
    pub all: bool,
    /// Time of the flow's installation, ns, if known. If it is unknown and `all` is set, the table may not have had a
    /// flow for the packet at all.
    pub installed: Option<Ns>,
    /// Number of packets that the flow had matched; unknown if all flows were removed at once.
    pub packets: Option<u64>,
    /// Time since the last of these packets, ns, in multiples of the kernel's tick.
    pub idle_ns: Option<Ns>,
}

/// Open vSwitch's limits of flows in a datapath (`other_config` in ovs-vswitchd.conf.db(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// `max-idle`: time without a packet after which a flow is removed, ns.
    pub max_idle_ns: Ns,
    /// `flow-limit`: number of flows above which they are removed sooner.
    pub flow_limit: u64,
}

impl Default for FlowLimits {
    /// Open vSwitch's defaults.
    fn default() -> Self {
        Self { max_idle_ns: 10_000_000_000, flow_limit: 200_000 }
    }
}

impl FlowLimits {
    /// Reads the limits from Open vSwitch's database; `None` if it does not reply.
    fn read() -> Option<Self> {
        let config = ovs_config(&Root::of(Path::new("/")))?.other_config;
        let number = |key: &str| config.iter().find(|(k, _)| k == key).and_then(|(_, value)| value.parse::<u32>().ok());
        let default = Self::default();
        Some(Self {
            max_idle_ns: number("max-idle").map_or(default.max_idle_ns, |ms| Ns::from(ms) * 1_000_000),
            flow_limit: number("flow-limit").map_or(default.flow_limit, u64::from),
        })
    }
}

const OVS: Option<&str> = Some("openvswitch");
const WHY: &str = "why Open vSwitch had no flow for a packet";
const PARTS: &str = "when ovs-vswitchd read a packet and answered";
const NEEDED: &str = "upcall_sent";

static HOOKS: [Hook; 7] = [
    module(NEEDED, "ovs_dp_upcall", "openvswitch", WHY),
    function("upcall_ended", "ovs_dp_upcall", OVS, PARTS),
    function("flow_inserted", "ovs_flow_tbl_insert", OVS, WHY),
    function("flow_removed", "ovs_flow_tbl_remove", OVS, WHY),
    function("table_flushed", "ovs_flow_tbl_flush", OVS, WHY),
    function("upcall_read", "netlink_recvmsg", None, PARTS),
    function("reply_sent", "netlink_sendmsg", None, PARTS),
];

const PURPOSE: Purpose = Purpose("record upcalls of Open vSwitch");

/// The attached programs, and the state derived from their records so far.
pub(crate) struct Upcalls {
    programs: Programs,
    records: RingBuffer<'static>,
    lost: Mapped<u64>,
    lost_before: u64,
    history: Arc<Mutex<History>>,
    limits: Option<FlowLimits>,
    limits_read: Option<Ns>,
}

impl Upcalls {
    /// Loads and attaches the programs; `None` if this kernel has no Open vSwitch, or has not loaded it.
    ///
    /// # Errors
    /// The kernel refuses the programs.
    pub fn start() -> Result<Option<Self>, Missing> {
        let missing = |why: String| Missing { tracepoint: "ovs_dp_upcall", is_function: false, lost: WHY, why };
        let mut hooks = Hooks::of_kernel(&HOOKS).map_err(|e| missing(e.to_string()))?;
        if !hooks.has(NEEDED) {
            return Ok(None);
        }
        let cpus = libbpf_rs::num_possible_cpus().map_err(|e| missing(e.to_string()))?;
        let loaded = PURPOSE.load::<UpcallsSkelBuilder, _>(
            &mut hooks,
            |hooks| hooks.has(NEEDED),
            |open, _| {
                open.maps.rodata_data.as_deref_mut().expect("the programs have constants").cpus = cpus as u32;
                Ok(())
            },
            |skel, hooks| {
                let lost = Mapped::new(&skel.maps.records_lost.as_fd(), 1)?;
                let records =
                    MapHandle::try_from(&skel.maps.records).map_err(PURPOSE.refused("reading the records"))?;
                Ok((hooks.attach(skel.object())?, records, lost))
            },
        );
        let (attached, map, lost) = loaded.map_err(|(error, _)| missing(error.to_string()))?;
        let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_err(|e| missing(e.to_string()))?;
        let tick = tick.tv_sec() * 1_000_000_000 + tick.tv_nsec();
        // If one of these programs is missing, changes to flows are unknown.
        let knows_flows = ["flow_inserted", "flow_removed", "table_flushed"].iter().all(|name| hooks.has(name));
        let history = Arc::new(Mutex::new(History::new(monotonic(), tick, knows_flows)));
        let to = Arc::clone(&history);
        let take = move |bytes: &[u8]| {
            to.lock().unwrap_or_else(PoisonError::into_inner).take(bytes);
            0
        };
        let mut builder = RingBufferBuilder::new();
        builder.add(&map, take).map_err(|e| missing(e.to_string()))?;
        let records = builder.build().map_err(|e| missing(e.to_string()))?;
        let programs = Programs::new(attached, hooks, false).map_err(|e| missing(e.to_string()))?;
        Ok(Some(Self { programs, records, lost, lost_before: 0, history, limits: None, limits_read: None }))
    }

    /// Memory of the programs' records, bytes.
    pub const BYTES: u64 = 1 << 20;

    /// Number of runs that the kernel skipped because the same program was already running.
    pub fn missed(&self) -> u64 {
        self.programs.missed()
    }

    /// The attached programs.
    pub fn attached(&self) -> &[AttachedProgram] {
        &self.programs.attached
    }

    /// Features that the kernel does not offer.
    pub fn missing(&self) -> &[Missing] {
        &self.programs.missing
    }

    /// Reads the records that the programs have written.
    pub fn read(&mut self) {
        // The number of lost records is read first: a record that does not fit is later than those in the buffer.
        let lost = self.lost.get(0);
        self.records.consume_raw();
        if lost != self.lost_before {
            self.lost_before = lost;
            self.history.lock().unwrap_or_else(PoisonError::into_inner).forget(monotonic());
        }
    }

    /// The upcalls in `from..to`, both `CLOCK_MONOTONIC`, and the limits of flows.
    pub fn between(&mut self, from: Ns, to: Ns) -> (Vec<Upcall>, Option<FlowLimits>) {
        self.read();
        let upcalls = self.history.lock().unwrap_or_else(PoisonError::into_inner).between(from, to);
        let now = monotonic();
        if !upcalls.is_empty() && self.limits_read.is_none_or(|read| now >= read + LIMITS_EVERY) {
            self.limits_read = Some(now);
            self.limits = FlowLimits::read();
        }
        (upcalls, self.limits)
    }
}
