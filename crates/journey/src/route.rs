//! The route: the order in which packets pass the points, and which of them lead to the application.
//!
//! A packet is seen at points that are not on its route: a bridge floods it to other ports and delivers a local copy,
//! and other programs may read it. The route follows from journeys (which points saw them, in which order) and from the
//! types of devices. It needs no configuration.

use crate::journey::{bits, Journey, MAX_POINTS};
use latpath_model::point::Copies;
use latpath_model::{Link, Ns, Passage, Point, PointId, PointInfo, PointKind, StreamId, StreamSpec, HOST};
use std::collections::BTreeSet;

/// The points in the order in which packets pass them, and the routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// All points that saw a packet, in the order in which packets pass them. Drop points are excluded.
    pub order: Vec<PointId>,
    /// The points of all streams' routes, in order.
    pub points: Vec<PointId>,
    /// Points off all routes: copies made by a bridge, other readers.
    pub off_route: Vec<PointId>,
    /// Points that only some packets pass and that identify their paths: Open vSwitch's fast path and daemon.
    pub optional: Vec<PointId>,
    /// Each stream's route, by its id; empty if no packet of it was seen. Streams may lead into different VMs.
    pub by_stream: Vec<Vec<PointId>>,
    /// The streams of reactions. Their routes are in `by_stream` too, but not among the [distinct](Self::distinct) ones.
    pub reactions: Vec<ReactionRoute>,
}

/// The route of a stream of reactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReactionRoute {
    /// The stream.
    pub stream: StreamId,
    /// Threshold above which its reactions are late, ns; `None` for none.
    pub late: Option<Ns>,
    /// Its ends; `None` while the route of one side is unknown.
    pub ends: Option<ReactionEnds>,
}

/// The points that delimit the parts of a reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReactionEnds {
    /// The point at which the packet comes in: the host's NIC.
    pub wire_in: PointId,
    /// The last point that sees the packet that comes in.
    pub taken: PointId,
    /// The first point that sees the packet that the application sends.
    pub given: PointId,
    /// The point at which the reaction goes out: the device in the namespace of `wire_in` that sends it.
    pub wire_out: PointId,
}

/// The point at which a packet of this route counts as arrived: the last one, or the last before those at a guest's
/// door.
pub fn arrival(route: &[PointId], points: &[PointInfo]) -> Option<PointId> {
    let is_before_door = |p: &&PointId| points.get(usize::from(**p)).is_none_or(|info| !info.point.kind.is_at_door());
    route.iter().rfind(is_before_door).or(route.last()).copied()
}

/// For each stream of reactions: its id, the id of the stream that comes in, and the id of the one that goes out.
pub fn reactions_of(streams: &[StreamSpec]) -> Vec<(StreamId, StreamId, StreamId)> {
    let id = |of: &StreamSpec| streams.iter().position(|stream| stream == of).map(|id| id as StreamId);
    let of = |(own, stream): (usize, &StreamSpec)| {
        let rule = stream.reaction.as_ref()?;
        Some((own as StreamId, id(&rule.input)?, id(&rule.output)?))
    };
    streams.iter().enumerate().filter_map(of).collect()
}

impl Route {
    /// Builds the routes from the names of their points, as stored in a run's manifest: the route of all streams, and
    /// each stream's own. Unknown names are skipped.
    pub fn from_points(route: &[Point], by_stream: &[Vec<Point>], points: &[PointInfo]) -> Self {
        let id = |p: &Point| points.iter().position(|info| info.point == *p).map(|i| i as PointId);
        let ids = |names: &[Point]| -> Vec<PointId> { names.iter().filter_map(id).collect() };
        let route = ids(route);
        let point = |p: &PointId| &points[usize::from(*p)].point;
        let others = |p: &PointId| !route.contains(p) && point(p).can_be_on_route();
        let others = (0..points.len() as PointId).filter(others);
        let (optional, off_route): (Vec<_>, Vec<_>) = others.partition(|p| point(p).is_optional());
        let by_stream = by_stream.iter().map(|names| ids(names)).collect();
        let order = route.iter().chain(&optional).chain(&off_route).copied().collect();
        Self { order, points: route, off_route, optional, by_stream, reactions: Vec::new() }
    }

    /// Derives the routes of the streams of reactions from those of the streams that come in and go out.
    #[must_use]
    pub fn with_reactions(mut self, streams: &[StreamSpec], points: &[PointInfo]) -> Self {
        self.reactions.clear();
        for (stream, cause, effect) in reactions_of(streams) {
            let known = |id: StreamId| self.by_stream.get(usize::from(id)).map_or(&[][..], Vec::as_slice);
            let found = reaction_route(known(cause), known(effect), points);
            let (route, ends) = found.map_or((Vec::new(), None), |(route, ends)| (route, Some(ends)));
            let at = usize::from(stream);
            if self.by_stream.len() <= at {
                self.by_stream.resize(at + 1, Vec::new());
            }
            self.by_stream[at] = route;
            let late = streams[at].reaction.as_ref().and_then(|rule| rule.late);
            self.reactions.push(ReactionRoute { stream, late, ends });
        }
        self
    }

    /// Whether a stream consists of reactions.
    pub fn is_of_reactions(&self, stream: StreamId) -> bool {
        self.reactions.iter().any(|reaction| reaction.stream == stream)
    }

    /// The route of one stream; that of all streams if its own is unknown, except for a stream of reactions.
    pub fn of_stream(&self, stream: StreamId) -> &[PointId] {
        let own = self.by_stream.get(usize::from(stream));
        let is_own = |route: &&Vec<PointId>| !route.is_empty() || self.is_of_reactions(stream);
        own.filter(is_own).unwrap_or(&self.points)
    }

    /// The point at which one stream's route begins, if known. Another stream's route is not used instead.
    pub(crate) fn head_of_stream(&self, stream: StreamId) -> Option<PointId> {
        let is_known = self.by_stream.iter().any(|route| !route.is_empty());
        match self.by_stream.get(usize::from(stream)) {
            Some(own) if is_known => own.first().copied(),
            _ => self.points.first().copied(),
        }
    }

    /// Whether some stream's route ends at a reader on its sender's side, as in some older recordings.
    pub fn ends_at_sender(&self, points: &[PointInfo]) -> bool {
        let is_copy = |end: &PointId| is_senders_copy(*end, &self.order, points);
        self.distinct().iter().filter_map(|route| route.last()).any(is_copy)
    }

    /// The routes of the first `streams` streams, by [`Self::of_stream`].
    pub fn by_streams(&self, streams: usize) -> Vec<Vec<PointId>> {
        (0..streams).map(|id| self.of_stream(id as StreamId).to_vec()).collect()
    }

    /// The distinct routes of packets, without those of reactions.
    pub fn distinct(&self) -> Vec<&[PointId]> {
        let mut routes: Vec<&[PointId]> = Vec::new();
        for (id, route) in (0..).zip(&self.by_stream).filter(|(_, route)| !route.is_empty()) {
            if !routes.contains(&route.as_slice()) && !self.is_of_reactions(id) {
                routes.push(route);
            }
        }
        if routes.is_empty() && !self.points.is_empty() {
            routes.push(&self.points);
        }
        routes
    }
}

/// The route of reactions: the incoming packets' route from the host's NIC on, then the outgoing packets' route up to
/// the point at which they leave the host through the NIC's namespace.
fn reaction_route(cause: &[PointId], effect: &[PointId], points: &[PointInfo]) -> Option<(Vec<PointId>, ReactionEnds)> {
    let info = |p: &PointId| &points[usize::from(*p)];
    let is_on_host = |p: &PointId| info(p).point.machine == HOST;
    let wire_in = cause.iter().position(|p| is_on_host(p) && info(p).point.kind.is_entry()).unwrap_or(0);
    let (first, taken) = (*cause.get(wire_in)?, *cause.last()?);
    let given = *effect.first()?;
    let sends = |p: &PointId| is_on_host(p) && info(p).point.kind.info().passage == Passage::Out;
    let leaves = |p: &PointId| sends(p) && info(p).netns == info(&first).netns;
    let wire_out = effect.iter().rposition(leaves).or_else(|| effect.iter().rposition(sends));
    let wire_out = wire_out.unwrap_or(effect.len() - 1);
    let ends = ReactionEnds { wire_in: first, taken, given, wire_out: effect[wire_out] };
    let mut route = cause[wire_in..].to_vec();
    // A point that both packets pass belongs to the incoming part.
    route.extend(effect[..=wire_out].iter().filter(|p| !cause[wire_in..].contains(p)));
    (route.last() == Some(&ends.wire_out)).then_some((route, ends))
}

/// Number of journeys at the start of a stream that are all observed.
const ALL: u64 = 4096;
/// After these, one journey in this many is observed.
const EVERY: u64 = 16;
/// Number of journeys after which counts are halved.
const MEMORY: u64 = 1 << 20;

/// Derives the route from journeys.
#[derive(Default)]
pub struct RouteFinder {
    streams: Vec<Option<Counts>>,
}

/// Statistics of a stream's journeys.
struct Counts {
    observed: u64,
    /// `both[a][b]`: journeys seen at both points; `both[a][a]`: at this one.
    both: Box<Matrix>,
    /// `before[a][b]`: journeys seen at `a` earlier than at `b`.
    before: Box<Matrix>,
    /// `same_thread[a][b]`: journeys first seen at `a`, in the thread that was later seen at `b`.
    same_thread: Box<Matrix>,
}

type Matrix = [[u32; MAX_POINTS]; MAX_POINTS];

impl RouteFinder {
    /// Counts a journey.
    pub fn observe(&mut self, j: &Journey) {
        let stream = usize::from(j.stream);
        if stream >= self.streams.len() {
            self.streams.resize_with(stream + 1, || None);
        }
        self.streams[stream].get_or_insert_with(Counts::default).observe(j);
    }

    /// The route as known so far.
    pub fn route(&self, points: &[PointInfo]) -> Route {
        let mut all = Counts::default();
        let mut by_stream = Vec::with_capacity(self.streams.len());
        for counts in &self.streams {
            by_stream.push(match counts {
                Some(counts) => {
                    all.add(counts);
                    let mut order = counts.order(points);
                    // Packets pass one LAN or the other, so the computed point of the first copies is on the route
                    // instead.
                    order.retain(|p| !matches!(points[usize::from(*p)].point.copies(), Some(Copies::Lan(_))));
                    Search { counts, points, order: &order }.find()
                }
                None => Vec::new(),
            });
        }
        let order = all.order(points);
        // Each route keeps its own order: streams may flow in both directions.
        let mut route: Vec<PointId> = Vec::new();
        for own in &by_stream {
            let new: Vec<PointId> = own.iter().copied().filter(|p| !route.contains(p)).collect();
            route.extend(new);
        }
        let others = order.iter().copied().filter(|p| !route.contains(p));
        let (optional, off_route) = others.partition(|p| points[usize::from(*p)].point.is_optional());
        Route { order, points: route, off_route, optional, by_stream, reactions: Vec::new() }
    }
}

impl Default for Counts {
    fn default() -> Self {
        let empty = || Box::new([[0; MAX_POINTS]; MAX_POINTS]);
        Self { observed: 0, both: empty(), before: empty(), same_thread: empty() }
    }
}

impl Counts {
    fn observe(&mut self, j: &Journey) {
        self.observed += 1;
        if self.observed > ALL && !self.observed.is_multiple_of(EVERY) {
            return;
        }
        if self.observed.is_multiple_of(MEMORY) {
            let halve = |m: &mut Matrix| m.iter_mut().flatten().for_each(|n| *n /= 2);
            halve(&mut self.both);
            halve(&mut self.before);
            halve(&mut self.same_thread);
        }
        self.note_threads(j);
        for a in bits(j.seen) {
            self.both[a][a] += 1;
            for b in bits(j.seen & (!1 << a)) {
                self.both[a][b] += 1;
                self.both[b][a] += 1;
                match j.t[a].cmp(&j.t[b]) {
                    std::cmp::Ordering::Less => self.before[a][b] += 1,
                    std::cmp::Ordering::Greater => self.before[b][a] += 1,
                    std::cmp::Ordering::Equal => {}
                }
            }
        }
    }

    /// Counts the points at which the thread that first saw the packet sees it again. Unknown threads have `tid` 0 or
    /// an empty list, and idle threads also have 0; they are skipped.
    fn note_threads(&mut self, j: &Journey) {
        let Some(first) = bits(j.seen & !j.samples).min_by_key(|p| j.t[*p]) else { return };
        let Some(sender) = j.tid.get(first).filter(|tid| **tid != 0) else { return };
        for p in bits(j.seen & !j.samples & !(1 << first)).filter(|p| j.tid.get(*p) == Some(sender)) {
            self.same_thread[first][p] += 1;
        }
    }

    fn add(&mut self, other: &Self) {
        let add = |own: &mut Matrix, others: &Matrix| {
            own.iter_mut().flatten().zip(others.iter().flatten()).for_each(|(a, b)| *a = a.saturating_add(*b));
        };
        add(&mut self.both, &other.both);
        add(&mut self.before, &other.before);
        add(&mut self.same_thread, &other.same_thread);
    }

    fn seen(&self, p: PointId) -> u32 {
        self.both[usize::from(p)][usize::from(p)]
    }

    /// All points that saw a packet: machines upstream first, then the host, then machines downstream; by time within a
    /// machine. Time alone does not suffice, because the clock error between two machines may exceed the packet's
    /// delay.
    fn order(&self, points: &[PointInfo]) -> Vec<PointId> {
        let counts = |p: &PointId| self.seen(*p) > 0 && points[usize::from(*p)].point.can_be_on_route();
        let mut left: Vec<PointId> = (0..points.len().min(MAX_POINTS) as PointId).filter(counts).collect();
        let machine = |p: PointId| points[usize::from(p)].point.machine.as_str();
        let all = left.clone();
        let side = |p: PointId| match machine(p) {
            HOST => 0,
            name => {
                // A machine that only sends is upstream of the host; one that receives is downstream.
                let receives = |p: &PointId| {
                    !points[usize::from(*p)].point.kind.is_sending() && !is_senders_copy(*p, &all, points)
                };
                let here = |p: &PointId| machine(*p) == name && receives(p);
                if all.iter().any(here) {
                    1
                } else {
                    -1
                }
            }
        };
        let (before, precedes) = (&self.before, |a: PointId, b: PointId| {
            let (a, b) = (usize::from(a), usize::from(b));
            self.before[a][b] > self.before[b][a]
        });
        let mut order = Vec::with_capacity(left.len());
        while !left.is_empty() {
            // The point that the fewest others precede. Points without common journeys are ordered by their kinds.
            let rank = |p: PointId| {
                let ahead = left.iter().filter(|q| side(**q) == side(p) && precedes(**q, p)).count();
                let by_time: u64 = left.iter().map(|q| u64::from(before[usize::from(*q)][usize::from(p)])).sum();
                (side(p), ahead, by_time, points[usize::from(p)].point.kind, p)
            };
            let Some(at) = (0..left.len()).min_by_key(|i| rank(left[*i])) else { break };
            order.push(left.remove(at));
        }
        order
    }
}

/// Whether a reader gets copies of packets that its own network namespace sends: packets leave this namespace and do
/// not enter it. Senders read their transmit timestamps this way (`MSG_ERRQUEUE`), and packet sockets read outgoing
/// packets. `seen`: the points that saw the stream.
pub(crate) fn is_senders_copy(reader: PointId, seen: &[PointId], points: &[PointInfo]) -> bool {
    let info = |p: PointId| &points[usize::from(p)];
    let place = |p: PointId| (info(p).point.machine.as_str(), info(p).netns);
    let kinds = || seen.iter().filter(|p| place(**p) == place(reader)).map(|p| info(*p).point.kind);
    let enters = |kind: PointKind| !kind.is_sending() && !kind.is_named_by_thread();
    // Points of imported files have no namespace; for them, the order of the files is the route.
    let is_known = info(reader).netns != 0;
    info(reader).point.kind.is_named_by_thread()
        && is_known
        && kinds().any(PointKind::is_sending)
        && !kinds().any(enters)
}

/// Searches a stream's route among the ordered points.
struct Search<'a> {
    counts: &'a Counts,
    points: &'a [PointInfo],
    order: &'a [PointId],
}

impl Search<'_> {
    fn info(&self, p: PointId) -> &PointInfo {
        &self.points[usize::from(p)]
    }

    fn kind(&self, p: PointId) -> PointKind {
        self.info(p).point.kind
    }

    fn passage(&self, p: PointId) -> Passage {
        self.kind(p).info().passage
    }

    fn is_host(&self, p: PointId) -> bool {
        self.is_on(p, HOST)
    }

    fn is_on(&self, p: PointId, machine: &str) -> bool {
        self.info(p).point.machine == machine
    }

    /// Whether two points are at the same device, judged by its name: imported files have no device index.
    fn is_at_port(&self, p: PointId, other: PointId) -> bool {
        let port = |p: PointId| (&self.info(p).point.machine, self.info(p).netns, &self.info(p).point.device);
        port(p) == port(other)
    }

    /// Whether a point can end the route: a reader of the sender's own copies cannot, nor can a point that only some
    /// packets pass.
    fn can_end(&self, p: PointId) -> bool {
        !self.kind(p).is_optional() && !is_senders_copy(p, self.order, self.points)
    }

    /// Whether most packets that an application reads were sent by the thread that reads them.
    fn is_read_by_sender(&self, reader: PointId) -> bool {
        let sent = |first: &&PointId| self.passage(**first) == Passage::Out;
        let by_sender = |first: &PointId| self.counts.same_thread[usize::from(*first)][usize::from(reader)];
        let own: u64 = self.order.iter().filter(sent).map(|first| u64::from(by_sender(first))).sum();
        own * 2 > u64::from(self.counts.seen(reader))
    }

    /// The last matching point that saw at least a tenth as many packets as the busiest matching point.
    fn last(&self, fits: impl Fn(PointId) -> bool) -> Option<PointId> {
        let seen = |p: PointId| u64::from(self.counts.seen(p));
        let most = self.order.iter().filter(|p| fits(**p)).map(|p| seen(*p)).max()?;
        self.order.iter().rev().copied().find(|p| fits(*p) && seen(*p) * 10 >= most)
    }

    /// The end of the route: the application in a guest, else the furthest visible point in a guest, else the NIC that
    /// sent the packet, else an application on this host. Of several applications, one whose thread did not send the
    /// packets is preferred.
    fn sink(&self) -> Option<PointId> {
        let reads = |p| self.kind(p).is_application() && self.can_end(p);
        let beyond = |p| !self.is_host(p) && !self.kind(p).is_sending() && self.can_end(p);
        self.last(|p| beyond(p) && reads(p) && !self.is_read_by_sender(p))
            .or_else(|| self.last(|p| beyond(p) && reads(p)))
            .or_else(|| self.last(beyond))
            .or_else(|| {
                let read = self.last(|p| self.passage(p) == Passage::ToVm)?;
                Some(self.entry_with(read).unwrap_or(read))
            })
            .or_else(|| self.last(|p| self.is_host(p) && self.passage(p) == Passage::Sent && self.can_end(p)))
            .or_else(|| self.last(|p| reads(p) && !self.is_read_by_sender(p)))
            .or_else(|| self.last(reads))
            .or_else(|| self.order.iter().rev().copied().find(|p| self.can_end(*p)))
    }

    /// The point at which a vCPU enters the guest with packets read at `read`, if that point saw at least half of them.
    fn entry_with(&self, read: PointId) -> Option<PointId> {
        let both = |p: PointId| u64::from(self.counts.both[usize::from(p)][usize::from(read)]);
        let is_its = |p: &PointId| self.kind(*p).is_in_vm() && self.is_at_port(*p, read);
        self.order.iter().copied().find(is_its).filter(|p| both(*p) * 2 >= u64::from(self.counts.seen(read)))
    }

    fn find(&self) -> Vec<PointId> {
        let Some(sink) = self.sink() else { return Vec::new() };
        let to = self.order.iter().position(|p| *p == sink).unwrap_or(0);
        let with_sink = |p: PointId| self.counts.both[usize::from(p)][usize::from(sink)];
        let arrived = self.counts.seen(sink);
        // Points that most arriving packets passed; only the end may be an application or a NIC's completion.
        let passes = |p: &PointId| {
            let ends = self.kind(*p).ends_route();
            u64::from(with_sink(*p)) * 2 >= u64::from(arrived) && (*p == sink || !ends) && !self.kind(*p).is_optional()
        };
        let mut route: Vec<PointId> = self.order[..=to].iter().copied().filter(passes).collect();
        self.only_one_vm(&mut route, sink);
        self.only_one_sending_vm(&mut route);
        let is_hypervisor = |machine: &str| {
            let has_vms = |p: &PointId| matches!(self.passage(*p), Passage::ToVm | Passage::FromVm);
            machine == HOST || route.iter().any(|p| self.is_on(*p, machine) && has_vms(p))
        };
        let machines: BTreeSet<&str> = route.iter().map(|p| self.info(*p).point.machine.as_str()).collect();
        let hypervisors: Vec<&str> = machines.into_iter().filter(|machine| is_hypervisor(machine)).collect();
        for machine in hypervisors {
            // Packets arrive in the machine's own namespace: at its first entry point.
            let ingress = route.iter().copied().find(|p| self.is_on(*p, machine) && self.kind(*p).is_entry());
            if let Some(ingress) = ingress {
                self.remove_copies(&mut route, machine, ingress, sink);
            }
        }
        route
    }

    /// Keeps one of several VMs that read the packet: the one whose read is the sink or whose tap leads to it, else the
    /// last.
    fn only_one_vm(&self, route: &mut Vec<PointId>, sink: PointId) {
        let reads: Vec<PointId> = route.iter().copied().filter(|p| self.passage(*p) == Passage::ToVm).collect();
        let is_its = |p: &PointId| *p == sink || (self.kind(sink).is_in_vm() && self.is_at_port(*p, sink));
        let Some(read) = reads.iter().copied().find(is_its).or(reads.last().copied()) else { return };
        let Point { machine, device: tap, .. } = &self.info(read).point;
        let is_sent = |p: PointId| self.is_on(p, machine) && self.kind(p).is_sending();
        route.retain(|p| match (self.passage(*p) == Passage::ToVm, self.kind(*p).is_in_vm()) {
            (true, _) => *p == read,
            (_, true) => self.is_at_port(*p, read),
            _ => !is_sent(*p) || self.info(*p).link != Link::Tap || self.info(*p).point.device == *tap,
        });
        // A read completes its tap's transmission, so the tap's sending points go before it, even if the times of two
        // CPUs disagree.
        let Some(rx) = route.iter().position(|p| *p == read) else { return };
        let late = |p: &PointId| is_sent(*p) && self.info(*p).point.device == *tap;
        let mut behind = route.split_off(rx);
        let (sent, rest): (Vec<_>, Vec<_>) = behind.drain(..).partition(late);
        route.extend(sent.into_iter().chain(rest));
    }

    /// Keeps the first of several VMs that send the packet, and those that forward it, which have read it before.
    fn only_one_sending_vm(&self, route: &mut Vec<PointId>) {
        let written = route.iter().copied().find(|p| self.passage(*p) == Passage::FromVm);
        let all = route.clone();
        let forwards = |write: PointId| {
            let before = all.iter().take_while(|p| **p != write);
            let tap = self.info(write).ifindex;
            before.copied().any(|p| self.passage(p) == Passage::ToVm && self.info(p).ifindex == tap)
        };
        route.retain(|p| self.passage(*p) != Passage::FromVm || Some(*p) == written || forwards(*p));
    }

    /// Whether packets that go out at `tx`, through one end of a veth, come in at `rx`, through the other end.
    fn leads_to(&self, tx: PointId, rx: PointId) -> bool {
        let (is_pair, tx, rx) =
            (self.passage(tx) == Passage::Out && self.kind(rx).is_entry(), self.info(tx), self.info(rx));
        let is_there = tx.peer_netns == 0 || tx.peer_netns == rx.netns;
        is_pair && is_there && tx.peer != 0 && tx.netns != rx.netns && (tx.peer, tx.ifindex) == (rx.ifindex, rx.peer)
    }

    /// The veths from the hub's namespace to the sink's, as points (sent, received), last one first. `None` if other
    /// devices are in between, or the veths' ends are unknown.
    fn chain(&self, route: &[PointId], sink: PointId, hub: u32) -> Option<Vec<(PointId, PointId)>> {
        let mut chain: Vec<(PointId, PointId)> = Vec::new();
        let mut netns = self.info(sink).netns;
        while netns != hub && self.is_host(sink) {
            let received = route.iter().copied().filter(|p| self.info(*p).netns == netns);
            let gives = |tx: &PointId| self.kind(*tx).info().gives_to_driver;
            let pair = |rx| route.iter().copied().filter(gives).find(|tx| self.leads_to(*tx, rx)).map(|tx| (tx, rx));
            let pair = received.filter_map(pair).next()?;
            if chain.contains(&pair) {
                return None;
            }
            netns = self.info(pair.0).netns;
            chain.push(pair);
        }
        (!chain.is_empty()).then_some(chain)
    }

    /// Removes the points of a machine's bridge that are off the route: its local copy, and packets flooded to other
    /// ports.
    fn remove_copies(&self, route: &mut Vec<PointId>, machine: &str, ingress: PointId, sink: PointId) {
        let is_here = |p: PointId| self.is_on(p, machine);
        let hub = self.info(ingress).netns;
        let in_hub = |p: PointId| is_here(p) && self.info(p).netns == hub;
        let start = route.iter().position(|p| *p == ingress).unwrap_or(0);
        let leaves = matches!(self.passage(sink), Passage::ToVm | Passage::InVm) || self.kind(sink).is_sending();
        let ends_in_hub = in_hub(sink) && !leaves;
        let own_copy = |p: PointId| {
            matches!(self.info(p).link, Link::Bridge | Link::OvsInternal) && self.passage(p) == Passage::In
        };
        let sends = |p: PointId| in_hub(p) && self.kind(p).is_sending();
        // The port through which the route continues: the veth that leads to the sink, the VM's tap, else a veth, else
        // the first port.
        let read = route.iter().copied().find(|p| is_here(*p) && self.passage(*p) == Passage::ToVm);
        let after: Vec<PointId> = route[start..].iter().copied().filter(|p| sends(*p)).collect();
        let chain = self.chain(route, sink, hub);
        let port = match read {
            _ if chain.is_some() => chain.as_deref().and_then(<[_]>::last).map(|(tx, _)| *tx),
            Some(read) => {
                let tap = self.info(read).point.device.as_str();
                after.iter().copied().find(|p| self.info(*p).point.device == tap)
            }
            None if sends(sink) => Some(sink),
            None if ends_in_hub => None,
            None if is_here(sink) => {
                let veth = after.iter().copied().find(|p| self.info(*p).link == Link::Veth);
                veth.or(after.first().copied())
            }
            None => {
                let first = |link: Link| after.iter().copied().find(|p| self.info(*p).link == link);
                first(Link::Nic).or_else(|| first(Link::Veth)).or(after.first().copied())
            }
        };
        // Excludes namespaces in which the packet ends, such as that of its sender, to which a copy is flooded back.
        let passes_through = |p: PointId| {
            let leaves =
                |q: &PointId| is_here(*q) && self.info(*q).netns == self.info(p).netns && self.kind(*q).is_sending();
            route.iter().skip_while(|q| **q != p).any(leaves)
        };
        let sink_ns = self.info(sink).netns;
        // If the ends of the veths are known, no other port is on the route.
        let keeps_beyond = |p: PointId| match &chain {
            Some(chain) => {
                let ns = self.info(p).netns;
                let belongs = |end: PointId| self.is_at_port(end, p) && self.passage(end) == self.passage(p);
                let is_in_pair = chain.iter().any(|(tx, rx)| belongs(*tx) || belongs(*rx));
                let is_copy = route.iter().any(|q| self.leads_to(*q, p) || self.leads_to(p, *q));
                let is_passed = ns == sink_ns || chain.iter().any(|(tx, _)| self.info(*tx).netns == ns);
                is_in_pair || (is_passed && !is_copy && (ns == sink_ns || !self.kind(p).is_sending()))
            }
            None => (is_here(sink) && self.info(p).netns == sink_ns) || passes_through(p),
        };
        let keep: Vec<PointId> = route
            .iter()
            .enumerate()
            .filter(|(i, p)| {
                let p = **p;
                if *i < start || p == sink || !is_here(p) {
                    return true;
                }
                if in_hub(p) {
                    let is_at_port = port.is_some_and(|port| self.is_at_port(port, p));
                    return (ends_in_hub || !own_copy(p)) && (is_at_port || !sends(p));
                }
                keeps_beyond(p)
            })
            .map(|(_, p)| *p)
            .collect();
        *route = keep;
    }
}
