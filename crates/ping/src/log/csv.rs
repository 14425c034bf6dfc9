//! A log as CSV: one file, to which whole lines are added.

use super::{columns, LogError};
use crate::transaction::{Route, Transaction};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The file, and its text that is not in it yet.
pub(super) struct Csv {
    path: PathBuf,
    file: File,
    text: Vec<u8>,
    /// Bytes of whole lines in the file.
    pub bytes: u64,
}

impl Csv {
    pub fn create(path: &Path) -> Result<Self, LogError> {
        let file =
            OpenOptions::new().write(true).create_new(true).open(path).map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => LogError::Exists(path.into()),
                _ => LogError::File { path: path.into(), source },
            })?;
        Ok(Self { path: path.into(), file, text: Vec::new(), bytes: 0 })
    }

    pub fn begin(&mut self, route: &Route) -> Result<(), LogError> {
        self.text.extend((columns::names(route).join(",") + "\n").bytes());
        self.flush()
    }

    /// Adds rows; they are with the kernel when this returns, and so outlive a kill.
    pub fn write(&mut self, rows: &[Transaction], route: &Route) -> Result<(), LogError> {
        for row in rows {
            digits(&mut self.text, false, row.sequence);
            for value in columns::values(row, route) {
                self.text.push(b',');
                if let Some(value) = value {
                    digits(&mut self.text, value < 0, value.unsigned_abs());
                }
            }
            self.text.push(b'\n');
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), LogError> {
        let written = self.file.write_all(&self.text);
        if let Err(source) = written {
            // A line that was cut would look like a shorter row.
            let _ = self.file.set_len(self.bytes);
            return Err(LogError::File { path: self.path.clone(), source });
        }
        self.bytes += self.text.len() as u64;
        self.text.clear();
        Ok(())
    }

    /// Brings everything to the disk.
    pub fn sync(&self) -> Result<(), LogError> {
        match self.file.sync_data() {
            // A pipe, or a file system that knows no such thing.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            done => done.map_err(LogError::file(&self.path)),
        }
    }
}

/// Appends a whole number; a good part of the writer's time is spent here.
fn digits(text: &mut Vec<u8>, negative: bool, mut number: u64) {
    let mut buffer = [0; 20];
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    if negative {
        text.push(b'-');
    }
    text.extend_from_slice(&buffer[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_written_as_everyone_writes_them(number: i64) {
            let mut text = Vec::new();
            digits(&mut text, number < 0, number.unsigned_abs());
            prop_assert_eq!(String::from_utf8(text).unwrap(), number.to_string());
        }
    }
}
