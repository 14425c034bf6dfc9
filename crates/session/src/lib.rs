//! Recordings and live views without a terminal, for `latpath record`, `latpath live`, daemons, tests and notebooks.
//!
//! The caller starts, steps and stops a [`Session`], and sets its pace: a session does not wait between steps, but
//! [`Session::run_until`] offers a loop. This crate does not print: [`Event`], [`RecordProgress`] and the figures of a
//! [`LiveSession`] are types that can be serialised.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod absent;
mod event;
mod live;
mod record;
mod replay;
mod source;

pub use absent::PATIENCE;
pub use event::Event;
pub use live::{LiveError, LiveOptions, LiveSession, ReplayOptions};
pub use record::{size_note, DirectoryState, RecordError, RecordOptions, RecordProgress, RecordSession, TraceOptions};
pub use replay::Replay;
pub use source::FigureSource;

use serde::Serialize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The state of a session after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The probes are attached, but packets are not counted yet.
    Settling,
    /// Packets are counted.
    Running,
    /// The session has ended, and has to be stopped.
    Over(EndReason),
}

/// Reason why a session ended before it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The duration of [`StopAfter`] has passed.
    Duration,
    /// The number of packets in [`StopAfter`] has been reached.
    Packets,
    /// The recording has reached its maximum size on disk.
    Size,
    /// A capture with late packets was taken, and the user requested to stop the recording at the first one.
    Spike,
    /// The replayed run has no further packets.
    EndOfRun,
    /// The recording cannot be written; [`RecordSession::stop`] returns the error.
    Failed,
}

/// Conditions that end a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopAfter {
    /// Maximum duration from the time at which packets are counted.
    pub duration: Option<Duration>,
    /// Maximum number of packets, all streams together.
    pub packets: Option<u64>,
}

impl StopAfter {
    /// Reason to stop a session that began at `began` and has these packets, if any.
    fn reached(&self, began: Instant, packets: u64) -> Option<EndReason> {
        let enough = self.packets.filter(|most| packets >= *most).map(|_| EndReason::Packets);
        self.duration.filter(|most| began.elapsed() >= *most).map(|_| EndReason::Duration).or(enough)
    }
}

/// A recording or a live view that its caller steps.
pub trait Session {
    /// Processes the packets and events that have arrived, without waiting. Call it about 100 times a second.
    fn step(&mut self) -> State;

    /// The next event. Take all events after each step.
    fn next_event(&mut self) -> Option<Event>;

    /// Steps until the session has ended, `stop` is set or `each` breaks; sleeps for `pace` between steps. Calls `each`
    /// after each step. Returns the reason if the session has ended.
    fn run_until(
        &mut self,
        stop: &AtomicBool,
        pace: Duration,
        mut each: impl FnMut(&mut Self) -> ControlFlow<()>,
    ) -> Option<EndReason>
    where
        Self: Sized,
    {
        while !stop.load(Ordering::Relaxed) {
            let state = self.step();
            let flow = each(self);
            match state {
                State::Over(why) => return Some(why),
                _ if flow.is_break() => return None,
                _ => std::thread::sleep(pace),
            }
        }
        None
    }
}
