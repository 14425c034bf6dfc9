//! `--trace-instance`: the kernel's own trace, stopped by the first spike, for those who want to read it raw.

use anyhow::Result;
use latpath_capture::CaptureRequest;
use latpath_linux::Directory;
use latpath_model::StreamSpec;
use latpath_tracefs::{Instance, Options};
use std::ffi::OsStr;

/// Bytes of each file that is saved; older events are left out.
const MOST_BYTES: u64 = 256 << 20;
/// The file in a run's directory. A snapshot is beside it.
const FILE: &str = "trace.txt";

/// An instance that records. Dropped, everything is undone.
pub struct Trace {
    instance: Instance,
    spotted: bool,
}

impl Trace {
    /// Makes the instance, with the events that say most of a late packet, or uses the user's as it is; starts it.
    pub fn prepare(name: &str) -> Result<Self> {
        let own = Instance::is_there(name);
        let events = if own { Vec::new() } else { super::super::ping::EVENTS.split(',').map(str::to_string).collect() };
        let instance = Instance::open_or_make(name, &Options { events, snapshot: true, ..Options::default() })?;
        instance.notes().iter().for_each(|note| eprintln!("latpath: {note}"));
        Ok(Self { instance, spotted: false })
    }

    /// Packets were late: the first time, marks it in the trace, takes a snapshot and stops it.
    pub fn spotted(&mut self, request: &CaptureRequest, streams: &[StreamSpec]) {
        if std::mem::replace(&mut self.spotted, true) {
            return;
        }
        let stream = streams.get(usize::from(request.stream)).map(ToString::to_string).unwrap_or_default();
        let CaptureRequest { number, worst, packet, from, to, .. } = request;
        let mark = format!(
            "latpath spike {number}: packet {packet} of {stream} took {worst} ns, between {}.{:09} and {}.{:09} s",
            from.div_euclid(1_000_000_000),
            from.rem_euclid(1_000_000_000),
            to.div_euclid(1_000_000_000),
            to.rem_euclid(1_000_000_000)
        );
        let done = [self.instance.mark(&mark), self.instance.snapshot().map(drop), self.instance.stop()];
        done.iter().filter_map(|done| done.as_ref().err()).for_each(|e| eprintln!("latpath: {e}"));
    }

    /// Saves what was stopped into the run, and puts everything back.
    pub fn end(self, run: &Directory) {
        if self.spotted {
            match self.instance.save((run, OsStr::new(FILE)), MOST_BYTES) {
                Ok(saved) => {
                    saved.files.iter().for_each(|f| eprintln!("latpath: the trace is in {}", f.path.display()))
                }
                Err(error) => eprintln!("latpath: {error}"),
            }
        }
        if let Err(error) = self.instance.close() {
            eprintln!("latpath: {error}");
        }
    }
}
