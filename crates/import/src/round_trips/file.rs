//! Reads the rows of a log of round trips, whether it is finished or consists of the parts left by a killed process.

use latpath_model::Ns;
use latpath_partstore::{open, open_file, Column, Directory, Encoding, Group, Kind, Names, PartFile, PartReader};
use latpath_run::{RunError, StoreError};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
};

pub(super) const SEQUENCE: &str = "sequence";
/// Columns that every log has.
const REQUIRED: [&str; 5] = [SEQUENCE, "t1_app_ns", "t1_nic_ns", "t4_nic_ns", "round_trip_ns"];
/// Maximum length of a CSV line, bytes; 40 columns of 20 digits need less.
const MAX_LINE: u64 = 4096;
/// Maximum number of columns; no log has that many.
const MAX_COLUMNS: usize = 64;
/// Maximum size of a share: bytes of CSV, and (`SHARE_GROUPS`) row groups of Parquet.
const SHARE_BYTES: usize = 32 << 20;
const SHARE_GROUPS: usize = 64;

/// A log file, which can be read repeatedly.
#[derive(Debug)]
pub(super) struct LogFile {
    pub path: PathBuf,
    files: Files,
    pub columns: Vec<String>,
}

#[derive(Debug)]
enum Files {
    Csv,
    Parquet,
    /// The parts that a killed process left.
    Parts(Vec<PartFile>),
}

/// A share of a log's rows, in the order of the log.
#[derive(Clone, Debug)]
pub(super) enum LogPart {
    /// Lines of CSV that begin in this range of bytes.
    Lines(Range<u64>),
    /// Row groups of a Parquet file: index of the file, and range of groups.
    Groups(usize, Range<usize>),
}

/// A row, as passed to a visitor.
pub(super) enum Row<'a> {
    /// The sequence number, and the values of the requested columns.
    Values(u64, &'a [Option<Ns>]),
    /// A line that is not a row.
    Unreadable,
    /// A last line without a line end, as left by a killed process.
    Cut,
}

impl LogFile {
    /// Opens a log.
    ///
    /// # Errors
    /// The file cannot be read, or is not a log of latpath ping.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let files = match extension {
            "csv" => Files::Csv,
            "parquet" if path.exists() => Files::Parquet,
            "parquet" => Files::Parts(parts(path)?),
            _ => return Err(wrong(path, "a log of latpath ping is FILE.csv or FILE.parquet, a run is a directory")),
        };
        let mut log = Self { path: path.into(), files, columns: Vec::new() };
        log.columns = match &log.files {
            Files::Csv => log.head()?.1,
            _ => log.reader(0)?.columns().map(str::to_owned).collect(),
        };
        let lacks = REQUIRED.into_iter().find(|name| log.columns.iter().all(|column| column != name));
        match (lacks, log.columns.len()) {
            (Some(lacking), _) => {
                Err(wrong(path, format!("it is not a log of latpath ping: it has no column {lacking}")))
            }
            (None, n) if n > MAX_COLUMNS => {
                Err(wrong(path, format!("it is not a log of latpath ping: it has {n} columns")))
            }
            _ => Ok(log),
        }
    }

    /// Size of all files, bytes.
    pub fn bytes(&self) -> u64 {
        match &self.files {
            Files::Parts(parts) => parts.iter().map(PartFile::bytes).sum(),
            _ => self.path.metadata().map_or(0, |m| m.len()),
        }
    }

    /// The shares of the rows, in order.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn shares(&self) -> Result<Vec<LogPart>, RunError> {
        let files = match &self.files {
            Files::Csv => {
                let (begin, end) = (self.head()?.2, self.bytes());
                let from = (begin..end).step_by(SHARE_BYTES);
                return Ok(from.map(|a| LogPart::Lines(a..end.min(a + SHARE_BYTES as u64))).collect());
            }
            Files::Parquet => 1,
            Files::Parts(parts) => parts.len(),
        };
        let mut shares = Vec::new();
        for file in 0..files {
            let groups = self.reader(file)?.groups();
            let from = (0..groups).step_by(SHARE_GROUPS);
            shares.extend(from.map(|a| LogPart::Groups(file, a..groups.min(a + SHARE_GROUPS))));
        }
        Ok(shares)
    }

    /// Passes all rows of a share, with the given columns, to `visit` until it returns false. If a row group is
    /// damaged, the others are read nevertheless.
    ///
    /// # Errors
    /// The file cannot be read, or a row group is damaged.
    pub fn rows(
        &self,
        share: &LogPart,
        columns: &[String],
        visit: &mut dyn FnMut(Row) -> bool,
    ) -> Result<(), RunError> {
        match share {
            LogPart::Lines(bytes) => self.lines(bytes, columns, visit),
            LogPart::Groups(file, groups) => self.groups(*file, groups.clone(), columns, visit),
        }
    }

    /// Opens the CSV file. Returns it positioned after the first line, the names in that line, and the line's length.
    fn head(&self) -> Result<(BufReader<File>, Vec<String>, u64), RunError> {
        let mut file = BufReader::new(open_file(&self.path).map_err(StoreError::read(&self.path))?);
        let mut head = Vec::new();
        line(&mut file, &mut head).map_err(StoreError::read(&self.path))?;
        let names = String::from_utf8_lossy(&head).trim_end().split(',').map(str::to_owned).collect();
        Ok((file, names, head.len() as u64))
    }

    fn lines(
        &self,
        bytes: &Range<u64>,
        columns: &[String],
        visit: &mut dyn FnMut(Row) -> bool,
    ) -> Result<(), RunError> {
        let broken = || StoreError::read(&self.path);
        let (mut file, head, begin) = self.head()?;
        let places: Vec<Option<usize>> = columns.iter().map(|name| head.iter().position(|h| h == name)).collect();
        let sequence_at = head.iter().position(|h| h == SEQUENCE).unwrap_or(0);
        let (mut text, mut values) = (Vec::new(), Vec::new());
        let mut at = bytes.start;
        if at > begin {
            // A line that begins before the range belongs to the previous share.
            file.seek(SeekFrom::Start(at - 1)).map_err(broken())?;
            at -= 1;
            while line(&mut file, &mut text).map_err(broken())? > 0 {
                at += text.len() as u64;
                if text.ends_with(b"\n") {
                    break;
                }
            }
        }
        while at < bytes.end && line(&mut file, &mut text).map_err(broken())? > 0 {
            at += text.len() as u64;
            let whole = std::str::from_utf8(&text).ok().and_then(|text| text.strip_suffix('\n'));
            let cells: Vec<&str> = whole.unwrap_or_default().split(',').take(MAX_COLUMNS + 1).collect();
            let sequence = cells.get(sequence_at).and_then(|cell| cell.parse::<u64>().ok());
            let row = match sequence.filter(|_| cells.len() == head.len()) {
                Some(sequence) => {
                    values.clear();
                    values.extend(places.iter().map(|at| cells[(*at)?].parse::<Ns>().ok()));
                    Row::Values(sequence, &values)
                }
                None if !text.ends_with(b"\n") && (text.len() as u64) < MAX_LINE => Row::Cut,
                None => Row::Unreadable,
            };
            if !visit(row) {
                break;
            }
        }
        Ok(())
    }

    fn reader(&self, file: usize) -> Result<PartReader, RunError> {
        Ok(match &self.files {
            Files::Parts(parts) => parts[file].open()?,
            _ => PartReader::open(&self.path)?,
        })
    }

    fn groups(
        &self,
        file: usize,
        groups: Range<usize>,
        columns: &[String],
        visit: &mut dyn FnMut(Row) -> bool,
    ) -> Result<(), RunError> {
        let mut table = vec![Column::required(SEQUENCE, Kind::U64, Encoding::Counter)];
        table.extend(columns.iter().map(|name| Column::optional(name, Kind::I64, Encoding::Noise)));
        let (part, mut group, mut error) = (self.reader(file)?, Group::default(), None);
        let mut values = vec![None; columns.len()];
        for number in groups {
            group.clear();
            if let Err(e) = part.read(number, &table, &mut group) {
                error = error.or(Some(e));
                continue;
            }
            let (sequences, rest) = group.columns.split_at(1);
            let mut next: Vec<_> = rest.iter().map(|column| column.i64.iter().copied()).collect();
            for (at, sequence) in sequences[0].i64.iter().enumerate() {
                for ((value, column), next) in values.iter_mut().zip(rest).zip(&mut next) {
                    *value = if column.levels.get(at) == Some(&1) { next.next() } else { None };
                }
                if !visit(Row::Values(*sequence as u64, &values)) {
                    return Ok(());
                }
            }
        }
        error.map_or(Ok(()), |e| Err(e.into()))
    }
}

/// Reads a line, up to the maximum length of a line.
fn line(file: &mut BufReader<File>, text: &mut Vec<u8>) -> io::Result<usize> {
    text.clear();
    Read::take(file, MAX_LINE).read_until(b'\n', text)
}

/// The parts that a killed process left of this log.
fn parts(path: &Path) -> Result<Vec<PartFile>, RunError> {
    let mut prefix = path.file_stem().unwrap_or_default().to_owned();
    prefix.push(".part-");
    let (directory, _) = Directory::of_file(path).map_err(StoreError::read(path))?;
    let parts = open(&Names { directory, prefix }, false)?;
    match parts.is_empty() {
        true => Err(wrong(path, "no such file, and no parts that a killed log left")),
        false => Ok(parts),
    }
}

/// An error that contains the log's path.
pub(super) fn wrong(path: &Path, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> RunError {
    StoreError::Read { path: path.into(), source: io::Error::other(why) }.into()
}
