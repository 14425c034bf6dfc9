//! Which times are frozen: those around late packets, and now and then one in which all packets are on time.

use crate::recent::{Held, Recent};
use crate::rule::{Judge, Rule, Verdict};
use crate::{Kind, Packet};
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
const ON_TIME: Ns = 40 * MS;
const LOOK_AGAIN: Ns = 50 * MS;
const ON_TIMES: u32 = 40;

/// What is chosen, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Which packets are late.
    pub rule: Rule,
    /// How long to wait for packets that are still on their way when their time is frozen.
    pub patience: Ns,
    /// Whether times are frozen in which all packets are on time: without them nobody knows what is usual.
    pub on_time: bool,
}

/// A time that is to be frozen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Counts the captures, from 1.
    pub number: u32,
    /// Why.
    pub kind: Kind,
    /// The host's `CLOCK_MONOTONIC`.
    pub from: Ns,
    /// Likewise; it is over.
    pub to: Ns,
    /// What the latest packet took, as far as is known now.
    pub worst: Ns,
    /// That packet.
    pub stream: StreamId,
    /// Its number in its stream.
    pub packet: u64,
}

/// The packets of a time that was frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// The order's.
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

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Late packets of each stream.
    pub late: Vec<u64>,
    /// Times with late packets that were not frozen, for there were too many, or worse ones.
    pub passed_over: u64,
}

/// The ends of a segment, for those streams whose packets it counts for.
#[derive(Clone, Debug, Default)]
struct Way {
    segments: Vec<(PointId, PointId)>,
    line: u64,
}

/// Late packets that belong together.
#[derive(Clone, Copy, Debug)]
struct Open {
    first: Ns,
    last: Ns,
    /// Packets that took so long are late.
    bar: Ns,
    worst: Ns,
    stream: StreamId,
    packet: u64,
    /// The longest single packet.
    longest: Ns,
    opened: Ns,
    added: Ns,
}

/// A time that was ordered, until its packets are known.
#[derive(Clone, Copy, Debug)]
struct Pending {
    order: Order,
    bar: Ns,
    ordered: Ns,
}

/// See the module's text. It is told of each journey, and now and then of the time.
#[derive(Debug)]
pub struct LateDetector {
    options: Options,
    judge: Judge,
    ways: Vec<Way>,
    recent: Recent,
    counted: Counted,
    open: Option<Open>,
    perhaps: Option<Held>,
    orders: VecDeque<Order>,
    pending: Vec<Pending>,
    number: u32,
    /// Captures must be worse than this to be kept.
    bar: Ns,
    /// When the captures that were ordered are paid for.
    paid: Ns,
    worst: Ns,
    worst_until: Ns,
    on_times: u32,
    on_time_due: Option<Ns>,
    began: Ns,
    clock: Ns,
}

impl LateDetector {
    /// Chooses among the packets of so many streams.
    pub fn new(options: Options, streams: usize) -> Self {
        Self {
            judge: Judge::new(options.rule),
            options,
            ways: vec![Way::default(); streams],
            recent: Recent::new(),
            counted: Counted { late: vec![0; streams], passed_over: 0 },
            open: None,
            perhaps: None,
            orders: VecDeque::new(),
            pending: Vec::new(),
            number: 0,
            bar: 0,
            paid: Ns::MIN,
            worst: 0,
            worst_until: Ns::MIN,
            on_times: 0,
            on_time_due: None,
            began: Ns::MIN,
            clock: Ns::MIN,
        }
    }

    /// Says which segments there are, and the points of each stream's way. A segment counts for the streams on whose way both
    /// its ends are; one that is on nobody's way (a detour, one of the user's own) for all.
    pub fn set_layout(&mut self, segments: &[Segment], lines: &[Vec<PointId>]) {
        let is_on = |line: &[PointId], s: &Segment| line.contains(&s.from) && line.contains(&s.to);
        for (stream, way) in self.ways.iter_mut().enumerate() {
            let line = lines.get(stream).map_or(&[][..], Vec::as_slice);
            let counts = |s: &&Segment| is_on(line, s) || !lines.iter().any(|line| is_on(line, s));
            way.segments = segments.iter().filter(counts).map(|s| (s.from, s.to)).collect();
            way.segments.sort_unstable();
            way.segments.dedup();
            way.line = line.iter().fold(0, |set, p| set | 1 << p);
        }
    }

    /// Captures that are no worse than this would not be kept: they need not be frozen.
    pub fn set_bar(&mut self, worst: Ns) {
        self.bar = worst;
    }

    /// What was counted so far.
    pub fn counted(&self) -> &Counted {
        &self.counted
    }

    /// Takes a journey. They come roughly in the order of their first sightings: those that wait for a sighting come later.
    pub fn take(&mut self, journey: &Journey) {
        let Some(way) = self.ways.get(usize::from(journey.stream)) else { return };
        let Some(first) = journey.first() else { return };
        let time = way.segments.iter().filter_map(|(from, to)| journey.between(*from, *to)).max();
        let whole = way.line != 0 && journey.seen & way.line == way.line;
        let held = self.recent.push(journey, first, time, whole);
        let Some(time) = time else { return };
        match self.judge.judge(first, time) {
            Verdict::OnTime => {}
            Verdict::Late(bar) => self.late(&held, time, bar),
            Verdict::Perhaps => self.perhaps = Some(held),
        }
    }

    fn late(&mut self, held: &Held, time: Ns, bar: Ns) {
        self.counted.late[usize::from(held.stream)] += 1;
        let covered = |p: &Pending| p.order.kind == Kind::Spike && p.order.from < held.first && held.last <= p.order.to;
        if self.pending.iter().any(covered) {
            return;
        }
        if let Some(open) = &mut self.open {
            let (first, last) = (open.first.min(held.first), open.last.max(held.last));
            let longest = open.longest.max(held.last - held.first);
            let is_near = held.first <= open.last + NEAR && held.last >= open.first - NEAR;
            if is_near && last - first <= longest.max(LONGEST) {
                (open.first, open.last, open.longest, open.added) = (first, last, longest, self.clock);
                open.bar = open.bar.min(bar);
                if time > open.worst {
                    (open.worst, open.stream, open.packet) = (time, held.stream, held.number);
                }
                return;
            }
            self.close();
        }
        self.open = Some(Open {
            first: held.first,
            last: held.last,
            bar,
            worst: time,
            stream: held.stream,
            packet: held.number,
            longest: held.last - held.first,
            opened: self.clock,
            added: self.clock,
        });
    }

    /// Orders what belongs together, if it may be.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        if self.worst_until <= self.clock {
            (self.worst, self.worst_until) = (0, self.clock.saturating_add(WHILE));
        }
        let pays = self.paid <= self.clock.saturating_add(BURST * EACH);
        let may = open.worst > self.bar && (pays || open.worst > self.worst);
        if !may {
            self.counted.passed_over += 1;
            return;
        }
        self.worst = self.worst.max(open.worst);
        let before = (BEFORE + open.longest / BEFORE_PART).min(MOST_BEFORE);
        let order = Order {
            number: 0,
            kind: Kind::Spike,
            from: open.first - before,
            to: open.last + AFTER,
            worst: open.worst,
            stream: open.stream,
            packet: open.packet,
        };
        self.order(order, open.bar);
    }

    fn order(&mut self, order: Order, bar: Ns) {
        self.number += 1;
        self.paid = self.paid.max(self.clock).saturating_add(EACH);
        let order = Order { number: self.number, ..order };
        self.orders.push_back(order);
        self.pending.push(Pending { order, bar, ordered: self.clock });
    }

    /// Tells the time: `clock` is that of this machine, and all journeys that began before `reached` have been taken.
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
        if self.options.on_time {
            self.look_for_on_time(reached);
        }
        // What may still be asked for: the longest that a packet is waited for, and what came before it.
        let keep = self.options.patience.saturating_mul(2).saturating_add(SECOND);
        self.recent.forget(reached.saturating_sub(keep));
    }

    /// Where the worst of a minute are wanted: whether that of the last while is one of them.
    fn end_slice(&mut self, reached: Ns) {
        let Judge::Worst(worst) = &mut self.judge else { return };
        let Some(bar) = worst.slice(reached) else { return };
        if let Some(held) = self.perhaps.take() {
            self.late(&held, held.time.unwrap_or(bar), bar);
        }
    }

    /// From time to time, rarer and rarer, a time in which all packets were on time.
    fn look_for_on_time(&mut self, reached: Ns) {
        if self.ways.iter().all(|way| way.line == 0) || self.on_times >= ON_TIMES {
            return;
        }
        let due = *self.on_time_due.get_or_insert(self.clock.saturating_add(SECOND));
        if self.clock < due || self.open.is_some() {
            return;
        }
        let to = reached.saturating_sub(AFTER);
        let from = to.saturating_sub(ON_TIME);
        let is_usable = self.judge.on_time().is_some_and(|limit| {
            let is_known = |stream: StreamId| self.ways[usize::from(stream)].line != 0;
            let mut any = false;
            let all = self.recent.within(from - BEFORE, reached).all(|p| {
                any |= p.whole && p.first >= from && p.last <= to;
                (p.whole || !is_known(p.stream)) && p.time.is_none_or(|time| time <= limit)
            });
            all && any
        });
        if !is_usable {
            self.on_time_due = Some(self.clock.saturating_add(LOOK_AGAIN));
            return;
        }
        self.on_times += 1;
        let elapsed = self.clock - self.began;
        self.on_time_due = Some(self.clock.saturating_add(SECOND.max(elapsed / 2)));
        let within = self.recent.within(from, to);
        let (worst, stream, packet) =
            within.map(|p| (p.time.unwrap_or(0), p.stream, p.number)).max().unwrap_or_default();
        let order = Order { number: 0, kind: Kind::OnTime, from: from - BEFORE, to: reached, worst, stream, packet };
        self.order(order, Ns::MAX);
    }

    /// A time that is to be frozen now. Each is told once.
    pub fn next_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// The packets of a time that was ordered, once all are known or were waited for in vain. `reached` as for
    /// [`Self::advance`].
    pub fn next_gathered(&mut self, reached: Ns) -> Option<Gathered> {
        let is_done =
            |p: &Pending| reached >= p.order.to || self.clock >= p.ordered.saturating_add(self.options.patience);
        let at = self.pending.iter().position(is_done)?;
        let pending = self.pending.remove(at);
        Some(self.gather(&pending))
    }

    fn gather(&mut self, pending: &Pending) -> Gathered {
        let Order { number, kind, from, to, .. } = pending.order;
        // What held a packet that left later is not in the record; it is another capture's.
        let is_whole = |p: &Held| from <= p.first && p.last <= to;
        let is_late = |p: &Held| kind == Kind::Spike && is_whole(p) && p.time.is_some_and(|time| time >= pending.bar);
        let mut late = vec![0; self.ways.len()];
        for p in self.recent.within_mut(from, to).filter(|p| is_late(p)) {
            // At the edges of two captures it may be in both.
            late[usize::from(p.stream)] += u64::from(!std::mem::replace(&mut p.counted, true));
        }
        let mut held: Vec<&Held> = self.recent.within(from, to).collect();
        let all_late = held.iter().filter(|p| is_late(p)).count() as u64;
        let times = held.iter().filter(|p| kind == Kind::OnTime || is_late(p)).filter_map(|p| p.time);
        let worst = times.max().unwrap_or(pending.order.worst);
        let mut kept_late = all_late;
        if held.len() > PACKETS || all_late > LATE as u64 {
            // The latest first; then those that were on their way together with the latest of all, and their neighbours.
            let centre =
                held.iter().filter(|p| is_late(p)).max_by_key(|p| p.time).map_or((from, to), |p| (p.first, p.last));
            let distance = |p: &Held| (p.first - centre.1).max(centre.0 - p.last).max(0);
            held.sort_by_key(|p| (!is_late(p), std::cmp::Reverse(p.time.filter(|_| is_late(p))), distance(p), p.first));
            let on_time = held.split_off(held.partition_point(|p| is_late(p)));
            held.truncate(LATE);
            kept_late = held.len() as u64;
            held.extend(on_time.into_iter().take(PACKETS - held.len()));
        }
        held.sort_by_key(|p| (p.first, p.stream, p.number));
        let packets = held.iter().map(|p| self.recent.packet(p, is_late(p))).collect();
        Gathered { number, worst, packets, more_late: all_late - kept_late, late }
    }

    /// Nothing comes any more: orders what is left, and waits for nobody.
    pub fn finish(&mut self, clock: Ns) {
        self.clock = self.clock.max(clock);
        self.end_slice(Ns::MAX / 2);
        self.close();
        self.options.on_time = false;
        self.options.patience = 0;
    }
}
