//! Journeys side by side in memory: what the writer collects and the reader hands out.

use latpath_journey::Journey;
use latpath_words::Ns;

/// Rows of a row group: enough that a column's chunk compresses and reads well, few enough to hold two or three in memory.
pub(crate) const GROUP_ROWS: usize = 16_384;
/// Most rows of a row group that is read: runs of other writers may hold more than ours.
pub(crate) const MOST_ROWS: usize = 65_536;

/// Journeys in columns, the sightings of each side by side (so that a [`Journey`] can borrow them).
#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub(crate) points: usize,
    pub(crate) stream: Vec<u16>,
    pub(crate) key: Vec<u32>,
    pub(crate) number: Vec<u64>,
    pub(crate) seen: Vec<u64>,
    pub(crate) duplicates: Vec<u32>,
    pub(crate) out_of_order: Vec<bool>,
    pub(crate) drop_note: Vec<u16>,
    pub(crate) t: Vec<Ns>,
    pub(crate) cpu: Vec<u16>,
    pub(crate) tid: Vec<u32>,
}

impl Rows {
    /// No rows yet, for journeys over this many points.
    pub fn new(points: usize) -> Self {
        Self { points, ..Self::default() }
    }

    /// Journeys.
    pub fn len(&self) -> usize {
        self.stream.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.stream.is_empty()
    }

    /// Bytes that one row takes in memory.
    pub(crate) fn row_bytes(points: usize) -> usize {
        2 + 4 + 8 + 8 + 4 + 1 + 2 + points * (8 + 2 + 4)
    }

    pub(crate) fn clear(&mut self, points: usize) {
        let Self { stream, key, number, seen, duplicates, out_of_order, drop_note, t, cpu, tid, .. } = self;
        stream.clear();
        key.clear();
        number.clear();
        seen.clear();
        duplicates.clear();
        out_of_order.clear();
        drop_note.clear();
        t.clear();
        cpu.clear();
        tid.clear();
        self.points = points;
    }

    /// Appends a journey. Its sightings beyond this batch's points must be unseen.
    pub fn push(&mut self, j: &Journey) {
        self.stream.push(j.stream);
        self.key.push(j.key);
        self.number.push(j.number);
        self.seen.push(j.seen);
        self.duplicates.push(j.duplicates);
        self.out_of_order.push(j.out_of_order);
        self.drop_note.push(j.drop_note);
        append(&mut self.t, j.t, self.points);
        append(&mut self.cpu, j.cpu, self.points);
        append(&mut self.tid, j.tid, self.points);
    }

    /// One journey.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn journey(&self, row: usize) -> Journey<'_> {
        let of = row * self.points..(row + 1) * self.points;
        Journey {
            stream: self.stream[row],
            key: self.key[row],
            number: self.number[row],
            seen: self.seen[row],
            t: &self.t[of.clone()],
            // A scan that was not asked for these leaves them empty.
            cpu: self.cpu.get(of.clone()).unwrap_or_default(),
            tid: self.tid.get(of).unwrap_or_default(),
            duplicates: self.duplicates[row],
            out_of_order: self.out_of_order[row],
            drop_note: self.drop_note[row],
        }
    }

    /// All journeys in order.
    pub fn iter(&self) -> impl Iterator<Item = Journey<'_>> {
        (0..self.len()).map(|row| self.journey(row))
    }

    /// Time of the earliest sighting of a row; 0 if nothing saw it.
    pub(crate) fn first_time(&self, row: usize) -> Ns {
        let seen = self.seen[row];
        let times = &self.t[row * self.points..(row + 1) * self.points];
        times.iter().enumerate().filter(|(p, _)| seen >> p & 1 == 1).map(|(_, t)| *t).min().unwrap_or(0)
    }

    /// The rows' order with each stream's rows together, every stream's own order kept: neighbours are then alike, and
    /// counters become constant steps. `None` where they are together already.
    pub(crate) fn by_stream(&self) -> Option<Vec<u32>> {
        if self.stream.is_sorted() {
            return None;
        }
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        order.sort_by_key(|row| self.stream[*row as usize]);
        Some(order)
    }
}

fn append<T: Copy + Default>(to: &mut Vec<T>, from: &[T], points: usize) {
    let n = from.len().min(points);
    to.extend_from_slice(&from[..n]);
    to.resize(to.len() + points - n, T::default());
}
