//! Decides which intervals are captured: those around late packets, and occasionally one in which all packets are on
//! time.

use crate::recent::{Recent, RecentPacket};
use crate::rule::{Lateness, LatenessClassifier, LatenessRule};
use crate::{CaptureKind, Packet, RetentionPolicy};
use latpath_journey::{Journey, Segment};
use latpath_model::{Ns, PointId, StreamId};
use std::collections::VecDeque;

const MS: Ns = 1_000_000;
const SECOND: Ns = 1_000 * MS;

/// Time captured before a spike's first packet, ns: the wakeups and queued packets that affected it came earlier.
const BEFORE: Ns = 5 * MS;
/// Divisor of the longest packet's delay, which gives the additional time to capture before the spike, because longer
/// delays have older causes. `MAX_BEFORE`: maximum of the sum of `BEFORE` and that time, ns.
const BEFORE_PART: Ns = 4;
const MAX_BEFORE: Ns = 50 * MS;
/// Time captured after a spike's last packet, ns.
const AFTER: Ns = 2 * MS;
/// Maximum gap between late packets of one spike, ns. `MAX_SPIKE`: maximum duration of a spike, ns, unless a single
/// packet takes longer.
const MAX_GAP: Ns = 10 * MS;
const MAX_SPIKE: Ns = 100 * MS;
/// Time without another late packet after which a capture is requested, ns. Because the rings overwrite themselves, the
/// request is made at most `MAX_OPEN` after the first late packet, ns.
const QUIET: Ns = 15 * MS;
const MAX_OPEN: Ns = 100 * MS;
/// Maximum number of packets in a capture, and of late packets among them.
const MAX_PACKETS: usize = 4096;
const MAX_LATE: usize = 1024;
/// Number of captures that can be requested in quick succession; one more becomes available every `CAPTURE_INTERVAL`. A
/// spike that is worse than all earlier ones of its `WORST_PERIOD` is not subject to this limit.
const BURST: Ns = 64;
const CAPTURE_INTERVAL: Ns = 100 * MS;
const WORST_PERIOD: Ns = 10 * SECOND;
/// Duration of a baseline, ns; interval between unsuccessful attempts, ns; maximum number of baselines.
const BASELINE: Ns = 40 * MS;
const BASELINE_RETRY: Ns = 50 * MS;
const BASELINES: u32 = 40;

/// Options of the detector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Which packets are late.
    pub rule: LatenessRule,
    /// Maximum wait for packets that are still in flight when a capture is requested, ns.
    pub max_wait: Ns,
    /// Whether baselines are captured.
    pub baselines: bool,
}

/// A request to capture an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Number of the capture, from 1.
    pub number: u32,
    /// Why it is requested.
    pub kind: CaptureKind,
    /// Start of the interval, host's `CLOCK_MONOTONIC`, ns.
    pub from: Ns,
    /// End of the interval, which has passed, ns.
    pub to: Ns,
    /// Time of the slowest packet known so far, ns.
    pub worst: Ns,
    /// Stream of the slowest packet.
    pub stream: StreamId,
    /// Index of the slowest packet in its stream.
    pub packet: u64,
}

/// The packets of a captured interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPackets {
    /// Number of the request.
    pub number: u32,
    /// Time of the slowest packet, ns: the capture's rank.
    pub worst: Ns,
    /// The packets, ordered by their first sightings.
    pub packets: Vec<Packet>,
    /// Number of late packets omitted because of the limit.
    pub more_late: u64,
    /// Number of late packets per stream, including omitted ones, but not those already counted in an earlier capture.
    pub late: Vec<u64>,
}

/// Counts of late packets and spikes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LateCounts {
    /// Number of late packets per stream.
    pub late: Vec<u64>,
    /// Number of spikes that were not captured, because there were too many or because worse ones are kept.
    pub passed_over: u64,
}

/// The segments that count for a stream.
#[derive(Clone, Debug, Default)]
struct StreamRoute {
    segments: Vec<(PointId, PointId)>,
    points: u64,
    /// If the stream's packets are reactions: the time above which they are late, ns (inner `None`: never late). `None`
    /// for other streams.
    reactions: Option<Option<Ns>>,
}

impl StreamRoute {
    /// Whether a reaction that took this time is late; `None` if the stream's packets are not reactions.
    fn is_late_reaction(&self, time: Option<Ns>) -> Option<bool> {
        let late = self.reactions?;
        Some(late.zip(time).is_some_and(|(late, time)| time > late))
    }
}

/// An unfinished group of late packets.
#[derive(Clone, Copy, Debug)]
struct OpenSpike {
    first: Ns,
    last: Ns,
    /// Time from which packets are late, ns.
    threshold: Ns,
    worst: Ns,
    stream: StreamId,
    packet: u64,
    /// Longest time from the first to the last sighting of one of the packets, ns.
    longest: Ns,
    opened: Ns,
    added: Ns,
}

/// A requested capture whose packets have not all arrived.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: CaptureRequest,
    threshold: Ns,
    requested: Ns,
}

/// Finds late packets and requests captures. Must be passed every journey and, periodically, the current time.
#[derive(Debug)]
pub struct LateDetector {
    options: Options,
    classifier: LatenessClassifier,
    routes: Vec<StreamRoute>,
    recent: Recent,
    counts: LateCounts,
    open: Option<OpenSpike>,
    candidate: Option<RecentPacket>,
    requests: VecDeque<CaptureRequest>,
    pending: Vec<Pending>,
    number: u32,
    retention: RetentionPolicy,
    /// Time up to which the budget for captures is spent; see `BURST`.
    paid: Ns,
    worst: Ns,
    worst_until: Ns,
    baselines: u32,
    next_baseline: Option<Ns>,
    began: Ns,
    clock: Ns,
}

impl LateDetector {
    /// Creates a detector for this many streams. It requests no captures that the retention policy would discard.
    pub fn new(options: Options, streams: usize, retention: RetentionPolicy) -> Self {
        Self {
            classifier: LatenessClassifier::new(options.rule),
            options,
            routes: vec![StreamRoute::default(); streams],
            recent: Recent::new(),
            counts: LateCounts { late: vec![0; streams], passed_over: 0 },
            open: None,
            candidate: None,
            requests: VecDeque::new(),
            pending: Vec::new(),
            number: 0,
            retention,
            paid: Ns::MIN,
            worst: 0,
            worst_until: Ns::MIN,
            baselines: 0,
            next_baseline: None,
            began: Ns::MIN,
            clock: Ns::MIN,
        }
    }

    /// Sets the segments, and the points of each stream's route. A segment counts for the streams whose routes contain
    /// both of its ends; a segment that is on no route (off route, or user-defined) counts for all streams of packets.
    pub fn set_layout(&mut self, segments: &[Segment], routes: &[Vec<PointId>]) {
        let is_on = |points: &[PointId], s: &Segment| points.contains(&s.from) && points.contains(&s.to);
        for (stream, route) in self.routes.iter_mut().enumerate() {
            let points = routes.get(stream).map_or(&[][..], Vec::as_slice);
            let reacts = route.reactions.is_some();
            let counts = |s: &&Segment| {
                s.kind.is_for(reacts) && (is_on(points, s) || !reacts && !routes.iter().any(|points| is_on(points, s)))
            };
            route.segments = segments.iter().filter(counts).map(|s| (s.from, s.to)).collect();
            route.segments.sort_unstable();
            route.segments.dedup();
            route.points = points.iter().fold(0, |set, p| set | 1 << p);
        }
    }

    /// Declares streams of reactions, each with the time above which its reactions are late, ns (`None`: never). The
    /// rule for packets is not applied to them, because packets take far less time. Must be called before
    /// [`Self::set_layout`].
    pub fn set_reactions(&mut self, reactions: impl IntoIterator<Item = (StreamId, Option<Ns>)>) {
        for (stream, late) in reactions {
            if let Some(route) = self.routes.get_mut(usize::from(stream)) {
                route.reactions = Some(late);
            }
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> &LateCounts {
        &self.counts
    }

    /// Adds a journey. Journeys come roughly in order of their first sightings, but those that lack a sighting come
    /// later.
    pub fn take(&mut self, journey: &Journey) {
        let Some(route) = self.routes.get(usize::from(journey.stream)) else { return };
        let Some(first) = journey.first() else { return };
        // Begins with the send time, because the talker's activity from then on may explain why it sent late.
        let computed = (0..journey.t.len()).filter(|point| (journey.seen & journey.samples) >> point & 1 == 1);
        let first = computed.map(|point| journey.t[point]).fold(first, Ns::min);
        let time = route.segments.iter().filter_map(|(from, to)| journey.between(*from, *to)).max();
        let whole = route.points != 0 && journey.seen & route.points == route.points;
        let packet = self.recent.push(journey, first, time, whole);
        let Some(time) = time else { return };
        if let Some(late) = route.reactions {
            if let Some(late) = late.filter(|late| time > *late) {
                self.late(&packet, time, late.saturating_add(1));
            }
            return;
        }
        match self.classifier.classify(first, time) {
            Lateness::OnTime => {}
            Lateness::Late(threshold) => self.late(&packet, time, threshold),
            Lateness::Undecided => self.candidate = Some(packet),
        }
    }

    fn late(&mut self, packet: &RecentPacket, time: Ns, threshold: Ns) {
        self.counts.late[usize::from(packet.stream)] += 1;
        let covered = |p: &Pending| {
            p.request.kind == CaptureKind::Spike && p.request.from < packet.first && packet.last <= p.request.to
        };
        if self.pending.iter().any(covered) {
            return;
        }
        if let Some(open) = &mut self.open {
            let (first, last) = (open.first.min(packet.first), open.last.max(packet.last));
            let longest = open.longest.max(packet.last - packet.first);
            let is_near = packet.first <= open.last + MAX_GAP && packet.last >= open.first - MAX_GAP;
            if is_near && last - first <= longest.max(MAX_SPIKE) {
                (open.first, open.last, open.longest, open.added) = (first, last, longest, self.clock);
                open.threshold = open.threshold.min(threshold);
                if time > open.worst {
                    (open.worst, open.stream, open.packet) = (time, packet.stream, packet.number);
                }
                return;
            }
            self.close();
        }
        self.open = Some(OpenSpike {
            first: packet.first,
            last: packet.last,
            threshold,
            worst: time,
            stream: packet.stream,
            packet: packet.number,
            longest: packet.last - packet.first,
            opened: self.clock,
            added: self.clock,
        });
    }

    /// Requests a capture of the open spike, if allowed.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        if self.worst_until <= self.clock {
            (self.worst, self.worst_until) = (0, self.clock.saturating_add(WORST_PERIOD));
        }
        let pays = self.paid <= self.clock.saturating_add(BURST * CAPTURE_INTERVAL);
        let may = open.worst > self.retention.keep_threshold() && (pays || open.worst > self.worst);
        if !may {
            self.counts.passed_over += 1;
            return;
        }
        self.worst = self.worst.max(open.worst);
        let before = (BEFORE + open.longest / BEFORE_PART).min(MAX_BEFORE);
        let request = CaptureRequest {
            number: 0,
            kind: CaptureKind::Spike,
            from: open.first - before,
            to: open.last + AFTER,
            worst: open.worst,
            stream: open.stream,
            packet: open.packet,
        };
        self.request(request, open.threshold);
    }

    fn request(&mut self, request: CaptureRequest, threshold: Ns) {
        self.number += 1;
        self.paid = self.paid.max(self.clock).saturating_add(CAPTURE_INTERVAL);
        let request = CaptureRequest { number: self.number, ..request };
        self.requests.push_back(request);
        self.pending.push(Pending { request, threshold, requested: self.clock });
    }

    /// Advances the time. `clock` is this machine's; all journeys that began before `reached` must have been added.
    pub fn advance(&mut self, clock: Ns, reached: Ns) {
        if self.began == Ns::MIN {
            self.began = clock;
        }
        self.clock = self.clock.max(clock);
        self.end_slice(reached);
        if let Some(open) = &self.open {
            if self.clock >= open.added + QUIET || self.clock >= open.opened + MAX_OPEN {
                self.close();
            }
        }
        if self.options.baselines {
            self.find_baseline(reached);
        }
        // Keeps the packets that a capture may still need: those of the maximum wait, and of the time before it.
        let keep = self.options.max_wait.saturating_mul(2).saturating_add(SECOND);
        self.recent.forget(reached.saturating_sub(keep));
    }

    /// With the rule `WorstPerMinute`: decides whether the worst packet of the finished slice is late.
    fn end_slice(&mut self, reached: Ns) {
        let LatenessClassifier::Worst(worst) = &mut self.classifier else { return };
        let Some(threshold) = worst.slice(reached) else { return };
        if let Some(packet) = self.candidate.take() {
            self.late(&packet, packet.time.unwrap_or(threshold), threshold);
        }
    }

    /// Requests a baseline if one is due and all packets of an interval were on time; the intervals between baselines
    /// grow.
    fn find_baseline(&mut self, reached: Ns) {
        if self.routes.iter().all(|route| route.points == 0) || self.baselines >= BASELINES {
            return;
        }
        let due = *self.next_baseline.get_or_insert(self.clock.saturating_add(SECOND));
        if self.clock < due || self.open.is_some() {
            return;
        }
        let to = reached.saturating_sub(AFTER);
        let from = to.saturating_sub(BASELINE);
        let is_usable = self.classifier.on_time().is_some_and(|limit| {
            let is_known = |stream: StreamId| self.routes[usize::from(stream)].points != 0;
            let mut any = false;
            let all = self.recent.within(from - BEFORE, reached).all(|p| {
                any |= p.whole && p.first >= from && p.last <= to;
                let late_reaction = self.routes[usize::from(p.stream)].is_late_reaction(p.time);
                let is_late = late_reaction.unwrap_or(p.time.is_some_and(|time| time > limit));
                (p.whole || !is_known(p.stream)) && !is_late
            });
            all && any
        });
        if !is_usable {
            self.next_baseline = Some(self.clock.saturating_add(BASELINE_RETRY));
            return;
        }
        self.baselines += 1;
        let elapsed = self.clock - self.began;
        self.next_baseline = Some(self.clock.saturating_add(SECOND.max(elapsed / 2)));
        let within = self.recent.within(from, to);
        let (worst, stream, packet) =
            within.map(|p| (p.time.unwrap_or(0), p.stream, p.number)).max().unwrap_or_default();
        let request = CaptureRequest {
            number: 0,
            kind: CaptureKind::Baseline,
            from: from - BEFORE,
            to: reached,
            worst,
            stream,
            packet,
        };
        self.request(request, Ns::MAX);
    }

    /// The next request for a capture; each is returned once.
    pub fn next_request(&mut self) -> Option<CaptureRequest> {
        self.requests.pop_front()
    }

    /// The packets of a requested capture, once they are complete or overdue. `reached` is the same as in
    /// [`Self::advance`].
    pub fn next_packets(&mut self, reached: Ns) -> Option<CapturedPackets> {
        let is_done =
            |p: &Pending| reached >= p.request.to || self.clock >= p.requested.saturating_add(self.options.max_wait);
        let at = self.pending.iter().position(is_done)?;
        let pending = self.pending.remove(at);
        Some(self.gather(&pending))
    }

    fn gather(&mut self, pending: &Pending) -> CapturedPackets {
        let CaptureRequest { number, kind, from, to, .. } = pending.request;
        let routes = &self.routes;
        // The capture does not cover the causes of packets that are partly outside; another capture does.
        let is_whole = |p: &RecentPacket| from <= p.first && p.last <= to;
        let is_late = |p: &RecentPacket| {
            let late_reaction = routes[usize::from(p.stream)].is_late_reaction(p.time);
            let is_over = late_reaction.unwrap_or(p.time.is_some_and(|time| time >= pending.threshold));
            kind == CaptureKind::Spike && is_whole(p) && is_over
        };
        let mut late = vec![0; routes.len()];
        for p in self.recent.within_mut(from, to).filter(|p| is_late(p)) {
            // A packet at the boundary of two captures may be in both, but is counted once.
            late[usize::from(p.stream)] += u64::from(!std::mem::replace(&mut p.counted, true));
        }
        let mut packets: Vec<&RecentPacket> = self.recent.within(from, to).collect();
        let all_late = packets.iter().filter(|p| is_late(p)).count() as u64;
        let times = packets.iter().filter(|p| kind == CaptureKind::Baseline || is_late(p)).filter_map(|p| p.time);
        let worst = times.max().unwrap_or(pending.request.worst);
        let mut kept_late = all_late;
        if packets.len() > MAX_PACKETS || all_late > MAX_LATE as u64 {
            // Keeps the slowest late packets; then the other packets, those closest to the slowest packet first.
            let centre =
                packets.iter().filter(|p| is_late(p)).max_by_key(|p| p.time).map_or((from, to), |p| (p.first, p.last));
            let distance = |p: &RecentPacket| (p.first - centre.1).max(centre.0 - p.last).max(0);
            packets
                .sort_by_key(|p| (!is_late(p), std::cmp::Reverse(p.time.filter(|_| is_late(p))), distance(p), p.first));
            let on_time = packets.split_off(packets.partition_point(|p| is_late(p)));
            packets.truncate(MAX_LATE);
            kept_late = packets.len() as u64;
            packets.extend(on_time.into_iter().take(MAX_PACKETS - packets.len()));
        }
        packets.sort_by_key(|p| (p.first, p.stream, p.number));
        let packets = packets.iter().map(|p| self.recent.packet(p, is_late(p))).collect();
        CapturedPackets { number, worst, packets, more_late: all_late - kept_late, late }
    }

    /// Ends the input: requests the remaining captures without further waiting.
    pub fn finish(&mut self, clock: Ns) {
        self.clock = self.clock.max(clock);
        self.end_slice(Ns::MAX / 2);
        self.close();
        self.options.baselines = false;
        self.options.max_wait = 0;
    }
}
