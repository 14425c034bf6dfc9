//! The agent's flight recorder. A separate thread copies and encodes windows, so that time replies and sightings do not
//! wait for them.

use crate::message::{self, Message, WindowReply, WindowRequest, MAX_LINES, MAX_NAME, MAX_TEXT};
use crate::windows::{sensible, MAX_WINDOWS};
use crate::work::Outbound;
use latpath_flight::{Figures, NoSnapshot, Record, RecorderThread, SnapshotLimits, MAX_ENCODED};
use latpath_model::{text::cut, Ns};
use std::collections::VecDeque;

/// Maximum size of encoded windows waiting for the host, bytes; above it, no further window is started.
const MAX_READY: usize = 16 << 20;

/// The recorder thread with its queues.
pub struct Recording {
    /// The recorder's thread; `None` once it has ended.
    thread: Option<RecorderThread<Vec<u8>>>,
    /// Requests not started yet.
    coming: Vec<WindowRequest>,
    working: Option<u64>,
    /// Encoded windows for the host.
    ready: VecDeque<(u64, Outbound)>,
    windows: u64,
    /// Whether missing hooks were reported.
    introduced: bool,
}

fn error(id: u64, why: &str) -> Message {
    Message::WindowReply(WindowReply { id, error: cut(why, MAX_TEXT).into(), ..WindowReply::default() })
}

impl Recording {
    pub fn begin(record: Box<dyn Record>) -> std::io::Result<Self> {
        let thread = RecorderThread::start(record, |snapshot| snapshot.encode_within(SnapshotLimits::SENT))?;
        Ok(Self {
            thread: Some(thread),
            coming: Vec::new(),
            working: None,
            ready: VecDeque::new(),
            windows: 0,
            introduced: false,
        })
    }

    /// Queues a request; returns a reply at once if the window is impossible.
    pub fn request(&mut self, request: WindowRequest, now: Ns) -> Option<Message> {
        let waiting = self.coming.len() + usize::from(self.working.is_some()) + self.ready.len();
        let refused = match sensible(request.from, request.to, now) {
            Ok(()) if waiting >= MAX_WINDOWS => Err(format!("{waiting} windows wait already")),
            other => other,
        };
        match refused {
            Ok(()) => self.coming.push(request),
            Err(why) => return Some(error(request.id, &why)),
        }
        None
    }

    /// Starts due windows and collects finished ones; adds messages for the host.
    pub fn tick(&mut self, now: Ns, out: &mut Vec<Message>) {
        if let Some(figures) = self.thread.as_ref().and_then(RecorderThread::new_figures) {
            out.push(self.figures(figures));
        }
        loop {
            match self.thread.as_ref().map_or(Err(NoSnapshot::Ended), RecorderThread::result) {
                Ok(Some((id, bytes))) => {
                    self.working = None;
                    self.windows += 1;
                    match bytes.len() {
                        ..=MAX_ENCODED => self.ready.push_back((id, Outbound::new(bytes))),
                        long => out.push(error(id, &format!("the window has {long} bytes (limit: {MAX_ENCODED})"))),
                    }
                }
                Ok(None) => break,
                Err(why) => return self.broken(&why.to_string(), out),
            }
        }
        let Some(due) = self.coming.iter().position(|request| request.to <= now) else { return };
        if self.working.is_some() {
            return;
        }
        let waiting: usize = self.ready.iter().map(|(_, bytes)| bytes.waiting()).sum();
        let WindowRequest { id, from, to } = self.coming.remove(due);
        if waiting > MAX_READY {
            out.push(error(id, &format!("{waiting} bytes of other windows wait for the host")));
            return;
        }
        match self.thread.as_ref().map_or(Err(NoSnapshot::Ended), |thread| thread.request(id, from, to)) {
            Ok(()) => self.working = Some(id),
            Err(why) => out.push(error(id, &why.to_string())),
        }
    }

    fn figures(&mut self, figures: Figures) -> Message {
        let Figures { missing, events, missed, bytes, ns_per_event, .. } = figures;
        let Figures { budget_ppm, cost_ppm, reduced_ns, paused_ns, .. } = figures;
        let missing = match std::mem::replace(&mut self.introduced, true) {
            true => Vec::new(),
            false => missing.iter().take(MAX_LINES).map(|line| cut(line, MAX_NAME).into()).collect(),
        };
        Message::Recording(message::Recording {
            error: String::new(),
            missing,
            events,
            missed,
            bytes,
            windows: self.windows,
            ns_per_event: ns_per_event.unwrap_or(0),
            budget_ppm,
            cost_ppm,
            reduced_ns,
            paused_ns,
        })
    }

    /// Reports to the host that the recorder's thread has ended.
    fn broken(&mut self, why: &str, out: &mut Vec<Message>) {
        let coming = std::mem::take(&mut self.coming);
        out.extend(self.working.take().into_iter().chain(coming.iter().map(|r| r.id)).map(|id| error(id, why)));
        if self.thread.take().is_some() {
            out.push(Message::Recording(message::Recording { error: why.into(), ..message::Recording::default() }));
        }
    }

    /// The next chunk for the host.
    pub fn chunk(&mut self) -> Option<Message> {
        let (id, bytes) = self.ready.front_mut()?;
        let (id, (chunk, last)) = (*id, bytes.piece()?);
        if last {
            self.ready.pop_front();
        }
        Some(Message::WindowReply(WindowReply { id, error: String::new(), chunk, last }))
    }

    /// Whether chunks wait for the host.
    pub fn has_chunks(&self) -> bool {
        !self.ready.is_empty()
    }
}
