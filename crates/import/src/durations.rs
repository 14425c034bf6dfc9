//! Imports files of durations, as recorded by `svtrace`: the time that each packet took from one place to another, in
//! order.
//!
//! Each line is one packet: a whole number of microseconds. Lines contain neither a packet's name nor its arrival time,
//! and packets not seen at both places have no line. Times of day in such a run are therefore invented; the run marks
//! everything that depends on them, or on the packets' numbers, as unknown
//! ([`latpath_run::Manifest::has_durations_alone`]).

use crate::{
    file::{ChecksumReader, Sum},
    source, ImportError, Progress,
};
use latpath_journey::{segments, Journey, Route, Totals};
use latpath_model::{text::cut, Ns, Point, PointInfo, StreamSpec};
use latpath_run::{facts::HostFacts, ImportedFile, MachineFigures, MachineRecord, Manifest, Stamp, Writer, DURATIONS};
use latpath_stats::units::{count, number_of};
use std::{
    cell::RefCell,
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        Arc,
    },
};

/// Maximum length of a line, bytes.
const MAX_LINE: u64 = 64;
/// Maximum duration, µs; greater numbers are negative differences written as unsigned.
const LONGEST_US: u64 = 1 << 50;
/// Number of lines between calls of `progress`.
const ROUND: u64 = 1 << 14;

/// Options for importing a file of durations.
#[derive(Clone, Debug)]
pub struct Durations {
    /// Point at which the durations begin.
    pub from: Point,
    /// Point at which the durations end, on the same machine.
    pub to: Point,
    /// The file.
    pub path: PathBuf,
    /// The stream to which the packets are assigned.
    pub stream: StreamSpec,
    /// Packets per second, from which times of day are derived.
    pub rate: u32,
    /// Time assigned to the first packet, ns since 1970.
    pub start: Ns,
    /// User-defined segments.
    pub segments: Vec<String>,
    /// Threshold above which times are counted as late, ns.
    pub threshold: Ns,
}

impl Durations {
    /// Parses `FROM,TO=FILE`.
    ///
    /// # Errors
    /// The format is wrong, or the points are not two different points of one machine.
    pub fn source(text: &str) -> Result<(Point, Point, PathBuf), String> {
        let form = || format!("{text:?}: write FROM,TO=FILE, e.g. host/nic-rx@enp7s0,host/vm-read@vnet0=results");
        let (points, path) = text.split_once('=').filter(|(_, path)| !path.is_empty()).ok_or_else(form)?;
        let (from, to) = points.split_once(',').ok_or_else(form)?;
        let point = |text: &str| text.parse::<source::Source>().map(|source| source.point);
        let (from, to) = (point(&format!("{from}={path}"))?, point(&format!("{to}={path}"))?);
        if from == to || from.machine != to.machine {
            return Err(format!(
                "{text:?}: each time is from one point to another one of the same machine, by one clock"
            ));
        }
        Ok((from, to, path.into()))
    }
}

/// Imports a file of durations into a new run at `path`. `progress` is called periodically; setting `stop` ends the run
/// at that point.
///
/// # Errors
/// The file cannot be read, a line is not a number, or there is no line. No run is left.
pub fn import_durations(
    options: &Durations,
    path: &Path,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Manifest, ImportError> {
    Writer::refuse_existing(path)?;
    let broken = |cause| ImportError::Io { path: options.path.clone(), cause };
    let (sum, read) = (Rc::new(RefCell::new(Sum::default())), Arc::new(AtomicU64::new(0)));
    let file = File::open(&options.path).map_err(broken)?;
    let bytes = file.metadata().map_err(broken)?.len();
    let summed = ChecksumReader { file, sum: Rc::clone(&sum), read: Arc::clone(&read) };
    let (input, _) = source::open(summed).map_err(broken)?;
    let mut input = BufReader::with_capacity(1 << 16, input);
    let mut lines = Lines { path: &options.path, number: 0, text: Vec::new(), implausible: 0, is_cut: false };
    // Read before the run is created, so that a file without a number leaves no run.
    let first = lines.next(&mut input)?;
    let Some(first) = first else { return Err(ImportError::NoDurations { path: options.path.clone() }) };

    let points = [&options.from, &options.to].map(|point| PointInfo {
        clock: format!("that of {}", options.path.display()),
        ..PointInfo::from(point.clone())
    });
    let route = Route {
        by_stream: vec![vec![0, 1]],
        ..Route::from_points(&points.clone().map(|info| info.point), &[], &points)
    };
    let layout = segments::layout(route, &points, &options.segments);
    let mut manifest = Manifest {
        start: Stamp::of_utc(options.start),
        host: HostFacts::default(),
        threshold_ns: options.threshold,
        points: points.to_vec(),
        streams: vec![options.stream.clone()],
        ..Manifest::begin()
    };
    manifest.set_layout(&layout);
    let mut writer = Writer::create(path, manifest)?;
    writer.remove_unless_finished();
    let (mut n, mut next, mut end) = (0_u64, Some(first), options.start);
    while let Some(took) = next {
        let t = options.start.saturating_add((u128::from(n) * 1_000_000_000 / u128::from(options.rate)) as Ns);
        end = end.max(t.saturating_add(took));
        writer.push(&Journey {
            key: (n % u64::from(options.rate)) as u32,
            number: n,
            seen: 0b11,
            t: &[t, t.saturating_add(took)],
            cpu: &[0, 0],
            tid: &[0, 0],
            ..Journey::default()
        })?;
        n += 1;
        if n.is_multiple_of(ROUND) {
            progress(Progress { read: read.load(Ordering::Relaxed), bytes, journeys: n });
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        next = lines.next(&mut input)?;
    }
    let sum = sum.take();
    let file = ImportedFile {
        point: format!("{},{}", options.from, options.to),
        path: options.path.display().to_string(),
        format: DURATIONS.into(),
        bytes: sum.bytes,
        sha256: sum.hex(),
        packets: n,
        left_out: lines.implausible,
        resolution_ns: 1000,
        ..ImportedFile::default()
    };
    let clock = MachineFigures {
        machine: options.from.machine.clone(),
        method: MachineFigures::SAME_CLOCK.into(),
        ..MachineFigures::default()
    };
    let notes = notes(options, &lines);
    writer.update(|manifest| {
        manifest.machines = vec![MachineRecord { clock, ..MachineRecord::default() }];
        manifest.joined = vec![Totals { sightings: 2 * n, journeys: n, ..Totals::default() }];
        (manifest.counters.sightings, manifest.counters.packets_seen, manifest.tool.sightings) = (2 * n, n, 2 * n);
        manifest.imported = vec![file];
        manifest.notes = notes;
    })?;
    writer.end_at(Stamp::of_utc(end));
    let is_stopped = stop.load(Ordering::Relaxed);
    Ok(if is_stopped { writer.interrupt("the user ended the import")? } else { writer.finish()? })
}

fn notes(options: &Durations, lines: &Lines) -> Vec<String> {
    let path = options.path.display();
    let mut notes = vec![format!(
        "{path} has durations alone: times of day and numbers of packets are made, of {} a second. Losses, duplicates, packets in a \
         row, pacing and patterns over time are not known",
        count(options.rate.into())
    )];
    if lines.implausible > 0 {
        notes.push(format!(
            "{path}: left out: {} of packets whose second time was before the first, which svtrace writes as huge numbers",
            number_of(lines.implausible, "line")
        ));
    }
    if lines.is_cut {
        notes.push(format!("{path}: its compressed data end in the middle"));
    }
    notes
}

struct Lines<'a> {
    path: &'a Path,
    number: u64,
    text: Vec<u8>,
    implausible: u64,
    is_cut: bool,
}

impl Lines<'_> {
    /// Reads the next duration, ns; `None` at the end.
    fn next(&mut self, input: &mut impl BufRead) -> Result<Option<Ns>, ImportError> {
        loop {
            self.text.clear();
            self.number += 1;
            match input.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.text) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => {
                    self.is_cut = true;
                    return Ok(None);
                }
                Err(cause) => return Err(ImportError::Io { path: self.path.into(), cause }),
            }
            let line = self.text.trim_ascii();
            // The recorder may also store empty lines, which its tracer writes at the end.
            if line.is_empty() {
                continue;
            }
            let digits = line.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(line).ok()).flatten();
            let Some(us) = digits.and_then(|digits| digits.parse::<u64>().ok()) else {
                let text = String::from_utf8_lossy(line);
                let (path, line) = (self.path.into(), self.number);
                return Err(ImportError::NoDuration { path, line, text: cut(&text, 60).to_owned() });
            };
            if us > LONGEST_US {
                self.implausible += 1;
                continue;
            }
            return Ok(Some(us as Ns * 1000));
        }
    }
}
