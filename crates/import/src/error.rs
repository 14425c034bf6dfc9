//! Reasons why files cannot be imported: which file, where in it, the cause, and what to do.

use latpath_model::{Ns, Point};
use latpath_protocols::UnreadFrames;
use latpath_run::RunError;
use latpath_stats::units::{duration, number_of};
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
        /// Error returned by the operating system.
        cause: io::Error,
    },
    /// The file's format is not supported.
    #[error("{}: neither a capture (pcap, pcapng) nor a log of sv_timestamp_logger: {found}; --format names the format of a file \
             that is not recognised", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Description of the file's beginning.
        found: String,
    },
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A line of a log is malformed.
    #[error("{}:{line}: {text:?} is no line of sv_timestamp_logger, ITERATION:SVID:SMPCNT:MICROSECONDS ({why}): remove it, or \
             name another format with --format", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The line, possibly truncated.
        text: String,
        /// The fault.
        why: &'static str,
    },
    /// Times go back by more than the window.
    #[error("{}: its times go back by {} at {unit} {at}, more than --window: where files were put together, sort them by time \
             ({sort}); where the clock was set, import the parts before and after by themselves", path.display(), duration(*by))]
    Backwards {
        /// The file.
        path: PathBuf,
        /// `line` or `packet`.
        unit: &'static str,
        /// Number of the line or packet, from 1.
        at: u64,
        /// Size of the step, ns.
        by: Ns,
        /// A command that sorts such files.
        sort: &'static str,
    },
    /// The file has no packet of the requested streams.
    #[error("{}: none of its {packets} packets is of {}{}{}; latpath streams -r lists the streams of a capture", path.display(),
            if streams.is_empty() { "a stream that frames name" } else { streams }, other_lan(copies), unread_frames(unread))]
    NoPackets {
        /// The file.
        path: PathBuf,
        /// Number of packets in the file.
        packets: u64,
        /// The requested streams; empty for all.
        streams: String,
        /// Numbers of frames that are copies from LAN A and from LAN B.
        copies: [u64; 2],
        /// Frames that could not be read.
        unread: Box<UnreadFrames>,
    },
    /// The file has packets of several interfaces, none of which has the point's name.
    #[error("{}: its packets are of several interfaces ({interfaces}), and none of them is named {} or {point}: name the one that saw \
             this point's packets: {point}={},interface=NAME, or interface=* for all", path.display(), point.device, path.display())]
    SeveralInterfaces {
        /// The file.
        path: PathBuf,
        /// The file's point.
        point: Point,
        /// The interfaces named in the file so far.
        interfaces: String,
    },
    /// The file contains no packets of the requested interface.
    #[error("{}: no packet is of interface {interface} (interfaces of this file: {interfaces})", path.display())]
    NoInterface {
        /// The file.
        path: PathBuf,
        /// The requested interface.
        interface: String,
        /// The interfaces of the file.
        interfaces: String,
    },
    /// The files do not overlap in time.
    #[error("{} begins {} after {} ends: were both taken at the same time? --offset says how far their clocks are apart", late.display(),
            duration(*by), early.display())]
    Apart {
        /// The earlier file.
        early: PathBuf,
        /// The later file.
        late: PathBuf,
        /// Gap between the files, ns, after subtracting the offsets.
        by: Ns,
    },
    /// Two traces were given for one machine.
    #[error("--trace {machine}=…: given twice; a machine has one trace")]
    TwoTraces {
        /// The machine.
        machine: String,
    },
    /// The trace has no events.
    #[error("{}: no line of it is an event; make one with: trace-cmd report > FILE, or perf script > FILE", path.display())]
    NoTrace {
        /// The trace.
        path: PathBuf,
    },
    /// The trace has no context switches.
    #[error("{}: no sched_switch event in it, so what ran on the CPUs is not known; record with: trace-cmd record -e sched -e irq -e net \
             -e skb -e power:cpu_idle", path.display())]
    NoSwitches {
        /// The trace.
        path: PathBuf,
    },
    /// The trace has context switches in an unsupported format.
    #[error("{}: {} of sched_switch cannot be read, as {example:?}: fields that trace-cmd prints raw (report -R, or record -R) name no \
             thread; make the text with: trace-cmd report -t > FILE", path.display(), number_of(*lines, "line"))]
    UnreadSwitches {
        /// The trace.
        path: PathBuf,
        /// Number of such lines.
        lines: u64,
        /// The first of these lines.
        example: String,
    },
    /// The text contains several traces.
    #[error("{}: its lines are of several traces ({sources}), as trace-cmd report -i … -i … prints them: give each machine's trace by \
             itself: trace-cmd report -t -i FILE > TEXT", path.display())]
    SeveralTraces {
        /// The text.
        path: PathBuf,
        /// The traces.
        sources: String,
    },
    /// The trace covers a different time from the packets.
    #[error("{}: begins {} {} the first time that is needed: --trace-offset {machine}=TIME±BOUND says how far the trace's clock is \
             ahead of that of {machine}'s packets (negative where it counts from the start of the machine)", path.display(),
            duration(by.saturating_abs()), if *by > 0 { "before" } else { "after" })]
    OtherTime {
        /// The trace.
        path: PathBuf,
        /// Machine of the trace.
        machine: String,
        /// Time from the beginning of the trace to the first time needed, ns.
        by: Ns,
    },
    /// The file has no durations.
    #[error("{}: it has no line with a duration; svtrace writes its results when it is ended by Ctrl-C", path.display())]
    NoDurations {
        /// The file.
        path: PathBuf,
    },
    /// A line is not a duration.
    #[error("{}:{line}: {text:?} is no whole number of microseconds, as a line of svtrace's results is", path.display())]
    NoDuration {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The line, possibly truncated.
        text: String,
    },
    /// The log contains only the first sample of each second.
    #[error("{}: each of its lines has smpCnt 0, as sv_timestamp_logger -l writes them: they come once a second and all have one name, \
             so nothing shows which of them are the same; log all packets (without -l)", path.display())]
    SecondsAlone {
        /// The log.
        path: PathBuf,
    },
    /// The clocks of two files are whole seconds apart.
    #[error("{}: begins and ends {} s {} {}{}, and smpCnt starts again with each second: its packets would be joined with those of \
             another second. {}", path.display(), by.unsigned_abs() / 1_000_000_000, if *by > 0 { "after" } else { "before" }, first.display(),
            if crate::whole_seconds::is_tai(*by) { ", as TAI is ahead of UTC" } else { "" }, whole_seconds(machine, *by, *is_firsts))]
    WholeSeconds {
        /// The file whose clock differs from the first file's.
        path: PathBuf,
        /// The first file.
        first: PathBuf,
        /// The file's machine.
        machine: String,
        /// Its clock minus the first file's, ns; a multiple of a second.
        by: Ns,
        /// Whether the first file is of the same machine.
        is_firsts: bool,
    },
    /// No packet occurs in two files.
    #[error("no packet is in two of the files within {} (--window): the streams differ, or the clocks are further apart, which \
             --offset corrects", duration(*window))]
    NothingInCommon {
        /// Maximum time between sightings of the same packet, ns.
        window: Ns,
    },
    /// There is a single file, and the times of the samples of its packets are unknown.
    #[error("{}: one file alone has one figure, Tmu, and that is not known: {}; name a second file of the same packets", path.display(),
            if *is_by_utc { "it takes two seconds of packets or more, in which smpCnt starts again with each second" }
            else { "no packet says that its sender keeps UTC (smpSynch 2)" })]
    OneFile {
        /// The file.
        path: PathBuf,
        /// Whether packets report that their sender is synchronised to UTC.
        is_by_utc: bool,
    },
    /// A point has two files.
    #[error("{0} is named twice: a point has one file; merge captures of one point with mergecap")]
    SamePoint(Point),
    /// A user-defined segment has a number that is not that of a point.
    #[error("--segment {segment}: a number is that of a point in the order of the files, 1 to {points}")]
    NoSuchPoint {
        /// The segment.
        segment: String,
        /// Number of points.
        points: usize,
    },
    /// An offset was given for the machine whose clock is the timeline.
    #[error("{machine}=…: the clock of {machine} is the timeline, since the first file is of that machine: {}",
            if there.is_empty() { "all files are, and points of one machine have one clock (clocks that differ need names of machines that differ)".into() }
            else { format!("say how far the other clocks are ahead of it: {there}") })]
    FirstMachine {
        /// The first file's machine.
        machine: String,
        /// The other machines of the points.
        there: String,
    },
    /// An offset was given for a machine without a point.
    #[error("{machine}=…: no point is on such a machine (machines that can be named here: {there})")]
    NoMachine {
        /// The machine.
        machine: String,
        /// The machines of the points.
        there: String,
    },
    /// The offset cannot be estimated.
    #[error("--estimate-offset {machine}=…: no 10 s have 100 packets whose times in both files are less than {} apart (half of \
             --window): give --offset", duration(*within))]
    NoEstimate {
        /// The machine.
        machine: String,
        /// Half of the window, ns.
        within: Ns,
    },
    /// The run cannot be written.
    #[error(transparent)]
    Run(#[from] RunError),
}

fn unread_frames(unread: &UnreadFrames) -> String {
    match unread.total() {
        0 => String::new(),
        frames => format!("; {} cannot be read: {unread}", number_of(frames, "frame")),
    }
}

/// Explains that packets of the point's LAN are missing: counts the copies by either LAN.
fn other_lan(copies: &[u64; 2]) -> String {
    match copies {
        [0, 0] => String::new(),
        [a, b] => format!(" by the point's LAN ({a} are copies by LAN A, {b} by LAN B)"),
    }
}

/// Advice on clocks that are whole seconds apart.
fn whole_seconds(machine: &str, by: Ns, is_firsts: bool) -> String {
    let by = by / 1_000_000_000;
    let renamed = match is_firsts {
        true => format!("Two clocks of one machine need two names of machines, as {machine}-2; then "),
        false => String::new(),
    };
    let machine = if is_firsts { format!("{machine}-2") } else { machine.to_owned() };
    format!(
        "{renamed}--offset {machine}={by}s corrects it; --offset {machine}=0s if the clocks agree and the files were taken at different \
         times"
    )
}
