//! Row groups of Parquet: every column is an int64, and all but the first may lack values.

use super::columns;
use crate::transaction::{Route, Transaction};
use parquet::{
    basic::{Compression, Encoding, LogicalType, Repetition, Type, ZstdLevel},
    column::reader::get_typed_column_reader,
    data_type::Int64Type,
    errors::ParquetError,
    file::{
        properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr},
        reader::RowGroupReader,
        writer::SerializedFileWriter,
    },
    schema::types::{ColumnPath, Type as SchemaType, TypePtr},
};
use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex},
};

/// Rows of a full group.
pub(super) const GROUP_ROWS: usize = 16_384;

/// The file below a Parquet writer: keeps the system's own error, of which Parquet keeps only the text.
pub(super) struct Sink {
    file: File,
    error: Arc<Mutex<Option<io::Error>>>,
}

impl Write for Sink {
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

/// A Parquet file that is being written. What a log holds is read from it once it is closed.
pub(super) struct Output {
    writer: SerializedFileWriter<Sink>,
    error: Arc<Mutex<Option<io::Error>>>,
    pub rows: u64,
}

impl Output {
    pub fn create(path: &Path, route: &Route) -> io::Result<Self> {
        let error = Arc::<Mutex<Option<io::Error>>>::default();
        let sink = Sink { file: File::create(path)?, error: Arc::clone(&error) };
        let names = columns::names(route);
        let made = schema(&names).and_then(|schema| SerializedFileWriter::new(sink, schema, properties(&names)));
        Ok(Self { writer: checked(made, &error)?, error, rows: 0 })
    }

    /// Adds what the buffer holds as one group, and empties it.
    pub fn write(&mut self, buffer: &mut Buffer) -> io::Result<()> {
        self.rows += buffer.rows as u64;
        let done = buffer.write(&mut self.writer);
        buffer.clear();
        checked(done, &self.error)
    }

    /// Adds another file's group as it is, without decoding it.
    pub fn copy(&mut self, file: &File, group: &dyn RowGroupReader) -> io::Result<()> {
        self.rows += group.metadata().num_rows().unsigned_abs();
        let mut copied = || {
            let mut to = self.writer.next_row_group()?;
            for column in group.metadata().columns() {
                let close = parquet::column::writer::ColumnCloseResult {
                    bytes_written: column.compressed_size().unsigned_abs(),
                    rows_written: group.metadata().num_rows().unsigned_abs(),
                    metadata: column.clone(),
                    bloom_filter: None,
                    column_index: None,
                    offset_index: None,
                };
                to.append_column(file, close)?;
            }
            to.close().map(|_| ())
        };
        let done = copied();
        checked(done, &self.error)
    }

    /// Writes the footer and brings all to the disk.
    pub fn close(self) -> io::Result<()> {
        let sink = checked(self.writer.into_inner(), &self.error)?;
        sink.file.sync_all()
    }
}

fn checked<T>(result: Result<T, ParquetError>, error: &Mutex<Option<io::Error>>) -> io::Result<T> {
    let cause = || error.lock().unwrap_or_else(|p| p.into_inner()).take();
    result.map_err(|e| cause().unwrap_or_else(|| io::Error::other(e)))
}

fn schema(names: &[String]) -> Result<TypePtr, ParquetError> {
    let field = |(at, name): (usize, &String)| {
        let builder = SchemaType::primitive_type_builder(name, Type::INT64);
        let builder = if at == 0 {
            builder.with_repetition(Repetition::REQUIRED).with_logical_type(Some(LogicalType::integer(64, false)))
        } else {
            builder.with_repetition(Repetition::OPTIONAL)
        };
        builder.build().map(Arc::new)
    };
    let fields = names.iter().enumerate().map(field).collect::<Result<_, _>>()?;
    Ok(Arc::new(SchemaType::group_type_builder("transactions").with_fields(fields).build()?))
}

/// Times are noise: delta encoding packs them to near their entropy. The numbers are regular: there zstd finds the pattern.
fn properties(names: &[String]) -> WriterPropertiesPtr {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1).unwrap_or_default());
    let builder = WriterProperties::builder()
        .set_created_by(concat!("latpath ", env!("CARGO_PKG_VERSION")).into())
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BINARY_PACKED)
        .set_compression(Compression::UNCOMPRESSED)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_data_page_row_count_limit(GROUP_ROWS)
        .set_column_compression(ColumnPath::new(vec![names[0].clone()]), zstd);
    Arc::new(builder.build())
}

/// Rows on their way into a group, column by column.
#[derive(Default)]
pub(super) struct Buffer {
    pub rows: usize,
    values: Vec<Vec<i64>>,
    /// 1 where a row has a value, 0 where not.
    levels: Vec<Vec<i16>>,
}

impl Buffer {
    pub fn new(route: &Route) -> Self {
        let columns = columns::names(route).len();
        Self { rows: 0, values: vec![Vec::new(); columns], levels: vec![Vec::new(); columns] }
    }

    pub fn push(&mut self, transaction: &Transaction, route: &Route) {
        self.rows += 1;
        self.values[0].push(transaction.sequence as i64);
        for (at, value) in columns::values(transaction, route).enumerate() {
            self.levels[at + 1].push(i16::from(value.is_some()));
            self.values[at + 1].extend(value);
        }
    }

    /// Adds the rows of a group.
    pub fn read(&mut self, group: &dyn RowGroupReader) -> io::Result<()> {
        let rows = usize::try_from(group.metadata().num_rows()).map_err(io::Error::other)?;
        let mut read = || -> Result<(), ParquetError> {
            for (at, values) in self.values.iter_mut().enumerate() {
                let mut reader = get_typed_column_reader::<Int64Type>(group.get_column_reader(at)?);
                let levels = (at > 0).then_some(&mut self.levels[at]);
                let (records, ..) = reader.read_records(rows, levels, None, values)?;
                if records != rows {
                    return Err(ParquetError::General(format!("a column of {records} rows, not {rows}")));
                }
            }
            Ok(())
        };
        read().map_err(io::Error::other)?;
        self.rows += rows;
        Ok(())
    }

    fn write(&self, writer: &mut SerializedFileWriter<Sink>) -> Result<(), ParquetError> {
        let mut group = writer.next_row_group()?;
        for (at, values) in self.values.iter().enumerate() {
            let column = group.next_column()?;
            let mut column = column.ok_or_else(|| ParquetError::General("the schema has fewer columns".into()))?;
            let levels = (at > 0).then_some(self.levels[at].as_slice());
            column.typed::<Int64Type>().write_batch(values, levels, None)?;
            column.close()?;
        }
        group.close()?;
        Ok(())
    }

    fn clear(&mut self) {
        self.rows = 0;
        self.values.iter_mut().for_each(Vec::clear);
        self.levels.iter_mut().for_each(Vec::clear);
    }
}
