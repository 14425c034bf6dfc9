//! Reading one part: row group by row group, column by column, in bounded memory.

use crate::{sums, Column, Group, Kind, StoreError, Values};
use bytes::Bytes;
use latpath_linux::open_file;
use parquet::{
    column::reader::{get_typed_column_reader, ColumnReaderImpl},
    data_type::{BoolType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        reader::{ChunkReader, FileReader, Length, RowGroupReader, SerializedFileReader},
        statistics::Statistics,
    },
};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    panic::{catch_unwind, AssertUnwindSafe},
    path::{Path, PathBuf},
};

/// Most rows of a row group that is read: files of other writers may have more than ours.
const MOST_ROWS: usize = 65_536;

/// The longest page that is read: the longest of a row group of [`MOST_ROWS`] takes a tenth of it.
const MOST_PAGE: u64 = 16 << 20;

/// A part's file. Parquet's reader takes memory for what a page's header claims: it sees none that claims too much.
pub(crate) struct Pages(File);

impl Length for Pages {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for Pages {
    type T = PageHeader;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        // Beside pages it is the file's last bytes that are read so.
        let is_tail = start.checked_add(sums::TAIL) == Some(self.len());
        Ok(PageHeader { bytes: self.0.get_read(start)?, is_checked: is_tail })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        match start.checked_add(length as u64).is_some_and(|end| end <= self.len()) {
            true => self.0.get_bytes(start, length),
            false => Err(ParquetError::EOF(format!("{length} bytes at {start} are not in the file"))),
        }
    }
}

/// A page's header, as Parquet's reader reads it: all else it gets as bytes.
pub(crate) struct PageHeader {
    bytes: BufReader<File>,
    is_checked: bool,
}

impl Read for PageHeader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if !self.is_checked {
            self.is_checked = true;
            let claimed = claimed_size(self.bytes.fill_buf()?);
            if claimed.is_none_or(|size| size > MOST_PAGE) {
                let why = format!("a page of more than {MOST_PAGE} bytes, or without a size");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        self.bytes.read(to)
    }
}

/// The size of a page when it is unpacked, by its header: the second field in Thrift's compact protocol, behind the page's type. Each
/// is a byte for the field, and a zigzag varint.
fn claimed_size(header: &[u8]) -> Option<u64> {
    const NEXT_I32: u8 = 0x15;
    let kind = header.strip_prefix(&[NEXT_I32])?;
    let digits = kind.get(1..)?.strip_prefix(&[NEXT_I32])?;
    let last = digits.iter().take(5).position(|byte| *byte < 0x80)?;
    let zigzag = digits[..=last].iter().rev().fold(0, |all: u64, byte| all << 7 | u64::from(byte & 0x7f));
    Some(zigzag >> 1)
}

/// One part, open for reading.
pub struct PartReader {
    path: PathBuf,
    pub(crate) file: SerializedFileReader<Pages>,
    /// The same file, for its sums.
    bytes: File,
}

impl PartReader {
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::of(open_file(path).map_err(StoreError::read(path))?, path)
    }

    /// Reads an open file, whose name for errors is `path`.
    pub(crate) fn of(file: File, path: &Path) -> Result<Self, StoreError> {
        let bytes = file.try_clone().map_err(StoreError::read(path))?;
        if !sums::is_footer_whole(&bytes).map_err(StoreError::read(path))? {
            return Err(wrong_sum(path));
        }
        let file = guarded(path, || SerializedFileReader::new(Pages(file)))?;
        for group in file.metadata().row_groups() {
            if !(0..=MOST_ROWS as i64).contains(&group.num_rows()) {
                let why = format!("a row group of {} rows; latpath reads {MOST_ROWS} at most", group.num_rows());
                return Err(StoreError::Damaged { path: path.into(), why });
            }
        }
        Ok(Self { path: path.into(), file, bytes })
    }

    /// Its name, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file itself.
    pub(crate) fn bytes(&self) -> &File {
        &self.bytes
    }

    pub fn groups(&self) -> usize {
        self.file.num_row_groups()
    }

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

pub(crate) fn rows(group: &dyn RowGroupReader) -> usize {
    usize::try_from(group.metadata().num_rows()).unwrap_or(0)
}
