//! Finds events in successive states of the clocks: steps, swings of a servo, changes of the grandmaster, starvation.
//!
//! The size of an offset is its absolute value. It is compared with the mean size of the offsets before it. Gaussian or
//! Laplacian noise, even with slow wander, stays below the limits for a day; a swinging servo exceeds them within two
//! measurements.

use crate::management::{ClockIdentity, PortState};
use crate::state::{ClockReport, LinkState, PtpInstance, SYSTEM_CLOCK};
use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of measurements from which the mean size is learned before offsets are judged.
const WARM_UP: u32 = 8;
/// Reciprocal of a new offset's weight in the mean size.
const WEIGHT: Ns = 64;
/// Minimum mean size, ns, so that noise of a quiet clock is not an event.
const MIN_MEAN: Ns = 25;
/// Minimum mean size for the system clock, which is read by software, ns.
const MIN_SYSTEM_MEAN: Ns = 200;
/// Size beyond which a single offset is an event, in mean sizes.
const SINGLE: Ns = 40;
/// Size beyond which two successive offsets are an event, in mean sizes.
const PAIR: Ns = 10;
/// Size up to which an offset is calm, in mean sizes.
const CALM: Ns = 6;
/// Divisor of the mean size; an offset no larger than the quotient is quiet.
const QUIET: Ns = 8;
/// Number of successive quiet offsets after which the mean size is learned again.
const QUIET_RUN: u32 = 16;
/// Number of successive calm offsets that end an event.
const CALM_RUN: u32 = 4;
/// Number of successive unanswered requests after which a silent ptp4l counts as starved.
const SILENT_RUN: u32 = 2;
/// Time after which an event ends even if no offsets are measured, ns.
const LONGEST_WITHOUT_OFFSETS: Ns = 10_000_000_000;

/// Kind of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SyncEventKind {
    /// A clock was set, or its offset jumped.
    #[default]
    Step,
    /// A servo overcorrects: the offset swings, or the servo lost its lock.
    ServoSwing,
    /// The grandmaster was replaced by another.
    GrandmasterChange,
    /// ptp4l did not get its CPU or its timestamps in time.
    Starvation,
    /// No messages from the master.
    SyncLost,
    /// The system clock follows another source, or is no longer steered.
    SourceChange,
    /// The system clock exceeds the bound that the user requires.
    BoundBroken,
}

impl SyncEventKind {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::ServoSwing => "servo swing",
            Self::GrandmasterChange => "grandmaster change",
            Self::Starvation => "PTP starvation",
            Self::SyncLost => "synchronisation lost",
            Self::SourceChange => "source change",
            Self::BoundBroken => "required bound broken",
        }
    }
}

/// An event, reported when it begins and again when it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SyncEvent {
    /// Number of the event, from 1; the same in both reports.
    pub number: u32,
    /// Its kind.
    pub kind: SyncEventKind,
    /// The clock.
    pub clock: String,
    /// Earliest possible start, `CLOCK_MONOTONIC`, ns.
    pub from_ns: Ns,
    /// Time of its discovery, ns.
    pub noticed_ns: Ns,
    /// Time from which the clock was stable again, ns; `None` until then.
    pub until_ns: Option<Ns>,
    /// Description, including the size.
    pub text: String,
}

/// Offsets of one clock.
#[derive(Clone, Debug)]
struct Offsets {
    least_mean: Ns,
    /// Mean size of the offsets, in 1/16 ns.
    mean16: Ns,
    measured: u32,
    last: Ns,
    /// Time and value of an offset beyond [`PAIR`], which the next offset may confirm.
    pending: Option<(Ns, Ns)>,
    calm: u32,
    calm_since: Ns,
    /// Number of successive offsets far below the mean size.
    quiet: u32,
}

impl Offsets {
    fn new(least_mean: Ns) -> Self {
        Self { least_mean, mean16: 0, measured: 0, last: 0, pending: None, calm: 0, calm_since: 0, quiet: 0 }
    }

    fn mean(&self) -> Ns {
        (self.mean16 >> 4).max(self.least_mean)
    }

    /// Adds an offset at `at`. Returns the event's kind and start, if one begins.
    fn add(&mut self, at: Ns, offset: Ns) -> Option<(SyncEventKind, Ns)> {
        let (size, mean) = (offset.saturating_abs(), self.mean());
        let before = std::mem::replace(&mut self.last, offset);
        self.measured = self.measured.saturating_add(1);
        match size <= CALM.saturating_mul(mean) {
            true if self.calm == 0 => (self.calm, self.calm_since) = (1, at),
            true => self.calm = self.calm.saturating_add(1),
            false => self.calm = 0,
        }
        self.quiet = if size.saturating_mul(QUIET) <= mean { self.quiet + 1 } else { 0 };
        if self.quiet >= QUIET_RUN && mean > self.least_mean {
            // The servo has settled: earlier offsets are no measure of its noise.
            (self.quiet, self.measured, self.mean16) = (0, 0, 0);
            return None;
        }
        let weight = Ns::from(self.measured.min(WEIGHT as u32));
        if self.measured <= WARM_UP {
            self.mean16 += (size.min(Ns::MAX >> 5) * 16 - self.mean16) / weight;
            return None;
        }
        // A large offset is capped, so that a swing does not raise the limits.
        let counted = size.min(mean.saturating_mul(4));
        self.mean16 += (counted * 16 - self.mean16) / weight;
        let was_calm = before.saturating_abs() <= CALM.saturating_mul(mean);
        if size > SINGLE.saturating_mul(mean) {
            self.pending = None;
            return Some((if was_calm { SyncEventKind::Step } else { SyncEventKind::ServoSwing }, at));
        }
        if size <= PAIR.saturating_mul(mean) {
            self.pending = None;
            return None;
        }
        let (since, first) = self.pending.replace((at, offset))?;
        self.pending = None;
        let keeps = first.signum() == offset.signum() && size <= first.saturating_abs();
        Some((if keeps { SyncEventKind::Step } else { SyncEventKind::ServoSwing }, since))
    }

    fn is_calm(&self) -> bool {
        self.calm >= CALM_RUN
    }
}

/// State of one clock.
#[derive(Clone, Debug)]
struct Track {
    offsets: Offsets,
    ingress_ns: Ns,
    grandmaster: Option<ClockIdentity>,
    state: LinkState,
    port: PortState,
    silent: u32,
    rx_sync: Option<u64>,
    /// Time of the previous report.
    seen_ns: Ns,
    open: Vec<SyncEvent>,
}

impl Track {
    fn new(least_mean: Ns) -> Self {
        Self {
            offsets: Offsets::new(least_mean),
            ingress_ns: 0,
            grandmaster: None,
            state: LinkState::Unsynchronised,
            port: PortState::Unknown,
            silent: 0,
            rx_sync: None,
            seen_ns: 0,
            open: Vec::new(),
        }
    }
}

/// Finds the events of all clocks in successive reports.
#[derive(Debug, Default)]
pub struct EventDetector {
    /// Tracks by the clock's identity and domain.
    ptp: BTreeMap<(ClockIdentity, u8), Track>,
    system: Option<Track>,
    realtime: Option<RealtimeWatch>,
    /// The daemon and the source that the system clock follows.
    source: Option<(String, String)>,
    last_update: Option<(Ns, Ns)>,
    events: u32,
    required_ns: Option<Ns>,
    broken: Option<SyncEvent>,
}

/// Collects the events of one report.
struct EventCollector<'a> {
    at: Ns,
    events: &'a mut u32,
    all: Vec<SyncEvent>,
}

impl EventCollector<'_> {
    fn begin(&mut self, kind: SyncEventKind, clock: &str, from_ns: Ns, text: String) -> SyncEvent {
        *self.events = self.events.saturating_add(1);
        let (number, noticed_ns) = (*self.events, self.at);
        let event = SyncEvent { number, kind, clock: clock.into(), from_ns, noticed_ns, until_ns: None, text };
        self.all.push(event.clone());
        event
    }

    fn end(&mut self, event: SyncEvent, until: Ns) {
        self.all.push(SyncEvent { until_ns: Some(until.max(event.from_ns)), ..event });
    }
}

impl EventDetector {
    /// Also reports an event while the system clock exceeds this bound.
    pub fn require(&mut self, bound_ns: Ns) {
        self.required_ns = Some(bound_ns);
    }

    /// Adds a report. Returns the events that begin and those that end.
    pub fn observe(&mut self, report: &ClockReport) -> Vec<SyncEvent> {
        let mut found = EventCollector { at: report.monotonic_ns, events: &mut self.events, all: Vec::new() };
        for instance in &report.ptp {
            let track = self.ptp.entry((instance.identity, instance.domain)).or_insert_with(|| Track::new(MIN_MEAN));
            observe_ptp(track, instance, &mut found);
        }
        let system = self.system.get_or_insert_with(|| Track::new(MIN_SYSTEM_MEAN));
        let tie = ClockTie {
            monotonic_ns: report.monotonic_ns,
            realtime_ns: report.utc_ns,
            tai_ns: report.tai_ns,
            uncertainty_ns: report.tie_error_ns,
        };
        match &mut self.realtime {
            None => self.realtime = Some(RealtimeWatch::new(&tie)),
            Some(watch) => {
                if let Some(step) = watch.observe(&tie) {
                    let text = format!("it was set, by {:+} ns", step.by_ns);
                    let event = found.begin(SyncEventKind::Step, SYSTEM_CLOCK, system.seen_ns, text);
                    found.end(event, step.noticed_at_ns);
                }
            }
        }
        observe_system(system, report, &mut self.last_update, &mut self.source, &mut found);
        if let Some(required) = self.required_ns {
            match (report.why_not_within(required), self.broken.take()) {
                (Some(why), None) => {
                    let text = format!("the required bound is {required} ns: {why}");
                    self.broken =
                        Some(found.begin(SyncEventKind::BoundBroken, SYSTEM_CLOCK, report.monotonic_ns, text));
                }
                (Some(_), open) => self.broken = open,
                (None, Some(open)) => found.end(open, report.monotonic_ns),
                (None, None) => {}
            }
        }
        found.all
    }

    /// The events that have not ended.
    pub fn open(&self) -> impl Iterator<Item = &SyncEvent> {
        let tracks = self.ptp.values().chain(&self.system);
        tracks.flat_map(|track| &track.open).chain(&self.broken)
    }
}

fn observe_ptp(track: &mut Track, now: &PtpInstance, found: &mut EventCollector<'_>) {
    let clock = now.clock();
    let before = std::mem::replace(&mut track.seen_ns, found.at);
    track.silent = if now.is_silent { track.silent.saturating_add(1) } else { 0 };
    if track.silent == SILENT_RUN && track.state != LinkState::Unsynchronised {
        let text = format!("{} does not answer: it did not get its CPU", now.name());
        open(track, found, SyncEventKind::Starvation, &clock, before, text);
    }
    if now.is_silent {
        return;
    }
    let port = now.following_port().or(now.ports.first());
    let (state, was) = (now.state, std::mem::replace(&mut track.state, now.state));
    let rx_sync: Option<u64> = now.ports.iter().filter_map(|port| port.rx_sync).reduce(u64::saturating_add);
    let syncs_arrive = rx_sync > track.rx_sync;
    track.rx_sync = rx_sync;
    let was_port = std::mem::replace(&mut track.port, port.map(|port| port.state).unwrap_or_default());
    let was_kept = was == LinkState::Following;
    let is_linked = now.ports.iter().any(|port| port.has_carrier != Some(false));
    match state {
        LinkState::Faulty if was != LinkState::Faulty && was != LinkState::Unsynchronised => {
            let (kind, text) = match is_linked {
                true => (
                    SyncEventKind::Starvation,
                    format!("{} gave up its port (FAULTY) while the link was up, as when it \"timed out while polling for tx timestamp\"", now.name()),
                ),
                false => (SyncEventKind::SyncLost, "the link is down".into()),
            };
            open(track, found, kind, &clock, before, text);
        }
        LinkState::Holdover if was_kept => {
            let age = now.age_ns.unwrap_or(0);
            let from = found.at.saturating_sub(age);
            open(
                track,
                found,
                SyncEventKind::SyncLost,
                &clock,
                from,
                format!("no Sync message was measured for {} ms", age / 1_000_000),
            );
        }
        LinkState::Acquiring | LinkState::Master if was_kept => {
            let servo = was_port == PortState::Slave && track.port == PortState::Uncalibrated;
            let (kind, text) = if servo && Some(now.grandmaster) == track.grandmaster {
                (SyncEventKind::ServoSwing, "the servo lost its lock (SLAVE to UNCALIBRATED)".into())
            } else if syncs_arrive && now.is_grandmaster() {
                let text = format!("{} left its master, whose messages still arrive, as after \"timed out while polling for tx timestamp\"", now.name());
                (SyncEventKind::Starvation, text)
            } else if now.is_grandmaster() || now.following_port().is_none() {
                (SyncEventKind::SyncLost, "the master's announcements stopped".into())
            } else {
                // The change of the grandmaster is reported below.
                (SyncEventKind::GrandmasterChange, String::new())
            };
            if kind != SyncEventKind::GrandmasterChange {
                open(track, found, kind, &clock, before, text);
            }
        }
        _ => {}
    }
    if !now.is_grandmaster() && now.grandmaster != ClockIdentity::default() {
        if let Some(last) = track.grandmaster.replace(now.grandmaster).filter(|last| *last != now.grandmaster) {
            let text = format!("from {last} to {}", now.grandmaster);
            open(track, found, SyncEventKind::GrandmasterChange, &clock, before, text);
            track.offsets = Offsets::new(track.offsets.least_mean);
        }
    }
    let measures = matches!(state, LinkState::Following | LinkState::FreeRunning);
    if let Some(offset) = now.offset_ns.filter(|_| measures && now.ingress_ns != track.ingress_ns) {
        track.ingress_ns = now.ingress_ns;
        add_offset(track, offset, before, &clock, found);
    }
    close(track, found, measures);
}

fn add_offset(track: &mut Track, offset: Ns, before: Ns, clock: &str, found: &mut EventCollector<'_>) {
    let mean = track.offsets.mean();
    if let Some((kind, from)) = track.offsets.add(found.at, offset) {
        // A step or swing during another event is part of that event.
        if track.open.is_empty() {
            let what = if kind == SyncEventKind::Step { "jumped" } else { "swings" };
            let text = format!("the offset {what}: {offset:+} ns, after {mean} ns on average");
            open(track, found, kind, clock, from.min(before.max(0)), text);
        }
    }
}

/// Reports an event, unless one of the same kind is still open.
fn open(track: &mut Track, found: &mut EventCollector<'_>, kind: SyncEventKind, clock: &str, from: Ns, text: String) {
    if track.open.iter().all(|event| event.kind != kind) {
        let from = if from == 0 { found.at } else { from };
        let event = found.begin(kind, clock, from, text);
        track.open.push(event);
        track.offsets.calm = 0;
    }
}

/// Closes the open events once the clock's offset has been stable again, provided that its offset is still measured
/// (`is_kept`).
fn close(track: &mut Track, found: &mut EventCollector<'_>, is_kept: bool) {
    let is_quiet = track.offsets.is_calm();
    let since = track.offsets.calm_since;
    if is_kept && is_quiet {
        for event in std::mem::take(&mut track.open) {
            found.end(event, since);
        }
    }
}

fn observe_system(
    track: &mut Track,
    report: &ClockReport,
    last_update: &mut Option<(Ns, Ns)>,
    source: &mut Option<(String, String)>,
    found: &mut EventCollector<'_>,
) {
    let before = std::mem::replace(&mut track.seen_ns, found.at);
    let Some(link) = report.links.first() else { return };
    let daemon = link.by.split(" (process").next().unwrap_or_default().to_owned();
    let next = (daemon, link.follows.clone());
    let is_named = |(by, follows): &(String, String)| !by.is_empty() && !follows.is_empty();
    if let Some(last) = source.replace(next.clone()).filter(|last| is_named(last) && *last != next) {
        // A new grandmaster of the same ptp4l is already reported as a change of the grandmaster.
        if last.0 != next.0 || !last.0.starts_with("ptp4l") {
            let name = |(by, follows): &(String, String)| match is_named(&(by.clone(), follows.clone())) {
                true => format!("{follows} by {by}"),
                false => "nothing".into(),
            };
            let text = format!("from {} to {}", name(&last), name(&next));
            let event = found.begin(SyncEventKind::SourceChange, SYSTEM_CLOCK, before.max(1), text);
            found.end(event, found.at);
            track.offsets = Offsets::new(track.offsets.least_mean);
        }
    }
    let measured = match &report.chrony {
        // The offset that chronyd measured, once per update.
        Some(chrony) if next.0 == "chronyd" && chrony.synchronised => {
            let update = (chrony.last_offset_ns, chrony.update_interval_ns);
            let is_new = last_update.replace(update).is_some_and(|last| last != update);
            is_new.then_some(chrony.last_offset_ns)
        }
        _ if next.0 == "phc2sys" && link.state == LinkState::Following => link.offset_ns,
        _ => None,
    };
    if let Some(offset) = measured {
        add_offset(track, offset, before, SYSTEM_CLOCK, found);
        close(track, found, true);
    } else if track.open.iter().any(|event| found.at.saturating_sub(event.noticed_ns) > LONGEST_WITHOUT_OFFSETS) {
        let at = found.at;
        std::mem::take(&mut track.open).into_iter().for_each(|event| found.end(event, at));
    }
}
