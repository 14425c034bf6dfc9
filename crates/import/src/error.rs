//! Why files cannot be imported: which file, where in it, the cause, and what to do.

use latpath_model::{Ns, Point};
use latpath_run::RunError;
use latpath_stats::units::duration;
use latpath_traffic::CaptureError;
use std::{io, path::PathBuf};

/// Why files were not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be opened or read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// It is none of the formats.
    #[error("{}: neither a capture (pcap, pcapng) nor a log of sv_timestamp_logger: {found}; --format names the format of a file \
             that is not recognised", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What it begins with.
        found: String,
    },
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A line of a log does not read as one.
    #[error("{}:{line}: {text:?} is no line of sv_timestamp_logger, ITERATION:SVID:SMPCNT:MICROSECONDS ({why}): remove it, or \
             name another format with --format", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: u64,
        /// The line, or its beginning.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Times go back further than packets can be joined.
    #[error("{}: its times go back by {} at {unit} {at}, more than --window: where files were put together, sort them by time \
             ({sort}); where the clock was set, import the parts before and after by themselves", path.display(), duration(*by))]
    Backwards {
        /// The file.
        path: PathBuf,
        /// `line` or `packet`.
        unit: &'static str,
        /// Its number, from 1.
        at: u64,
        /// By how much.
        by: Ns,
        /// A command that sorts such files.
        sort: &'static str,
    },
    /// Nothing in the file is of the streams.
    #[error("{}: none of its {packets} packets is of {}; latpath streams -r lists the streams of a capture", path.display(),
            if streams.is_empty() { "a stream that frames name" } else { streams })]
    NoPackets {
        /// The file.
        path: PathBuf,
        /// Packets in it.
        packets: u64,
        /// The streams that were asked for; empty for all.
        streams: String,
    },
    /// The files were not taken at the same time.
    #[error("{} begins {} after {} ends: were both taken at the same time? --offset says how far their clocks are apart", late.display(),
            duration(*by), early.display())]
    Apart {
        /// The file whose packets come first.
        early: PathBuf,
        /// The other one.
        late: PathBuf,
        /// How far they are apart, by their own clocks less the offsets.
        by: Ns,
    },
    /// No packet was found in two files.
    #[error("no packet is in two of the files within {} (--window): the streams differ, or the clocks are further apart, which \
             --offset corrects", duration(*window))]
    NothingInCommon {
        /// The window.
        window: Ns,
    },
    /// One file alone, whose packets do not say when their samples were taken.
    #[error("{}: one file alone has one figure, Tmu, and that is not known: {}; name a second file of the same packets", path.display(),
            if *is_by_utc { "it takes two seconds of packets or more, in which smpCnt starts again with each second" }
            else { "no packet says that its sender keeps UTC (smpSynch 2)" })]
    OneFile {
        /// The file.
        path: PathBuf,
        /// Whether packets say that their sender keeps UTC.
        is_by_utc: bool,
    },
    /// A point is named twice.
    #[error("{0} is named twice: a point has one file; merge captures of one point with mergecap")]
    SamePoint(Point),
    /// A machine of an offset has no point.
    #[error("{machine}=…: no point is on such a machine (machines that can be named here: {there})")]
    NoMachine {
        /// The machine.
        machine: String,
        /// Those of the points.
        there: String,
    },
    /// An offset cannot be estimated.
    #[error("--estimate-offset {machine}=…: no 10 s have 100 packets whose times in both files are less than {} apart (half of \
             --window): give --offset", duration(*within))]
    NoEstimate {
        /// The machine.
        machine: String,
        /// Half of the window.
        within: Ns,
    },
    /// The run cannot be written.
    #[error(transparent)]
    Run(#[from] RunError),
}
