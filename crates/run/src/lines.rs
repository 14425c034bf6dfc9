//! Files of JSON lines: each line is appended as a whole, with its own checksum; a last line that a crash truncated is
//! skipped.

use crate::{seal::Seal, RunError};
use latpath_partstore::{open_file, StoreError};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::{
    io::{BufRead, BufReader, ErrorKind, Read},
    path::Path,
};

/// Maximum length of a line, bytes.
const MAX_LINE: usize = 4096;
/// Checksum of each line.
const SEAL: Seal = Seal { before: ",\"xxh64\":\"", end: "}" };

/// Encodes values as lines.
pub(crate) fn of(values: &[impl Serialize]) -> Vec<u8> {
    let line = |value| {
        let mut line = serde_json::to_vec(value).unwrap_or_default();
        SEAL.put(&mut line);
        line
    };
    values.iter().flat_map(line).collect()
}

fn value<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    #[derive(Deserialize)]
    struct Line<T> {
        #[serde(flatten)]
        value: T,
        xxh64: Option<String>,
    }
    let Line { value, xxh64 } = serde_json::from_slice(line).ok()?;
    SEAL.holds(line, xxh64.as_deref()).then_some(value)
}

/// Passes the values of all complete lines of a file to `visit`; a missing file has none. Returns the number of damaged
/// lines, including those for whose value `visit` returns false.
pub(crate) fn for_each<T: DeserializeOwned>(path: &Path, mut visit: impl FnMut(T) -> bool) -> Result<u64, RunError> {
    let mut reader = match open_file(path) {
        Ok(file) => BufReader::new(file),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(StoreError::read(path)(e).into()),
    };
    let (mut line, mut damaged) = (Vec::new(), 0);
    loop {
        line.clear();
        let mut limited = Read::take(&mut reader, MAX_LINE as u64);
        if limited.read_until(b'\n', &mut line).map_err(StoreError::read(path))? == 0 {
            return Ok(damaged);
        }
        match value(&line) {
            Some(value) => damaged += u64::from(!visit(value)),
            // A damaged last line without a line end may be the result of a crash, so it is not counted.
            None => damaged += u64::from(line.ends_with(b"\n")),
        }
    }
}
