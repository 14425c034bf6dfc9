//! The host's requests to an agent's flight recorder, and the windows received in parts from an untrusted agent.

use crate::message::{printable, WindowReply, WindowRequest};
use latpath_clock::Timeline;
use latpath_flight::{Snapshot, SnapshotLimits, MAX_ENCODED};
use latpath_model::Ns;

/// Maximum number of windows that are pending or not yet fetched.
pub const MAX_WINDOWS: usize = 16;
/// Maximum length of a window, ns.
pub const LONGEST: Ns = 10_000_000_000;
/// Maximum time by which a window's end may lie in the future, ns.
pub const AHEAD: Ns = 1_000_000_000;

/// Maximum memory of received windows that have not been fetched, bytes: a guest can send them faster than the host
/// uses them.
const MAX_BYTES: usize = 16 << 20;

/// Maximum time by which an event may lie in the future, ns; the host refuses windows with later events.
const FUTURE: Ns = 1_000_000_000;

/// A window of a machine's flight recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestWindow {
    /// The machine's clock minus the host's, as applied to sightings in this window, ns.
    pub offset_ns: Ns,
    /// Error bound of the offset, ns.
    pub error_bound_ns: Ns,
    /// Events of the machine, in its own `CLOCK_MONOTONIC`.
    pub snapshot: Snapshot,
}

/// A window, or the reason why it is missing.
pub type Answer = Result<GuestWindow, String>;

struct Open {
    id: u64,
    /// Start of the requested window, in the agent's clock.
    from: Ns,
    to: Ns,
    /// Deadline for the reply, in the host's clock.
    until: Ns,
    bytes: Vec<u8>,
    /// Number of bytes received, including discarded ones.
    came: usize,
    /// Whether the deadline has passed; the rest of the window is then discarded.
    given_up: bool,
}

/// Pending and received windows.
#[derive(Default)]
pub struct Windows {
    open: Vec<Open>,
    /// ID of the window that has been received in part; until it is complete, parts of other windows are refused.
    coming: Option<u64>,
    /// Windows, or the reasons why they are missing, that have not been fetched yet.
    pub done: Vec<(u64, Answer)>,
}

/// Refuses windows that are empty, too long, or end too far in the future.
pub fn sensible(from: Ns, to: Ns, now: Ns) -> Result<(), String> {
    match to.saturating_sub(from) {
        ..=0 => Err("a window must end after it begins".into()),
        span if span > LONGEST => Err(format!("a window of {span} ns is too long (limit: {LONGEST})")),
        _ if to.saturating_sub(now) > AHEAD => Err("a window cannot end in the far future".into()),
        _ => Ok(()),
    }
}

impl Windows {
    /// Returns the request for a window between two times of the host's clock; `None` if it failed at once.
    pub fn request(
        &mut self,
        id: u64,
        (from, to): (Ns, Ns),
        timeline: &Timeline,
        (now, within): (Ns, Ns),
    ) -> Option<WindowRequest> {
        let request = sensible(from, to, now).and_then(|()| {
            let there = |t| timeline.to_guest(t).ok_or("its clock is not known yet");
            if self.open.len() >= MAX_WINDOWS {
                return Err(format!("{} windows of the agent are pending already", self.open.len()));
            }
            Ok(WindowRequest { id, from: there(from)?, to: there(to)? })
        });
        match request {
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

    /// Adds a part.
    ///
    /// # Errors
    /// The part is invalid; the error names the problem.
    pub fn take(&mut self, reply: WindowReply, timeline: &mut Timeline, now: Ns) -> Result<(), String> {
        let place = self.open.iter().position(|open| open.id == reply.id);
        let place = place.ok_or("the agent sent a window that was not requested")?;
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
        // A window that is too large or damaged is reported as missing; one with impossible times ends the session.
        let answer = match Snapshot::decode_within(&open.bytes, SnapshotLimits::SENT) {
            Err(e) => Err(format!("the agent's window cannot be read: {e}")),
            Ok(snapshot) if snapshot.bytes() > MAX_BYTES.saturating_sub(self.bytes()) => {
                Err("the agent's windows take too much of the host's memory".into())
            }
            Ok(snapshot) => Ok(check(&open, snapshot, timeline, now)
                .map_err(|e| format!("the agent sent an impossible window: {e}"))?),
        };
        self.done.push((open.id, answer));
        Ok(())
    }

    /// Memory of the received windows, bytes.
    fn bytes(&self) -> usize {
        self.done.iter().filter_map(|(_, answer)| Some(answer.as_ref().ok()?.snapshot.bytes())).sum()
    }

    /// Abandons windows whose deadline has passed.
    pub fn expire(&mut self, now: Ns) {
        for open in self.open.iter_mut().filter(|open| !open.given_up && now >= open.until) {
            (open.given_up, open.bytes) = (true, Vec::new());
            self.done.push((open.id, Err("the agent did not answer in time".into())));
        }
    }

    /// Ends all pending windows with this reason.
    pub fn end(&mut self, why: &str) {
        let open = self.open.drain(..).filter(|open| !open.given_up);
        self.done.extend(open.map(|open| (open.id, Err(why.to_string()))));
    }
}

/// Checks that a complete window covers the requested time and has no events in the future.
fn check(open: &Open, snapshot: Snapshot, timeline: &mut Timeline, now: Ns) -> Result<GuestWindow, String> {
    let window = &snapshot.window;
    if (window.from, window.to) != (open.from, open.to) {
        return Err("it is of another time than requested".into());
    }
    let latest = window.cpus.iter().filter_map(|cpu| Some(cpu.events.last()?.t)).max();
    let future = |t| timeline.earliest_host(t).is_none_or(|host| host > now.saturating_add(FUTURE));
    if latest.is_some_and(future) {
        return Err("its times are in the future".into());
    }
    // Uses the same offset as for sightings in this window.
    timeline.advance(open.to);
    let known = timeline.offset_over(open.from, open.to);
    let (offset_ns, error_bound_ns) = known.ok_or("its clock is not known")?;
    Ok(GuestWindow { offset_ns, error_bound_ns, snapshot })
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_clock::Exchange;
    use latpath_flight::{CpuRecord, Event, EventKind, Window};

    const NOW: Ns = 100_000_000_000;
    const MS: Ns = 1_000_000;

    /// Timeline of a guest whose clock is one second ahead.
    fn timeline() -> Timeline {
        let mut timeline = Timeline::new();
        let t = NOW - 50_000 + 1_000 * MS;
        timeline.add(&Exchange { t1: NOW - 100_000, t2: t, t3: t, t4: NOW });
        timeline.advance(t);
        timeline
    }

    /// Requests a window of the last 10 ms.
    fn requested() -> (Windows, WindowRequest) {
        let mut windows = Windows::default();
        let request = windows.request(1, (NOW - 10 * MS, NOW), &timeline(), (NOW, 1_000 * MS)).unwrap();
        (windows, request)
    }

    fn snapshot(request: WindowRequest, t: Ns) -> Vec<u8> {
        let events = vec![Event { t, pid: 1, what: EventKind::TimerExit }];
        let cpus = vec![CpuRecord { events, ..CpuRecord::default() }];
        let WindowRequest { from, to, .. } = request;
        Snapshot { window: Window { from, to, cpus }, ..Snapshot::default() }.encode()
    }

    fn piece(id: u64, chunk: &[u8], last: bool) -> WindowReply {
        WindowReply { id, error: String::new(), chunk: chunk.to_vec(), last }
    }

    #[test]
    fn a_window_is_assembled_from_its_parts() {
        let (mut windows, request) = requested();
        assert!((request.to - NOW - 1_000 * MS).abs() < 100_000 && request.to - request.from == 10 * MS);
        let bytes = snapshot(request, request.from);
        for (i, byte) in bytes.iter().enumerate() {
            windows.take(piece(1, &[*byte], i + 1 == bytes.len()), &mut timeline(), NOW).unwrap();
        }
        let (1, Ok(window)) = windows.done.remove(0) else { panic!("no window") };
        assert!((window.offset_ns - 1_000 * MS).abs() <= window.error_bound_ns);
        assert_eq!(window.snapshot.encode(), bytes);
        assert!(
            windows.take(piece(1, &[], true), &mut timeline(), NOW).unwrap_err().contains("not requested"),
            "twice"
        );
    }

    #[test]
    fn invalid_parts_are_refused_with_the_problem() {
        let lie = |pieces: &dyn Fn(WindowRequest) -> Vec<WindowReply>| {
            let (mut windows, request) = requested();
            windows.request(2, (NOW - 10 * MS, NOW), &timeline(), (NOW, 1_000 * MS)).unwrap();
            let mut taken = pieces(request).into_iter().map(|reply| windows.take(reply, &mut timeline(), NOW));
            let lie = taken.find_map(Result::err).expect("a lie");
            assert!(windows.done.is_empty());
            lie
        };
        assert!(lie(&|_| vec![piece(3, b"x", false)]).contains("not requested"));
        assert!(lie(&|_| vec![piece(1, b"x", false), piece(2, b"x", false)]).contains("two windows at once"));
        assert!(lie(&|_| vec![piece(1, b"", false)]).contains("an empty piece"));
        let endless = |_| vec![piece(1, &[7; 1 << 20], false); 20];
        assert!(lie(&endless).contains("more than 16777216 bytes"));
        let other = |request: WindowRequest| {
            vec![piece(1, &snapshot(WindowRequest { to: request.to + 1, ..request }, request.from), true)]
        };
        assert!(lie(&other).contains("of another time"));
        for t in [NOW + 3_000 * MS, Ns::MAX] {
            assert!(lie(&|request| vec![piece(1, &snapshot(request, t), true)]).contains("in the future"));
        }
    }

    #[test]
    fn an_unreadable_window_is_an_error_and_the_session_continues() {
        let why = |bytes: &dyn Fn(WindowRequest) -> Vec<u8>| {
            let (mut windows, request) = requested();
            windows.take(piece(1, &bytes(request), true), &mut timeline(), NOW).unwrap();
            windows.done.remove(0).1.unwrap_err()
        };
        assert!(why(&|_| b"rubbish".to_vec()).contains("this is no flight record"));
        assert!(why(&|request| {
            let mut bytes = snapshot(request, 5);
            bytes[4] = 9;
            bytes
        })
        .contains("version 9"));
        // A few KiB that would take many MiB of memory when decoded.
        let bomb = why(&|request| {
            let events = vec![Event { t: request.from, pid: 1, what: EventKind::TimerExit }; 1 << 19];
            let cpus = vec![CpuRecord { events, ..CpuRecord::default() }];
            let WindowRequest { from, to, .. } = request;
            let bytes = Snapshot { window: Window { from, to, cpus }, ..Snapshot::default() }.encode();
            assert!(bytes.len() < 1 << 16, "{}", bytes.len());
            bytes
        });
        assert!(bomb.contains("too many events"), "{bomb}");
    }

    #[test]
    fn unfetched_windows_are_bounded_in_bytes() {
        let mut windows = Windows::default();
        for id in 0..MAX_WINDOWS as u64 {
            let request = windows.request(id, (NOW - 10 * MS, NOW), &timeline(), (NOW, 1_000 * MS)).unwrap();
            let events = vec![Event { t: request.from, pid: 1, what: EventKind::TimerExit }; 1 << 17];
            let cpus = vec![CpuRecord { events, ..CpuRecord::default() }];
            let WindowRequest { from, to, .. } = request;
            let bytes = Snapshot { window: Window { from, to, cpus }, ..Snapshot::default() }.encode();
            windows.take(piece(id, &bytes, true), &mut timeline(), NOW).unwrap();
            assert!(windows.bytes() <= MAX_BYTES);
        }
        let refused = windows.done.iter().filter_map(|(_, answer)| answer.as_ref().err());
        assert!(refused.clone().count() > 0 && refused.clone().all(|why| why.contains("memory")));
        assert!(windows.done[0].1.is_ok());
    }

    #[test]
    fn old_events_are_valid() {
        let (mut windows, request) = requested();
        windows.take(piece(1, &snapshot(request, Ns::MIN), true), &mut timeline(), NOW).unwrap();
        assert!(windows.done[0].1.is_ok(), "a CPU may have been idle for long");
    }

    #[test]
    fn a_window_after_its_timeout_is_discarded_and_bounded() {
        let (mut windows, request) = requested();
        windows.take(piece(1, b"L", false), &mut timeline(), NOW).unwrap();
        windows.expire(NOW + 999 * MS);
        assert!(windows.done.is_empty());
        windows.expire(NOW + 1_000 * MS);
        assert!(windows.done.remove(0).1.unwrap_err().contains("in time"));
        let rest = &snapshot(request, request.from)[1..];
        windows.take(piece(1, rest, false), &mut timeline(), NOW).unwrap();
        let mut endless = (0..20).map(|_| windows.take(piece(1, &[7; 1 << 20], false), &mut timeline(), NOW));
        assert!(endless.any(|taken| taken.is_err()));
        windows.end("over");
        assert!(windows.done.is_empty(), "it was answered");
    }

    #[test]
    fn pending_requests_to_an_agent_are_bounded() {
        let mut windows = Windows::default();
        for id in 0..20 {
            windows.request(id, (NOW - MS, NOW), &timeline(), (NOW, 0));
        }
        windows.expire(NOW);
        let why: Vec<_> = windows.done.iter().map(|(_, window)| window.clone().unwrap_err()).collect();
        assert_eq!(why.iter().filter(|why| why.contains("16 windows of the agent are pending")).count(), 4);
        assert_eq!(why.iter().filter(|why| why.contains("in time")).count(), 16);
        let refusal = WindowReply { id: 3, error: "no\x1b[2J room".into(), ..WindowReply::default() };
        windows.take(refusal, &mut timeline(), NOW).unwrap();
        assert!(windows.request(77, (NOW - MS, NOW), &timeline(), (NOW, 0)).is_some(), "what was refused is not owed");
    }
}
