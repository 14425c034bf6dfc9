//! Writes a part and makes it durable.

use crate::{column, sums, Column, Group, PartReader, StoreError};
use latpath_linux::Directory;
use parquet::{column::writer::ColumnCloseResult, errors::ParquetError, file::writer::SerializedFileWriter};
use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// The file to which the Parquet writer writes. Keeps the operating system's error, of which Parquet keeps only the
/// text.
pub(crate) struct Sink {
    file: File,
    error: Arc<Mutex<Option<io::Error>>>,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).inspect_err(|e| {
            let copy = e.raw_os_error().map_or_else(|| io::Error::from(e.kind()), io::Error::from_raw_os_error);
            *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy);
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A part that is being written, under its hidden name. Removed if dropped before [`PartWriter::publish`].
pub struct PartWriter {
    directory: Directory,
    hidden: OsString,
    name: OsString,
    /// Path of the part, for messages.
    path: PathBuf,
    table: Arc<[Column]>,
    writer: Option<SerializedFileWriter<Sink>>,
    error: Arc<Mutex<Option<io::Error>>>,
    rows: u64,
}

impl PartWriter {
    /// Creates the file `hidden` in `directory`; [`PartWriter::publish`] renames it to `name`. `title` and `notes` are
    /// stored in its metadata.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(
        directory: &Directory,
        (hidden, name): (OsString, OsString),
        (title, notes): (&str, &[(&str, String)]),
        table: Arc<[Column]>,
    ) -> Result<Self, StoreError> {
        let file = directory.new_file(&hidden).map_err(StoreError::write(directory.join(&hidden)))?;
        let error = Arc::default();
        let sink = Sink { file, error: Arc::clone(&error) };
        let made = column::schema(title, &table)
            .and_then(|schema| SerializedFileWriter::new(sink, schema, column::properties(&table, notes)));
        let path = directory.join(&name);
        let mut part = Self { directory: directory.clone(), hidden, name, path, table, writer: None, error, rows: 0 };
        part.writer = Some(part.check(made)?);
        Ok(part)
    }

    /// Number of rows written so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Appends a row group, unless it is empty.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, group: &Group) -> Result<(), StoreError> {
        if group.rows == 0 {
            return Ok(());
        }
        self.rows += group.rows as u64;
        let table = Arc::clone(&self.table);
        self.with_writer(|writer| group.write(writer, &table))
    }

    /// Appends a row group of another part unchanged: its checksums are verified, but its values are not decoded. The
    /// other part must have the same columns.
    pub(crate) fn copy(&mut self, from: &PartReader, index: usize) -> Result<(), StoreError> {
        let group = from.metadata().row_group(index);
        let rows_written = group.num_rows().unsigned_abs();
        self.rows += rows_written;
        self.with_writer(|writer| {
            let mut to = writer.next_row_group()?;
            for (at, column) in group.columns().iter().enumerate() {
                let chunk = match from.chunk(index, at) {
                    Ok(chunk) => chunk,
                    Err(damaged) => return Ok(Err(damaged)),
                };
                let close = ColumnCloseResult {
                    bytes_written: column.compressed_size().unsigned_abs(),
                    rows_written,
                    metadata: column.clone(),
                    bloom_filter: None,
                    column_index: None,
                    offset_index: None,
                };
                to.append_column(&chunk, close)?;
            }
            to.close().map(|_| Ok(()))
        })?
    }

    fn with_writer<T>(
        &mut self,
        write: impl FnOnce(&mut SerializedFileWriter<Sink>) -> Result<T, ParquetError>,
    ) -> Result<T, StoreError> {
        let done = match &mut self.writer {
            Some(writer) => write(writer),
            None => Err(ParquetError::General("the part is closed".into())),
        };
        self.check(done)
    }

    /// Flushes the part to disk and renames it. Returns its size in bytes.
    ///
    /// # Errors
    /// If the part cannot be written; it is then removed. If only the directory cannot be synced, the renamed part
    /// remains.
    pub fn publish(mut self) -> Result<u64, StoreError> {
        let Some(mut writer) = self.writer.take() else { return Ok(0) };
        let flushed = writer.flush().map_err(ParquetError::from);
        self.check(flushed)?;
        let sums = sums::of_columns(&writer.inner().file, writer.flushed_row_groups());
        writer.append_key_value_metadata(sums.map_err(StoreError::write(&self.path))?);
        let file = self.check(writer.into_inner())?.file;
        let sealed = sums::seal(&file).and_then(|()| file.sync_all());
        let bytes = sealed.and_then(|()| file.metadata()).map_err(StoreError::write(&self.path))?;
        self.directory.rename(&self.hidden, &self.name).map_err(StoreError::write(&self.path))?;
        sync_directory(&self.directory)?;
        Ok(bytes.len())
    }

    fn check<T>(&self, result: Result<T, ParquetError>) -> Result<T, StoreError> {
        result.map_err(|e| {
            let cause = self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
            StoreError::write(&self.path)(cause.unwrap_or_else(|| io::Error::other(e)))
        })
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        // Close the file before removing it; nothing more is written. A published part has no hidden name any more.
        self.writer = None;
        let _ = self.directory.remove(&self.hidden);
    }
}

/// Makes renames and removals in a directory durable (fsync of the directory).
///
/// # Errors
/// If the directory cannot be synced.
pub fn sync_directory(directory: &Directory) -> Result<(), StoreError> {
    directory.sync().map_err(StoreError::write(directory.path()))
}

/// Atomically replaces a file: after a crash, either the old or the new one exists, complete.
///
/// # Errors
/// If the file cannot be written; the old one remains.
pub fn replace_file(directory: &Directory, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let hidden = format!(".{name}.tmp");
    let written = directory.new_file(&hidden).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(e) = written.and_then(|()| directory.rename(&hidden, name)) {
        let _ = directory.remove(&hidden);
        return Err(StoreError::write(directory.join(name))(e));
    }
    sync_directory(directory)
}
