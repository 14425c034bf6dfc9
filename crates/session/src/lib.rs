//! Recordings and live views without a terminal, for `latpath record`, `latpath live`, daemons, tests and notebooks.
//!
//! A [`Session`] is started, stepped and stopped. Its caller owns the pace: nothing here waits between two steps, but
//! [`Session::run_until`] offers a loop. Nothing is printed: an [`Event`] is typed and can be serialised, and so are
//! [`RecordProgress`] and the figures of a [`LiveSession`].
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
    /// The probes are attached; packets count from soon on.
    Settling,
    Running,
    /// The session waits to be stopped.
    Over(EndReason),
}

/// Why a session is over before it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The duration of [`StopAfter`] has passed.
    Duration,
    /// As many packets have come as [`StopAfter`] names.
    Packets,
    /// The recording takes as much disk as it may.
    Size,
    /// A capture with late packets was taken, and the recording was to stop at the first.
    Spike,
    /// The replayed run has no further packets.
    EndOfRun,
    /// The recording cannot be written; [`RecordSession::stop`] returns the error.
    Failed,
}

/// When a session is over by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopAfter {
    pub duration: Option<Duration>,
    /// Packets of all streams together.
    pub packets: Option<u64>,
}

impl StopAfter {
    /// Whether it is time to stop, this long after the beginning.
    fn reached(&self, began: Instant, packets: u64) -> Option<EndReason> {
        let enough = self.packets.filter(|most| packets >= *most).map(|_| EndReason::Packets);
        self.duration.filter(|most| began.elapsed() >= *most).map(|_| EndReason::Duration).or(enough)
    }
}

/// A recording or a live view that its caller steps.
pub trait Session {
    /// One round: takes what has come, and returns at once. Call it about a hundred times a second.
    fn step(&mut self) -> State;

    /// The next event that was not returned yet. Take all after each step.
    fn next_event(&mut self) -> Option<Event>;

    /// Steps until the session is over, `stop` is set or `each` breaks, and sleeps for `pace` between two steps. `each` is called after
    /// each step. Returns why the session is over, where it is.
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
