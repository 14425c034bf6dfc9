//! What the two ends say to each other. Protobuf by derivation; tags never change their meaning.

use latpath_linux::proc;
use latpath_model::text::cut;
use latpath_model::{Counters, DropNote, Link, Ns, Point, PointInfo, PointKind, StreamSpec};
use std::collections::BTreeMap;

pub use crate::source_notes::SourceNotes;

/// Version of the protocol that this latpath speaks. It changes when an older end would misread a newer one.
pub const VERSION: u32 = 1;
/// Oldest version that it still understands.
pub const OLDEST_VERSION: u32 = 1;

/// Points that one machine may announce: as many as a run can have.
pub const MAX_POINTS: usize = 64;
/// Drop notes that one machine may announce.
pub const MAX_NOTES: usize = 1024;
/// Bytes of a name: point's device, clock, drop reason, function, host name.
pub const MAX_NAME: usize = 256;
/// Bytes of an error's or a capability's text.
pub const MAX_TEXT: usize = 4096;
/// Bytes of a stream as the user wrote it.
const MAX_STREAM_TEXT: usize = 1024;
/// Options of a start.
const MAX_OPTIONS: usize = 64;
/// Lines on what a kernel does not offer.
pub const MAX_LINES: usize = 64;

/// One frame's content.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Envelope {
    #[prost(oneof = "Message", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22")]
    pub message: Option<Message>,
}

/// A message, from the host (H) or from the agent (A).
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Message {
    /// H: first of all.
    #[prost(message, tag = "1")]
    HostHello(HostHello),
    #[prost(message, tag = "2")]
    AgentHello(Facts),
    /// H: attach and report.
    #[prost(message, tag = "3")]
    Start(Start),
    #[prost(message, tag = "4")]
    Started(Empty),
    #[prost(message, tag = "5")]
    Points(Points),
    #[prost(message, tag = "6")]
    DropNotes(DropNotes),
    /// A: sightings, or only a later watermark.
    #[prost(message, tag = "7")]
    Batch(Batch),
    /// A: what was counted so far.
    #[prost(message, tag = "8")]
    Totals(Totals),
    #[prost(message, tag = "9")]
    TimeRequest(TimeRequest),
    /// A: the answer; goes before everything else that waits.
    #[prost(message, tag = "10")]
    TimeReply(TimeReply),
    /// A: guest and host time of one moment, from `/dev/ptp_kvm`.
    #[prost(message, tag = "11")]
    Pair(Pair),
    /// Either: it is over, and why.
    #[prost(message, tag = "12")]
    Error(ErrorText),
    /// H: detach, report the rest, say goodbye.
    #[prost(message, tag = "13")]
    Stop(Empty),
    #[prost(message, tag = "14")]
    Bye(Empty),
    /// H: what did the CPUs do from then to then? Only to an agent whose hello says that it `records`.
    #[prost(message, tag = "15")]
    WindowRequest(WindowRequest),
    /// A: a piece of the answer; goes behind everything else that waits.
    #[prost(message, tag = "16")]
    WindowReply(WindowReply),
    /// A: how the flight recorder does. Only to a host whose start had the option.
    #[prost(message, tag = "17")]
    Recording(Recording),
    /// A: a piece of the profile; goes behind everything else that waits. Only to a host whose start had the option.
    #[prost(message, tag = "18")]
    ProfileChunk(ProfileChunk),
    /// H: run this command. Only to an agent whose hello says that it `runs_commands`.
    #[prost(message, tag = "19")]
    RunCommand(RunCommand),
    /// A: what it printed, and how it ended.
    #[prost(message, tag = "20")]
    CommandChunk(CommandChunk),
    #[prost(message, tag = "21")]
    EndCommand(Empty),
    /// A: what its source knows beside sightings, whenever that has changed; it replaces what was known. Only to a host whose start had
    /// the option.
    #[prost(message, tag = "22")]
    SourceNotes(SourceNotes),
}

/// Nothing more to say.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HostHello {
    /// Versions that the host speaks, `oldest..=newest`.
    #[prost(uint32, tag = "1")]
    pub oldest: u32,
    #[prost(uint32, tag = "2")]
    pub newest: u32,
    /// latpath's own version, for errors.
    #[prost(string, tag = "3")]
    pub program: String,
}

/// What an agent says about its machine.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Facts {
    /// The protocol's version that both speak.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// latpath's version.
    #[prost(string, tag = "2")]
    pub program: String,
    #[prost(string, tag = "3")]
    pub kernel: String,
    /// Host name.
    #[prost(string, tag = "4")]
    pub hostname: String,
    #[prost(uint32, tag = "5")]
    pub cpus: u32,
    /// What the kernel takes its time from (`kvm-clock`, `tsc`).
    #[prost(string, tag = "6")]
    pub clocksource: String,
    /// What the probe can and cannot do there, for people.
    #[prost(string, tag = "7")]
    pub capabilities: String,
    /// It has a flight recorder, and knows the messages about it.
    #[prost(bool, tag = "8")]
    pub records: bool,
    /// `/proc/sys/kernel/random/boot_id`: the same where two machines are one kernel. Empty from an agent that does not say it.
    #[prost(string, tag = "9")]
    pub boot_id: String,
    /// It can sample its machine's CPUs, and knows the messages about it.
    #[prost(bool, tag = "10")]
    pub profiles: bool,
    #[prost(bool, tag = "11")]
    pub runs_commands: bool,
}

impl Facts {
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
        }
    }

    /// The same, cut, and without what a terminal would obey.
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
    /// Streams as the user writes them.
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
    /// No later batch holds a sighting older than this (guest's clock).
    #[prost(sint64, tag = "1")]
    pub watermark: Ns,
    /// Time of the first sighting.
    #[prost(sint64, tag = "2")]
    pub first: Ns,
    /// What sightings of this batch have in common.
    #[prost(message, repeated, tag = "3")]
    pub contexts: Vec<Context>,
    /// Each sighting's context, by index.
    #[prost(uint32, repeated, tag = "4")]
    pub context: Vec<u32>,
    /// Time since the sighting before.
    #[prost(sint64, repeated, tag = "5")]
    pub later: Vec<i64>,
    /// Key minus the last key of the same stream at the same point.
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
    /// CPU time of the agent's process since the session began.
    #[prost(uint64, tag = "8")]
    pub process_ns: u64,
    /// How long the session has lasted; 0 from an agent that does not measure itself.
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
    /// Guest's clock right after the request was read.
    #[prost(sint64, tag = "2")]
    pub received: Ns,
    /// Guest's clock right before this is written.
    #[prost(sint64, tag = "3")]
    pub sent: Ns,
    /// The guest's TSC just before; 0 from an agent that has none, or does not say it.
    #[prost(fixed64, tag = "4")]
    pub tsc: u64,
    /// Guest's clock when its TSC was that, plus or minus `tsc_uncertainty`.
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

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct WindowRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Agent's clock.
    #[prost(sint64, tag = "2")]
    pub from: Ns,
    #[prost(sint64, tag = "3")]
    pub to: Ns,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WindowReply {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Why there is no window; then nothing else is said of it.
    #[prost(string, tag = "2")]
    pub error: String,
    /// The next bytes of the encoded snapshot.
    #[prost(bytes = "vec", tag = "3")]
    pub chunk: Vec<u8>,
    /// Nothing follows.
    #[prost(bool, tag = "4")]
    pub last: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Recording {
    /// Why nothing is recorded; empty while it is.
    #[prost(string, tag = "1")]
    pub error: String,
    /// What the kernel there does not offer, lines for people: the first time.
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
    /// What an event cost, on average; 0 where that is not known.
    #[prost(uint64, tag = "7")]
    pub ns_per_event: u64,
    /// CPU time that recording may take, in millionths of all CPUs' time; absent from an agent without a budget.
    #[prost(uint64, optional, tag = "8")]
    pub budget_ppm: Option<u64>,
    /// What it took of that, on average.
    #[prost(uint64, optional, tag = "9")]
    pub cost_ppm: Option<u64>,
    /// Time in which fewer events were recorded to stay within the budget, ns.
    #[prost(uint64, tag = "10")]
    pub reduced_ns: u64,
    /// Time in which nothing was recorded for the same reason, ns.
    #[prost(uint64, tag = "11")]
    pub paused_ns: u64,
}

/// A piece of a [`ProfileReply`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProfileChunk {
    #[prost(bytes = "vec", tag = "1")]
    pub bytes: Vec<u8>,
    /// With it the reply is whole.
    #[prost(bool, tag = "2")]
    pub last: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ProfileReply {
    /// Why nothing is sampled.
    #[prost(string, tag = "1")]
    pub error: String,
    /// A slice, see [`crate::profile`].
    #[prost(bytes = "vec", tag = "2")]
    pub slice: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RunCommand {
    /// The program, and its arguments.
    #[prost(string, repeated, tag = "1")]
    pub words: Vec<String>,
    /// The host's key, where it has one.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CommandChunk {
    /// The next bytes that it printed.
    #[prost(bytes = "vec", tag = "1")]
    pub bytes: Vec<u8>,
    /// They are of its standard error.
    #[prost(bool, tag = "2")]
    pub is_error: bool,
    /// It has ended, with this code; nothing follows.
    #[prost(bool, tag = "3")]
    pub ended: bool,
    #[prost(sint32, tag = "4")]
    pub code: i32,
    /// Why it did not run; nothing follows.
    #[prost(string, tag = "5")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ErrorText {
    #[prost(string, tag = "1")]
    pub text: String,
}

/// What the host asks an agent to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartRequest {
    /// The streams; a sighting's [`StreamId`](latpath_model::StreamId) is an index into them.
    pub streams: Vec<StreamSpec>,
    /// Further settings of the probe, by name.
    pub options: BTreeMap<String, String>,
}

impl StartRequest {
    /// The option that has the agent run a flight recorder: bytes for each CPU's events.
    pub const FLIGHT: &str = "flight_bytes_per_cpu";
    /// The option that limits what it costs: a part of the CPU time of the agent's machine, in millionths.
    pub const FLIGHT_BUDGET: &str = "flight_budget_ppm";
    /// The option that has the agent sample its CPUs: so many times a second.
    pub const PROFILE: &str = "profile_hz";
    /// The option that has its sampler say where functions lie that have no name there.
    pub const PLACES: &str = "profile_places";
    /// The option that names reading threads which have a place in the probe's table of points whatever others do: a name a line, in
    /// which `*` stands for any text.
    pub const READERS: &str = "readers";
    /// The option that has the agent report notes and senders of its source.
    pub const NOTES: &str = "source_notes";

    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// [`Self::READERS`] with these names, as many as fit into an option.
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
    /// The point on the machine of this name, or what is wrong with it.
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

/// The counts that stand in [`Totals`]. What a counter lacks here does not compile.
macro_rules! counted {
    ($($name:ident),*) => {
        impl From<Counters> for Totals {
            fn from(counters: Counters) -> Self {
                // An agent follows every packet.
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

/// A peer's name as it can stand in a table. Any process of a guest may name its threads and devices as it likes, which is no
/// reason to leave the guest's other points out.
fn name(text: &str) -> String {
    if text.is_empty() {
        "?".into()
    } else {
        short(text)
    }
}

/// A peer's line of text: cut, and without what a terminal would obey.
fn short(text: &str) -> String {
    cut(&latpath_model::text::printable(text), MAX_NAME).into()
}

/// A peer's text for people: cut, one line, and without what a terminal would obey. A second line could pass for one of ours.
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
                let info =
                    PointInfo { point, link, netns: 4, ifindex: 5, peer: 0, peer_netns: 0, clock: "monotonic".into() };
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
    fn all_that_an_agent_counts_survives_the_wire() {
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
