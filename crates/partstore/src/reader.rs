//! Reads a part: row group by row group, column by column, in bounded memory.

use crate::{chunk::Chunk, sums, Column, Group, StoreError};
use latpath_linux::open_file;
use parquet::file::{
    metadata::{ParquetMetaData, ParquetMetaDataReader},
    statistics::Statistics,
};
use std::{
    fs::File,
    panic::{catch_unwind, AssertUnwindSafe},
    path::{Path, PathBuf},
};

/// Maximum number of rows in a row group; files from other writers may have larger groups than latpath's.
const MAX_ROWS: usize = 65_536;

/// A part that is open for reading.
pub struct PartReader {
    path: PathBuf,
    file: File,
    metadata: ParquetMetaData,
}

impl PartReader {
    /// Opens a part.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a valid part.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::of(open_file(path).map_err(StoreError::read(path))?, path)
    }

    /// Reads an open file; `path` names it in errors.
    pub(crate) fn of(file: File, path: &Path) -> Result<Self, StoreError> {
        if !sums::is_footer_whole(&file).map_err(StoreError::read(path))? {
            return Err(StoreError::Damaged { path: path.into(), why: sums::WRONG.into() });
        }
        let metadata = guarded(path, || ParquetMetaDataReader::new().parse_and_finish(&file))?;
        for group in metadata.row_groups() {
            if !(0..=MAX_ROWS as i64).contains(&group.num_rows()) {
                let why = format!("a row group has {} rows; latpath reads at most {MAX_ROWS}", group.num_rows());
                return Err(StoreError::Damaged { path: path.into(), why });
            }
        }
        Ok(Self { path: path.into(), file, metadata })
    }

    /// Path of the part, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }

    /// Number of row groups.
    pub fn groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.metadata.row_groups().iter().map(|g| g.num_rows().unsigned_abs()).sum()
    }

    /// Names of the columns, in order.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.metadata.file_metadata().schema_descr().columns().iter().map(|c| c.name())
    }

    /// Minimum and maximum value of a column in a row group, from its statistics.
    pub fn bounds(&self, group: usize, column: &str) -> Option<(i64, i64)> {
        let chunks = self.metadata.row_group(group).columns();
        let chunk = chunks.iter().find(|c| c.column_descr().name() == column)?;
        match chunk.statistics()? {
            Statistics::Int64(s) => Some((*s.min_opt()?, *s.max_opt()?)),
            Statistics::Int32(s) => Some(((*s.min_opt()?).into(), (*s.max_opt()?).into())),
            _ => None,
        }
    }

    /// Appends the columns in `table` of a row group to `to` and verifies their checksums. Columns that the file lacks
    /// have no values.
    ///
    /// # Errors
    /// If the file cannot be read, or is damaged.
    pub fn read(&self, group: usize, table: &[Column], to: &mut Group) -> Result<(), StoreError> {
        guarded(&self.path, || to.read(&self.file, &self.metadata, group, table))
    }

    /// The verified bytes of a column in a row group.
    pub(crate) fn chunk(&self, group: usize, column: usize) -> Result<Chunk, StoreError> {
        guarded(&self.path, || Chunk::read(&self.file, &self.metadata, group, column))
    }
}

/// Runs `decode` and converts a panic in the Parquet decoder, which a hostile file may cause, into an error for this
/// file.
fn guarded<T, E: ToString>(path: &Path, decode: impl FnOnce() -> Result<T, E>) -> Result<T, StoreError> {
    let damaged = |why: String| StoreError::Damaged { path: path.into(), why };
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(done) => done.map_err(|e| damaged(e.to_string())),
        Err(_) => Err(damaged("its content cannot be decoded".into())),
    }
}
