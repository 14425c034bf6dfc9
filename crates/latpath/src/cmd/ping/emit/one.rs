//! One session with one reflector.

use super::super::link::{device_of, Prepared};
use super::super::target::Target;
use super::{Args, Reactions};
use crate::cmd::on_spike::LateEvent;
use crate::cmd::Usage;
use anyhow::{Context, Result};
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_ping::breach::{BreachedProbe, Edge};
use latpath_ping::breach_context::BreachRequest;
use latpath_ping::document::SessionDocument;
use latpath_ping::emit::{emit, EndReason, Ended, Observer, Plan};
use latpath_ping::ethernet::{self, Ethernet, Framing, Peer, ToOne};
use latpath_ping::figures::{FigureOptions, Figures, Report};
use latpath_ping::log::{Log, LogOptions, Summary};
use latpath_ping::sequenced::SequencedHistogram;
use latpath_ping::table::{Counts, End};
use latpath_ping::transaction::{Stamp, Transaction};
use latpath_ping::transport::Transport;
use latpath_ping::udp::Udp;
use latpath_protocols::sv::DEFAULT_APPID;
use latpath_stats::units::count;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

/// A finished session.
pub struct Done {
    pub target: Target,
    pub session: u32,
    pub transport: &'static str,
    pub device: Option<String>,
    pub taken: u16,
    pub ended: Ended,
    pub report: Report,
    /// All round trips.
    pub times: SequencedHistogram,
    pub notes: Vec<String>,
    pub log: Option<Summary>,
}

/// Current figures of a session.
#[derive(Clone, Copy, Default)]
pub struct Now {
    pub sent: u64,
    pub lost: u64,
    pub p50: Ns,
    pub max: Ns,
}

/// Observes each transaction of a session.
struct Watching<'a> {
    figures: Figures,
    log: Option<Log>,
    reactions: Reactions<'a>,
    /// Address of the other end, for the user's command.
    target: Target,
    /// Name of this thread; `tid` is its id.
    name: String,
    tid: u32,
    session: u32,
    /// Whether the first breach ends the run.
    ends: bool,
    warm: bool,
    now: &'a Mutex<Now>,
}

impl Observer for Watching<'_> {
    #[inline]
    fn closed(&mut self, t: &Transaction, end: End) {
        self.figures.add(t, end);
        if let Some(log) = self.log.as_mut().filter(|_| self.warm) {
            log.push(t);
        }
    }

    fn breach(&mut self, t: &Transaction) {
        let breach = BreachedProbe::of(self.session, t, self.figures.route(), &self.figures.medians());
        // The trace is stopped first, because it loses events during a delay.
        if let Some(freeze) = self.reactions.freeze {
            freeze.breach(&breach);
        }
        let ends = (t.raw.get(Stamp::T1App), t.raw.get(Stamp::T4App));
        if let Some(command) = self.reactions.command {
            command.late(|| late_event(self.target, &breach, ends.0));
        }
        if let (Some(recorder), (Some(from), Some(to))) = (self.reactions.recorder, ends) {
            recorder.breach(BreachRequest { breach, tid: self.tid, name: self.name.clone(), from, to }, self.ends);
        }
        if let Some(log) = &mut self.log {
            log.breach(t);
        }
    }

    fn route(&mut self, taken: u16) {
        self.figures.set_route(taken);
        if self.warm {
            self.mark(Edge::Begin);
        }
        if let Some(log) = &mut self.log {
            log.begin(self.figures.route());
        }
    }

    fn tick(&mut self, counts: &Counts) {
        let times = self.figures.round_trip();
        let now = Now {
            sent: counts.sent,
            lost: counts.lost,
            p50: times.times().percentile(500_000),
            max: times.times().max(),
        };
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
        if let Some(log) = &mut self.log {
            log.tick(monotonic());
        }
    }

    fn warm(&mut self) {
        self.figures.clear();
        self.warm = true;
        self.mark(Edge::Begin);
    }
}

impl Watching<'_> {
    /// Marks the beginning or the end of this session's measurement in the kernel's trace.
    fn mark(&self, edge: Edge) {
        if let Some(freeze) = self.reactions.freeze {
            freeze.mark(edge, &format!("session {:08x}", self.session));
        }
    }
}

/// A session to run: its reflector, plan and recorders.
pub struct Session<'a> {
    pub args: &'a Args,
    /// Limits for which to find the longest run of consecutive probes over the limit.
    pub row_limits: &'a [Ns],
    pub target: Target,
    pub plan: Plan,
    /// Its index among the run's sessions.
    pub number: usize,
    pub reactions: Reactions<'a>,
    /// Current figures, updated once a second.
    pub now: &'a Mutex<Now>,
    pub stop: &'a AtomicBool,
}

impl Session<'_> {
    /// Runs the session in the calling thread.
    pub fn run(self) -> Result<Done> {
        match self.target {
            Target::Udp(peer) => self.udp(peer),
            Target::Ethernet(mac) => self.ethernet(mac),
        }
    }

    fn udp(self, peer: SocketAddr) -> Result<Done> {
        let args = self.args;
        if args.link.xdp {
            return Err(Usage(format!(
                "{peer}: AF_XDP carries Ethernet frames; name the other end by its MAC address"
            ))
            .into());
        }
        if let Some(from) = args.from.filter(|from| from.is_ipv4() != peer.is_ipv4()) {
            let family = if peer.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(Usage(format!("--source {from}: {} needs an {family} address", self.target)).into());
        }
        let device = args.interface.clone().or_else(|| device_to(peer, args.from));
        let prepared = args.link.prepare(device.as_deref())?;
        let options = args.link.udp(args.interface.as_deref(), &prepared);
        let mut transport = Udp::connect(peer, args.from, &options)?;
        let to = transport.peer();
        self.measure("udp", &mut transport, to, device, prepared)
    }

    fn ethernet(self, mac: [u8; 6]) -> Result<Done> {
        let args = self.args;
        let device = args.interface.clone().ok_or_else(|| {
            Usage(format!("{}: frames to a MAC address need a device to be sent on; name it with -i", self.target))
        })?;
        let tag = args.tagging.tag(None);
        let framing = if args.sv { Framing::Sv { appid: DEFAULT_APPID } } else { Framing::Own };
        let to = Peer { mac, framing, tag };
        let fits = |room: usize| match args.size {
            size if size > room => Err(Usage(format!("--size {size}: a frame on {device} has space for {room} bytes"))),
            _ => Ok(()),
        };
        let session = Some(self.plan.session);
        if args.link.xdp {
            let (frames, prepared) = args.link.open_xdp(&device, session, &[], args.hugepages)?;
            fits(frames.room(framing))?;
            let name = if args.sv { "sv_xdp" } else { "ethernet_xdp" };
            return self.measure(name, &mut ToOne::new(frames, to), (), Some(device.clone()), prepared);
        }
        let prepared = args.link.prepare(Some(&device))?;
        let options = ethernet::Options {
            session,
            stamps: prepared.stamps,
            bypass_qdisc: args.link.bypass_qdisc,
            priority: args.link.priority,
            ..ethernet::Options::new(&device)
        };
        let frames = Ethernet::open(options)?;
        fits(frames.room(framing))?;
        let name = if args.sv { "sv" } else { "ethernet" };
        self.measure(name, &mut ToOne::new(frames, to), (), Some(device.clone()), prepared)
    }

    fn log(&self) -> Result<Option<Log>> {
        let Some(path) = &self.args.log else { return Ok(None) };
        // With several sessions, each has its own file.
        let path = match (self.args.targets.len(), path.extension()) {
            (1, _) => path.clone(),
            (_, Some(kind)) => path.with_extension(format!("{}.{}", self.number + 1, kind.to_string_lossy())),
            (_, None) => path.clone(),
        };
        let options = LogOptions { rate_hz: self.args.rate.map(|pace| pace.hz()), huge_pages: self.args.hugepages };
        Ok(Some(Log::open(&path, self.args.log_keep, &options)?))
    }

    fn measure<T: Transport>(
        self,
        name: &'static str,
        transport: &mut T,
        to: T::Peer,
        device: Option<String>,
        mut prepared: Prepared,
    ) -> Result<Done> {
        let plan = &self.plan;
        let options = FigureOptions {
            drawn: self.args.drawn.axis()?,
            threshold: plan.threshold,
            row_limits: self.row_limits.to_vec(),
            worst: self.args.worst.into(),
        };
        let mut watching = Watching {
            figures: Figures::new(&options),
            log: self.log()?,
            reactions: self.reactions,
            target: self.target,
            name: format!("ping-{}", self.number),
            tid: nix::unistd::gettid().as_raw() as u32,
            session: plan.session,
            ends: plan.stop_on_breach,
            warm: plan.warm_up == 0,
            now: self.now,
        };
        self.args.on_time.apply(&watching.name).context("the thread that emits")?;
        if plan.by_ptp {
            prepared.clocks.follow_ptp(|| self.args.sync.survey());
        }
        let mut ended = emit(transport, to, plan, &prepared.clocks, &mut watching, self.stop);
        let why = ended.timeline.why_not_by_ptp();
        prepared.notes.extend(why.map(|why| format!("the ends' clocks are not tied by PTP: {why}")));
        if ended.started != 0 {
            watching.mark(Edge::End);
        }
        prepared.clocks.finish();
        for d in prepared.clocks.disturbances_since(&mut ended.clocks_seen) {
            ended.timeline.disturbed(d.at_ns, d.what);
        }
        let times = (ended.started, ended.elapsed);
        let report = watching.figures.report(&ended.counts, ended.seen, &ended.timeline, times);
        Ok(Done {
            target: self.target,
            session: plan.session,
            transport: name,
            device,
            taken: watching.figures.taken(),
            ended,
            report,
            times: watching.figures.round_trip().clone(),
            notes: prepared.notes,
            log: watching.log.map(Log::finish),
        })
    }
}

/// A round trip over the threshold, for the user's command.
fn late_event(target: Target, breach: &BreachedProbe, sent: Option<Ns>) -> LateEvent {
    let longest = breach.longest.map(|at| ("SEGMENT", breach.segments[at].name.clone()));
    LateEvent {
        event: "round_trip",
        stream: target.to_string(),
        number: breach.sequence,
        total_ns: breach.round_trip_ns,
        at_ns: sent.unwrap_or_else(monotonic),
        more: [("SESSION", format!("{:08x}", breach.session))].into_iter().chain(longest).collect(),
    }
}

/// The device through which the kernel would send to this address.
fn device_to(peer: SocketAddr, from: Option<IpAddr>) -> Option<String> {
    let any = || if peer.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind(SocketAddr::new(from.unwrap_or_else(any), 0)).ok()?;
    socket.connect(peer).ok()?;
    device_of(socket.local_addr().ok()?.ip())
}

impl Done {
    /// The reason for the session's failure, for the user.
    pub fn failure(&self) -> Option<String> {
        let target = self.target;
        let why = match &self.ended.why {
            Ok(why) => why,
            Err(e) => return Some(format!("{e} (after {} answers)", count(self.report.counts.answered))),
        };
        if let Some(error) = self.log.as_ref().and_then(|log| log.error.as_ref()) {
            return Some(format!("the log is not whole: {error}"));
        }
        match why {
            EndReason::Done | EndReason::Stopped | EndReason::Breach => None,
            EndReason::NobodyListens => Some(format!(
                "{target}: nobody listens there (its kernel answered: port unreachable); start there: latpath ping reflect"
            )),
            EndReason::NobodyAnswers => {
                let refusal = self.ended.refusal.as_ref().map_or(String::new(), |e| format!(" ({e})"));
                Some(format!(
                    "{target}: no answer{refusal}; does latpath ping reflect run there, and does a firewall let its messages through?"
                ))
            }
            EndReason::OtherVersion(version) => Some(format!(
                "{target}: its reflector speaks version {version} of the probes' format, this latpath version 1; use the same latpath at both ends"
            )),
            EndReason::Dead if self.report.counts.answered == 0 => Some(format!(
                "{target}: it says hello, and answers no probe; does its route let messages of this --size through (MTU)?"
            )),
            EndReason::Dead => Some(format!(
                "{target}: no answer any more, after {}; was the reflector stopped, or the route to it cut?",
                count(self.report.counts.answered)
            )),
        }
    }

    /// The session's document.
    pub fn document(&self, args: &Args) -> SessionDocument {
        SessionDocument {
            target: self.target.to_string(),
            session: self.session,
            device: self.device.clone(),
            transport: self.transport.into(),
            size_bytes: args.size,
            pacing: args.pacing().into(),
            stamps: Stamp::ALL.into_iter().filter(|s| s.bit() & self.taken != 0).collect(),
            reflector_device: self.ended.welcome.as_ref().map(|w| w.device.clone()),
            ended: (&self.ended.why).into(),
            error: self.failure(),
            reflector_restarts: self.ended.restarts,
            dropped_here: self.ended.dropped,
            log: self.log.clone(),
            notes: self.notes.iter().chain(self.log.iter().flat_map(|log| &log.notes)).cloned().collect(),
            report: self.report.clone(),
        }
    }
}
