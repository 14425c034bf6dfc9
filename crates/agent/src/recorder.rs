//! The agent's flight recorder. A thread of its own copies and packs windows, so that neither answers about the time nor sightings
//! wait for them.

use crate::message::{self, Message, WindowReply, WindowRequest, MAX_LINES, MAX_NAME, MAX_TEXT};
use crate::windows::{sensible, MAX_WINDOWS};
use latpath_flight::{give_way, Figures, Recorder, Snapshot, MAX_ENCODED};
use latpath_model::{text::cut, Ns};
use std::collections::VecDeque;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Packed windows that may wait for the host; of more than that none is begun.
const MAX_READY: usize = 16 << 20;
/// Bytes of a piece: few, so that an answer about the time never waits long behind it.
const CHUNK: usize = 8 << 10;
/// How often figures are told.
const FIGURES_EVERY: Duration = Duration::from_secs(1);
/// How long it is measured at the start what an event costs: as on the host.
const SAMPLED: Duration = Duration::from_millis(200);

/// What a flight recorder is to an agent: [`Recorder`], or another in tests.
pub trait Record: Send {
    /// What happened from one time to another, both of the machine's `CLOCK_MONOTONIC`.
    fn snapshot(&self, from: Ns, to: Ns) -> Snapshot;
    /// How it does.
    fn figures(&self) -> Figures;
    /// Finds out, once, what an event costs, and waits for so long; the figures tell it from then on.
    fn sample(&self, _time: Duration) {}
}

impl Record for Recorder {
    fn snapshot(&self, from: Ns, to: Ns) -> Snapshot {
        Self::snapshot(self, from, to)
    }

    fn figures(&self) -> Figures {
        Self::figures(self)
    }

    fn sample(&self, time: Duration) {
        Self::sample(self, time);
    }
}

/// What the recorder's thread tells.
enum Told {
    Figures(Figures),
    /// The window that was asked for, packed.
    Window(Vec<u8>),
}

/// The recorder's thread, and what waits before and behind it.
pub struct Recording {
    /// `None` in the end: that ends the thread.
    requests: Option<Sender<(Ns, Ns)>>,
    told: Receiver<Told>,
    thread: Option<JoinHandle<()>>,
    /// Asked for; not yet begun.
    coming: Vec<WindowRequest>,
    /// What the thread is at.
    working: Option<u64>,
    /// Packed, for the host. Of the first, so much is on its way.
    ready: VecDeque<(u64, Vec<u8>)>,
    sent: usize,
    windows: u64,
    /// What it lacks is told once.
    introduced: bool,
}

fn work(record: &dyn Record, requests: &Receiver<(Ns, Ns)>, told: &Sender<Told>) {
    give_way();
    // What it lacks is told at once.
    let _ = told.send(Told::Figures(record.figures()));
    record.sample(SAMPLED);
    let mut due = Instant::now();
    loop {
        let now = Instant::now();
        if now >= due {
            due = now + FIGURES_EVERY;
            // Nobody hears it when the session is over.
            if told.send(Told::Figures(record.figures())).is_err() {
                return;
            }
        }
        match requests.recv_timeout(due.saturating_duration_since(now)) {
            Ok((from, to)) => drop(told.send(Told::Window(record.snapshot(from, to).encode()))),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn error(id: u64, why: &str) -> Message {
    Message::WindowReply(WindowReply { id, error: cut(why, MAX_TEXT).into(), ..WindowReply::default() })
}

impl Recording {
    pub fn begin(record: Box<dyn Record>) -> std::io::Result<Self> {
        let (requests, asked) = channel();
        let (tell, told) = channel();
        let thread = std::thread::Builder::new().name("lp-flight".into());
        let thread = thread.spawn(move || work(record.as_ref(), &asked, &tell))?;
        Ok(Self {
            requests: Some(requests),
            told,
            thread: Some(thread),
            coming: Vec::new(),
            working: None,
            ready: VecDeque::new(),
            sent: 0,
            windows: 0,
            introduced: false,
        })
    }

    /// Takes a request; an answer at once where there will be no window.
    pub fn ask(&mut self, request: WindowRequest, now: Ns) -> Option<Message> {
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

    /// Begins what is due, takes what is done; messages for the host.
    pub fn tick(&mut self, now: Ns, out: &mut Vec<Message>) {
        loop {
            match self.told.try_recv() {
                Ok(Told::Figures(figures)) => out.push(self.figures(figures)),
                Ok(Told::Window(bytes)) => {
                    let Some(id) = self.working.take() else { continue };
                    self.windows += 1;
                    match bytes.len() {
                        ..=MAX_ENCODED => self.ready.push_back((id, bytes)),
                        long => out.push(error(id, &format!("the window has {long} bytes (limit: {MAX_ENCODED})"))),
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return self.broken(out),
            }
        }
        let Some(due) = self.coming.iter().position(|request| request.to <= now) else { return };
        if self.working.is_some() {
            return;
        }
        let waiting: usize = self.ready.iter().map(|(_, bytes)| bytes.len()).sum();
        let WindowRequest { id, from, to } = self.coming.remove(due);
        if waiting > MAX_READY {
            out.push(error(id, &format!("{waiting} bytes of other windows wait for the host")));
        } else if self.requests.as_ref().is_some_and(|requests| requests.send((from, to)).is_ok()) {
            self.working = Some(id);
        } else {
            out.push(error(id, "the flight recorder has ended"));
        }
    }

    fn figures(&mut self, figures: Figures) -> Message {
        let Figures { missing, events, missed, bytes, ns_per_event, .. } = figures;
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
        })
    }

    /// The thread is gone: a panic.
    fn broken(&mut self, out: &mut Vec<Message>) {
        const WHY: &str = "the flight recorder failed within latpath (a panic)";
        let coming = std::mem::take(&mut self.coming);
        out.extend(self.working.take().into_iter().chain(coming.iter().map(|r| r.id)).map(|id| error(id, WHY)));
        if self.requests.take().is_some() {
            out.push(Message::Recording(message::Recording { error: WHY.into(), ..message::Recording::default() }));
        }
    }

    /// The next piece for the host.
    pub fn chunk(&mut self) -> Option<Message> {
        let (id, bytes) = self.ready.front()?;
        let (id, rest) = (*id, &bytes[self.sent..]);
        let chunk = rest[..rest.len().min(CHUNK)].to_vec();
        self.sent += chunk.len();
        let last = self.sent == bytes.len();
        if last {
            self.ready.pop_front();
            self.sent = 0;
        }
        Some(Message::WindowReply(WindowReply { id, error: String::new(), chunk, last }))
    }

    /// Whether pieces wait for the host.
    pub fn is_telling(&self) -> bool {
        !self.ready.is_empty()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
