//! The thread that encodes rows into parts, so that the joining thread never blocks on the disk.

use crate::{clocks::Clocks, columns, manifest, merger::Finished, rows::Rows, ClockSample, RunError};
use latpath_linux::background::lower_priority;
use latpath_model::Point;
use latpath_partstore::{Directory, Group, Names, PartWriter, Span};
use std::sync::{
    atomic::{AtomicU64, Ordering},
    mpsc::{Receiver, Sender},
    Arc,
};

/// A message to the thread; messages are processed in order.
pub(crate) enum Work {
    /// The points of the following rows. Sent only between two parts.
    Points(Arc<[Point]>),
    /// Rows of the open part.
    Rows(Rows),
    /// Closes the part. If there is a new manifest, it is written before the part becomes visible, so that it contains
    /// all points of all visible parts.
    EndPart { manifest: Option<Vec<u8>>, samples: Vec<ClockSample> },
}

/// State of the thread.
pub(crate) struct Encoder {
    pub run: Directory,
    pub parts: Names,
    pub clocks: Clocks,
    /// Returns used rows to the writer for reuse.
    pub free: Sender<Rows>,
    /// Sends closed parts to the merger.
    pub merger: Sender<Finished>,
    /// Whether CPUs and threads are known; they are not for imported files.
    pub details: bool,
    /// Totals of the closed parts.
    pub stored: Arc<Stored>,
}

/// Totals of the closed parts.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    pub journeys: AtomicU64,
    pub bytes: AtomicU64,
    /// Size of the clocks' samples, bytes.
    pub clocks_bytes: AtomicU64,
}

impl Encoder {
    /// Processes messages until the writer closes the channel, or until the first error.
    pub fn run(mut self, work: Receiver<Work>) -> Result<(), RunError> {
        if !self.details {
            // Imports are limited by the joining thread, which therefore has priority.
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
                    // The writer may no longer exist.
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
