//! The thread that turns rows into parts, so that the thread that joins journeys never waits for the disk.

use crate::{clocks::Clocks, columns, manifest, merger::Finished, rows::Rows, ClockSample, RunError};
use latpath_linux::background::lower_priority;
use latpath_model::Point;
use latpath_partstore::{Directory, Group, Names, PartWriter, Span};
use std::sync::{
    atomic::{AtomicU64, Ordering},
    mpsc::{Receiver, Sender},
    Arc,
};

/// What the writer asks of the thread, in order.
pub(crate) enum Work {
    /// The points of the rows that follow. Comes between two parts only.
    Points(Arc<[Point]>),
    /// Rows for the part that is open.
    Rows(Rows),
    /// The part is to be closed. The manifest, if there is a new one, is replaced before the part appears, so that it
    /// names all points of all parts that can be seen.
    EndPart { manifest: Option<Vec<u8>>, samples: Vec<ClockSample> },
}

/// The thread's belongings.
pub(crate) struct Encoder {
    pub run: Directory,
    pub parts: Names,
    pub clocks: Clocks,
    /// Rows go back here to be filled again.
    pub free: Sender<Rows>,
    /// Closed parts go there to be merged.
    pub merger: Sender<Finished>,
    /// Whether CPUs and threads are known: not of what files held.
    pub details: bool,
    /// Parts that are closed.
    pub stored: Arc<Stored>,
}

/// Totals of the parts that were closed.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    pub journeys: AtomicU64,
    pub bytes: AtomicU64,
    /// Of the clocks' samples.
    pub clocks_bytes: AtomicU64,
}

impl Encoder {
    /// Works until the writer hangs up, or the first error.
    pub fn run(mut self, work: Receiver<Work>) -> Result<(), RunError> {
        if !self.details {
            // Files are as fast as the thread that joins them.
            lower_priority();
        }
        let (mut table, mut part, mut number) = (columns::table::<Point>(&[], self.details), None::<PartWriter>, 0);
        let mut group = Group::default();
        for item in work {
            match item {
                Work::Points(points) => table = columns::table(&points, self.details),
                Work::Rows(rows) => {
                    let open = match &mut part {
                        Some(open) => open,
                        none => none.insert(columns::create(&self.parts, Span::one(number), &table)?),
                    };
                    columns::fill(&rows, self.details, &mut group);
                    open.write(&group)?;
                    // The writer may be gone: then nobody needs them.
                    let _ = self.free.send(rows);
                }
                Work::EndPart { manifest, samples } => {
                    if let Some(bytes) = manifest {
                        manifest::replace(&self.run, &bytes)?;
                    }
                    let bytes = self.clocks.append(&samples)?;
                    self.stored.clocks_bytes.fetch_add(bytes, Ordering::Relaxed);
                    if let Some(done) = part.take() {
                        let rows = done.rows();
                        self.stored.bytes.fetch_add(done.publish()?, Ordering::Relaxed);
                        self.stored.journeys.fetch_add(rows, Ordering::Relaxed);
                        let _ = self.merger.send(Finished { span: Span::one(number), rows });
                        number += 1;
                    }
                }
            }
        }
        Ok(())
    }
}
