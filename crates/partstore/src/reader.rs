//! Reading one part: row group by row group, column by column, in bounded memory.

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

/// Most rows of a row group that is read: files of other writers may have more than ours.
const MOST_ROWS: usize = 65_536;

/// One part, open for reading.
pub struct PartReader {
    path: PathBuf,
    file: File,
    metadata: ParquetMetaData,
}

impl PartReader {
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::of(open_file(path).map_err(StoreError::read(path))?, path)
    }

    /// Reads an open file, whose name for errors is `path`.
    pub(crate) fn of(file: File, path: &Path) -> Result<Self, StoreError> {
        if !sums::is_footer_whole(&file).map_err(StoreError::read(path))? {
            return Err(StoreError::Damaged { path: path.into(), why: sums::WRONG.into() });
        }
        let metadata = guarded(path, || ParquetMetaDataReader::new().parse_and_finish(&file))?;
        for group in metadata.row_groups() {
            if !(0..=MOST_ROWS as i64).contains(&group.num_rows()) {
                let why = format!("a row group of {} rows; latpath reads {MOST_ROWS} at most", group.num_rows());
                return Err(StoreError::Damaged { path: path.into(), why });
            }
        }
        Ok(Self { path: path.into(), file, metadata })
    }

    /// Its name, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }

    pub fn groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    pub fn rows(&self) -> u64 {
        self.metadata.row_groups().iter().map(|g| g.num_rows().unsigned_abs()).sum()
    }

    /// Names of the columns, in order.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.metadata.file_metadata().schema_descr().columns().iter().map(|c| c.name())
    }

    /// The least and greatest value of a column in a row group, if its statistics say.
    pub fn bounds(&self, group: usize, column: &str) -> Option<(i64, i64)> {
        let chunks = self.metadata.row_group(group).columns();
        let chunk = chunks.iter().find(|c| c.column_descr().name() == column)?;
        match chunk.statistics()? {
            Statistics::Int64(s) => Some((*s.min_opt()?, *s.max_opt()?)),
            Statistics::Int32(s) => Some(((*s.min_opt()?).into(), (*s.max_opt()?).into())),
            _ => None,
        }
    }

    /// Appends a row group's columns of this table, whose bytes are checked. A column that the file lacks is empty.
    pub fn read(&self, group: usize, table: &[Column], to: &mut Group) -> Result<(), StoreError> {
        guarded(&self.path, || to.read(&self.file, &self.metadata, group, table))
    }

    /// The bytes of a column of a row group, checked.
    pub(crate) fn chunk(&self, group: usize, column: usize) -> Result<Chunk, StoreError> {
        guarded(&self.path, || Chunk::read(&self.file, &self.metadata, group, column))
    }
}

/// Runs a piece of Parquet decoding. A hostile file may make it panic; that is an error of the file, no more.
fn guarded<T, E: ToString>(path: &Path, decode: impl FnOnce() -> Result<T, E>) -> Result<T, StoreError> {
    let damaged = |why: String| StoreError::Damaged { path: path.into(), why };
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(done) => done.map_err(|e| damaged(e.to_string())),
        Err(_) => Err(damaged("its content cannot be decoded".into())),
    }
}
