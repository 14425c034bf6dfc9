//! What a source has seen, reported to the host: sightings in batches, points and drop notes before what needs them, totals.

use crate::columns::{Encoder, BATCH};
use crate::cost::{Cost, Meter};
use crate::frame::Outgoing;
use crate::message::*;
use latpath_linux::background::Background;
use latpath_model::{Ns, Sighting, Source};
use std::time::{Duration, Instant};

/// How often the source's tables and totals are looked at.
const TOTALS_EVERY: Duration = Duration::from_millis(200);
/// How often what the agent costs is worth a message.
const COST_EVERY: Duration = Duration::from_secs(1);
/// How often what the source knows beside sightings is looked at.
const NOTES_EVERY: Duration = Duration::from_secs(1);
/// How often a watermark alone is worth a message.
const WATERMARK_EVERY: Duration = Duration::from_millis(40);
/// How long a source may take to report what it has seen, when it is stopped.
const SETTLING: Duration = Duration::from_millis(100);

/// How far the reports are.
pub(super) struct Reporter {
    encoder: Encoder,
    sightings: Vec<Sighting>,
    points: usize,
    notes: usize,
    left_out: u64,
    /// The watermark last reported, and when.
    reported: (Ns, Instant),
    /// The source's watermark.
    reached: Ns,
    totals: (Totals, Instant),
    meter: Meter,
    cost_reported: Option<Instant>,
    background: Option<Background>,
    /// What was last reported beside sightings, and when the source was last asked; `None` where the host does not want it.
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

    /// Reports notes and senders of the source too.
    pub fn report_notes(&mut self) {
        self.source_notes = Some((SourceNotes::default(), None));
    }

    /// Puts the process into the background for as long as this lives. The kernel's rings will hold `ring` sightings.
    pub fn begin_background(&mut self, ring: usize) {
        let mut background = Background::begin();
        background.expect(ring);
        self.background = Some(background);
    }

    /// One round: sightings, and now and then the rest.
    pub fn round<S: Source>(&mut self, source: &mut S, out: &mut Outgoing) {
        self.sightings(source, out);
        if self.totals.1.elapsed() >= TOTALS_EVERY {
            self.tables_and_totals(source, out);
        }
    }

    /// All up to a time, and the rest: what is being seen right now is reported a little later.
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
        // A sighting that no table explains cannot be handed on.
        let before = sightings.len();
        let (points, notes) = (self.points, self.notes);
        sightings.retain(|s| usize::from(s.point) < points && usize::from(s.note) <= notes);
        self.left_out += (before - sightings.len()) as u64;
        let chunks = sightings.chunks(BATCH);
        let last = chunks.len();
        for (i, chunk) in chunks.enumerate() {
            // Only the last batch ends what this call covers; the others promise no more than their first sighting.
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

    /// Announces points and drop notes that are new.
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

    /// Reports what the source knows beside sightings, where that has changed.
    fn notes<S: Source>(&mut self, source: &mut S, out: &mut Outgoing) {
        let Some((reported, asked)) = &mut self.source_notes else { return };
        if asked.is_some_and(|at| at.elapsed() < NOTES_EVERY) {
            return;
        }
        *asked = Some(Instant::now());
        let known = SourceNotes::of(&source.source_notes(), &source.senders());
        if known != *reported {
            reported.clone_from(&known);
            out.push(Message::SourceNotes(known));
        }
    }
}
