//! `clocks.jsonl`: every clock's samples, appended a line each; a last line that a crash cut is passed over.

use crate::{ClockSample, RunError, CLOCKS};
use latpath_partstore::{new_file, open_file, StoreError};
use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

/// Longest line that is one.
const MAX_LINE: usize = 4096;
/// Most samples that are read: a sample a second of 4 clocks for 3 days. Further ones are passed over.
const MAX_SAMPLES: usize = 1 << 20;

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
            text.extend(serde_json::to_vec(sample).unwrap_or_default());
            text.push(b'\n');
        }
        Ok(self.file.write_all(&text).map_err(StoreError::write(&self.path))?)
    }
}

/// All whole lines of a run's samples; none if there is no file.
pub(crate) fn load(run: &Path) -> Result<Vec<ClockSample>, RunError> {
    let path = run.join(CLOCKS);
    let mut reader = match open_file(&path) {
        Ok(file) => BufReader::new(file),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(StoreError::read(path)(e).into()),
    };
    let (mut samples, mut line) = (Vec::new(), Vec::new());
    while samples.len() < MAX_SAMPLES {
        line.clear();
        let mut limited = std::io::Read::take(&mut reader, MAX_LINE as u64);
        if limited.read_until(b'\n', &mut line).map_err(StoreError::read(&path))? == 0 {
            break;
        }
        samples.extend(serde_json::from_slice::<ClockSample>(&line).ok());
    }
    Ok(samples)
}
