//! Reports a source to the host: sightings in batches, preceded by the points and drop notes that they refer to, and
//! totals.

use crate::columns::{Encoder, BATCH};
use crate::cost::{Cost, Meter};
use crate::frame::Outgoing;
use crate::message::*;
use latpath_linux::background::Background;
use latpath_model::{Ns, Sighting, Source};
use std::time::{Duration, Instant};

/// Interval between reports of the tables and totals.
const TOTALS_EVERY: Duration = Duration::from_millis(200);
/// Interval between reports of the agent's cost.
const COST_EVERY: Duration = Duration::from_secs(1);
/// Interval between reads of the source's notes.
const NOTES_EVERY: Duration = Duration::from_secs(1);
/// Minimum interval between messages that contain only a watermark.
const WATERMARK_EVERY: Duration = Duration::from_millis(40);
/// Maximum time for a stopped source to report its remaining sightings.
const SETTLING: Duration = Duration::from_millis(300);

/// State of the reports.
pub(super) struct Reporter {
    encoder: Encoder,
    sightings: Vec<Sighting>,
    points: usize,
    notes: usize,
    left_out: u64,
    /// Last reported watermark, and the time of the report.
    reported: (Ns, Instant),
    /// Watermark of the source.
    reached: Ns,
    totals: (Totals, Instant),
    meter: Meter,
    cost_reported: Option<Instant>,
    background: Option<Background>,
    /// Last reported notes, and the time of the last query; `None` if the host does not request notes.
    source_notes: Option<(SourceNotes, Option<Instant>)>,
}

impl Reporter {
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            encoder: Encoder::new(),
            sightings: Vec::new(),
            points: 0,
            notes: 0,
            left_out: 0,
            reported: (Ns::MIN, now),
            reached: Ns::MIN,
            totals: (Totals::default(), now),
            meter: Meter::new(),
            cost_reported: None,
            background: None,
            source_notes: None,
        }
    }

    /// Enables reports of the source's notes and senders.
    pub fn report_notes(&mut self) {
        self.source_notes = Some((SourceNotes::default(), None));
    }

    /// Runs the process at background priority as long as this reporter exists. The kernel's rings hold `ring`
    /// sightings.
    pub fn begin_background(&mut self, ring: usize) {
        let mut background = Background::begin();
        background.expect(ring);
        self.background = Some(background);
    }

    /// One round: reports sightings, and periodically the rest.
    pub fn round<S: Source>(&mut self, source: &mut S, out: &mut Outgoing) {
        self.sightings(source, out);
        if self.totals.1.elapsed() >= TOTALS_EVERY {
            self.tables_and_totals(source, out);
        }
    }

    /// Reports everything up to a time. Waits for the latest sightings, because they become available with a short
    /// delay.
    pub fn up_to<S: Source>(&mut self, until: Ns, source: &mut S, out: &mut Outgoing) {
        let began = Instant::now();
        loop {
            self.sightings(source, out);
            if self.reached >= until || began.elapsed() >= SETTLING {
                self.source_notes.iter_mut().for_each(|(_, asked)| *asked = None);
                return self.tables_and_totals(source, out);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn sightings<S: Source>(&mut self, source: &mut S, out: &mut Outgoing) {
        let mut sightings = std::mem::take(&mut self.sightings);
        sightings.clear();
        let watermark = source.drain(&mut sightings);
        self.background.iter_mut().for_each(|background| background.round(&sightings));
        let known = |s: &Sighting| usize::from(s.point) < self.points && usize::from(s.note) <= self.notes;
        if !sightings.iter().all(known) {
            self.tables(source, out);
        }
        // Sightings of unknown points or streams cannot be forwarded.
        let before = sightings.len();
        let (points, notes) = (self.points, self.notes);
        sightings.retain(|s| usize::from(s.point) < points && usize::from(s.note) <= notes);
        self.left_out += (before - sightings.len()) as u64;
        let chunks = sightings.chunks(BATCH);
        let last = chunks.len();
        for (i, chunk) in chunks.enumerate() {
            // Only the last batch has this call's watermark; that of an earlier batch is at most the time of its first
            // sighting.
            let promise = if i + 1 == last { watermark } else { watermark.min(chunk[0].t) };
            let (batch, left_out) = self.encoder.pack(chunk, promise);
            self.left_out += left_out;
            out.push(Message::Batch(batch));
        }
        let due = watermark > self.reported.0 && self.reported.1.elapsed() >= WATERMARK_EVERY;
        if sightings.is_empty() && due {
            out.push(Message::Batch(Batch { watermark, ..Batch::default() }));
        }
        if due || !sightings.is_empty() {
            self.reported = (watermark, Instant::now());
        }
        self.reached = self.reached.max(watermark);
        self.sightings = sightings;
    }

    /// Announces new points and drop notes.
    fn tables<S: Source>(&mut self, source: &mut S, out: &mut Outgoing) {
        let points = source.points();
        let points = &points[..points.len().min(MAX_POINTS)];
        if points.len() > self.points {
            let fresh = points[self.points..].iter().map(WirePoint::from).collect();
            out.push(Message::Points(Points { points: fresh }));
            self.points = points.len();
        }
        let notes = source.drop_notes();
        let notes = &notes[..notes.len().min(MAX_NOTES)];
        if notes.len() > self.notes {
            let fresh = notes[self.notes..].iter().map(WireNote::from).collect();
            out.push(Message::DropNotes(DropNotes { notes: fresh }));
            self.notes = notes.len();
        }
    }

    fn tables_and_totals<S: Source>(&mut self, source: &mut S, out: &mut Outgoing) {
        self.tables(source, out);
        let mut totals = Totals::from(source.counters());
        totals.dropped = totals.dropped.saturating_add(self.left_out);
        if totals != self.totals.0 || self.cost_reported.is_none_or(|at| at.elapsed() >= COST_EVERY) {
            let Cost { process_ns, lasted_ns } = self.meter.read();
            out.push(Message::Totals(Totals { process_ns, lasted_ns, ..totals }));
            self.cost_reported = Some(Instant::now());
        }
        self.totals = (totals, Instant::now());
        self.notes(source, out);
    }

    /// Reports changed notes of the source.
    fn notes<S: Source>(&mut self, source: &mut S, out: &mut Outgoing) {
        let Some((reported, asked)) = &mut self.source_notes else { return };
        if asked.is_some_and(|at| at.elapsed() < NOTES_EVERY) {
            return;
        }
        *asked = Some(Instant::now());
        let known = SourceNotes::of(&source.source_notes(), &source.senders(), &source.points());
        if known != *reported {
            reported.clone_from(&known);
            out.push(Message::SourceNotes(known));
        }
    }
}
