//! Writing one part.

use crate::{columns, names::Span, rows::Rows, RunError};
use latpath_model::Point;
use parquet::{
    data_type::{BoolType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::writer::{SerializedFileWriter, SerializedRowGroupWriter},
};
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The file below the Parquet writer: keeps the system's own error, of which Parquet keeps only the text.
struct Sink {
    file: File,
    error: Arc<std::sync::Mutex<Option<io::Error>>>,
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).inspect_err(|e| {
            let copy = e.raw_os_error().map_or_else(|| io::Error::from(e.kind()), io::Error::from_raw_os_error);
            *self.error.lock().unwrap_or_else(|p| p.into_inner()) = Some(copy);
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A part that is being written, under its temporary name. Dropped before [`Part::publish`] it is removed.
pub(crate) struct Part {
    directory: PathBuf,
    span: Span,
    writer: Option<SerializedFileWriter<Sink>>,
    error: Arc<std::sync::Mutex<Option<io::Error>>>,
    scratch: Scratch,
    rows: u64,
    published: bool,
}

/// Buffers that are used again for each column.
#[derive(Default)]
struct Scratch {
    i32: Vec<i32>,
    i64: Vec<i64>,
    levels: Vec<i16>,
    first: Vec<i64>,
}

impl Part {
    pub fn create(directory: &Path, span: Span, points: &[Point]) -> Result<Self, RunError> {
        let temporary = directory.join(span.temporary_name());
        let file = File::create(&temporary).map_err(RunError::write(&temporary))?;
        let error = Arc::default();
        let sink = Sink { file, error: Arc::clone(&error) };
        let mut part = Self {
            directory: directory.into(),
            span,
            writer: None,
            error,
            scratch: Scratch::default(),
            rows: 0,
            published: false,
        };
        let made = columns::schema(points)
            .and_then(|schema| SerializedFileWriter::new(sink, schema, columns::properties(points)));
        part.writer = Some(part.check(made)?);
        Ok(part)
    }

    /// Journeys written so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds one row group.
    pub fn write(&mut self, rows: &Rows) -> Result<(), RunError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.rows += rows.len() as u64;
        let mut scratch = std::mem::take(&mut self.scratch);
        let done = match &mut self.writer {
            Some(writer) => write_group(writer, rows, &mut scratch),
            None => Err(ParquetError::General("the part is closed".into())),
        };
        self.scratch = scratch;
        self.check(done)
    }

    /// Closes the part and gives it its name, once it is on the disk.
    pub fn publish(mut self) -> Result<PathBuf, RunError> {
        let temporary = self.directory.join(self.span.temporary_name());
        let path = self.directory.join(self.span.file_name());
        if let Some(writer) = self.writer.take() {
            let inner = writer.into_inner();
            let sink = self.check(inner)?;
            sink.file.sync_all().map_err(RunError::write(&path))?;
        }
        std::fs::rename(&temporary, &path).map_err(RunError::write(&path))?;
        self.published = true;
        sync_directory(&self.directory)?;
        Ok(path)
    }

    fn check<T>(&self, result: Result<T, ParquetError>) -> Result<T, RunError> {
        result.map_err(|e| {
            let cause = self.error.lock().unwrap_or_else(|p| p.into_inner()).take();
            let source = cause.unwrap_or_else(|| io::Error::other(e));
            RunError::Write { path: self.directory.join(self.span.file_name()), source }
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.published {
            // Closes the file first; what it would still write is of no use.
            self.writer = None;
            let _ = std::fs::remove_file(self.directory.join(self.span.temporary_name()));
        }
    }
}

/// Makes a rename or removal in a directory last.
pub(crate) fn sync_directory(path: &Path) -> Result<(), RunError> {
    let synced = File::open(path).and_then(|dir| dir.sync_all());
    match synced {
        // Some network file systems know no fsync of a directory.
        Err(e) if !matches!(e.raw_os_error(), Some(nix::libc::EINVAL | nix::libc::ENOTSUP | nix::libc::EBADF)) => {
            Err(RunError::write(path)(e))
        }
        _ => Ok(()),
    }
}

/// Writes the columns in the order of [`columns::schema`].
fn write_group(writer: &mut SerializedFileWriter<Sink>, rows: &Rows, s: &mut Scratch) -> Result<(), ParquetError> {
    let order = rows.by_stream();
    let order = order.as_deref();
    let n = rows.len();
    // The n-th row to be written.
    let row = |i: usize| order.map_or(i, |order| order[i] as usize);
    let mut group = writer.next_row_group()?;

    s.first.clear();
    s.first.extend((0..n).map(|i| rows.first_time(row(i))));
    column::<Int32Type>(&mut group, refill(&mut s.i32, (0..n).map(|i| rows.stream[row(i)].into())), None)?;
    column::<Int32Type>(&mut group, refill(&mut s.i32, (0..n).map(|i| rows.key[row(i)] as i32)), None)?;
    column::<Int64Type>(&mut group, refill(&mut s.i64, (0..n).map(|i| rows.number[row(i)] as i64)), None)?;
    column::<Int64Type>(&mut group, &s.first, None)?;
    for p in 0..rows.points {
        let seen = (0..n).filter(|i| rows.seen[row(*i)] >> p & 1 == 1);
        // Wrapping, so that the reader gets back the very same time whatever a broken clock made of it.
        let offsets = seen.map(|i| rows.t[p][row(i)].wrapping_sub(s.first[i]));
        refill(&mut s.i64, offsets);
        refill(&mut s.levels, (0..n).map(|i| (rows.seen[row(i)] >> p & 1) as i16));
        column::<Int64Type>(&mut group, &s.i64, Some(&s.levels))?;
    }
    for p in 0..rows.points {
        let seen = || (0..n).map(row).filter(|r| rows.seen[*r] >> p & 1 == 1);
        refill(&mut s.levels, (0..n).map(|i| (rows.seen[row(i)] >> p & 1) as i16));
        column::<Int32Type>(&mut group, refill(&mut s.i32, seen().map(|at| rows.cpu[p][at].into())), Some(&s.levels))?;
        column::<Int32Type>(&mut group, refill(&mut s.i32, seen().map(|at| rows.tid[p][at] as i32)), Some(&s.levels))?;
    }
    column::<Int32Type>(&mut group, refill(&mut s.i32, (0..n).map(|i| rows.duplicates[row(i)] as i32)), None)?;
    let flags: Vec<bool> = (0..n).map(|i| rows.out_of_order[row(i)]).collect();
    column::<BoolType>(&mut group, &flags, None)?;
    let notes = (0..n).map(|i| rows.drop_note[row(i)]);
    refill(&mut s.levels, notes.clone().map(|note| i16::from(note != 0)));
    refill(&mut s.i32, notes.filter(|note| *note != 0).map(|note| i32::from(note) - 1));
    column::<Int32Type>(&mut group, &s.i32, Some(&s.levels))?;
    group.close()?;
    Ok(())
}

fn refill<T>(buffer: &mut Vec<T>, values: impl Iterator<Item = T>) -> &Vec<T> {
    buffer.clear();
    buffer.extend(values);
    buffer
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Sink>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column =
        group.next_column()?.ok_or_else(|| ParquetError::General("the schema has fewer columns".into()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}
