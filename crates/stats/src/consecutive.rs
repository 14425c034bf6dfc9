//! Runs of consecutive packets that were late or did not arrive. Unlike single such packets, a run makes a protection
//! relay block.

use latpath_model::Ns;
use std::collections::BTreeMap;

/// A run of late or missing packets of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of packets.
    pub packets: u64,
    /// Number of the first packet of the run that was seen; if none was, of the packet after the run.
    pub number: u64,
    /// Key of that packet.
    pub key: u32,
    /// Time of its first sighting, ns.
    pub first: Ns,
}

impl Row {
    fn then(self, next: Self) -> Self {
        let begin = if self.packets > 0 { self } else { next };
        Self { packets: self.packets.saturating_add(next.packets), ..begin }
    }

    /// The longer run; if both are equally long, the earlier one.
    fn longer(self, later: Self) -> Self {
        if later.packets > self.packets {
            later
        } else {
            self
        }
    }
}

/// A part of a stream in which the journeys' numbers have no gap.
#[derive(Clone, Copy, Debug)]
struct GaplessPart {
    /// Packet number after the last one of the part.
    end: u64,
    /// The run at the start of the part, before its first punctual packet. `None` if there is no punctual packet; then
    /// `tail` is the only run.
    head: Option<Row>,
    /// The longest run between `head` and `tail`.
    middle: Row,
    /// The run at the end of the part, after its last punctual packet.
    tail: Row,
}

impl GaplessPart {
    fn then(self, next: Self) -> Self {
        let Some(head) = next.head else { return Self { end: next.end, tail: self.tail.then(next.tail), ..self } };
        let between = self.tail.then(head);
        let (head, middle) = match self.head {
            None => (between, Row::default()),
            Some(head) => (head, self.middle.longer(between)),
        };
        Self { end: next.end, head: Some(head), middle: middle.longer(next.middle), tail: next.tail }
    }

    fn longest(&self) -> Row {
        self.head.unwrap_or_default().longer(self.middle).longer(self.tail)
    }
}

/// Maximum number of separate parts; a complete recording has only one.
const MAX: usize = 1 << 12;

/// Finds the longest run of late or missing packets in one stream. The packets may be added in any order.
#[derive(Clone, Debug, Default)]
pub struct Consecutive {
    /// The part being extended, and the number of its first packet.
    open: Option<(u64, GaplessPart)>,
    parts: BTreeMap<u64, GaplessPart>,
    /// The longest run in discarded parts.
    past: Row,
}

impl Consecutive {
    /// Adds a packet. `bad`: whether it was late, or did not arrive.
    #[inline]
    pub fn add(&mut self, number: u64, key: u32, missing_before: u32, bad: bool, first: impl FnOnce() -> Ns) {
        let end = number.saturating_add(1);
        let in_time = !bad && missing_before == 0;
        match &mut self.open {
            Some((_, part)) if in_time && part.end == number && part.tail.packets == 0 && part.head.is_some() => {
                part.end = end;
                return;
            }
            _ => {}
        }
        let first = if in_time { 0 } else { first() };
        let row = Row { packets: u64::from(missing_before) + u64::from(bad), number, key, first };
        let (head, tail) = if bad { (None, row) } else { (Some(row), Row::default()) };
        let one = GaplessPart { end, head, middle: Row::default(), tail };
        match &mut self.open {
            Some((_, part)) if part.end == number => *part = part.then(one),
            _ => {
                let before = self.open.replace((number, one));
                before.into_iter().for_each(|(number, part)| self.keep(number, part));
            }
        }
    }

    /// Adds consecutive punctual packets, starting with this number and key.
    #[inline]
    pub fn add_in_time(&mut self, number: u64, key: u32, packets: u64) {
        self.add(number, key, 0, false, || 0);
        if let Some((_, part)) = &mut self.open {
            part.end = number.saturating_add(packets);
        }
    }

    fn keep(&mut self, mut number: u64, mut part: GaplessPart) {
        let before = self.parts.range(..number).next_back().map(|(at, before)| (*at, *before));
        if let Some((at, before)) = before.filter(|(_, before)| before.end == number) {
            (number, part) = (at, before.then(part));
        }
        if let Some(next) = self.parts.remove(&part.end) {
            part = part.then(next);
        }
        self.parts.insert(number, part);
        if self.parts.len() > MAX {
            let (_, oldest) = self.parts.pop_first().unwrap_or((number, part));
            self.past = self.past.longer(oldest.longest());
        }
    }

    /// Merges the runs of other packets of the same stream.
    pub fn merge(&mut self, other: &Self) {
        self.past = self.past.longer(other.past);
        other.parts.iter().for_each(|(number, part)| self.keep(*number, *part));
        other.open.into_iter().for_each(|(number, part)| self.keep(number, part));
    }

    /// The longest run.
    pub fn longest(&self) -> Row {
        let mut all = Self { open: None, ..self.clone() };
        self.open.into_iter().for_each(|(number, part)| all.keep(number, part));
        all.parts.values().fold(all.past, |longest, part| longest.longer(part.longest()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_longest_run_of_late_packets_is_that_of_all_packets_in_order(
            packets in prop::collection::vec((prop::bool::weighted(0.6), prop_oneof![4 => Just(0_u32), 1 => 1..4_u32]), 1..60),
            order in any::<prop::sample::Index>(),
            parts in 1..4_usize,
        ) {
            let (mut longest, mut row) = (0, 0);
            for (bad, missing) in &packets {
                row += u64::from(*missing);
                longest = longest.max(row);
                row = if *bad { row + 1 } else { 0 };
                longest = longest.max(row);
            }
            let mut all = vec![Consecutive::default(); parts];
            let shift = order.index(packets.len());
            for (at, (bad, missing)) in packets.iter().enumerate().cycle().skip(shift).take(packets.len()) {
                all[at / 7 % parts].add(at as u64, at as u32, *missing, *bad, || at as Ns);
            }
            let mut whole = Consecutive::default();
            all.iter().for_each(|one| whole.merge(one));
            prop_assert_eq!(whole.longest().packets, longest);
            prop_assert_eq!(whole.parts.len(), 1);
        }
    }

    #[test]
    fn a_run_of_late_packets_begins_with_its_first_sighting() {
        let mut c = Consecutive::default();
        for (number, missing, bad) in [(0, 0, false), (1, 2, true), (2, 0, true), (3, 0, false), (4, 3, false)] {
            c.add(number, 10 + number as u32, missing, bad, || 100 * number as Ns);
        }
        assert_eq!(c.longest(), Row { packets: 4, number: 1, key: 11, first: 100 });
    }

    #[test]
    fn packets_not_yet_seen_end_a_run_of_late_packets() {
        let mut c = Consecutive::default();
        [0, 1, 3].into_iter().for_each(|number| c.add(number, 0, 0, true, || 0));
        assert_eq!(c.longest().packets, 2);
    }
}
