//! `clocks.jsonl`: every clock's samples, appended a line each, with a sum each; a last line that a crash cut is passed over.

use crate::{ClockSample, RunError, CLOCKS};
use latpath_partstore::{new_file, open_file, sum_of, StoreError};
use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

/// Longest line that is one.
const MAX_LINE: usize = 4096;

/// What stands before the sum of all that stands before it, at a line's end.
const SUM: &str = ",\"xxh64\":\"";

/// Appends samples.
pub(crate) struct Clocks {
    path: PathBuf,
    file: File,
}

impl Clocks {
    pub fn create(run: &Path) -> Result<Self, RunError> {
        let path = run.join(CLOCKS);
        let file = new_file(&path).map_err(StoreError::write(&path))?;
        Ok(Self { path, file })
    }

    pub fn append(&mut self, samples: &[ClockSample]) -> Result<(), RunError> {
        let mut text = Vec::new();
        for sample in samples {
            let mut line = serde_json::to_string(sample).unwrap_or_default();
            line.pop();
            let sum = sum_of(line.as_bytes());
            text.extend(format!("{line}{SUM}{sum}\"}}\n").bytes());
        }
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        Ok(written.map_err(StoreError::write(&self.path))?)
    }
}

/// The sample of a line. One of an earlier latpath has no sum, and is taken as it is.
fn sample(line: &[u8]) -> Option<ClockSample> {
    #[derive(serde::Deserialize)]
    struct Line {
        #[serde(flatten)]
        sample: ClockSample,
        xxh64: Option<String>,
    }
    let Line { sample, xxh64 } = serde_json::from_slice(line).ok()?;
    let place = line.windows(SUM.len()).rposition(|w| w == SUM.as_bytes());
    let is_whole = xxh64.is_none_or(|sum| place.is_some_and(|at| sum_of(&line[..at]) == sum));
    is_whole.then_some(sample)
}

/// Passes on all whole lines of a run's samples, none if there is no file; the number of those that are damaged.
pub(crate) fn for_each(run: &Path, mut visit: impl FnMut(ClockSample)) -> Result<u64, RunError> {
    let path = run.join(CLOCKS);
    let mut reader = match open_file(&path) {
        Ok(file) => BufReader::new(file),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(StoreError::read(path)(e).into()),
    };
    let (mut line, mut damaged) = (Vec::new(), 0);
    loop {
        line.clear();
        let mut limited = std::io::Read::take(&mut reader, MAX_LINE as u64);
        if limited.read_until(b'\n', &mut line).map_err(StoreError::read(&path))? == 0 {
            return Ok(damaged);
        }
        match sample(&line) {
            Some(sample) => visit(sample),
            // Otherwise it may be the one that a crash cut.
            None => damaged += u64::from(line.ends_with(b"\n")),
        }
    }
}
