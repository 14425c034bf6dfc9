//! The sessions of a reflector, as lines while it runs and as its result.

use super::figures::{self, ProgressLine};
use crate::cmd::on_spike::{LateEvent, SpikeCommand};
use crate::cmd::report::print;
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_ping::breach::{BreachTrace, BreachedProbe};
use latpath_ping::document::{HeldProbe, ReflectDocument, ReflectedSession, VERSION};
use latpath_ping::reflect::{Reflected, Witness};
use latpath_ping::session::Session;
use latpath_ping::timeline::Disturbance;
use latpath_ping::turnaround::{AllTurnarounds, Turnaround};
use latpath_ping::{Route, Source, Transaction};
use latpath_stats::units::{count, duration, elapsed, number_of};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Maximum number of a session's breaches printed one by one: its emitter may report any number.
const MAX_PRINTED: u64 = 10;
/// Maximum number of lines on sessions per [`LINES_TIME`]: forged messages can begin and end any number of sessions.
const MAX_LINES: u32 = 100;
const LINES_TIME: Duration = Duration::from_secs(10);
/// Maximum number of sessions in the JSON: any host may open more.
const MAX_LISTED: usize = 10_000;
/// Maximum number of breaches of the reflector's own threshold that are printed one by one.
const MAX_HELD_PRINTED: u64 = 20;
/// Maximum number of breaches of the reflector's own threshold in the JSON.
const MAX_HELD: usize = 100;

/// Rate limit of the lines on sessions.
struct Lines {
    since: Instant,
    printed: u32,
    /// Number of lines omitted since `since`; `all_left_out` is that since the beginning.
    left_out: u64,
    all_left_out: u64,
}

impl Lines {
    fn new() -> Self {
        Self { since: Instant::now(), printed: 0, left_out: 0, all_left_out: 0 }
    }

    /// Whether another line may be printed now. Prints the number of omitted lines at the end of their interval.
    fn has_room(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= LINES_TIME {
            if self.left_out > 0 {
                eprintln!("latpath: {} lines on sessions were left out", count(self.left_out));
            }
            *self = Self { since: now, printed: 0, left_out: 0, ..*self };
        }
        let has_room = self.printed < MAX_LINES;
        match has_room {
            true => self.printed += 1,
            false => {
                self.left_out += 1;
                self.all_left_out += 1;
            }
        }
        has_room
    }
}

/// The sessions observed.
pub(super) struct Sessions<'a> {
    json: bool,
    quiet: bool,
    lines: Lines,
    sessions: Vec<ReflectedSession>,
    not_listed: u64,
    freeze: Option<&'a BreachTrace>,
    command: Option<&'a SpikeCommand>,
    began: Ns,
    /// Disturbances of this machine's clocks.
    pub disturbances: Vec<Disturbance>,
    shown: &'a ProgressLine,
    /// The first breaches of the reflector's own threshold.
    held: Vec<HeldProbe>,
    held_in_all: u64,
    /// Times of all sessions; empty until the reflector has ended.
    pub all: AllTurnarounds,
}

impl<'a> Sessions<'a> {
    /// Creates an empty list of sessions.
    pub fn new(
        json: bool,
        quiet: bool,
        (freeze, command): (Option<&'a BreachTrace>, Option<&'a SpikeCommand>),
        shown: &'a ProgressLine,
    ) -> Self {
        Self {
            json,
            quiet,
            lines: Lines::new(),
            sessions: Vec::new(),
            not_listed: 0,
            freeze,
            command,
            began: monotonic(),
            disturbances: Vec::new(),
            shown,
            held: Vec::new(),
            held_in_all: 0,
            all: AllTurnarounds::new(0, None),
        }
    }
}

impl<P: Display> Witness<P> for Sessions<'_> {
    fn begins(&mut self, peer: &P, session: u32) {
        if !self.quiet && self.lines.has_room(Instant::now()) {
            self.shown.print(&format!("{peer}: session {session:08x} begins"));
        }
    }

    fn ends(&mut self, peer: &P, session: &Session) {
        let seen = session.seen;
        if self.json {
            if self.sessions.len() >= MAX_LISTED {
                self.not_listed += 1;
                return;
            }
            self.sessions.push(ReflectedSession::of(peer.to_string(), session));
            return;
        }
        if !self.lines.has_room(Instant::now()) {
            return;
        }
        let mut text = format!(
            "{peer}: session {:08x}: {} probes, {} twice, {} out of order, {} answers refused",
            session.number,
            count(seen.received),
            count(seen.duplicates),
            count(seen.reordered),
            count(seen.refused)
        );
        if session.breaches > 0 {
            text += &format!(", {} broke the emitter's threshold", count(session.breaches));
        }
        if session.times.over > 0 {
            text += &format!(", {} were held here for longer than the threshold", count(session.times.over));
        }
        for line in figures::table(&session.times, true) {
            text += &format!("\n  {line}");
        }
        // Prints each session when it ends; a closed stdout is no error.
        let _ = print(&(text + "\n"));
    }

    fn breach(&mut self, peer: &P, session: &Session, sequence: u64) {
        self.freeze(session.number, Transaction { sequence, ..Transaction::default() });
        if session.breaches <= MAX_PRINTED && self.lines.has_room(Instant::now()) {
            let number = session.number;
            self.shown.print(&format!("{peer}: session {number:08x}: probe {sequence} broke the emitter's threshold"));
        }
    }

    fn slow(&mut self, peer: &P, session: u32, held: &Turnaround) {
        self.freeze(session, Transaction { sequence: held.sequence, ..Transaction::default() });
        if let Some(command) = self.command {
            command.late(|| late_event(&peer.to_string(), session, held));
        }
        if self.held.len() < MAX_HELD {
            self.held.push(HeldProbe { peer: peer.to_string(), session, clock: held.clock(), held: *held });
        }
        self.held_in_all += 1;
        if self.held_in_all <= MAX_HELD_PRINTED && self.lines.has_room(Instant::now()) {
            let (time, from, to) = (duration(held.time_ns), held.from.name(), held.to.name());
            let n = held.sequence;
            self.shown
                .print(&format!("{peer}: session {session:08x}: probe {n} was held here for {time}, {from} → {to}"));
        }
    }

    fn tick(&mut self, all: &AllTurnarounds) {
        self.shown.update(all);
    }

    fn sum(&mut self, all: AllTurnarounds) {
        self.all = all;
    }
}

/// A probe that was held for too long, for the user's command.
fn late_event(peer: &str, session: u32, held: &Turnaround) -> LateEvent {
    let clock = match held.clock() {
        Source::Nic => "nic",
        Source::Kernel => "kernel",
        Source::App => "app",
    };
    LateEvent {
        event: "turnaround",
        stream: peer.into(),
        number: held.sequence,
        total_ns: Some(held.time_ns),
        at_ns: monotonic() - held.time_ns,
        more: vec![("SESSION", format!("{session:08x}")), ("CLOCK", clock.into())],
    }
}

impl Sessions<'_> {
    /// Reports a breach to the trace. Only its time is known here, not the round trip.
    fn freeze(&self, session: u32, transaction: Transaction) {
        if let Some(freeze) = self.freeze {
            freeze.breach(&BreachedProbe::of(session, &transaction, &Route::of_seven(0), &[]));
        }
    }

    /// The result as a document, without runs of the user's command.
    pub fn document(self, sum: Reflected) -> ReflectDocument {
        ReflectDocument {
            version: VERSION,
            times: (&self.all).into(),
            sessions: self.sessions,
            sessions_not_listed: self.not_listed,
            sum,
            disturbances: self.disturbances,
            held: self.held,
            on_spike: None,
        }
    }

    /// The result as text.
    pub fn text(&self, sum: &Reflected) -> String {
        let mut text = format!(
            "{}; messages of no session: {}, turned away: {}, dropped: {}",
            number_of(sum.sessions, "session"),
            count(sum.foreign),
            count(sum.turned_away),
            count(sum.dropped)
        );
        text += if sum.dropped > 0 { " (the socket's buffer was full)\n" } else { "\n" };
        if self.lines.all_left_out > 0 {
            text += &format!("left out: {} on sessions\n", number_of(self.lines.all_left_out, "line"));
        }
        for d in &self.disturbances {
            text += &format!("clocks    at {}: {}\n", elapsed((d.at_ns - self.began).max(0)), d.what);
        }
        if sum.breached {
            text += &format!("{} held here for longer than the threshold\n", number_of(self.held_in_all, "probe"));
        }
        text + &figures::text(&self.all, sum.sessions == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(json: bool) -> Sessions<'static> {
        Sessions::new(json, false, (None, None), Box::leak(Box::new(ProgressLine::begin(true, &[]))))
    }

    #[test]
    fn forged_sessions_fill_no_memory_without_end_and_what_is_not_listed_is_counted() {
        let (mut sessions, session) = (sessions(true), Session::new(7, 0, None, 0));
        (0..MAX_LISTED + 3).for_each(|_| sessions.ends(&"peer", &session));
        let document = sessions.document(Reflected::default());
        assert_eq!((document.sessions.len(), document.sessions_not_listed), (10_000, 3));
    }

    #[test]
    fn an_emitter_that_reports_breaches_without_end_has_ten_lines() {
        let (mut sessions, mut session) = (sessions(false), Session::new(7, 0, None, 0));
        for sequence in 1..=50 {
            session.breaches = sequence;
            sessions.breach(&"peer", &session, sequence);
        }
        assert_eq!((sessions.lines.printed, sessions.lines.all_left_out), (10, 0));
    }

    #[test]
    fn forged_sessions_print_no_lines_without_end_and_what_is_left_out_is_counted() {
        let (mut lines, began) = (Lines::new(), Instant::now());
        let printed = |lines: &mut Lines, at: Instant| (0..10_000).filter(|_| lines.has_room(at)).count() as u32;
        assert_eq!(printed(&mut lines, began), MAX_LINES);
        assert_eq!(lines.left_out, u64::from(10_000 - MAX_LINES));
        assert_eq!(printed(&mut lines, began + 2 * LINES_TIME), MAX_LINES, "later ones are printed again");
        assert_eq!(lines.all_left_out, 2 * u64::from(10_000 - MAX_LINES));
    }
}
