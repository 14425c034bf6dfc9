//! Reading one part: row group by row group, only the columns that are needed, in bounded memory.

use crate::{
    columns::Column,
    rows::{Rows, MOST_ROWS},
    RunError, Select,
};
use latpath_journey::journey::MAX_POINTS;
use latpath_model::Ns;
use parquet::{
    basic::Type,
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
    panic::{catch_unwind, AssertUnwindSafe},
    path::{Path, PathBuf},
};

/// One part, open for reading.
pub(crate) struct PartReader {
    path: PathBuf,
    file: SerializedFileReader<File>,
    scratch: Scratch,
}

/// Buffers that are used again for each column.
#[derive(Default)]
struct Scratch {
    i32: Vec<i32>,
    i64: Vec<i64>,
    bool: Vec<bool>,
    levels: Vec<i16>,
    first: Vec<Ns>,
}

impl PartReader {
    pub fn open(path: &Path) -> Result<Self, RunError> {
        Self::of(File::open(path).map_err(RunError::read(path))?, path)
    }

    /// Of an open file, whose name for errors is `path`.
    pub fn of(file: File, path: &Path) -> Result<Self, RunError> {
        let file = guarded(path, || SerializedFileReader::new(file))?;
        for group in file.metadata().row_groups() {
            if !(0..=MOST_ROWS as i64).contains(&group.num_rows()) {
                let why = format!("a row group of {} rows; latpath reads {MOST_ROWS} at most", group.num_rows());
                return Err(RunError::Damaged { path: path.into(), why });
            }
        }
        Ok(Self { path: path.into(), file, scratch: Scratch::default() })
    }

    /// Row groups.
    pub fn groups(&self) -> usize {
        self.file.num_row_groups()
    }

    /// Journeys.
    pub fn rows(&self) -> u64 {
        self.file.metadata().row_groups().iter().map(|g| g.num_rows().unsigned_abs()).sum()
    }

    /// The points that have columns, in their order.
    pub fn points(&self) -> Vec<String> {
        let columns = self.file.metadata().file_metadata().schema_descr().columns();
        let points = columns.iter().filter_map(|c| match Column::parse(c.name()) {
            Column::Offset(point) => Some(point.to_owned()),
            _ => None,
        });
        points.collect()
    }

    /// First and last time and stream of a row group, as far as its statistics tell.
    fn bounds(&self, group: usize, column: Column) -> Option<(i64, i64)> {
        let chunks = self.file.metadata().row_group(group).columns();
        let chunk = chunks.iter().find(|c| Column::parse(c.column_descr().name()) == column)?;
        match chunk.statistics()? {
            Statistics::Int64(s) => Some((*s.min_opt()?, *s.max_opt()?)),
            Statistics::Int32(s) => Some(((*s.min_opt()?).into(), (*s.max_opt()?).into())),
            _ => None,
        }
    }

    /// First and last time of the part, as far as its statistics tell.
    pub fn times(&self) -> Option<(Ns, Ns)> {
        let times = (0..self.groups()).map(|group| self.bounds(group, Column::Time));
        times.reduce(|a, b| Some((a?.0.min(b?.0), a?.1.max(b?.1)))).flatten()
    }

    /// Whether a row group may hold a wanted journey.
    pub fn may_hold(&self, group: usize, select: &Select) -> bool {
        if select.wants_all() {
            return true;
        }
        let in_time = |(first, last)| select.may_want(first, last);
        let in_streams = |(min, max)| {
            select.streams.as_ref().is_none_or(|s| s.iter().any(|id| (min..=max).contains(&i64::from(*id))))
        };
        self.bounds(group, Column::Time).is_none_or(in_time)
            && self.bounds(group, Column::Stream).is_none_or(in_streams)
    }

    /// Reads one row group into `rows`, whose points will be `points` (names in the order of their ids).
    pub fn read(&mut self, group: usize, points: &[String], details: bool, rows: &mut Rows) -> Result<(), RunError> {
        let Self { path, file, scratch } = self;
        guarded(path, || {
            let group = file.get_row_group(group)?;
            read_group(group.as_ref(), points, details, rows, scratch)
        })
    }
}

/// Runs a piece of Parquet decoding. A hostile file may make it panic; that is an error of the file, no more.
fn guarded<T>(path: &Path, decode: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, RunError> {
    let damaged = |why: String| RunError::Damaged { path: path.into(), why };
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(done) => done.map_err(|e| damaged(e.to_string())),
        Err(_) => Err(damaged("its content cannot be decoded".into())),
    }
}

fn read_group(
    group: &dyn RowGroupReader,
    points: &[String],
    details: bool,
    rows: &mut Rows,
    s: &mut Scratch,
) -> Result<(), ParquetError> {
    let n = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
    let stride = points.len().min(MAX_POINTS);
    rows.clear(stride);
    rows.seen.resize(n, 0);
    rows.t.iter_mut().for_each(|column| column.resize(n, 0));
    rows.drop_note.resize(n, 0);
    rows.duplicates.resize(n, 0);
    rows.out_of_order.resize(n, false);
    if details {
        rows.cpu.iter_mut().for_each(|column| column.resize(n, 0));
        rows.tid.iter_mut().for_each(|column| column.resize(n, 0));
    }
    let descriptors = group.metadata().schema_descr().columns();
    let find = |name: &str| descriptors.iter().position(|c| c.name() == name);
    let id = |name: &str| points[..stride].iter().position(|p| p == name);
    let required = |name: &str| find(name).ok_or_else(|| ParquetError::General(format!("it has no column {name:?}")));

    read::<Int32Type>(group, required(crate::columns::STREAM)?, n, &mut s.i32, &mut s.levels)?;
    rows.stream.extend(s.i32.iter().map(|v| *v as u16));
    read::<Int32Type>(group, required(crate::columns::KEY)?, n, &mut s.i32, &mut s.levels)?;
    rows.key.extend(s.i32.iter().map(|v| *v as u32));
    read::<Int64Type>(group, required(crate::columns::NUMBER)?, n, &mut s.i64, &mut s.levels)?;
    rows.number.extend(s.i64.iter().map(|v| *v as u64));
    read::<Int64Type>(group, required(crate::columns::TIME)?, n, &mut s.first, &mut s.levels)?;
    if [rows.stream.len(), rows.key.len(), rows.number.len(), s.first.len()] != [n; 4] {
        return Err(ParquetError::General("a column that every journey has holds nulls".into()));
    }

    for (index, descriptor) in descriptors.iter().enumerate() {
        match Column::parse(descriptor.name()) {
            Column::Stream | Column::Key | Column::Number | Column::Time => {}
            Column::Offset(point) => {
                let Some(p) = id(point) else { continue };
                read::<Int64Type>(group, index, n, &mut s.i64, &mut s.levels)?;
                let bit = 1 << p;
                let first = &s.first;
                let (times, seen) = (&mut rows.t[p], &mut rows.seen);
                scatter(&s.i64, &s.levels, |row, offset| {
                    times[row] = first[row].wrapping_add(offset);
                    seen[row] |= bit;
                });
            }
            Column::Cpu(point) => {
                let Some(p) = id(point).filter(|_| details) else { continue };
                read::<Int32Type>(group, index, n, &mut s.i32, &mut s.levels)?;
                let cpus = &mut rows.cpu[p];
                scatter(&s.i32, &s.levels, |row, cpu| cpus[row] = cpu as u16);
            }
            Column::Tid(point) => {
                let Some(p) = id(point).filter(|_| details) else { continue };
                read::<Int32Type>(group, index, n, &mut s.i32, &mut s.levels)?;
                let tids = &mut rows.tid[p];
                scatter(&s.i32, &s.levels, |row, tid| tids[row] = tid as u32);
            }
            Column::Duplicates => {
                read::<Int32Type>(group, index, n, &mut s.i32, &mut s.levels)?;
                scatter(&s.i32, &s.levels, |row, count| rows.duplicates[row] = count as u32);
            }
            Column::OutOfOrder => {
                read::<BoolType>(group, index, n, &mut s.bool, &mut s.levels)?;
                scatter(&s.bool, &s.levels, |row, flag| rows.out_of_order[row] = flag);
            }
            Column::DropNote => {
                read::<Int32Type>(group, index, n, &mut s.i32, &mut s.levels)?;
                scatter(&s.i32, &s.levels, |row, note| rows.drop_note[row] = (note as u16).saturating_add(1));
            }
        }
    }
    Ok(())
}

/// Calls with each row that has a value, and the value.
fn scatter<T: Copy>(values: &[T], levels: &[i16], mut put: impl FnMut(usize, T)) {
    if values.len() == levels.len() {
        for (row, value) in values.iter().enumerate() {
            put(row, *value);
        }
        return;
    }
    let with_value = levels.iter().enumerate().filter(|(_, level)| **level > 0);
    for ((row, _), value) in with_value.zip(values) {
        put(row, *value);
    }
}

/// Reads one column's values, without the nulls, and a level for each row: 1 where it has a value.
fn read<T: DataType>(
    group: &dyn RowGroupReader,
    index: usize,
    n: usize,
    values: &mut Vec<T::T>,
    levels: &mut Vec<i16>,
) -> Result<(), ParquetError> {
    values.clear();
    levels.clear();
    let descriptor = group.metadata().column(index).column_descr();
    let expected = T::get_physical_type();
    if descriptor.physical_type() != expected || descriptor.max_rep_level() != 0 || descriptor.max_def_level() > 1 {
        let found: Type = descriptor.physical_type();
        return Err(ParquetError::General(format!("column {:?} is {found}, not {expected}", descriptor.name())));
    }
    let nullable = descriptor.max_def_level() == 1;
    let mut reader: ColumnReaderImpl<T> = get_typed_column_reader(group.get_column_reader(index)?);
    let (rows, _, _) = reader.read_records(n, nullable.then_some(&mut *levels), None, values)?;
    if !nullable {
        levels.resize(rows, 1);
    }
    if rows != n {
        return Err(ParquetError::General(format!("column {index} ends after {rows} of {n} rows")));
    }
    Ok(())
}
