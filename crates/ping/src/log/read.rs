//! Reads a log: a finished one, or the parts of a killed one.

use super::LogError;
use latpath_model::Ns;
use latpath_partstore::{open, open_file, Column, Directory, Encoding, Group, Kind, Names, PartReader};
use std::{
    fs,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

pub(super) const SEQUENCE: &str = "sequence";
pub(super) const SENT: &str = "t1_app_ns";
pub(super) const NIC_SENT: &str = "t1_nic_ns";
pub(super) const NIC_RECEIVED: &str = "t4_nic_ns";
pub(super) const ROUND_TRIP: &str = "round_trip_ns";
/// Maximum length of a CSV line, bytes; 40 columns of 20 digits need less.
const MOST_LINE: u64 = 4096;
/// Maximum number of columns, above that of any log.
const MOST_COLUMNS: usize = 64;

/// A log file, which can be read repeatedly.
pub(super) struct LogFile {
    path: PathBuf,
    is_csv: bool,
    pub columns: Vec<String>,
}

impl LogFile {
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let is_csv = path.extension().is_some_and(|e| e == "csv");
        if !is_csv && path.extension().is_none_or(|e| e != "parquet") {
            return Err(LogError::Format(path.into()));
        }
        let mut log = Self { path: path.into(), is_csv, columns: Vec::new() };
        log.columns = match is_csv {
            true => log.lines()?.1,
            false => log.parts()?.first().map_or(Vec::new(), |part| part.columns().map(str::to_owned).collect()),
        };
        if let Some(lacking) =
            [SEQUENCE, SENT, NIC_SENT, NIC_RECEIVED, ROUND_TRIP].into_iter().find(|name| !log.has(name))
        {
            return Err(log.wrong(format!("it is not a log of latpath ping: it has no column {lacking}")));
        }
        if log.columns.len() > MOST_COLUMNS {
            return Err(log.wrong(format!("it is not a log of latpath ping: it has {} columns", log.columns.len())));
        }
        Ok(log)
    }

    /// Passes on the given columns of all rows, after `sequence`; returns the number of unreadable rows.
    ///
    /// # Errors
    /// If the file cannot be read, or lacks one of the columns.
    pub fn rows(&self, columns: &[&str], row: impl FnMut(u64, &[Option<Ns>])) -> Result<u64, LogError> {
        match self.is_csv {
            true => self.rows_of_csv(columns, row),
            false => self.rows_of_parts(columns, row),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column == name)
    }

    /// An error that names this file.
    pub fn wrong(&self, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LogError {
        LogError::File { path: self.path.clone(), source: io::Error::other(why) }
    }

    fn lines(&self) -> Result<(BufReader<fs::File>, Vec<String>), LogError> {
        let mut file = BufReader::new(open_file(&self.path).map_err(LogError::file(&self.path))?);
        let mut head = Vec::new();
        io::Read::take(&mut file, MOST_LINE).read_until(b'\n', &mut head).map_err(LogError::file(&self.path))?;
        let head = String::from_utf8_lossy(&head).trim_end().split(',').map(str::to_owned).collect();
        Ok((file, head))
    }

    fn rows_of_csv(&self, columns: &[&str], mut row: impl FnMut(u64, &[Option<Ns>])) -> Result<u64, LogError> {
        let (mut file, head) = self.lines()?;
        let places: Vec<Option<usize>> = columns.iter().map(|name| head.iter().position(|h| h == name)).collect();
        let sequence_at = head.iter().position(|h| h == SEQUENCE).unwrap_or(0);
        let (mut line, mut values, mut unread) = (Vec::new(), Vec::new(), 0);
        loop {
            line.clear();
            let read = io::Read::take(&mut file, MOST_LINE).read_until(b'\n', &mut line);
            if read.map_err(LogError::file(&self.path))? == 0 {
                return Ok(unread);
            }
            let text = std::str::from_utf8(&line).ok().and_then(|text| text.strip_suffix('\n'));
            let cells: Vec<&str> = text.unwrap_or_default().split(',').take(MOST_COLUMNS + 1).collect();
            let sequence = cells.get(sequence_at).and_then(|cell| cell.parse::<u64>().ok());
            // A kill may have truncated the last line.
            let Some(sequence) = sequence.filter(|_| cells.len() == head.len()) else {
                unread += 1;
                continue;
            };
            values.clear();
            values.extend(places.iter().map(|at| cells[(*at)?].parse::<Ns>().ok()));
            row(sequence, &values);
        }
    }

    /// Opens the finished file, or the parts of a killed log.
    fn parts(&self) -> Result<Vec<PartReader>, LogError> {
        if self.path.exists() {
            return Ok(vec![PartReader::open(&self.path)?]);
        }
        let mut prefix = self.path.file_stem().unwrap_or_default().to_owned();
        prefix.push(".part-");
        let (directory, _) = Directory::of_file(&self.path).map_err(LogError::file(&self.path))?;
        let parts = open(&Names { directory, prefix }, false)?;
        if parts.is_empty() {
            return Err(self.wrong("no such file, and no parts that a killed log left"));
        }
        parts.iter().map(|part| Ok(part.open()?)).collect()
    }

    fn rows_of_parts(&self, columns: &[&str], mut row: impl FnMut(u64, &[Option<Ns>])) -> Result<u64, LogError> {
        let mut table = vec![Column::required(SEQUENCE, Kind::U64, Encoding::Counter)];
        table.extend(columns.iter().map(|name| Column::optional(*name, Kind::I64, Encoding::Noise)));
        let (mut group, mut unread) = (Group::default(), 0);
        for part in self.parts()? {
            for number in 0..part.groups() {
                group.clear();
                if part.read(number, &table, &mut group).is_err() {
                    unread += part.rows() / part.groups() as u64;
                    continue;
                }
                let (sequences, rest) = group.columns.split_at(1);
                let mut next: Vec<_> = rest.iter().map(|column| column.i64.iter().copied()).collect();
                let mut values = vec![None; rest.len()];
                for (at, sequence) in sequences[0].i64.iter().enumerate() {
                    for ((value, column), next) in values.iter_mut().zip(rest).zip(&mut next) {
                        *value = if column.levels.get(at) == Some(&1) { next.next() } else { None };
                    }
                    row(*sequence as u64, &values);
                }
            }
        }
        Ok(unread)
    }
}
