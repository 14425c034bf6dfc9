//! What the host asks of an agent's flight recorder: windows under way, put together from chunks that nobody need believe.

use crate::message::{printable, WindowReply, WindowRequest};
use latpath_clock::Timeline;
use latpath_flight::{Snapshot, MAX_ENCODED};
use latpath_words::Ns;

/// Windows that may be under way, or wait for whoever asked for them.
pub const MAX_WINDOWS: usize = 16;
/// The longest time that can be asked for.
pub const LONGEST: Ns = 10_000_000_000;
/// How far its end may lie in the future.
pub const AHEAD: Ns = 1_000_000_000;

/// How far ahead of the host's clock an event may lie before it is taken for a lie.
const FUTURE: Ns = 1_000_000_000;

/// What a machine's flight recorder had of a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestWindow {
    /// The machine's clock minus the host's, by which sightings of that time were mapped.
    pub offset_ns: Ns,
    /// How wrong that can be.
    pub error_bound_ns: Ns,
    /// What happened there, in the machine's own `CLOCK_MONOTONIC`.
    pub snapshot: Snapshot,
}

/// A window, or why there is none.
pub type Answer = Result<GuestWindow, String>;

/// One that was asked for.
struct Open {
    id: u64,
    /// In the agent's clock.
    from: Ns,
    to: Ns,
    /// In the host's: until then it is waited for.
    until: Ns,
    bytes: Vec<u8>,
    /// How much came, kept or not.
    came: usize,
    /// Nobody waits for it any more; what still comes of it is dropped.
    given_up: bool,
}

/// Windows under way, and those that have come.
#[derive(Default)]
pub struct Windows {
    open: Vec<Open>,
    /// The one of which some chunks have come: until its end no other's may.
    coming: Option<u64>,
    /// What has come since the last look.
    pub done: Vec<(u64, Answer)>,
}

/// What cannot be asked for: nothing, or more than a recorder keeps.
pub fn sensible(from: Ns, to: Ns, now: Ns) -> Result<(), String> {
    match to.saturating_sub(from) {
        ..=0 => Err("a window must end after it begins".into()),
        span if span > LONGEST => Err(format!("a window of {span} ns is too long (limit: {LONGEST})")),
        _ if to.saturating_sub(now) > AHEAD => Err("a window that ends in the far future cannot be asked for".into()),
        _ => Ok(()),
    }
}

impl Windows {
    /// The message that asks for a window of the host's time; `None` where there is an answer already.
    pub fn ask(
        &mut self,
        id: u64,
        (from, to): (Ns, Ns),
        timeline: &Timeline,
        (now, within): (Ns, Ns),
    ) -> Option<WindowRequest> {
        let asked = sensible(from, to, now).and_then(|()| {
            let there = |t| timeline.to_guest(t).ok_or("its clock is not known yet");
            if self.open.len() >= MAX_WINDOWS {
                return Err(format!("the agent owes {} windows already", self.open.len()));
            }
            Ok(WindowRequest { id, from: there(from)?, to: there(to)? })
        });
        match asked {
            Ok(request) => {
                let until = now.max(to).saturating_add(within);
                let (from, to) = (request.from, request.to);
                self.open.push(Open { id, from, to, until, bytes: Vec::new(), came: 0, given_up: false });
                Some(request)
            }
            Err(why) => {
                self.done.push((id, Err(why)));
                None
            }
        }
    }

    /// Takes a part of an answer, or says in what the agent lies.
    pub fn take(&mut self, reply: WindowReply, timeline: &Timeline, now: Ns) -> Result<(), String> {
        let place = self.open.iter().position(|open| open.id == reply.id);
        let place = place.ok_or("the agent sent a window that was not asked for")?;
        let open = &mut self.open[place];
        if !reply.error.is_empty() {
            if self.coming == Some(reply.id) {
                self.coming = None;
            }
            let Open { id, given_up: false, .. } = self.open.remove(place) else { return Ok(()) };
            self.done.push((id, Err(printable(&reply.error))));
            return Ok(());
        }
        if self.coming.is_some_and(|id| id != reply.id) {
            return Err("the agent sent two windows at once".into());
        }
        if reply.chunk.is_empty() && !reply.last {
            return Err("the agent sent an empty piece of a window".into());
        }
        open.came += reply.chunk.len();
        if open.came > MAX_ENCODED {
            return Err(format!("the agent sent a window of more than {MAX_ENCODED} bytes"));
        }
        if !open.given_up {
            open.bytes.extend_from_slice(&reply.chunk);
        }
        self.coming = Some(reply.id).filter(|_| !reply.last);
        if !reply.last {
            return Ok(());
        }
        let open = self.open.remove(place);
        if open.given_up {
            return Ok(());
        }
        let window = read(&open, timeline, now).map_err(|e| format!("the agent sent a window that cannot be: {e}"))?;
        self.done.push((open.id, Ok(window)));
        Ok(())
    }

    /// Gives up those that have been waited for too long.
    pub fn expire(&mut self, now: Ns) {
        for open in self.open.iter_mut().filter(|open| !open.given_up && now >= open.until) {
            (open.given_up, open.bytes) = (true, Vec::new());
            self.done.push((open.id, Err("the agent did not tell in time".into())));
        }
    }

    /// Nothing will come any more.
    pub fn end(&mut self, why: &str) {
        let open = self.open.drain(..).filter(|open| !open.given_up);
        self.done.extend(open.map(|open| (open.id, Err(why.to_string()))));
    }
}

/// A whole window, if it is the one that was asked for and tells of no impossible times.
fn read(open: &Open, timeline: &Timeline, now: Ns) -> Result<GuestWindow, String> {
    let snapshot = Snapshot::decode(&open.bytes).map_err(|e| e.to_string())?;
    let window = &snapshot.window;
    if (window.from, window.to) != (open.from, open.to) {
        return Err("it is of another time than was asked for".into());
    }
    let latest = window.cpus.iter().filter_map(|cpu| Some(cpu.events.last()?.t)).max();
    let future = |t| timeline.earliest_host(t).is_none_or(|host| host > now.saturating_add(FUTURE));
    if latest.is_some_and(future) {
        return Err("it tells of the future".into());
    }
    let here = timeline.to_host(open.to).ok_or("its clock is not known")?;
    let state = timeline.state(now);
    Ok(GuestWindow { offset_ns: open.to.saturating_sub(here), error_bound_ns: state.error_bound_ns, snapshot })
}
