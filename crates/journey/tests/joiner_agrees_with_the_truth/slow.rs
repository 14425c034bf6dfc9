//! A slow reference joiner, which is given the packet of each sighting and therefore only does the bookkeeping.

use super::network::{Known, DROP};
use latpath_journey::{Journey, Options, Totals};
use latpath_model::Ns;
use std::collections::HashMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    pub number: u64,
    pub key: u32,
    /// (point, time, cpu, thread)
    pub seen: Vec<(u16, Ns, u16, u32)>,
    pub duplicates: u32,
    pub out_of_order: bool,
    pub drop_note: u16,
}

impl Whole {
    pub fn of(j: &Journey) -> Self {
        let points = (0..64).filter(|p| j.seen >> p & 1 == 1);
        Self {
            number: j.number,
            key: j.key,
            seen: points.map(|p| (p as u16, j.t[p], j.cpu[p], j.tid[p])).collect(),
            duplicates: j.duplicates,
            out_of_order: j.out_of_order,
            drop_note: j.drop_note,
        }
    }

    fn has(&self, point: u16) -> bool {
        self.seen.iter().any(|s| s.0 == point)
    }
}

#[derive(Default)]
struct Place {
    /// Numbers of the packets seen here in place, i.e. near the head of the stream.
    in_place: Vec<u64>,
    /// Number of consecutive sightings that began a journey far behind the head.
    begun: u32,
    /// The newest packet seen here.
    newest: Option<usize>,
    /// Number of repeated sightings here.
    duplicates: u64,
}

struct Book {
    whole: Whole,
    first: Ns,
    /// Whether a point other than a drop has seen the packet.
    placed: bool,
    in_place: bool,
    /// Per point: number of repeated sightings, and whether the packet arrived after a later one.
    again: HashMap<u16, (u32, bool)>,
}

pub struct Slow {
    options: Options,
    expected: u64,
    reader: Option<u16>,
    books: Vec<Book>,
    by_packet: HashMap<usize, usize>,
    emitted: usize,
    places: HashMap<u16, Place>,
    lead: (u16, u32),
    notes: HashMap<u16, u64>,
    pub totals: Totals,
    pub out: Vec<Whole>,
}

impl Slow {
    pub fn new(options: Options) -> Self {
        Self {
            options,
            expected: 0,
            reader: None,
            books: Vec::new(),
            by_packet: HashMap::new(),
            emitted: 0,
            places: HashMap::new(),
            lead: (0, 0),
            notes: HashMap::new(),
            totals: Totals::default(),
            out: Vec::new(),
        }
    }

    pub fn expect(&mut self, route: &[u16]) {
        self.expected = route.iter().fold(0, |mask, p| mask | 1 << p);
        self.reader = route.last().copied();
    }

    /// Number of duplicates at the reader; without one, the maximum over all points.
    pub fn duplicates(&self) -> u64 {
        let of = |(_, place): (&u16, &Place)| place.duplicates;
        self.places.iter().filter(|(p, _)| self.reader.is_none_or(|reader| reader == **p)).map(of).max().unwrap_or(0)
    }

    pub fn push(&mut self, known: &Known) {
        let (s, drop) = (&known.s, known.s.point == DROP);
        self.totals.sightings += 1;
        let Some(&index) = self.by_packet.get(&known.packet) else {
            return self.begin(known);
        };
        let closed = index < self.emitted || s.t - self.books[index].first > self.options.window;
        if drop {
            match closed {
                true => self.totals.late += u64::from(!self.books[index].whole.has(DROP)),
                false => self.note(index, s.note, known),
            }
            return;
        }
        let book = &mut self.books[index];
        let place = self.places.entry(s.point).or_default();
        if book.whole.has(s.point) {
            self.totals.repeated += 1;
            place.duplicates += 1;
            book.again.entry(s.point).or_default().0 += 1;
            return;
        }
        place.begun = 0;
        if closed {
            self.totals.late += 1;
            if book.in_place {
                place.in_place.push(book.whole.number);
            }
            return;
        }
        if !book.placed {
            self.place(index, s.point);
        } else if book.in_place {
            place.in_place.push(book.whole.number);
        }
        self.see(index, known);
    }

    fn begin(&mut self, known: &Known) {
        let s = &known.s;
        let number = self.books.len();
        let whole = Whole {
            number: number as u64,
            key: s.key,
            seen: Vec::new(),
            duplicates: 0,
            out_of_order: false,
            drop_note: 0,
        };
        self.books.push(Book { whole, first: s.t, placed: false, in_place: false, again: HashMap::new() });
        self.by_packet.insert(known.packet, number);
        if s.point == DROP {
            self.note(number, s.note, known);
        } else {
            self.place(number, s.point);
            self.see(number, known);
        }
    }

    /// The first sighting other than a drop gives the packet's place.
    fn place(&mut self, index: usize, point: u16) {
        self.lead = match self.lead {
            (_, 0) => (point, 1),
            (p, sure) if p == point => (p, (sure + 1).min(1024)),
            (_, 1) => (point, 1),
            (p, sure) => (p, sure - 1),
        };
        let number = index as u64;
        let place = self.places.entry(point).or_default();
        let last = place.in_place.last().copied().unwrap_or(0);
        let near_head = number.saturating_sub(last) <= self.options.reorder / 2;
        place.begun = if near_head { 0 } else { place.begun + 1 };
        let book = &mut self.books[index];
        book.placed = true;
        book.in_place = place.begun == 0 || place.begun >= 16;
        if book.in_place {
            place.in_place.push(number);
        }
    }

    fn see(&mut self, index: usize, known: &Known) {
        let (s, book) = (&known.s, &mut self.books[index]);
        let place = self.places.entry(s.point).or_default();
        let is_counted = self.reader.is_none_or(|reader| reader == s.point);
        // More than R back counts as a restart.
        let behind = place.newest.and_then(|newest| newest.checked_sub(known.packet)).unwrap_or(0) as u64;
        let is_overtaken = is_counted && (1..=self.options.reorder).contains(&behind);
        if is_counted {
            place.newest = place.newest.max(Some(known.packet));
        }
        book.again.insert(s.point, (0, is_overtaken));
        book.whole.seen.push((s.point, s.t, s.cpu, s.tid));
    }

    fn note(&mut self, index: usize, note: u16, known: &Known) {
        let whole = &mut self.books[index].whole;
        if !whole.has(DROP) {
            whole.seen.push((DROP, known.s.t, known.s.cpu, known.s.tid));
        }
        *self.notes.entry(note).or_default() += 1;
        if whole.drop_note == 0 || self.notes[&note] <= self.notes[&whole.drop_note] {
            whole.drop_note = note;
        }
    }

    pub fn advance(&mut self, now: Ns) {
        while let Some(book) = self.books.get(self.emitted) {
            let lacks = |p: &u16| self.expected >> p & 1 == 1 && !book.whole.has(*p);
            // Two consecutive packets were seen there, both more than R packets later than this one.
            let passed = |p: u16| {
                let seen = self.places.get(&p).map_or(&[][..], |place| &place.in_place);
                seen.windows(2).rev().any(|two| two.iter().all(|n| *n > book.whole.number + self.options.reorder))
            };
            let last = book.whole.seen.iter().map(|s| s.1).max().unwrap();
            let settled = self.expected != 0 && (0..64).filter(lacks).all(passed) && now - last >= self.options.linger;
            if !settled && now - book.first <= self.options.window {
                break;
            }
            self.emit();
        }
    }

    pub fn flush(&mut self) {
        while self.emitted < self.books.len() {
            self.emit();
        }
    }

    fn emit(&mut self) {
        let book = &self.books[self.emitted];
        let mut whole = book.whole.clone();
        let at_reader = book.again.iter().filter(|(p, _)| self.reader.is_none_or(|reader| reader == **p));
        for (_, (again, overtaken)) in at_reader {
            whole.duplicates = whole.duplicates.max(*again);
            whole.out_of_order |= overtaken;
        }
        whole.seen.sort();
        self.out.push(whole);
        self.emitted += 1;
        self.totals.journeys += 1;
    }
}
