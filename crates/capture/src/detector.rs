//! Which times are frozen: those around late packets, and now and then one in which all packets are on time.

use crate::recent::{Recent, RecentPacket};
use crate::rule::{Lateness, LatenessClassifier, LatenessRule};
use crate::{CaptureKind, Packet, RetentionPolicy};
use latpath_journey::{Journey, Segment};
use latpath_model::{Ns, PointId, StreamId};
use std::collections::VecDeque;

const MS: Ns = 1_000_000;
const SECOND: Ns = 1_000 * MS;

/// Before a capture's first packet: who was woken by whom, and what was queued ahead of it, began earlier.
const BEFORE: Ns = 5 * MS;
/// The same as a part of the longest time that a packet of it took, since the longer the delay the older its cause; and that
/// part's limit.
const BEFORE_PART: Ns = 4;
const MOST_BEFORE: Ns = 50 * MS;
/// Behind its last one.
const AFTER: Ns = 2 * MS;
/// Late packets so close to each other are one capture, as long as that gets no longer than this, or than its longest packet.
const NEAR: Ns = 10 * MS;
const LONGEST: Ns = 100 * MS;
/// A capture is frozen when no late packet was added for so long, and so long after the first at the latest: the rings write
/// over themselves.
const QUIET: Ns = 15 * MS;
const HURRY: Ns = 100 * MS;
/// Packets of a capture, and the late ones among them.
const PACKETS: usize = 4096;
const LATE: usize = 1024;
/// Captures that may be frozen at once, and one more each this time. The worst of the last while always may.
const BURST: Ns = 64;
const EACH: Ns = 100 * MS;
const WHILE: Ns = 10 * SECOND;
/// How long a time is in which all packets are to be on time; how often one is looked for in vain; how many are taken.
const BASELINE: Ns = 40 * MS;
const LOOK_AGAIN: Ns = 50 * MS;
const BASELINES: u32 = 40;

/// What is chosen, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Which packets are late.
    pub rule: LatenessRule,
    /// How long to wait for packets that are still on their way when their time is frozen.
    pub max_wait: Ns,
    /// Whether times are frozen in which all packets are on time: without them there is no baseline.
    pub baselines: bool,
}

/// A time that is to be frozen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Counts the captures, from 1.
    pub number: u32,
    pub kind: CaptureKind,
    /// The host's `CLOCK_MONOTONIC`.
    pub from: Ns,
    /// Likewise; it is over.
    pub to: Ns,
    /// What the latest packet took, as far as is known now.
    pub worst: Ns,
    pub stream: StreamId,
    /// Its number in its stream.
    pub packet: u64,
}

/// The packets of a time that was frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPackets {
    /// The request's.
    pub number: u32,
    /// What the latest packet took: the capture's rank.
    pub worst: Ns,
    /// By the time of their first sightings.
    pub packets: Vec<Packet>,
    /// Late packets that found no room.
    pub more_late: u64,
    /// Late packets of each stream, those included; but for those that an earlier capture has.
    pub late: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LateCounts {
    /// Late packets of each stream.
    pub late: Vec<u64>,
    /// Times with late packets that were not frozen, for there were too many, or worse ones.
    pub passed_over: u64,
}

/// The ends of a segment, for those streams whose packets it counts for.
#[derive(Clone, Debug, Default)]
struct StreamRoute {
    segments: Vec<(PointId, PointId)>,
    points: u64,
}

/// Late packets that belong together.
#[derive(Clone, Copy, Debug)]
struct Open {
    first: Ns,
    last: Ns,
    /// Packets that took so long are late.
    threshold: Ns,
    worst: Ns,
    stream: StreamId,
    packet: u64,
    /// The longest single packet.
    longest: Ns,
    opened: Ns,
    added: Ns,
}

/// A time that was requested, until its packets are known.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: CaptureRequest,
    threshold: Ns,
    requested: Ns,
}

/// See the module's text. Give it each journey, and the time now and then.
#[derive(Debug)]
pub struct LateDetector {
    options: Options,
    classifier: LatenessClassifier,
    routes: Vec<StreamRoute>,
    recent: Recent,
    counts: LateCounts,
    open: Option<Open>,
    candidate: Option<RecentPacket>,
    requests: VecDeque<CaptureRequest>,
    pending: Vec<Pending>,
    number: u32,
    retention: RetentionPolicy,
    /// When the captures that were requested are paid for.
    paid: Ns,
    worst: Ns,
    worst_until: Ns,
    baselines: u32,
    next_baseline: Option<Ns>,
    began: Ns,
    clock: Ns,
}

impl LateDetector {
    /// A detector for this many streams. It requests no capture that the retention policy would discard.
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

    /// Says which segments there are, and the points of each stream's route. A segment counts for the streams on whose route both
    /// its ends are; one that is on no route (off route, or the user's own) for all.
    pub fn set_layout(&mut self, segments: &[Segment], routes: &[Vec<PointId>]) {
        let is_on = |points: &[PointId], s: &Segment| points.contains(&s.from) && points.contains(&s.to);
        for (stream, route) in self.routes.iter_mut().enumerate() {
            let points = routes.get(stream).map_or(&[][..], Vec::as_slice);
            let counts = |s: &&Segment| is_on(points, s) || !routes.iter().any(|points| is_on(points, s));
            route.segments = segments.iter().filter(counts).map(|s| (s.from, s.to)).collect();
            route.segments.sort_unstable();
            route.segments.dedup();
            route.points = points.iter().fold(0, |set, p| set | 1 << p);
        }
    }

    /// What was counted so far.
    pub fn counts(&self) -> &LateCounts {
        &self.counts
    }

    /// Takes a journey. They come roughly in the order of their first sightings: those that wait for a sighting come later.
    pub fn take(&mut self, journey: &Journey) {
        let Some(route) = self.routes.get(usize::from(journey.stream)) else { return };
        let Some(first) = journey.first() else { return };
        let time = route.segments.iter().filter_map(|(from, to)| journey.between(*from, *to)).max();
        let whole = route.points != 0 && journey.seen & route.points == route.points;
        let packet = self.recent.push(journey, first, time, whole);
        let Some(time) = time else { return };
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
            let is_near = packet.first <= open.last + NEAR && packet.last >= open.first - NEAR;
            if is_near && last - first <= longest.max(LONGEST) {
                (open.first, open.last, open.longest, open.added) = (first, last, longest, self.clock);
                open.threshold = open.threshold.min(threshold);
                if time > open.worst {
                    (open.worst, open.stream, open.packet) = (time, packet.stream, packet.number);
                }
                return;
            }
            self.close();
        }
        self.open = Some(Open {
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

    /// Requests a capture of the open spike, if one may be taken.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        if self.worst_until <= self.clock {
            (self.worst, self.worst_until) = (0, self.clock.saturating_add(WHILE));
        }
        let pays = self.paid <= self.clock.saturating_add(BURST * EACH);
        let may = open.worst > self.retention.keep_threshold() && (pays || open.worst > self.worst);
        if !may {
            self.counts.passed_over += 1;
            return;
        }
        self.worst = self.worst.max(open.worst);
        let before = (BEFORE + open.longest / BEFORE_PART).min(MOST_BEFORE);
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
        self.paid = self.paid.max(self.clock).saturating_add(EACH);
        let request = CaptureRequest { number: self.number, ..request };
        self.requests.push_back(request);
        self.pending.push(Pending { request, threshold, requested: self.clock });
    }

    /// Takes the time: `clock` is that of this machine, and all journeys that began before `reached` have been taken.
    pub fn advance(&mut self, clock: Ns, reached: Ns) {
        if self.began == Ns::MIN {
            self.began = clock;
        }
        self.clock = self.clock.max(clock);
        self.end_slice(reached);
        if let Some(open) = &self.open {
            if self.clock >= open.added + QUIET || self.clock >= open.opened + HURRY {
                self.close();
            }
        }
        if self.options.baselines {
            self.find_baseline(reached);
        }
        // What a capture may still need: the longest that a packet is waited for, and what came before it.
        let keep = self.options.max_wait.saturating_mul(2).saturating_add(SECOND);
        self.recent.forget(reached.saturating_sub(keep));
    }

    /// By the rule of the worst of each minute: whether the worst packet of the slice that ends is one of them.
    fn end_slice(&mut self, reached: Ns) {
        let LatenessClassifier::Worst(worst) = &mut self.classifier else { return };
        let Some(threshold) = worst.slice(reached) else { return };
        if let Some(packet) = self.candidate.take() {
            self.late(&packet, packet.time.unwrap_or(threshold), threshold);
        }
    }

    /// From time to time, rarer and rarer, a time in which all packets were on time.
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
                (p.whole || !is_known(p.stream)) && p.time.is_none_or(|time| time <= limit)
            });
            all && any
        });
        if !is_usable {
            self.next_baseline = Some(self.clock.saturating_add(LOOK_AGAIN));
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

    /// A time of which a capture is requested now. Each is returned once.
    pub fn next_request(&mut self) -> Option<CaptureRequest> {
        self.requests.pop_front()
    }

    /// The packets of a time that was requested, once all are known or were waited for in vain. `reached` as for
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
        // What delayed a packets that left later is not in the record: another capture has it.
        let is_whole = |p: &RecentPacket| from <= p.first && p.last <= to;
        let is_late = |p: &RecentPacket| {
            kind == CaptureKind::Spike && is_whole(p) && p.time.is_some_and(|time| time >= pending.threshold)
        };
        let mut late = vec![0; self.routes.len()];
        for p in self.recent.within_mut(from, to).filter(|p| is_late(p)) {
            // At the edges of two captures it may be in both.
            late[usize::from(p.stream)] += u64::from(!std::mem::replace(&mut p.counted, true));
        }
        let mut packets: Vec<&RecentPacket> = self.recent.within(from, to).collect();
        let all_late = packets.iter().filter(|p| is_late(p)).count() as u64;
        let times = packets.iter().filter(|p| kind == CaptureKind::Baseline || is_late(p)).filter_map(|p| p.time);
        let worst = times.max().unwrap_or(pending.request.worst);
        let mut kept_late = all_late;
        if packets.len() > PACKETS || all_late > LATE as u64 {
            // The latest first; then those that were under way together with the latest of all, and their neighbours.
            let centre =
                packets.iter().filter(|p| is_late(p)).max_by_key(|p| p.time).map_or((from, to), |p| (p.first, p.last));
            let distance = |p: &RecentPacket| (p.first - centre.1).max(centre.0 - p.last).max(0);
            packets
                .sort_by_key(|p| (!is_late(p), std::cmp::Reverse(p.time.filter(|_| is_late(p))), distance(p), p.first));
            let on_time = packets.split_off(packets.partition_point(|p| is_late(p)));
            packets.truncate(LATE);
            kept_late = packets.len() as u64;
            packets.extend(on_time.into_iter().take(PACKETS - packets.len()));
        }
        packets.sort_by_key(|p| (p.first, p.stream, p.number));
        let packets = packets.iter().map(|p| self.recent.packet(p, is_late(p))).collect();
        CapturedPackets { number, worst, packets, more_late: all_late - kept_late, late }
    }

    /// Nothing comes any more: requests what is left, and waits for nobody.
    pub fn finish(&mut self, clock: Ns) {
        self.clock = self.clock.max(clock);
        self.end_slice(Ns::MAX / 2);
        self.close();
        self.options.baselines = false;
        self.options.max_wait = 0;
    }
}
