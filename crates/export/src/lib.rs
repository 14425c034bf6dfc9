//! Writes runs in other tools' formats. To add a format, write a module, and add it to [`EXPORTERS`].

mod csv;
mod file;
mod hdr;
mod jsonl;
mod parquet;
mod pcapng;
mod perfetto;

use latpath_analysis::{SelectError, Selection};
use latpath_journey::Journey;
use latpath_model::{DropNote, Point, StreamId};
use latpath_run::{Run, RunError, Select};
use latpath_stats::utc_steps;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

pub use csv::write_csv;
pub use file::{check_target, write_file, write_file_in};

/// All formats, in the order of the help text.
pub const EXPORTERS: &[Exporter] = &[
    Exporter {
        name: "perfetto",
        about: "Late packets and what the machines did around them, as a trace for the Perfetto UI: CPUs, threads, vCPUs and \
                packets of host and guests on one timeline",
        noun: "trace",
        extension: "pftrace",
        is_text: false,
        takes_selection: true,
        write: perfetto::write,
    },
    Exporter {
        name: "csv",
        about: "Every journey as a line of CSV, with CPUs and threads: for spreadsheets and scripts",
        noun: "table",
        extension: "csv",
        is_text: true,
        takes_selection: false,
        write: csv::write,
    },
    Exporter {
        name: "jsonl",
        about: "Every journey as an object on a line of its own: for jq and scripts",
        noun: "file",
        extension: "jsonl",
        is_text: true,
        takes_selection: false,
        write: jsonl::write,
    },
    Exporter {
        name: "parquet",
        about: "Every journey as a row of one Parquet file, with names and UTC: for pandas, polars, DuckDB",
        noun: "file",
        extension: "parquet",
        is_text: false,
        takes_selection: false,
        write: parquet::write,
    },
    Exporter {
        name: "hdr",
        about: "The times of all segments as a log of HdrHistogram, a line for each of 10 s: for its analyzers and plotters",
        noun: "log",
        extension: "hlog",
        is_text: true,
        takes_selection: false,
        write: hdr::write,
    },
    Exporter {
        name: "pcapng",
        about: "Every sighting as a packet, rebuilt from its stream and number, with an interface for each point and a comment: for \
                Wireshark and tshark",
        noun: "file",
        extension: "pcapng",
        is_text: false,
        takes_selection: false,
        write: pcapng::write,
    },
];

/// A format of `latpath export`.
pub struct Exporter {
    /// Name on the command line.
    pub name: &'static str,
    /// Content and tool, in one sentence.
    pub about: &'static str,
    /// Name of its files in messages.
    pub noun: &'static str,
    /// Extension of its files.
    pub extension: &'static str,
    /// Whether the format is text that a terminal can show.
    pub is_text: bool,
    /// Whether it writes captures, from which a [`Selection`] can be made.
    pub takes_selection: bool,
    /// Writes the run.
    pub write: fn(&mut ExportRequest, &mut dyn Write) -> Result<Exported, ExportError>,
}

/// A request for an export.
pub struct ExportRequest<'a> {
    /// The run.
    pub run: &'a Run,
    /// The captures, for formats that write captures.
    pub selection: Selection,
    /// Ends the export early once it is set.
    pub stop: &'a AtomicBool,
    /// Receives progress messages, one line each.
    pub progress: &'a mut dyn FnMut(String),
}

/// Indexes of the run's points: the route in its order, then the other points in order of appearance.
fn points_in_order(run: &Run) -> Vec<usize> {
    let route = &run.manifest().route;
    let on_route = |p: &usize| route.iter().position(|point| *point == run.points()[*p].point);
    let mut order: Vec<usize> = (0..run.points().len()).collect();
    order.sort_by_key(|p| on_route(p).unwrap_or(usize::MAX));
    order
}

/// Drop reasons of packets that did not arrive. A drop of a packet that arrived is ignored: it concerns a copy, e.g.
/// made by a bridge.
struct DropReasons<'a> {
    notes: &'a [DropNote],
    /// For each stream, the last point of its route (of the common route if it has none), as a bit of a journey's
    /// `seen`.
    ends: Vec<u64>,
    end: u64,
}

impl<'a> DropReasons<'a> {
    fn of(run: &'a Run) -> Self {
        let manifest = run.manifest();
        let bit = |end: &Point| run.points().iter().position(|info| info.point == *end).map_or(0, |p| 1_u64 << p);
        let end = |route: &Vec<Point>| route.last().map_or(0, bit);
        let all = end(&manifest.route);
        let ends = manifest.routes.iter().map(|route| if route.is_empty() { all } else { end(route) });
        Self { notes: &manifest.drop_notes, ends: ends.collect(), end: all }
    }

    /// The index of a journey's drop note, and the note if the run contains it. `None` if the packet arrived or has no
    /// note.
    fn of_packet(&self, stream: StreamId, seen: u64, drop_note: u16) -> Option<(usize, Option<&'a DropNote>)> {
        let arrived = seen & self.ends.get(usize::from(stream)).unwrap_or(&self.end) != 0;
        let note = usize::from(drop_note).checked_sub(1).filter(|_| !arrived)?;
        Some((note, self.notes.get(note)))
    }
}

/// Calls `each` with the selected journeys. Skips damaged parts and returns their errors. Fails if the user ends the
/// export.
fn each_journey(
    run: &Run,
    select: &Select,
    stop: &AtomicBool,
    mut each: impl FnMut(&Journey) -> io::Result<()>,
) -> io::Result<Vec<RunError>> {
    let is_stopped = || stop.load(Ordering::Relaxed);
    let mut failed = None;
    let damaged = run.for_each(select, |journey| {
        failed = each(journey).err();
        failed.is_none() && !is_stopped()
    });
    match failed {
        Some(error) => Err(error),
        None if is_stopped() => Err(io::Error::new(io::ErrorKind::Interrupted, "ended before it was whole")),
        None => Ok(damaged),
    }
}

/// Notes on the written journeys.
fn notes(run: &Run, damaged: &[RunError]) -> Vec<String> {
    let damaged = damaged.iter().map(|error| format!("{error}; its other journeys are written"));
    damaged.chain(utc_steps(run.manifest())).collect()
}

/// A finished export.
#[derive(Clone, Debug, Default)]
pub struct Exported {
    /// Content of the output, to be shown after the file name.
    pub summary: String,
    /// Notes on omitted content.
    pub notes: Vec<String>,
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The captures could not be selected.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A file of the run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run lacks data that the format needs.
    #[error("{0}")]
    Lacks(String),
    /// The output cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_format_has_a_name_of_its_own_and_a_section_in_the_documents() {
        let page = include_str!("../../../docs/export.md");
        let names: HashSet<&str> = EXPORTERS.iter().map(|exporter| exporter.name).collect();
        assert_eq!(names.len(), EXPORTERS.len());
        for name in names {
            assert!(page.contains(&format!("latpath export {name} RUN")), "docs/export.md does not show {name}");
            assert!(page.contains(&format!("\n| `{name}` | ")), "docs/export.md: the table of formats lacks {name}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_whole_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.csv");
        std::fs::write(&path, "mine").unwrap();
        assert!(check_target(&path, false).unwrap_err().contains("exists already"));
        check_target(&path, true).unwrap();
        let broken = write_file(&path, true, |out| {
            out.write_all(b"half")?;
            Err::<(), _>(io::Error::other("no more"))
        });
        assert_eq!(broken.unwrap_err().to_string(), "no more");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        assert!(write_file(&path, false, |out| out.write_all(b"whole")).is_err(), "another program made it by then");
        write_file(&path, true, |out| out.write_all(b"whole")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_link_leads_to_is_never_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (link, victim) = (folder.path().join("link"), folder.path().join("victim"));
        std::fs::write(&victim, "mine").unwrap();
        for target in [victim.as_path(), std::path::Path::new("/dev/full")] {
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert!(check_target(&link, false).unwrap_err().contains("exists already"));
            assert!(write_file(&link, false, |out| out.write_all(b"x")).is_err());
            check_target(&link, true).unwrap();
            write_file(&link, true, |out| out.write_all(b"new")).unwrap();
            assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
            assert!(link.symlink_metadata().unwrap().is_file(), "the link was replaced");
            std::fs::remove_file(&link).unwrap();
        }
        // Writes to the system's own links, and to devices, directly.
        let (_reader, pipe) = io::pipe().unwrap();
        let own = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pipe));
        for path in ["/dev/null", &own].map(std::path::Path::new) {
            check_target(path, false).unwrap();
            write_file(path, false, |out| out.write_all(b"x")).unwrap();
        }
    }
}
