//! Reading one part: row group by row group, column by column, in bounded memory.

use crate::{sums, Column, Group, Kind, StoreError, Values};
use parquet::{
    column::reader::{get_typed_column_reader, ColumnReaderImpl},
    data_type::{BoolType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        reader::{FileReader, RowGroupReader, SerializedFileReader},
        statistics::Statistics,
    },
};
use std::{
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt,
    panic::{catch_unwind, AssertUnwindSafe},
    path::{Path, PathBuf},
};

/// Most rows of a row group that is read: files of other writers may have more than ours.
const MOST_ROWS: usize = 65_536;

/// One part, open for reading.
pub struct PartReader {
    path: PathBuf,
    pub(crate) file: SerializedFileReader<File>,
    /// The same file, for its sums.
    bytes: File,
}

impl PartReader {
    /// Opens a part.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::of(open_file(path).map_err(StoreError::read(path))?, path)
    }

    /// Of an open file, whose name for errors is `path`.
    pub(crate) fn of(file: File, path: &Path) -> Result<Self, StoreError> {
        let bytes = file.try_clone().map_err(StoreError::read(path))?;
        if !sums::is_footer_whole(&bytes).map_err(StoreError::read(path))? {
            return Err(wrong_sum(path));
        }
        let file = guarded(path, || SerializedFileReader::new(file))?;
        for group in file.metadata().row_groups() {
            if !(0..=MOST_ROWS as i64).contains(&group.num_rows()) {
                let why = format!("a row group of {} rows; latpath reads {MOST_ROWS} at most", group.num_rows());
                return Err(StoreError::Damaged { path: path.into(), why });
            }
        }
        Ok(Self { path: path.into(), file, bytes })
    }

    /// Row groups.
    pub fn groups(&self) -> usize {
        self.file.num_row_groups()
    }

    /// Rows.
    pub fn rows(&self) -> u64 {
        self.file.metadata().row_groups().iter().map(|g| g.num_rows().unsigned_abs()).sum()
    }

    /// Names of the columns, in order.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.file.metadata().file_metadata().schema_descr().columns().iter().map(|c| c.name())
    }

    /// The least and greatest value of a column in a row group, if its statistics say.
    pub fn bounds(&self, group: usize, column: &str) -> Option<(i64, i64)> {
        let chunks = self.file.metadata().row_group(group).columns();
        let chunk = chunks.iter().find(|c| c.column_descr().name() == column)?;
        match chunk.statistics()? {
            Statistics::Int64(s) => Some((*s.min_opt()?, *s.max_opt()?)),
            Statistics::Int32(s) => Some(((*s.min_opt()?).into(), (*s.max_opt()?).into())),
            _ => None,
        }
    }

    /// Appends a row group's columns of this table. A column that the file lacks is empty.
    pub fn read(&self, group: usize, table: &[Column], to: &mut Group) -> Result<(), StoreError> {
        self.check(group, table)?;
        guarded(&self.path, || to.read(self.file.get_row_group(group).map_err(|e| e.to_string())?.as_ref(), table))
    }

    /// Checks the bytes of a row group's columns that `table` names.
    pub(crate) fn check(&self, group: usize, table: &[Column]) -> Result<(), StoreError> {
        let is_whole =
            guarded(&self.path, || sums::are_columns_whole(&self.bytes, self.file.metadata(), group, table))?;
        if is_whole {
            Ok(())
        } else {
            Err(wrong_sum(&self.path))
        }
    }
}

fn wrong_sum(path: &Path) -> StoreError {
    StoreError::Damaged { path: path.into(), why: "its sum is wrong".into() }
}

/// Opens a file for reading, and nothing else that may have its name: a FIFO would keep its reader for ever.
///
/// # Errors
/// Where it cannot be opened, or is no file.
pub fn open_file(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
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

/// Appends a column's values, and a level for each row: 1 where it has a value.
pub(crate) fn read_column(group: &dyn RowGroupReader, index: usize, kind: Kind, to: &mut Values) -> Result<(), String> {
    let Values { i32, i64, bool, levels } = to;
    let done = match kind {
        Kind::U16 | Kind::U32 => read_as::<Int32Type>(group, index, i32, levels),
        Kind::U64 | Kind::I64 => read_as::<Int64Type>(group, index, i64, levels),
        Kind::Bool => read_as::<BoolType>(group, index, bool, levels),
    };
    done.map_err(|e| e.to_string())
}

fn read_as<T: DataType>(
    group: &dyn RowGroupReader,
    index: usize,
    values: &mut Vec<T::T>,
    levels: &mut Vec<i16>,
) -> Result<(), ParquetError> {
    let (n, before) = (rows(group), levels.len());
    let descriptor = group.metadata().column(index).column_descr();
    let (found, expected) = (descriptor.physical_type(), T::get_physical_type());
    if found != expected || descriptor.max_rep_level() != 0 || descriptor.max_def_level() > 1 {
        return Err(ParquetError::General(format!("column {:?} is {found}, not {expected}", descriptor.name())));
    }
    let nullable = descriptor.max_def_level() == 1;
    let mut reader: ColumnReaderImpl<T> = get_typed_column_reader(group.get_column_reader(index)?);
    let (rows, _, _) = reader.read_records(n, nullable.then_some(&mut *levels), None, values)?;
    if !nullable {
        levels.resize(before + rows, 1);
    }
    if rows != n {
        return Err(ParquetError::General(format!("column {index} ends after {rows} of {n} rows")));
    }
    Ok(())
}

/// Rows of a row group.
pub(crate) fn rows(group: &dyn RowGroupReader) -> usize {
    usize::try_from(group.metadata().num_rows()).unwrap_or(0)
}
