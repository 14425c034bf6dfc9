//! Shared by `live` and `record`: the flags that select what to follow, and the messages about a session on stderr.

use super::choose::{choose, Choice};
use super::flags::{Joining, Stamps, StopAfter, THRESHOLD};
use super::on_spike::{LateEvent, OnSpike, SpikeCommand};
use super::{ns, Usage};
use anyhow::{bail, Result};
use clap::Args as ClapArgs;
use latpath_agent::Address;
use latpath_capture::{LatenessRule, RetentionLimits};
use latpath_flight::Ppm;
use latpath_follow::{hypervisors, FlightOptions, NamedMachine, Options, PointFilter};
use latpath_model::stream::MAX_STREAMS;
use latpath_model::text::printable;
use latpath_model::{Ns, StreamSpec, HOST, MERGING_UNIT, TALKER};
use latpath_protocols::ReactionRule;
use latpath_session::{size_note, Event, Session};
use latpath_stats::units::{duration, number_of};
use latpath_timesync::SyncEvent;
use std::path::Path;
use std::time::Duration;

/// What to follow.
#[derive(ClapArgs, Debug)]
pub struct FollowArgs {
    #[arg(short, long = "stream", value_name = "STREAM", help = stream_help())]
    streams: Vec<StreamSpec>,
    /// Follow every stream with a sequence number that is seen at the start
    #[arg(long)]
    all: bool,
    /// Device to listen on for the streams of --all or of a pattern, in both directions, e.g. eth0 or eth0%NAMESPACE;
    /// can be repeated [default: all that are up, in all network namespaces]
    #[arg(short, long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// Measure reactions: from a packet that comes in to the packet that an application sends because of it, e.g.
    /// 'svid:MU01[|Ia|] > 1500A -> goose:TRIP' or 'goose:PING -> goose:PONG,within=20ms'; follows both streams; can be
    /// repeated
    #[arg(long = "react", value_name = "RULE")]
    reactions: Vec<ReactionRule>,
    #[arg(long = "match", value_name = "RULE", help = match_help())]
    rule: Option<String>,
    /// Also watch this machine on the path, where an agent runs, e.g. guest0=ssh:root@guest, guest0=unix:PATH or
    /// guest0=vsock:CID:PORT; relay@b=ADDRESS for a guest that runs on machine b instead of this one; can be repeated
    #[arg(short, long = "machine", value_name = "NAME=ADDRESS")]
    machines: Vec<NamedMachine>,
    /// Only use points that match this pattern, e.g. host/nic-rx@eth0 or guest0/*; can be repeated [default: all that
    /// see the stream]
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    points: Vec<String>,
    /// Also watch network namespaces of other users, such as those of rootless containers
    #[arg(long)]
    other_users: bool,
    /// Follow packets for virtual machines up to the guest's interrupt and the vCPU that runs with it; also records
    /// interrupts and vCPUs of all guests
    #[arg(long)]
    door: bool,
    /// Timestamps to take: the kernel's, or also those of NICs, which are switched on for this time
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Stamps::Kernel)]
    stamps: Stamps,
    /// Maximum error of this host's clock against UTC, e.g. 1us; bounds Tmu, the time from a packet's sample to its
    /// first point [default: the kernel's estimate, if the clock is synchronised]
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::time)]
    clock_error: Option<Duration>,
    #[command(flatten)]
    joining: Joining,
    /// Segments that a profile of limits adds to those of the flags.
    #[arg(skip)]
    of_profile: Vec<String>,
    /// Size of the kernel's buffer for sightings, MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = crate::cmd::values::whole::<u16>(1..=1024))]
    buffer: u16,
    #[command(flatten)]
    stop_after: StopAfter,
}

fn stream_help() -> String {
    let examples = latpath_model::stream::examples();
    format!("Stream to follow, as {examples}; 'svid:MU*' selects all matching streams that are seen at the start; can be repeated")
}

fn match_help() -> String {
    let own = latpath_model::stream::own_keys();
    format!("Key that identifies a packet: hash:OFFSET:LEN or seq:OFFSET:LEN of the payload [default: {own}, else hash:0:32]")
}

/// Parses a machine `NAME=ADDRESS` that is not a guest of another machine in the run.
pub(super) fn machine(text: &str) -> Result<(String, Address), String> {
    let NamedMachine { name, hypervisor, address } = text.parse()?;
    match hypervisor {
        Some(_) => Err(format!("write {name:?} without the name of its machine")),
        None => Ok((name, address)),
    }
}

impl FollowArgs {
    pub fn threshold(&self) -> Option<Ns> {
        self.joining.threshold()
    }

    pub fn segments(&self) -> &[String] {
        &self.joining.segments
    }

    /// The user's segments, and those of a profile.
    pub fn all_segments(&self) -> Vec<String> {
        [self.segments(), &self.of_profile].concat()
    }

    /// Adds the segments that a profile needs.
    pub fn add_segments(&mut self, segments: Vec<String>) {
        self.of_profile.extend(segments);
    }

    /// The conditions that end the session, besides a signal.
    pub fn stop_after(&self) -> latpath_session::StopAfter {
        latpath_session::StopAfter { duration: self.stop_after.duration, packets: self.stop_after.count }
    }

    /// Whether the user named a stream, a machine or a point.
    pub fn names_any(&self) -> bool {
        !(self.streams.is_empty()
            && self.reactions.is_empty()
            && !self.all
            && self.machines.is_empty()
            && self.points.is_empty())
    }

    /// The options for following the streams. `quiet` omits the message about streams that a pattern chose.
    pub fn options(&self, quiet: bool) -> Result<Options> {
        let with_rule = |stream: StreamSpec| match &self.rule {
            Some(rule) => stream.with_match(rule).map_err(|e| Usage(e.to_string())),
            None => Ok(stream),
        };
        let window = self.joining.window()?;
        if self.streams.is_empty() && self.reactions.is_empty() && !self.all {
            let text = "no stream: name one with --stream, e.g. --stream svid:MU01 (latpath streams lists them)";
            bail!(Usage(text.into()));
        }
        for NamedMachine { name, .. } in &self.machines {
            let taken = match name.as_str() {
                HOST => Some("this machine"),
                MERGING_UNIT => Some("whatever takes the samples of a stream"),
                TALKER => Some("the sender by the send times of a stream"),
                _ => None,
            };
            if let Some(taken) = taken {
                bail!(Usage(format!("--machine {name}=…: {name:?} is {taken}; give the other another name")));
            }
        }
        let streams = choose(&Choice {
            streams: &self.streams,
            all: self.all,
            devices: &self.interfaces,
            other_users: self.other_users,
            quiet,
        })?;
        let mut streams = streams.into_iter().map(with_rule).collect::<Result<Vec<_>, _>>()?;
        for (i, stream) in streams.iter().enumerate() {
            if streams[..i].contains(stream) {
                bail!(Usage(format!("stream {stream} is named twice")));
            }
        }
        let sides = self.reactions.iter().flat_map(|rule| [&rule.input, &rule.output]);
        for side in sides {
            if side.is_pattern() {
                bail!(Usage(format!(
                    "--react: {side} is a pattern: a reaction is between two streams, each named in full"
                )));
            }
            if !streams.contains(side) {
                streams.push(side.clone());
            }
        }
        for rule in &self.reactions {
            let reactions = StreamSpec::of_reactions(rule.clone());
            if streams.contains(&reactions) {
                bail!(Usage(format!("reaction {rule} is named twice")));
            }
            streams.push(reactions);
        }
        if streams.len() > MAX_STREAMS {
            bail!(Usage(format!(
                "{} streams with those of reactions: at most {MAX_STREAMS} are followed",
                streams.len()
            )));
        }
        for NamedMachine { name, address, .. } in &self.machines {
            if let Address::Unix(path) = address {
                if !path.exists() {
                    let path = printable(&path.display().to_string());
                    eprintln!("latpath: {name}: waits up to 10 s for the socket {path}, which is not there yet");
                }
            }
        }
        Ok(Options {
            streams,
            machines: self.machines.iter().map(|one| (one.name.clone(), one.address.clone())).collect(),
            hypervisors: hypervisors(&self.machines).map_err(|why| Usage(format!("--machine {why}")))?,
            points: PointFilter::new(self.points.clone()),
            other_users: self.other_users,
            nic_times: self.stamps == Stamps::Nic,
            door: self.door,
            clock_error: self.clock_error.map(ns),
            segments: self.all_segments(),
            threshold: self.threshold().unwrap_or(THRESHOLD),
            window,
            ring_bytes: usize::from(self.buffer) << 20,
            flight: None,
            settings: false,
            clocks: None,
        })
    }
}

/// Which packets are late, and what is captured around them.
#[derive(ClapArgs, Debug)]
pub struct Flight {
    /// Do not start the flight recorder; the causes of late packets are then unknown
    #[arg(long)]
    no_flight: bool,
    /// Capture the time around the N worst packets of each minute, instead of those over the threshold
    #[arg(long = "capture-worst", value_name = "N", value_parser = crate::cmd::values::whole::<u16>(1..=1000), conflicts_with_all = ["no_flight", "top"])]
    worst: Option<u16>,
    /// Capture the time around the slowest packets, this share of all, e.g. 0.01%, instead of those over the threshold
    #[arg(long = "capture-top", value_name = "PERCENT", value_parser = one_of, conflicts_with = "no_flight")]
    top: Option<u64>,
    /// Memory for the flight recorder's events, MiB for each CPU
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = crate::cmd::values::whole::<u16>(1..=256), conflicts_with = "no_flight")]
    flight_buffer: u16,
    /// Maximum CPU time of the flight recorder, as a share of all CPUs' time; above it, the recorder drops events, the
    /// least useful first
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = budget, conflicts_with = "no_flight")]
    flight_budget: Ppm,
    #[command(flatten)]
    pub on_spike: OnSpike,
}

/// Parses a share such as `2%` into millionths.
fn budget(text: &str) -> Result<Ppm, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    match number.filter(|percent| (0.01..=100.0).contains(percent)) {
        Some(percent) => Ok((percent * 10_000.0).round() as Ppm),
        None => Err(format!("{text:?}: write a part of all CPUs' time as 2%; from 0.01% to 100%")),
    }
}

/// Parses a share such as `0.01%` into its reciprocal: 10,000.
fn one_of(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
    match number.filter(|percent| (0.000_1..=50.0).contains(percent)) {
        Some(percent) => Ok((100.0 / percent).round() as u64),
        None => Err(format!("{text:?}: write a part as 0.01%; from 0.0001% to 50%")),
    }
}

impl Flight {
    /// The options of the flight recorder, if it is used. `max_wait`: maximum time for which a capture waits for
    /// packets in flight.
    pub fn options(&self, threshold: Ns, max_wait: Duration, retention: RetentionLimits) -> Option<FlightOptions> {
        let rule = match (self.worst, self.top) {
            (Some(n), _) => LatenessRule::WorstPerMinute(n.into()),
            (_, Some(n)) => LatenessRule::OneOf(n),
            _ => LatenessRule::Over(threshold),
        };
        let options = FlightOptions {
            bytes_per_cpu: usize::from(self.flight_buffer) << 20,
            budget: self.flight_budget,
            rule,
            max_wait: ns(max_wait),
            retention,
        };
        (!self.no_flight).then_some(options)
    }

    /// Number of captures kept per minute, with `--capture-worst`.
    pub fn per_minute(&self) -> Option<usize> {
        self.worst.map(usize::from)
    }
}

/// The late packet of an event, for the user's command; empty for other events.
fn late_event(event: &Event, run: Option<&Path>) -> LateEvent {
    let Event::LatePacket { capture, stream, packet, took_ns, from_ns, to_ns } = event else {
        return LateEvent::default();
    };
    let path = run.map(|run| std::path::absolute(run).unwrap_or_else(|_| run.to_owned()).display().to_string());
    let numbers = [("CAPTURE", capture.to_string()), ("FROM_NS", from_ns.to_string()), ("TO_NS", to_ns.to_string())];
    LateEvent {
        event: "packet",
        stream: stream.clone(),
        number: *packet,
        total_ns: Some(*took_ns),
        at_ns: *from_ns,
        more: numbers.into_iter().chain(path.map(|path| ("RUN", path))).collect(),
    }
}

/// The message on stderr about an event; `None` for events that the command shows otherwise.
pub fn event_line(event: &Event) -> Option<String> {
    let among = |points: &[String]| match points.join(", ") {
        none if none.is_empty() => none,
        points => printable(&format!(" (there are: {points})")),
    };
    Some(match event {
        Event::Route { .. } | Event::LatePacket { .. } | Event::Captured { .. } => return None,
        Event::StreamAbsent { stream, waited_ns, is_listed } => {
            let advice = match is_listed {
                true => "latpath streams lists what is there",
                false => "tcpdump -eni IF shows what is there",
            };
            format!("{stream}: not seen for {} s; still waiting ({advice})", waited_ns / 1_000_000_000)
        }
        Event::StreamArrived { stream, after_ns } => format!("{stream}: arrived after {:.1} s", *after_ns as f64 / 1e9),
        Event::PointUnseen { pattern, points } => {
            format!("--points {}: no packet was seen at such a point{}", printable(pattern), among(points))
        }
        Event::SegmentUnseen { segment, points } => {
            format!("--segment {}: no packet was seen at one of its ends{}", printable(segment), among(points))
        }
        Event::VmsUnnamed { why } => format!("some virtual machines are not named: {}", printable(why)),
        Event::SizeReached { max_bytes } => size_note(*max_bytes),
        Event::TraceNote { text } => text.clone(),
        Event::TraceSaved { path } => format!("the trace is in {}", path.display()),
        Event::TraceFailed { why } => why.clone(),
        Event::Clock { clock } => {
            let SyncEvent { clock, kind, text, from_ns, until_ns, noticed_ns, .. } = clock;
            let kind = kind.name();
            printable(&match until_ns {
                Some(until) if until > noticed_ns => {
                    format!("{clock}, {kind}: in order again after {}", duration(until.saturating_sub(*from_ns)))
                }
                _ => format!("{clock}, {kind}: {text}"),
            })
        }
        Event::Dropped { events } => format!("{} are not shown", number_of(*events, "event")),
    })
}

/// Handles the session's events since the last call: prints them to stderr if they `are_shown`, and starts the user's
/// command for late packets. `run`: the recording, if there is one.
pub fn handle_events(session: &mut impl Session, are_shown: bool, command: Option<&SpikeCommand>, run: Option<&Path>) {
    while let Some(event) = session.next_event() {
        if let (Some(command), Event::LatePacket { .. }) = (command, &event) {
            command.late(|| late_event(&event, run));
        }
        if let Some(line) = event_line(&event).filter(|_| are_shown) {
            eprintln!("latpath: {line}");
        }
    }
}
