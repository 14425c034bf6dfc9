//! Imports logs of `rant --log` as a run of round trips.
//!
//! A rant log has a header with the names of its columns, a line of dashes, and a row per transaction after the
//! warm-up. Columns of the emitter: `SEQ T1_SW T1_HW T4_HW T4_SW RTT`; of the reflector: `SEQ T2_HW T2_SW T3_SW T3_HW
//! RESPONSE`. Stamps are `SECONDS.NANOSECONDS` in TAI (NIC clock and system clock), 0.000000000 if missing. `RTT` and
//! `RESPONSE` (ns, with negative values written as 0) are not read. `SEQ` numbers the rows of each file separately, so the
//! files are joined by time: one probe is in flight at a time, and its answer lies within its round trip.

use super::{manifest, LogProperties};
use crate::{ImportError, Progress};
use latpath_journey::Journey;
use latpath_model::round_trip::{Stamp, Transaction};
use latpath_model::{text::cut, Ns};
use latpath_partstore::open_file;
use latpath_run::{Manifest, Stamp as RunStamp, Writer};
use std::{
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// Maximum length of a line, bytes.
const MAX_LINE: u64 = 1024;
/// Typical length of a row, bytes; used for the progress.
const ROW: u64 = 185;
/// Number of rows per round; the first round is used to judge whether the log is complete.
const BATCH: usize = 4096;
/// Maximum pause between two transactions of a log that is complete, in multiples of a transaction's duration.
const LONGEST_PAUSE: Ns = 3;
/// Minimum percentage of the emitter's rows, among those during the reflector's log, that must have an answer.
const MIN_JOINED: u64 = 90;
/// Minimum number of rows for a log to be judged incomplete.
const MIN_ROWS: u64 = 20;

/// The stamp in each column of a file; `None` for columns that are not read.
struct Columns(Vec<Option<Stamp>>);

struct Row {
    line: u64,
    transaction: Transaction,
}

struct Rows {
    path: PathBuf,
    file: BufReader<std::fs::File>,
    columns: Columns,
    line: u64,
    first: Option<Transaction>,
    /// Number of rows that repeat earlier ones, and (`is_cut`) whether the last row has no end.
    repeated: u64,
    is_cut: bool,
    text: Vec<u8>,
}

const EMITTERS: [(&str, Stamp); 4] =
    [("T1_SW", Stamp::T1App), ("T1_HW", Stamp::T1Nic), ("T4_HW", Stamp::T4Nic), ("T4_SW", Stamp::T4App)];
const REFLECTORS: [(&str, Stamp); 4] =
    [("T2_HW", Stamp::T2Nic), ("T2_SW", Stamp::T2App), ("T3_SW", Stamp::T3App), ("T3_HW", Stamp::T3Nic)];

impl Columns {
    fn read(head: &str, all: &[(&str, Stamp)]) -> Option<Self> {
        let known = |word| all.iter().find(|(name, _)| *name == word).map(|(_, stamp)| *stamp);
        let columns: Vec<_> = head.split_whitespace().map(known).collect();
        let is_whole = head.trim_start().starts_with("SEQ") && columns.iter().flatten().count() == all.len();
        is_whole.then_some(Self(columns))
    }
}

impl Rows {
    fn open(path: &Path, all: &[(&str, Stamp)], role: &str) -> Result<Self, ImportError> {
        let mut file = BufReader::new(open_file(path).map_err(broken(path))?);
        let mut head = Vec::new();
        file.by_ref().take(MAX_LINE).read_until(b'\n', &mut head).map_err(broken(path))?;
        let head = String::from_utf8_lossy(&head).into_owned();
        let Some(columns) = Columns::read(&head, all) else {
            return Err(wrong(path, refused(&head, &mut file, role)));
        };
        let (first, text) = (None, Vec::new());
        Ok(Self { path: path.into(), file, columns, line: 1, first, repeated: 0, is_cut: false, text })
    }

    fn next(&mut self) -> Result<Option<Row>, ImportError> {
        loop {
            self.text.clear();
            self.line += 1;
            let read = self.file.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.text);
            if read.map_err(broken(&self.path))? == 0 {
                return Ok(None);
            }
            if !self.text.ends_with(b"\n") {
                self.is_cut = true;
                return Ok(None);
            }
            let text = String::from_utf8_lossy(&self.text);
            let text = text.trim();
            if text.is_empty() || self.line == 2 && text.bytes().all(|byte| byte == b'-') {
                continue;
            }
            let Some(transaction) = row(text, &self.columns) else {
                let why = format!("line {}: {:?} is not a row of rant --log", self.line, cut(text, 60));
                return Err(wrong(&self.path, why));
            };
            // After reaching its capacity, the log starts again from its beginning.
            match self.first {
                Some(first) if first.raw == transaction.raw => {
                    self.repeated = 1 + self.rest()?;
                    return Ok(None);
                }
                Some(_) => {}
                None => self.first = Some(transaction),
            }
            return Ok(Some(Row { line: self.line, transaction }));
        }
    }

    /// Counts the remaining rows.
    fn rest(&mut self) -> Result<u64, ImportError> {
        let mut lines = 0;
        loop {
            let (used, new) = {
                let bytes = self.file.fill_buf().map_err(broken(&self.path))?;
                (bytes.len(), bytes.iter().filter(|byte| **byte == b'\n').count() as u64)
            };
            if used == 0 {
                return Ok(lines);
            }
            lines += new;
            self.file.consume(used);
        }
    }

    fn notes(&self) -> Vec<String> {
        let path = self.path.display();
        let mut notes = Vec::new();
        if self.repeated > 0 {
            notes.push(format!(
                "{path}: {} rows at its end repeat its first ones, since rant had no room for more: they are left out, and so are the \
                 transactions that they stand for",
                self.repeated
            ));
        }
        if self.is_cut {
            notes.push(format!("{path}: ends in the middle of line {}, which is left out", self.line));
        }
        notes
    }
}

/// The error text for a file without the expected header, depending on what it seems to be.
fn refused(head: &str, rest: &mut dyn BufRead, role: &str) -> String {
    let mut text = head.to_owned();
    // rant's normal output ends with figures; if there were many breaches, they are listed before the figures.
    let mut more = Vec::new();
    let _ = rest.take(1 << 16).read_to_end(&mut more);
    text.push_str(&String::from_utf8_lossy(&more));
    let is_output = ["Latency Statistics", "Histogram Summary", "Test is complete", "latency (", "Total Samples:"];
    if Columns::read(head, &EMITTERS).is_some() || Columns::read(head, &REFLECTORS).is_some() {
        return format!("it is the log of the other end: name it {} instead of {role}", other(role));
    }
    if is_output.iter().any(|said| text.contains(said)) {
        return "it is what rant prints: counts of whole microseconds, of which no single time is known; run rant with --log FILE, and \
                import that"
            .into();
    }
    format!(
        "it is not a log of rant --log: its first line is {:?}, not SEQ and the names of stamps",
        cut(head.trim(), 60)
    )
}

fn other(role: &str) -> &'static str {
    if role == "emit" {
        "reflect"
    } else {
        "emit"
    }
}

fn wrong(path: &Path, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ImportError {
    broken(path)(io::Error::other(why))
}

fn broken(path: &Path) -> impl FnOnce(io::Error) -> ImportError + '_ {
    |cause| ImportError::Io { path: path.into(), cause }
}

fn row(text: &str, columns: &Columns) -> Option<Transaction> {
    let mut transaction = Transaction::default();
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.len() != columns.0.len() {
        return None;
    }
    transaction.sequence = words[0].parse().ok()?;
    for (word, stamp) in words.iter().zip(&columns.0) {
        let Some(stamp) = stamp else { continue };
        match time(word)? {
            0 => {}
            t => transaction.raw.set(*stamp, t),
        }
    }
    transaction.mapped = transaction.raw;
    Some(transaction)
}

/// Parses `SECONDS.NANOSECONDS` to ns.
fn time(text: &str) -> Option<Ns> {
    let (seconds, nanoseconds) = text.split_once('.')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<Ns>().ok()).flatten();
    let nanoseconds = digits(nanoseconds).filter(|_| nanoseconds.len() == 9)?;
    digits(seconds)?.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// Start and end of a transaction at the emitter: by the NIC's clock if `is_by_nic`, otherwise by the system clock.
fn ends(t: &Transaction, is_by_nic: bool) -> Option<(Ns, Ns)> {
    let (from, to) = if is_by_nic { (Stamp::T1Nic, Stamp::T4Nic) } else { (Stamp::T1App, Stamp::T4App) };
    t.raw.get(from).zip(t.raw.get(to))
}

/// Finds the answer that lies within each probe's round trip.
struct Answers {
    rows: Rows,
    /// Next answer, whose probe may not have been read yet.
    next: Option<Transaction>,
    first: Option<Ns>,
    /// Number of probes since the first answer, and (`joined`) number of those with an answer.
    during: u64,
    joined: u64,
    ended: bool,
}

impl Answers {
    fn open(path: &Path) -> Result<Self, ImportError> {
        let rows = Rows::open(path, &REFLECTORS, "reflect")?;
        let mut answers = Self { rows, next: None, first: None, during: 0, joined: 0, ended: false };
        answers.advance()?;
        let Some(first) = answers.next else {
            return Err(wrong(&answers.rows.path, "it has no row"));
        };
        answers.first = first.raw.get(Stamp::T2Nic);
        if answers.first.is_none() {
            let why = "the NIC stamped no packet (rant -R): nothing joins its rows to the emitter's; import the emitter's log alone";
            return Err(wrong(&answers.rows.path, why));
        }
        Ok(answers)
    }

    fn advance(&mut self) -> Result<(), ImportError> {
        self.next = self.rows.next()?.map(|row| row.transaction);
        self.ended = self.next.is_none();
        Ok(())
    }

    /// Adds the reflector's stamps to a transaction.
    fn join(&mut self, t: &mut Transaction) -> Result<(), ImportError> {
        let Some((sent, received)) = ends(t, true) else { return Ok(()) };
        let arrived = |t: &Transaction| t.raw.get(Stamp::T2Nic).unwrap_or(Ns::MIN);
        while self.next.is_some_and(|answer| arrived(&answer) <= sent) {
            self.advance()?;
        }
        if self.ended || self.first.is_none_or(|first| first >= received) {
            return Ok(());
        }
        self.during += 1;
        let Some(answer) = self.next else { return Ok(()) };
        let left = answer.raw.get(Stamp::T3Nic).unwrap_or(arrived(&answer));
        if left >= received {
            return Ok(());
        }
        self.advance()?;
        // Two answers within one round trip are impossible, so neither is used.
        if self.next.is_some_and(|next| arrived(&next) < received) {
            return Ok(());
        }
        self.joined += 1;
        for (_, stamp) in REFLECTORS {
            t.raw.set_if(stamp, answer.raw.get(stamp));
        }
        t.mapped = t.raw;
        Ok(())
    }

    fn verdict(&self) -> Result<(), ImportError> {
        if self.joined * 100 >= self.during * MIN_JOINED && self.during > 0 {
            return Ok(());
        }
        let why = format!(
            "{} of {} probes have an answer of this log within them: the NICs' clocks are further apart than half of a round trip (was \
             PTP running?), or it is of another test; import the emitter's log alone",
            self.joined, self.during
        );
        Err(wrong(&self.rows.path, why))
    }
}

/// Imports the log of rant's emitter, and optionally that of its reflector, into a new run at `path`. Round trips over
/// `threshold` ns are late. `progress` is called periodically; setting `stop` ends the run at that point.
///
/// # Errors
/// If a file is not a rant log or is incomplete, or the two cannot be joined. No run is left behind.
pub fn import_rant(
    (emit, reflect): (&Path, Option<&Path>),
    path: &Path,
    threshold: Ns,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Manifest, ImportError> {
    Writer::refuse_existing(path)?;
    let bytes = emit.metadata().map_err(broken(emit))?.len();
    let rows = Rows::open(emit, &EMITTERS, "emit")?;
    let answers = reflect.map(Answers::open).transpose()?;
    let mut import = Import {
        rows,
        answers,
        is_by_nic: true,
        batch: Vec::new(),
        stamps: Vec::new(),
        found: LogProperties::default(),
    };
    let mut writer = None;
    let mut goes_on = true;
    while goes_on && !stop.load(Ordering::Relaxed) {
        goes_on = import.fill()?;
        import.write(path, threshold, &mut writer)?;
        let journeys = import.found.journeys;
        progress(Progress {
            read: if goes_on { journeys.saturating_mul(ROW).min(bytes) } else { bytes },
            bytes,
            journeys,
        });
    }
    let Some(mut writer) = writer else { return Err(wrong(&import.rows.path, "it has no row")) };
    import.answers.as_ref().map_or(Ok(()), Answers::verdict)?;
    let described = import.manifest(threshold, bytes);
    let end = described.end.clone();
    writer.update(|manifest| {
        manifest.joined = described.joined;
        manifest.imported = described.imported;
        manifest.notes = described.notes;
        (manifest.counters, manifest.tool) = (described.counters, described.tool);
    })?;
    writer.end_at(end.unwrap_or_else(|| RunStamp::of_utc(0)));
    let is_stopped = stop.load(Ordering::Relaxed) && goes_on;
    Ok(if is_stopped { writer.interrupt("the user ended the import")? } else { writer.finish()? })
}

struct Import {
    rows: Rows,
    answers: Option<Answers>,
    is_by_nic: bool,
    batch: Vec<Transaction>,
    /// The stamp of each point.
    stamps: Vec<Stamp>,
    found: LogProperties,
}

impl Import {
    /// Reads the next rows; returns whether there may be more.
    fn fill(&mut self) -> Result<bool, ImportError> {
        while self.batch.len() < BATCH {
            let Some(Row { line, transaction }) = self.rows.next()? else { return Ok(false) };
            if transaction.raw.mask() & (Stamp::T1Nic.bit() | Stamp::T1App.bit()) == 0 {
                return Err(wrong(&self.rows.path, format!("line {line}: it has neither T1_HW nor T1_SW")));
            }
            self.batch.push(transaction);
        }
        Ok(true)
    }

    /// Stores the rows of the batch; creates the run before the first one.
    fn write(&mut self, path: &Path, threshold: Ns, writer: &mut Option<Writer>) -> Result<(), ImportError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        if self.stamps.is_empty() {
            self.begin()?;
        }
        if let Some(answers) = &mut self.answers {
            self.batch.iter_mut().try_for_each(|t| answers.join(t))?;
        }
        let (mut t, mut first) = (vec![0; self.stamps.len()], Vec::new());
        for transaction in self.batch.drain(..) {
            let mut seen = 0;
            for (point, stamp) in self.stamps.iter().enumerate() {
                if let Some(time) = transaction.raw.get(*stamp) {
                    (seen, t[point]) = (seen | 1 << point, time);
                }
            }
            let number = transaction.sequence;
            let journey = Journey { key: number as u32, number, seen, t: &t, ..Journey::default() };
            self.found.number(number);
            self.found.journey(&journey);
            match writer.as_mut() {
                Some(writer) => writer.push(&journey)?,
                None => first.push((journey.key, number, seen, t.clone())),
            }
        }
        if writer.is_none() {
            // Create the run now, because its start is the earliest sighting of these rows.
            let mut created = Writer::create(path, self.manifest(threshold, 0))?;
            created.remove_unless_finished();
            for (key, number, seen, t) in first {
                created.push(&Journey { key, number, seen, t: &t, ..Journey::default() })?;
            }
            *writer = Some(created);
        }
        Ok(())
    }

    fn manifest(&self, threshold: Ns, bytes: u64) -> Manifest {
        let path = self.rows.path.display().to_string();
        let manifest = manifest((path, bytes), &self.stamps, &self.stamps, &self.found);
        Manifest { threshold_ns: threshold, journeys: 0, notes: self.notes(), ..manifest }
    }

    /// Determines from the first rows which stamps the log has, and whether it contains all transactions.
    fn begin(&mut self) -> Result<(), ImportError> {
        let mask = self.batch.iter().fold(0, |mask, t| mask | t.raw.mask());
        self.is_by_nic = mask & Stamp::T1Nic.bit() != 0;
        if !self.is_by_nic && self.answers.is_some() {
            let why =
                "the NIC stamped no packet (rant -R): nothing joins the reflector's rows to these; import this log \
                       alone";
            return Err(wrong(&self.rows.path, why));
        }
        self.refuse_late_ones_alone()?;
        let mask = mask | self.answers.as_ref().and_then(|a| a.next).map_or(0, |t| t.raw.mask());
        self.stamps = Stamp::ALL.into_iter().filter(|stamp| stamp.bit() & mask != 0).collect();
        Ok(())
    }

    /// Refuses a log with long pauses: rant sends the next probe immediately after an answer, so transactions must be
    /// missing.
    fn refuse_late_ones_alone(&self) -> Result<(), ImportError> {
        let is_by_app = self.batch.iter().all(|t| ends(t, false).is_some());
        let ends: Vec<_> = self.batch.iter().filter_map(|t| ends(t, !is_by_app)).collect();
        let median = |mut times: Vec<Ns>| {
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or(0)
        };
        let pause = median(ends.windows(2).map(|two| two[1].0.saturating_sub(two[0].1)).collect());
        let time = median(ends.iter().map(|(from, to)| to.saturating_sub(*from)).collect());
        if (ends.len() as u64) < MIN_ROWS || pause <= time.saturating_mul(LONGEST_PAUSE) {
            return Ok(());
        }
        let why = format!(
            "it holds some of the transactions alone: {pause} ns lie between two of its rows, which take {time} ns (rant -L logs those \
             over a limit). No figure of them is one of the test: run rant with --log and without -L"
        );
        Err(wrong(&self.rows.path, why))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.rows.notes();
        if !self.is_by_nic {
            notes.push("the NIC stamped no packet (rant -R)".into());
        }
        if let Some(answers) = &self.answers {
            notes.extend(answers.rows.notes());
            if answers.joined < answers.during {
                notes.push(format!("{} probes have no answer in the reflector's log", answers.during - answers.joined));
            }
        }
        notes.push(
            "times from one clock to another (application, NIC, the other machine) are as PTP kept these clocks: nothing in the files \
             shows how far they were apart"
                .into(),
        );
        notes
    }
}
