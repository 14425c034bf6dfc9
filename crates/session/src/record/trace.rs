//! The kernel's own trace, which the first spike stops.

use crate::event::{Event, EventQueue};
use latpath_capture::CaptureRequest;
use latpath_linux::Directory;
use latpath_model::Ns;
use latpath_tracefs::{Instance, Options};
use std::ffi::OsStr;

/// Bytes of each file that is saved; older events are left out.
const MOST_BYTES: u64 = 256 << 20;
/// The file in a run's directory. A snapshot is beside it.
const FILE: &str = "trace.txt";

/// An instance of the kernel's trace that records beside the session. The first late packet is marked in it, its snapshot is taken, and
/// it is stopped; at the end it is saved as `trace.txt` into the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Its name. One that exists is used as it is; otherwise one is made, and removed at the end.
    pub name: String,
    /// The events of an instance that is made.
    pub events: Vec<String>,
}

/// An instance that records. Dropped, everything is undone.
pub(super) struct Trace {
    instance: Instance,
    spotted: bool,
}

impl Trace {
    pub fn prepare(options: &TraceOptions, events: &mut EventQueue) -> latpath_tracefs::Result<Self> {
        let of_instance = if Instance::is_there(&options.name) { Vec::new() } else { options.events.clone() };
        let settings = Options { events: of_instance, snapshot: true, ..Options::default() };
        let instance = Instance::open_or_make(&options.name, &settings)?;
        instance.notes().iter().for_each(|text| events.push(Event::TraceNote { text: text.clone() }));
        Ok(Self { instance, spotted: false })
    }

    /// A packet of this stream was late: the first time, marks it in the trace, takes a snapshot and stops it.
    pub fn spotted(&mut self, request: &CaptureRequest, stream: &str, events: &mut EventQueue) {
        if std::mem::replace(&mut self.spotted, true) {
            return;
        }
        let CaptureRequest { number, worst, packet, from, to, .. } = request;
        let seconds = |t: Ns| format!("{}.{:09}", t.div_euclid(1_000_000_000), t.rem_euclid(1_000_000_000));
        let mark = format!(
            "latpath spike {number}: packet {packet} of {stream} took {worst} ns, between {} and {} s",
            seconds(*from),
            seconds(*to)
        );
        let done = [self.instance.mark(&mark), self.instance.snapshot().map(drop), self.instance.stop()];
        done.into_iter().filter_map(Result::err).for_each(|e| events.push(failed(&e)));
    }

    /// Saves what was stopped into the run, and puts everything back.
    pub fn end(self, run: &Directory, events: &mut EventQueue) {
        if self.spotted {
            match self.instance.save((run, OsStr::new(FILE)), MOST_BYTES) {
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
