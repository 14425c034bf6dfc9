//! `clocks.jsonl`: every clock's samples, appended a line each, with a sum each; a last line that a crash cut is passed over.

use crate::{seal::Seal, ClockSample, RunError, CLOCKS};
use latpath_partstore::{new_file, open_file, StoreError};
use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

/// Longest line that is one.
const MAX_LINE: usize = 4096;

/// Each line's sum.
const SEAL: Seal = Seal { before: ",\"xxh64\":\"", end: "}" };

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
            let mut line = serde_json::to_vec(sample).unwrap_or_default();
            SEAL.put(&mut line);
            text.extend(line);
        }
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        Ok(written.map_err(StoreError::write(&self.path))?)
    }
}

/// The sample of a line.
fn sample(line: &[u8]) -> Option<ClockSample> {
    #[derive(serde::Deserialize)]
    struct Line {
        #[serde(flatten)]
        sample: ClockSample,
        xxh64: Option<String>,
    }
    let Line { sample, xxh64 } = serde_json::from_slice(line).ok()?;
    SEAL.holds(line, xxh64.as_deref()).then_some(sample)
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
