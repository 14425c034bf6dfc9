//! The rules by which a sighting is assigned to a journey; docs/journeys.md has the reasoning for users.

use crate::ring::Ring;
use latpath_model::Ns;
use latpath_protocols::sequence::{Placement, Sequence};

/// Number of consecutive sightings contradicting a point's position after which the position is discarded.
const CONTRADICTIONS: u32 = 16;
/// Maximum number of sequence steps between consecutive sightings at a point that drains a queue of packets that are no
/// longer kept.
const STALE_STEPS: u64 = 16;
/// Number of stale sightings at a point that are accepted before their rate is checked.
const STALE_START: u64 = 64;

/// A point's position in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Position {
    /// Number of the last packet seen, without stragglers.
    pub last: Option<u64>,
    pub last_key: u32,
    /// Number of the last packet seen, including stragglers.
    latest: Option<u64>,
    /// Position before the latest jump forward, and how many more sightings may be stragglers from before the jump.
    before_jump: Option<(u64, u64)>,
    /// Greatest number that two consecutive packets seen here reached: much smaller numbers are no longer expected.
    pub passed: Option<u64>,
    /// A journey seen here whose number does not give its place in the stream, and the point's position at that time.
    out_of_place: Option<(u64, Option<u64>)>,
    /// Number of consecutive sightings that began a journey far behind the head.
    begun: u32,
    /// Number of consecutive sightings that could also be a packet one or more cycles newer, and how many packets the
    /// point was behind the head at the first of them.
    ambiguous: u32,
    ambiguous_behind: u64,
    /// Number of consecutive sightings that would move the point back, and the position there.
    back: u32,
    back_to: u64,
    /// Number of consecutive sightings of packets older than all kept journeys, and the time of the first.
    stale: u64,
    stale_since: Ns,
}

/// The journey to which a sighting belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchResult {
    /// An open journey.
    Attach(u64),
    /// A closed journey.
    Late(u64),
    /// A journey that is no longer kept, this many packets after the point's last.
    Stale(u64),
    /// A journey that the point has already seen.
    Duplicate(u64),
    /// A packet without a journey.
    New,
}

/// Input of the rules: a sighting and the state of its stream.
pub(crate) struct MatchQuery {
    pub key: u32,
    pub t: Ns,
    /// The point's bit; 0 if the point may see a packet several times.
    pub bit: u64,
    pub window: Ns,
    pub retain: Ns,
    /// The reorder window R, packets.
    pub reorder: u64,
    /// Distance within which a number counts as near: R, less if the keys repeat within R.
    pub near: u64,
    /// Whether most of the stream's packets are first seen at this point.
    pub leads: bool,
    /// The candidate journeys.
    pub meant: CandidateFilter,
}

/// Conditions for the candidate journeys of a drop; either is sufficient.
#[derive(Clone, Copy, Default)]
pub(crate) struct CandidateFilter {
    /// Minimum number of the journey.
    pub least: u64,
    /// For an open journey, maximum time since its last sighting, ns.
    pub just_now: Ns,
}

impl From<u64> for CandidateFilter {
    fn from(least: u64) -> Self {
        Self { least, just_now: Ns::MIN }
    }
}

impl CandidateFilter {
    fn has(&self, ring: &Ring, number: u64, q: &MatchQuery) -> bool {
        number >= self.least
            || !is_closed(ring, number, q) && q.t.saturating_sub(ring.last_time(number)) <= self.just_now
    }
}

/// Returns the result for keys with an order, and whether the search was cut short because too many journeys share the
/// key.
pub(crate) fn by_sequence(ring: &Ring, sequence: &Sequence, at: &mut Position, q: &MatchQuery) -> (MatchResult, bool) {
    match in_order(ring, at, q) {
        Some(result) => {
            at.settle(&result, false, false);
            (result, false)
        }
        None => search(ring, sequence, at, q),
    }
}

/// Fast path: the result if the point sees the packet that follows its last one, as in nearly all sightings; the same
/// as that of [`search`]. `None` if the search is needed.
fn in_order(ring: &Ring, at: &Position, q: &MatchQuery) -> Option<MatchResult> {
    let next = at.last? + 1;
    let newest = ring.newest_with_hash_of(q.key);
    if next == ring.head {
        // The point is at the head of the stream, so the packet is new, provided that no journey of an earlier cycle
        // with this key is within reach.
        let is_apart = at.out_of_place(q.reorder).is_none() && at.before_jump.is_none();
        let reach = next.saturating_sub(q.near.max(q.reorder)).min(ring.emit);
        return (is_apart && newest.is_none_or(|number| number < reach)).then_some(MatchResult::New);
    }
    let head = (newest == Some(next)).then(|| ring.get(next))?;
    let is_open = next >= ring.emit && q.t.saturating_sub(head.first) <= q.window;
    (is_open && head.key == q.key && head.seen & q.bit == 0).then_some(MatchResult::Attach(next))
}

/// The result of examining all journeys that share the key.
fn search(ring: &Ring, sequence: &Sequence, at: &mut Position, q: &MatchQuery) -> (MatchResult, bool) {
    let next = at.last.map(|n| n + 1);
    let floor = next.map_or(0, |n| n.saturating_sub(q.reorder));
    let before_jump = at.before_jump.map(|(n, _)| n);
    let bottom = before_jump.map_or(floor, |n| floor.min(n.saturating_sub(q.reorder)));
    // Without the point: the nearest journey, and the newest open one. With the point: the nearest (`twice`). And an
    // open one without the point that is too far back.
    let (mut near, mut newest, mut twice, mut back) = (None::<(u64, u64)>, None, None::<(u64, u64)>, None);
    let (mut straggler, mut closed) = (None, None);
    let out_of_place = at.out_of_place(q.reorder);
    // Closed journeys far before all of the point's positions are no candidates, nor are older ones: the walk ends
    // there.
    let nearest = least(least(next, out_of_place), before_jump).unwrap_or(0);
    let behind = nearest.saturating_sub(q.near).min(bottom).min(ring.emit);
    let mut chain = ring.with_key(q.key);
    for (number, head) in chain.by_ref() {
        if number < behind {
            break;
        }
        let age = q.t.saturating_sub(head.first);
        if age > q.retain {
            continue;
        }
        let distance = next.map(|n| n.abs_diff(number));
        if head.seen & q.bit != 0 {
            let out_of_place = out_of_place.map(|n| n.abs_diff(number));
            let before = before_jump.map(|n| n.abs_diff(number));
            let distance = least(least(distance, out_of_place), before).filter(|d| *d <= q.near);
            if let Some(d) = distance.filter(|d| twice.is_none_or(|(best, _)| *d < best)) {
                twice = Some((d, number));
            }
            continue;
        }
        if let Some(d) = distance.filter(|d| *d <= q.near && near.is_none_or(|(best, _)| *d < best)) {
            near = Some((d, number));
        }
        if before_jump.is_some_and(|n| n.abs_diff(number) <= q.near) {
            straggler = straggler.or(Some(number));
        }
        if at.last.is_none() && is_closed(ring, number, q) {
            closed = closed.or(Some(number));
        }
        if newest.is_none() && number >= ring.emit && age <= q.window {
            if number < floor {
                back = back.or(Some(number));
            } else {
                newest = Some(number);
            }
        }
        if number < bottom {
            break;
        }
    }
    let cut = chain.cut();
    // A new point that sees the next number of the stream sees a new packet, not one of an earlier cycle.
    let newest = newest.filter(|_| at.last.is_some() || !sequence.is_ahead(q.key));
    let newer = newest.filter(|n| near.is_some_and(|(_, number)| *n > number));
    let result = if let Some((_, number)) = near {
        match newer.filter(|_| at.stands_still(ring.head - number, q.reorder)) {
            Some(jump) => MatchResult::Attach(jump),
            None if is_closed(ring, number, q) => MatchResult::Late(number),
            None => MatchResult::Attach(number),
        }
    } else if let Some(number) = straggler {
        if is_closed(ring, number, q) {
            MatchResult::Late(number)
        } else {
            MatchResult::Attach(number)
        }
    } else {
        let close = twice.filter(|(d, _)| *d <= q.near / 16);
        if let Some((_, number)) = close {
            MatchResult::Duplicate(number)
        } else if let Some(steps) = at.stale_steps(ring, sequence, q) {
            at.count_stale(q.t);
            MatchResult::Stale(steps)
        } else if let Some(number) = newest {
            MatchResult::Attach(number)
        } else if let Some((_, number)) = twice {
            MatchResult::Duplicate(number)
        } else if let Some(number) = back.filter(|n| !q.leads && at.goes_back(*n, q.reorder)) {
            MatchResult::Attach(number)
        } else if let Some(number) = closed.filter(|n| fits_sequence(ring, sequence, *n, q)) {
            MatchResult::Late(number)
        } else {
            MatchResult::New
        }
    };
    at.settle(&result, newer.is_some(), back.is_some());
    (result, cut)
}

/// The lesser of two optional numbers.
fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The result for keys without an order: hashes, and drops.
pub(crate) fn by_newest(ring: &Ring, at: &mut Position, q: &MatchQuery) -> (MatchResult, bool) {
    let (mut twice, mut late) = (None, None);
    let mut chain = ring.with_key(q.key);
    for (number, head) in chain.by_ref() {
        let age = q.t.saturating_sub(head.first);
        if age > q.retain || (q.leads && age > q.window) || !q.meant.has(ring, number, q) {
            continue;
        }
        if head.seen & q.bit != 0 {
            if age <= q.window {
                twice = twice.or(Some(number));
            }
        } else if !is_closed(ring, number, q) {
            at.settle(&MatchResult::Attach(number), false, false);
            return (MatchResult::Attach(number), chain.cut());
        } else {
            late = late.or(Some(number));
        }
    }
    let result = match (twice, late) {
        (Some(number), _) => MatchResult::Duplicate(number),
        (None, Some(number)) => MatchResult::Late(number),
        (None, None) => MatchResult::New,
    };
    at.settle(&result, false, false);
    (result, chain.cut())
}

/// Whether a closed journey's place in the sequence matches a new point's sighting. The point's first packet may have
/// been queued for longer than the window.
fn fits_sequence(ring: &Ring, sequence: &Sequence, number: u64, q: &MatchQuery) -> bool {
    match sequence.placement(q.key) {
        Placement::Behind(behind) => ring.head.checked_sub(behind + 1).is_some_and(|n| n.abs_diff(number) <= q.reorder),
        _ => false,
    }
}

/// Whether the journey was already handed out, or is too old for this sighting.
fn is_closed(ring: &Ring, number: u64, q: &MatchQuery) -> bool {
    number < ring.emit || q.t.saturating_sub(ring.get(number).first) > q.window
}

impl Position {
    /// Whether a journey that begins here as `number` is in place: the point is near the head of the stream. Otherwise
    /// the point is far behind, and the packet's earlier sightings were lost.
    pub fn is_at_head(&mut self, number: u64, reorder: u64) -> bool {
        let near = number.saturating_sub(self.last.unwrap_or(0)) <= reorder / 2;
        self.begun = if near { 0 } else { self.begun + 1 };
        // After many such journeys in a row, the point is taken to be at the head: no other point sees its packets.
        near || self.begun >= CONTRADICTIONS
    }

    /// Records that the point saw the journey with this number and key.
    pub fn moved(&mut self, number: u64, key: u32, reorder: u64) {
        if let Some(two) = self.latest.replace(number).map(|n| n.min(number)) {
            self.passed = Some(self.passed.map_or(two, |p| p.max(two)));
        }
        self.before_jump = self.before_jump.and_then(|(n, left)| Some((n, left.checked_sub(1)?)));
        match (self.last, self.before_jump) {
            (Some(last), Some((before, left))) if number + reorder < last && number.abs_diff(before) <= reorder => {
                self.before_jump = Some((number, left));
                return;
            }
            (Some(last), _) if number > last + reorder / 2 => self.before_jump = Some((last, reorder)),
            _ => {}
        }
        self.last = Some(number);
        self.last_key = key;
    }

    /// Records a journey whose number does not give its place in the stream: it was first seen behind the head.
    pub fn saw_out_of_place(&mut self, number: u64) {
        self.out_of_place = Some((number, self.last));
    }

    /// Confirms the point's position: a packet first seen here was then seen at the lead.
    pub fn confirmed(&mut self) {
        self.back = 0;
    }

    /// The last journey seen out of place, unless the point has moved far since.
    fn out_of_place(&self, reorder: u64) -> Option<u64> {
        let (number, then) = self.out_of_place?;
        let far = self.last.zip(then).is_some_and(|(last, then)| last.abs_diff(then) > reorder);
        (!far && self.last.is_some() == then.is_some()).then_some(number)
    }

    /// Moves the point past packets that are no longer kept.
    pub fn stepped(&mut self, steps: u64, key: u32) {
        self.last = self.last.map(|n| n + steps);
        self.last_key = key;
    }

    /// Whether a point one cycle behind has lost that cycle. A point that drains a queue catches up; one that lost a
    /// cycle stays behind, and the newer journey is the right one.
    fn stands_still(&mut self, behind: u64, reorder: u64) -> bool {
        if self.ambiguous == 0 {
            self.ambiguous_behind = behind;
        }
        if u64::from(self.ambiguous) < reorder {
            return false;
        }
        self.ambiguous = 0;
        behind + reorder / 8 > self.ambiguous_behind
    }

    /// Whether the point moves back. A packet far before its last one is taken for another packet with the same key,
    /// unless several consecutive sightings agree.
    fn goes_back(&mut self, number: u64, reorder: u64) -> bool {
        self.back = if self.back > 0 && number.abs_diff(self.back_to) <= reorder { self.back + 1 } else { 1 };
        self.back_to = number;
        if self.back < CONTRADICTIONS {
            return false;
        }
        (self.passed, self.last, self.latest, self.before_jump) = (None, None, None, None);
        true
    }

    /// Number of packets by which the point advances to one that is no longer kept. The packets after the point's last
    /// one are gone and this key follows them, so the point is draining a queue older than all kept packets. It must do
    /// so faster than the stream arrives.
    fn stale_steps(&self, ring: &Ring, sequence: &Sequence, q: &MatchQuery) -> Option<u64> {
        let next = self.last? + 1;
        if next >= ring.head || ring.head - ring.tail < 2 {
            return None;
        }
        if next >= ring.tail && q.t.saturating_sub(ring.get(next).first) <= q.retain {
            return None;
        }
        let steps = sequence.distance(self.last_key, q.key).filter(|n| (1..=STALE_STEPS).contains(n))?;
        let spread = ring.get(ring.head - 1).first.saturating_sub(ring.get(ring.tail).first).max(0);
        let packets = i128::from(ring.head - 1 - ring.tail);
        let elapsed = if self.stale == 0 { 0 } else { q.t.saturating_sub(self.stale_since).max(0) };
        let twice_as_fast = i128::from(self.stale) * i128::from(spread) >= 2 * i128::from(elapsed) * packets;
        (self.stale < STALE_START || twice_as_fast).then_some(steps)
    }

    fn count_stale(&mut self, t: Ns) {
        if self.stale == 0 {
            self.stale_since = t;
        }
        self.stale += 1;
    }

    fn settle(&mut self, result: &MatchResult, ambiguous: bool, goes_back: bool) {
        if !matches!(result, MatchResult::New | MatchResult::Duplicate(_)) {
            self.begun = 0;
        }
        self.ambiguous = if ambiguous { self.ambiguous + 1 } else { 0 };
        if !goes_back || matches!(result, MatchResult::Attach(_)) {
            self.back = 0;
        }
        if !matches!(result, MatchResult::Stale(_) | MatchResult::Duplicate(_)) {
            self.stale = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Head;
    use latpath_model::{KeyRule, Sighting};
    use proptest::prelude::*;

    proptest! {
        /// Points follow a stream of few keys, lose packets, see some twice and fall behind; journeys are closed and
        /// forgotten.
        #[test]
        fn lookups_in_order_agree_with_a_search(
            wrap in 3_u32..200,
            near in 1_u64..40,
            steps in prop::collection::vec((0..2_usize, 0..40_u8, 0..60_i64), 1..600),
        ) {
            let (mut ring, mut at) = (Ring::new(8), [Position::default(); 2]);
            let mut sequence = Sequence::new(KeyRule::SMP_CNT, 32).expect("keys of Sampled Values have an order");
            let (mut t, mut in_order_results) = (0, 0_u32);
            for (point, what, wait) in steps {
                t += wait;
                let next = at[point].last.map_or(0, |n| n + 1);
                let key = (match what {
                    0 => next + 1,
                    1 => next + 7,
                    2 => next.saturating_sub(1),
                    3 => next.saturating_sub(5),
                    _ => next,
                } % u64::from(wrap)) as u32;
                if what == 4 {
                    ring.emit = (ring.emit + 3).min(ring.head);
                } else if what == 5 {
                    ring.tail = (ring.tail + 5).min(ring.emit);
                }
                let (bit, reorder) = (1 << point, 32);
                let (window, retain, meant) = (400, 1200, CandidateFilter::default());
                let q = MatchQuery { key, t, bit, window, retain, reorder, near, leads: point == 0, meant };
                let (fast, before) = (in_order(&ring, &at[point], &q), at[point]);
                let (result, _) = search(&ring, &sequence, &mut at[point], &q);
                if let Some(fast) = fast {
                    in_order_results += 1;
                    prop_assert_eq!(fast, result);
                    let mut settled = before;
                    settled.settle(&fast, false, false);
                    prop_assert_eq!(settled, at[point]);
                }
                let sighting = Sighting { t, key, point: point as u16, ..Sighting::default() };
                match result {
                    MatchResult::Attach(number) => {
                        at[point].moved(number, key, reorder);
                        ring.mark(number, &sighting);
                    }
                    MatchResult::New => {
                        if ring.open() == ring.slots() as u64 {
                            ring.emit += 1;
                        }
                        if ring.head - ring.tail == ring.head_slots() as u64 {
                            ring.tail += 1;
                        }
                        let number = ring.add(Head { first: t, key, ..Head::default() });
                        sequence.lead(key, t);
                        at[point].moved(number, key, reorder);
                        ring.mark(number, &sighting);
                    }
                    MatchResult::Stale(steps) => at[point].stepped(steps, key),
                    MatchResult::Late(_) | MatchResult::Duplicate(_) => {}
                }
            }
            // The test must exercise the fast path.
            prop_assert!(in_order_results > 0 || ring.head < 8);
        }
    }
}
