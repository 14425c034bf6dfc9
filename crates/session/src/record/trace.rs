//! The kernel's own trace, which the first spike stops.

use crate::event::{stream_name, Event, EventQueue};
use latpath_capture::CaptureRequest;
use latpath_linux::Directory;
use latpath_model::{Ns, StreamSpec};
use latpath_tracefs::{Instance, Options};
use std::ffi::OsStr;

/// Maximum size of each saved file, bytes; older events are omitted.
const MAX_BYTES: u64 = 256 << 20;
/// Name of the trace file in a run's directory; the snapshot is saved next to it.
const FILE: &str = "trace.txt";

/// A tracefs instance that records during the session. On the first late packet, latpath writes a marker to the trace,
/// takes a snapshot and stops tracing; at the end, a trace that was stopped in this way is saved as `trace.txt` in the
/// run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Name of the instance. An existing instance is used as is; otherwise one is created, and removed at the end.
    pub name: String,
    /// Events to enable in a newly created instance.
    pub events: Vec<String>,
}

/// A recording instance. Dropping it undoes all changes.
pub(super) struct Trace {
    instance: Instance,
    spotted: bool,
}

impl Trace {
    /// Opens or creates the instance, and reports its notes as events.
    pub fn prepare(options: &TraceOptions, events: &mut EventQueue) -> latpath_tracefs::Result<Self> {
        let of_instance = if Instance::is_there(&options.name) { Vec::new() } else { options.events.clone() };
        let settings = Options { events: of_instance, snapshot: true, ..Options::default() };
        let instance = Instance::open_or_make(&options.name, &settings)?;
        instance.notes().iter().for_each(|text| events.push(Event::TraceNote { text: text.clone() }));
        Ok(Self { instance, spotted: false })
    }

    /// Handles a late packet: for the first one, writes a marker to the trace, takes a snapshot and stops the trace.
    pub fn spotted(&mut self, request: &CaptureRequest, streams: &[StreamSpec], events: &mut EventQueue) {
        if std::mem::replace(&mut self.spotted, true) {
            return;
        }
        let CaptureRequest { number, worst, packet, from, to, stream, .. } = request;
        let stream = stream_name(streams, *stream);
        let seconds = |t: Ns| format!("{}.{:09}", t.div_euclid(1_000_000_000), t.rem_euclid(1_000_000_000));
        let mark = format!(
            "latpath spike {number}: packet {packet} of {stream} took {worst} ns, between {} and {} s",
            seconds(*from),
            seconds(*to)
        );
        let done = [self.instance.mark(&mark), self.instance.snapshot().map(drop), self.instance.stop()];
        done.into_iter().filter_map(Result::err).for_each(|e| events.push(failed(&e)));
    }

    /// Saves a stopped trace into the run, and undoes all changes.
    pub fn end(self, run: &Directory, events: &mut EventQueue) {
        if self.spotted {
            match self.instance.save((run, OsStr::new(FILE)), MAX_BYTES) {
                Ok(saved) => saved.files.into_iter().for_each(|f| events.push(Event::TraceSaved { path: f.path })),
                Err(error) => events.push(failed(&error)),
            }
        }
        if let Err(error) = self.instance.close() {
            events.push(failed(&error));
        }
    }
}

fn failed(error: &latpath_tracefs::Error) -> Event {
    Event::TraceFailed { why: error.to_string() }
}
