//! Messages of the protocol, as derived protobuf; tags never change their meaning.

use crate::settings::MachineReading;
use crate::vms::VmList;
use latpath_clock::RealtimeRange;
use latpath_linux::proc;
use latpath_model::text::cut;
use latpath_model::{Counters, DropNote, Link, Ns, Point, PointInfo, PointKind, StreamSpec};
use latpath_timesync::{ClockIdentity, PtpTime};
use std::collections::BTreeMap;

pub use crate::source_notes::SourceNotes;

/// Version of the protocol. It changes when an older peer would misread a newer one.
pub const VERSION: u32 = 1;
/// Oldest version that this peer supports.
pub const OLDEST_VERSION: u32 = 1;

/// Maximum number of points announced by one machine: as many as a run can have.
pub const MAX_POINTS: usize = 64;
/// Maximum number of drop notes announced by one machine.
pub const MAX_NOTES: usize = 1024;
/// Maximum length of a name, bytes: device, clock, drop reason, function, host name.
pub const MAX_NAME: usize = 256;
/// Maximum length of an error or a description of capabilities, bytes.
pub const MAX_TEXT: usize = 4096;
/// Maximum length of a stream as the user wrote it, bytes.
const MAX_STREAM_TEXT: usize = 1024;
/// Maximum number of options of a start request.
const MAX_OPTIONS: usize = 64;
/// Maximum number of lines about missing kernel features.
pub const MAX_LINES: usize = 64;

/// Content of one frame.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Envelope {
    #[prost(
        oneof = "Message",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, \
                29, 30"
    )]
    pub message: Option<Message>,
}

/// A message, from the host (H) or from the agent (A).
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Message {
    /// H: the first message.
    #[prost(message, tag = "1")]
    HostHello(HostHello),
    #[prost(message, tag = "2")]
    AgentHello(Facts),
    /// H: attach the probe and report.
    #[prost(message, tag = "3")]
    Start(Start),
    #[prost(message, tag = "4")]
    Started(Empty),
    #[prost(message, tag = "5")]
    Points(Points),
    #[prost(message, tag = "6")]
    DropNotes(DropNotes),
    /// A: sightings, or only a new watermark.
    #[prost(message, tag = "7")]
    Batch(Batch),
    /// A: the counts so far.
    #[prost(message, tag = "8")]
    Totals(Totals),
    #[prost(message, tag = "9")]
    TimeRequest(TimeRequest),
    /// A: reply to a time request, sent before all other pending messages.
    #[prost(message, tag = "10")]
    TimeReply(TimeReply),
    /// A: simultaneous times of guest and host, from `/dev/ptp_kvm`.
    #[prost(message, tag = "11")]
    Pair(Pair),
    /// H or A: the reason for the end of the session.
    #[prost(message, tag = "12")]
    Error(ErrorText),
    /// H: detach, report the remaining sightings, and send a goodbye.
    #[prost(message, tag = "13")]
    Stop(Empty),
    #[prost(message, tag = "14")]
    Bye(Empty),
    /// H: request for the CPUs' events between two times; only to an agent whose hello has `records`.
    #[prost(message, tag = "15")]
    WindowRequest(WindowRequest),
    /// A: a part of the reply, sent after all other pending messages.
    #[prost(message, tag = "16")]
    WindowReply(WindowReply),
    /// A: state of the flight recorder; only to a host whose start had the option.
    #[prost(message, tag = "17")]
    Recording(Recording),
    /// A: a part of the profile, sent after all other pending messages; only to a host whose start had the option.
    #[prost(message, tag = "18")]
    ProfileChunk(Chunk),
    /// H: a command to run; only to an agent whose hello has `runs_commands`.
    #[prost(message, tag = "19")]
    RunCommand(RunCommand),
    /// A: output of the command, and its end.
    #[prost(message, tag = "20")]
    CommandChunk(CommandChunk),
    #[prost(message, tag = "21")]
    EndCommand(Empty),
    /// A: the source's notes, in addition to sightings, after each change; they replace earlier ones. Only to a host
    /// whose start had the option.
    #[prost(message, tag = "22")]
    SourceNotes(SourceNotes),
    /// H: start this instrument, until [`Message::EndObservation`]; only to an agent whose hello has `observes`.
    #[prost(message, tag = "23")]
    Observe(Observe),
    /// A: the observation's window has begun.
    #[prost(message, tag = "24")]
    Observing(Empty),
    /// H: end the observation's window.
    #[prost(message, tag = "25")]
    EndObservation(Empty),
    /// A: a part of the observation; sent after all other queued messages.
    #[prost(message, tag = "26")]
    ObservationChunk(Chunk),
    /// A: the machine's settings, before [`Message::Started`]. Only to a host whose start had the option.
    #[prost(message, tag = "27")]
    Settings(MachineReading),
    /// A: the time of the grandmaster that the agent's system clock follows, twice a second. Only to a host whose start
    /// had the option.
    #[prost(message, tag = "28")]
    GrandmasterTime(GrandmasterTime),
    /// A: a part of the list of virtual machines on the agent's machine, before [`Message::Started`]. Only to a host
    /// whose start had the option.
    #[prost(message, tag = "29")]
    Vms(VmList),
    /// A: the agent's time of day relative to its monotonic clock, four times a second. Only to a host whose start had
    /// the option.
    #[prost(message, tag = "30")]
    TimeOfDay(TimeOfDay),
}

/// A message without content.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HostHello {
    /// Versions that the host understands, `oldest..=newest`.
    #[prost(uint32, tag = "1")]
    pub oldest: u32,
    #[prost(uint32, tag = "2")]
    pub newest: u32,
    /// latpath's version, for error messages.
    #[prost(string, tag = "3")]
    pub program: String,
}

/// An agent's facts about its machine.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Facts {
    /// Version of the protocol that both ends understand.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// latpath's version.
    #[prost(string, tag = "2")]
    pub program: String,
    /// Kernel release.
    #[prost(string, tag = "3")]
    pub kernel: String,
    /// Host name.
    #[prost(string, tag = "4")]
    pub hostname: String,
    /// Number of CPUs available to the agent.
    #[prost(uint32, tag = "5")]
    pub cpus: u32,
    /// The kernel's clock source (`kvm-clock`, `tsc`).
    #[prost(string, tag = "6")]
    pub clocksource: String,
    /// Capabilities of the probe, as human-readable text.
    #[prost(string, tag = "7")]
    pub capabilities: String,
    /// Whether the agent has a flight recorder and supports its messages.
    #[prost(bool, tag = "8")]
    pub records: bool,
    /// `/proc/sys/kernel/random/boot_id`, equal for machines that share a kernel; empty from old agents.
    #[prost(string, tag = "9")]
    pub boot_id: String,
    /// Whether the agent can sample its CPUs and supports the messages.
    #[prost(bool, tag = "10")]
    pub profiles: bool,
    /// Whether the agent runs commands for its host.
    #[prost(bool, tag = "11")]
    pub runs_commands: bool,
    // Tag 12 is reserved: earlier versions sent the machine's settings in each hello.
    /// Whether the agent can attach instruments and supports their messages.
    #[prost(bool, tag = "13")]
    pub observes: bool,
}

impl Facts {
    /// Facts about this machine, without capabilities, and with commands refused.
    pub fn of_this_machine() -> Self {
        let line =
            |path: &str| Some(proc::line(path)).filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".into());
        Self {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").into(),
            kernel: line("/proc/sys/kernel/osrelease"),
            hostname: line("/proc/sys/kernel/hostname"),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            capabilities: String::new(),
            records: true,
            boot_id: proc::boot_id(),
            profiles: true,
            runs_commands: false,
            observes: false,
        }
    }

    /// A copy with all strings truncated and without control codes.
    pub(crate) fn printable(&self) -> Self {
        Self {
            program: short(&self.program),
            kernel: short(&self.kernel),
            hostname: short(&self.hostname),
            clocksource: short(&self.clocksource),
            capabilities: printable(&self.capabilities),
            boot_id: short(&self.boot_id),
            ..*self
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Start {
    /// Streams as the user wrote them.
    #[prost(string, repeated, tag = "1")]
    pub streams: Vec<String>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub options: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Points {
    #[prost(message, repeated, tag = "1")]
    pub points: Vec<WirePoint>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WirePoint {
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    #[prost(string, tag = "2")]
    pub device: String,
    #[prost(uint32, tag = "3")]
    pub link: u32,
    #[prost(uint32, tag = "4")]
    pub netns: u32,
    #[prost(uint32, tag = "5")]
    pub ifindex: u32,
    #[prost(string, tag = "6")]
    pub clock: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DropNotes {
    #[prost(message, repeated, tag = "1")]
    pub notes: Vec<WireNote>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireNote {
    #[prost(string, tag = "1")]
    pub reason: String,
    #[prost(string, tag = "2")]
    pub function: String,
}

/// Sightings in columns; see [`crate::columns`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Batch {
    /// Watermark, in the guest's clock: no later batch has an older sighting.
    #[prost(sint64, tag = "1")]
    pub watermark: Ns,
    /// Time of the first sighting.
    #[prost(sint64, tag = "2")]
    pub first: Ns,
    /// The distinct contexts (stream, point, CPU, thread, drop note) of this batch's sightings.
    #[prost(message, repeated, tag = "3")]
    pub contexts: Vec<Context>,
    /// Context of each sighting: an index into `contexts`.
    #[prost(uint32, repeated, tag = "4")]
    pub context: Vec<u32>,
    /// Time since the previous sighting, ns.
    #[prost(sint64, repeated, tag = "5")]
    pub later: Vec<i64>,
    /// Each sighting's key minus the previous key of the same stream at the same point.
    #[prost(sint32, repeated, tag = "6")]
    pub key: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Context {
    #[prost(uint32, tag = "1")]
    pub stream: u32,
    #[prost(uint32, tag = "2")]
    pub point: u32,
    #[prost(uint32, tag = "3")]
    pub cpu: u32,
    #[prost(uint32, tag = "4")]
    pub tid: u32,
    #[prost(uint32, tag = "5")]
    pub note: u32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Totals {
    #[prost(uint64, tag = "1")]
    pub sightings: u64,
    #[prost(uint64, tag = "2")]
    pub dropped: u64,
    #[prost(uint64, tag = "3")]
    pub malformed: u64,
    #[prost(uint64, tag = "4")]
    pub points_overflow: u64,
    #[prost(uint64, tag = "5")]
    pub unreadable: u64,
    #[prost(uint64, tag = "6")]
    pub ns_per_sighting: u64,
    #[prost(uint64, tag = "7")]
    pub packets_seen: u64,
    /// CPU time used by the agent's process since the start of the session, ns.
    #[prost(uint64, tag = "8")]
    pub process_ns: u64,
    /// Duration of the session, ns; 0 from an agent that does not measure itself.
    #[prost(uint64, tag = "9")]
    pub lasted_ns: u64,
    #[prost(uint64, tag = "10")]
    pub skipped: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct TimeRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct TimeReply {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The guest's clock right after reading the request.
    #[prost(sint64, tag = "2")]
    pub received: Ns,
    /// The guest's clock right before writing this reply.
    #[prost(sint64, tag = "3")]
    pub sent: Ns,
    /// The guest's TSC shortly before `sent`; 0 if unknown.
    #[prost(fixed64, tag = "4")]
    pub tsc: u64,
    /// The guest's clock at that TSC, ± `tsc_uncertainty`.
    #[prost(sint64, tag = "5")]
    pub tsc_at: Ns,
    #[prost(sint64, tag = "6")]
    pub tsc_uncertainty: Ns,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Pair {
    #[prost(sint64, tag = "1")]
    pub guest: Ns,
    #[prost(sint64, tag = "2")]
    pub host_realtime: Ns,
    #[prost(sint64, tag = "3")]
    pub uncertainty: Ns,
}

/// The agent's [`RealtimeRange`].
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct TimeOfDay {
    #[prost(sint64, tag = "1")]
    pub low: Ns,
    #[prost(sint64, tag = "2")]
    pub high: Ns,
    #[prost(sint64, tag = "3")]
    pub since: Ns,
    #[prost(sint64, tag = "4")]
    pub until: Ns,
}

impl From<RealtimeRange> for TimeOfDay {
    fn from(RealtimeRange { low, high, since, until }: RealtimeRange) -> Self {
        Self { low, high, since, until }
    }
}

impl From<TimeOfDay> for RealtimeRange {
    fn from(TimeOfDay { low, high, since, until }: TimeOfDay) -> Self {
        Self { low, high, since, until }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GrandmasterTime {
    /// Identity of the grandmaster's clock.
    #[prost(bytes = "vec", tag = "1")]
    pub grandmaster: Vec<u8>,
    /// A reading of the agent's `CLOCK_MONOTONIC`.
    #[prost(sint64, tag = "2")]
    pub monotonic: Ns,
    /// The grandmaster's time at that reading, UTC.
    #[prost(sint64, tag = "3")]
    pub utc: Ns,
    /// Maximum error of `utc` relative to `monotonic`, ns.
    #[prost(sint64, tag = "4")]
    pub bound: Ns,
}

impl From<PtpTime> for GrandmasterTime {
    fn from(time: PtpTime) -> Self {
        let PtpTime { grandmaster, monotonic_ns: monotonic, utc_ns: utc, bound_ns: bound } = time;
        Self { grandmaster: grandmaster.0.to_vec(), monotonic, utc, bound }
    }
}

impl TryFrom<&GrandmasterTime> for PtpTime {
    type Error = String;

    /// # Errors
    /// The identity does not have eight bytes.
    fn try_from(time: &GrandmasterTime) -> Result<Self, String> {
        let GrandmasterTime { grandmaster, monotonic, utc, bound } = time;
        let grandmaster = grandmaster.as_slice().try_into().map_err(|_| "the machine's grandmaster has no identity")?;
        let grandmaster = ClockIdentity(grandmaster);
        Ok(Self { grandmaster, monotonic_ns: *monotonic, utc_ns: *utc, bound_ns: *bound })
    }
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct WindowRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Start of the window, in the agent's clock.
    #[prost(sint64, tag = "2")]
    pub from: Ns,
    #[prost(sint64, tag = "3")]
    pub to: Ns,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WindowReply {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Reason why there is no window; other fields are then empty.
    #[prost(string, tag = "2")]
    pub error: String,
    /// The next bytes of the encoded snapshot.
    #[prost(bytes = "vec", tag = "3")]
    pub chunk: Vec<u8>,
    /// Whether this is the last part.
    #[prost(bool, tag = "4")]
    pub last: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Recording {
    /// Reason for not recording; empty while recording.
    #[prost(string, tag = "1")]
    pub error: String,
    /// Missing kernel features as human-readable lines; in the first message only.
    #[prost(string, repeated, tag = "2")]
    pub missing: Vec<String>,
    #[prost(uint64, tag = "3")]
    pub events: u64,
    #[prost(uint64, tag = "4")]
    pub missed: u64,
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
    #[prost(uint64, tag = "6")]
    pub windows: u64,
    /// Mean cost of an event, ns; 0 if unknown.
    #[prost(uint64, tag = "7")]
    pub ns_per_event: u64,
    /// Maximum CPU time of the recorder, in millionths of all CPUs' time; absent from an agent without a budget.
    #[prost(uint64, optional, tag = "8")]
    pub budget_ppm: Option<u64>,
    /// Mean CPU time of the recorder, in the same unit.
    #[prost(uint64, optional, tag = "9")]
    pub cost_ppm: Option<u64>,
    /// Time for which fewer events were recorded to stay within the budget, ns.
    #[prost(uint64, tag = "10")]
    pub reduced_ns: u64,
    /// Time for which no events were recorded to stay within the budget, ns.
    #[prost(uint64, tag = "11")]
    pub paused_ns: u64,
}

/// The instrument to start.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Observe {
    /// The instrument's name.
    #[prost(string, tag = "1")]
    pub instrument: String,
}

/// A piece of a [`Reply`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Chunk {
    #[prost(bytes = "vec", tag = "1")]
    pub bytes: Vec<u8>,
    /// Whether this piece completes the reply.
    #[prost(bool, tag = "2")]
    pub last: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Reply {
    /// Why there is no content.
    #[prost(string, tag = "1")]
    pub error: String,
    /// A slice of a profile (see [`crate::profile`]), or an observation as JSON.
    #[prost(bytes = "vec", tag = "2")]
    pub content: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RunCommand {
    /// The program and its arguments.
    #[prost(string, repeated, tag = "1")]
    pub words: Vec<String>,
    /// The host's key, if it has one.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CommandChunk {
    /// The next bytes of output.
    #[prost(bytes = "vec", tag = "1")]
    pub bytes: Vec<u8>,
    /// Whether `bytes` come from standard error.
    #[prost(bool, tag = "2")]
    pub is_error: bool,
    /// Whether the command has ended, with exit code `code`; this message is then the last one.
    #[prost(bool, tag = "3")]
    pub ended: bool,
    #[prost(sint32, tag = "4")]
    pub code: i32,
    /// Reason why the command did not run; this message is then the last one.
    #[prost(string, tag = "5")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ErrorText {
    #[prost(string, tag = "1")]
    pub text: String,
}

/// The host's request for an agent's measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartRequest {
    /// Streams; a sighting's [`StreamId`](latpath_model::StreamId) is an index into them.
    pub streams: Vec<StreamSpec>,
    /// Further settings of the probe, by name.
    pub options: BTreeMap<String, String>,
}

impl StartRequest {
    /// Option to run a flight recorder: size of each CPU's event buffer, bytes.
    pub const FLIGHT: &str = "flight_bytes_per_cpu";
    /// Option to limit the flight recorder's cost: maximum CPU time, in millionths of all CPUs' time.
    pub const FLIGHT_BUDGET: &str = "flight_budget_ppm";
    /// Option to sample the CPUs: frequency, Hz.
    pub const PROFILE: &str = "profile_hz";
    /// Option to report the locations of functions that have no symbol.
    pub const PLACES: &str = "profile_places";
    /// Option with the names of reading threads for which the probe's table of points reserves an entry: one name per
    /// line, `*` matches any string.
    pub const READERS: &str = "readers";
    /// Option to report the machine's settings once.
    pub const SETTINGS: &str = "settings";
    /// Option to report the machine's virtual machines once.
    pub const VMS: &str = "vms";
    /// Option to report the time of the grandmaster that the machine's system clock follows.
    pub const GRANDMASTER: &str = "grandmaster_time";
    /// Option to report the machine's time of day relative to its monotonic clock, needed if its guests are followed
    /// too.
    pub const TIME_OF_DAY: &str = "time_of_day";
    /// Option to use the timestamps that the machine's NICs take of packets.
    pub const NIC_TIMES: &str = "nic_times";
    /// Option to report notes and senders of the source.
    pub const NOTES: &str = "source_notes";

    /// Value of an option, if present.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// Returns [`Self::READERS`] with as many of these names as fit into an option.
    pub fn names_of_readers(names: &[String]) -> Option<(String, String)> {
        let mut text = String::new();
        for name in names.iter().filter(|name| !name.contains('\n')) {
            if text.len() + name.len() < MAX_STREAM_TEXT {
                text += name;
                text.push('\n');
            }
        }
        (!text.is_empty()).then(|| (Self::READERS.into(), text))
    }
}

impl From<&StartRequest> for Start {
    fn from(request: &StartRequest) -> Self {
        let streams = request.streams.iter().map(ToString::to_string).collect();
        Self { streams, options: request.options.clone() }
    }
}

impl TryFrom<Start> for StartRequest {
    type Error = String;
    fn try_from(start: Start) -> Result<Self, String> {
        if start.streams.len() > latpath_model::stream::MAX_STREAMS || start.options.len() > MAX_OPTIONS {
            return Err(format!("{} streams and {} options are too many", start.streams.len(), start.options.len()));
        }
        let long = |s: &String| s.len() > MAX_STREAM_TEXT;
        if start.streams.iter().any(long) || start.options.iter().any(|(name, value)| long(name) || long(value)) {
            return Err("a stream or option is too long".into());
        }
        let streams = start.streams.iter().map(|s| s.parse().map_err(|e| format!("{e}"))).collect::<Result<_, _>>()?;
        Ok(Self { streams, options: start.options })
    }
}

const LINKS: [Link; 6] = [Link::Nic, Link::Bridge, Link::OvsInternal, Link::Tap, Link::Veth, Link::Socket];

impl From<&PointInfo> for WirePoint {
    fn from(info: &PointInfo) -> Self {
        Self {
            kind: info.point.kind.number().into(),
            device: cut(&info.point.device, MAX_NAME).into(),
            link: LINKS.iter().position(|l| *l == info.link).unwrap_or(0) as u32,
            netns: info.netns,
            ifindex: info.ifindex,
            clock: cut(&info.clock, MAX_NAME).into(),
        }
    }
}

impl WirePoint {
    /// Decodes the point, as one of the machine with this name.
    ///
    /// # Errors
    /// The point is invalid; the error names the problem.
    pub fn read(self, machine: &str) -> Result<PointInfo, String> {
        let kind = u8::try_from(self.kind).ok().and_then(PointKind::from_number);
        let kind = kind.ok_or_else(|| format!("a point of the unknown kind {}", self.kind))?;
        let link = usize::try_from(self.link).ok().and_then(|i| LINKS.get(i));
        Ok(PointInfo {
            point: Point { machine: machine.into(), kind, device: name(&self.device) },
            link: *link.ok_or_else(|| format!("a point on the unknown link {}", self.link))?,
            netns: self.netns,
            ifindex: self.ifindex,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: name(&self.clock),
        })
    }
}

impl From<&DropNote> for WireNote {
    fn from(note: &DropNote) -> Self {
        Self { reason: cut(&note.reason, MAX_NAME).into(), function: cut(&note.function, MAX_NAME).into() }
    }
}

impl WireNote {
    pub fn read(self) -> DropNote {
        DropNote { reason: name(&self.reason), function: name(&self.function), at: None }
    }
}

/// Converts between [`Counters`] and [`Totals`]. A missing counter does not compile.
macro_rules! counted {
    ($($name:ident),*) => {
        impl From<Counters> for Totals {
            fn from(counters: Counters) -> Self {
                // `left_out` is always 0: an agent follows every packet.
                let Counters { $($name,)* left_out: _ } = counters;
                Self { $($name,)* ..Self::default() }
            }
        }

        impl From<Totals> for Counters {
            fn from(totals: Totals) -> Self {
                let Totals { $($name,)* process_ns: _, lasted_ns: _ } = totals;
                Self { $($name,)* left_out: 0 }
            }
        }
    };
}

counted!(sightings, dropped, malformed, points_overflow, unreadable, skipped, ns_per_sighting, packets_seen);

/// A peer's name, made safe for tables. A guest's processes name their threads and devices freely, so an unsafe name is
/// cleaned up instead of refusing its point.
fn name(text: &str) -> String {
    if text.is_empty() {
        "?".into()
    } else {
        short(text)
    }
}

/// Makes a peer's string safe for one line: truncated, without control codes.
fn short(text: &str) -> String {
    cut(&latpath_model::text::printable(text), MAX_NAME).into()
}

/// Makes a peer's string safe to show: truncated, without line breaks and control codes, because a second line could
/// pass for one of ours.
pub fn printable(text: &str) -> String {
    latpath_model::text::printable(&cut(text, MAX_TEXT).replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_point_and_link_survives_the_wire() {
        for kind in PointKind::ALL {
            for link in LINKS {
                let point = Point { machine: "g".into(), kind, device: "eth1".into() };
                let info = PointInfo {
                    point,
                    link,
                    netns: 4,
                    ifindex: 5,
                    peer: 0,
                    peer_netns: 0,
                    error_bound_ns: 0,
                    clock: "monotonic".into(),
                };
                assert_eq!(WirePoint::from(&info).read("g"), Ok(info));
            }
        }
    }

    #[test]
    fn names_that_could_harm_a_terminal_or_a_table_are_replaced() {
        for (given, read) in [
            ("", "?".to_string()),
            ("a\x1b[2J", "a?[2J".into()),
            ("a\nb", "a?b".into()),
            (&"x".repeat(257), "x".repeat(256)),
        ] {
            let point = WirePoint { device: given.into(), clock: given.into(), ..WirePoint::default() };
            let point = point.read("g").unwrap();
            assert_eq!((&point.point.device, &point.clock), (&read, &read));
            let note = WireNote { reason: given.into(), function: given.into() }.read();
            assert_eq!(note, DropNote { reason: read.clone(), function: read, at: None });
        }
        assert_eq!(printable("a\x1b[2Jb\nlatpath: c"), "a?[2Jb latpath: c");
        assert_eq!(printable(&"é".repeat(5000)).len(), MAX_TEXT);
    }

    #[test]
    fn all_counters_of_an_agent_survive_the_wire() {
        let counters = Counters {
            sightings: 1,
            dropped: 2,
            malformed: 3,
            points_overflow: 4,
            unreadable: 5,
            left_out: 0,
            skipped: 6,
            ns_per_sighting: 7,
            packets_seen: 8,
        };
        assert_eq!(Counters::from(Totals::from(counters)), counters);
    }

    #[test]
    fn unknown_numbers_are_refused() {
        let good = WirePoint { device: "d".into(), clock: "c".into(), ..WirePoint::default() };
        assert!(WirePoint { kind: 200, ..good.clone() }.read("g").is_err());
        assert!(WirePoint { kind: 256, ..good.clone() }.read("g").is_err());
        assert!(WirePoint { link: 6, ..good }.read("g").is_err());
    }

    #[test]
    fn a_start_request_survives_the_wire_and_bad_ones_are_refused() {
        let request = StartRequest {
            streams: vec!["svid:MU01,vlan=7".parse().unwrap(), "udp::5000".parse().unwrap()],
            options: [("points".into(), "nic-rx@eth1".into())].into(),
        };
        assert_eq!(StartRequest::try_from(Start::from(&request)), Ok(request.clone()));
        assert_eq!(request.option("points"), Some("nic-rx@eth1"));
        let bad = Start { streams: vec!["nonsense".into()], options: BTreeMap::new() };
        assert!(StartRequest::try_from(bad).unwrap_err().contains("not a stream"));
        let many = Start { streams: vec!["svid:x".into(); 257], options: BTreeMap::new() };
        assert!(StartRequest::try_from(many).is_err());
    }
}
