//! Journeys as one Parquet file: the columns of the run's parts, with names instead of numbers.

use crate::{each_journey, notes, points_in_order, DropReasons, ExportError, ExportRequest, Exported};
use latpath_run::{Rows, Run, Select};
use parquet::{
    basic::{Compression, ConvertedType, Repetition, Type as Physical, ZstdLevel},
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::types::{Type, TypePtr},
};
use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

/// Number of rows in a row group.
const GROUP: usize = 1 << 17;

/// Encoded bytes to be written; shared, because the encoder must own its writer.
#[derive(Clone, Default)]
struct Encoded(Arc<Mutex<Vec<u8>>>);

impl Write for Encoded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().map_err(|_| io::Error::other("a thread failed"))?.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Encoded {
    fn pass_on(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut bytes = self.0.lock().map_err(|_| io::Error::other("a thread failed"))?;
        out.write_all(&bytes)?;
        bytes.clear();
        Ok(())
    }
}

fn failed(error: ParquetError) -> io::Error {
    io::Error::other(error.to_string())
}

/// Writes all journeys of a run.
pub fn write(request: &mut ExportRequest, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let run = request.run;
    let table = Table::of(run);
    let level = ZstdLevel::try_new(3).map_err(failed)?;
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
    let encoded = Encoded::default();
    let mut file = SerializedFileWriter::new(encoded.clone(), table.schema()?, Arc::new(properties)).map_err(failed)?;
    let mut rows = Rows::new(run.points().len());
    let select = Select { cpus_and_threads: table.details, ..Select::default() };
    let damaged = each_journey(run, &select, request.stop, |journey| {
        rows.push(journey);
        if rows.len() == GROUP {
            table.write_group(&rows, &mut file)?;
            encoded.pass_on(out)?;
            rows.clear(run.points().len());
        }
        Ok(())
    })?;
    if !rows.is_empty() {
        table.write_group(&rows, &mut file)?;
    }
    file.close().map_err(failed)?;
    encoded.pass_on(out)?;
    out.flush()?;
    Ok(Exported { summary: "all journeys, a row each".into(), notes: notes(run, &damaged) })
}

struct Table<'a> {
    run: &'a Run,
    /// Indexes of the points in the order of their columns.
    order: Vec<usize>,
    /// Whether CPUs and threads are known.
    details: bool,
    drops: DropReasons<'a>,
}

impl<'a> Table<'a> {
    fn of(run: &'a Run) -> Self {
        Self {
            run,
            order: points_in_order(run),
            details: run.manifest().imported.is_empty(),
            drops: DropReasons::of(run),
        }
    }

    fn schema(&self) -> io::Result<TypePtr> {
        use ConvertedType::{NONE, UINT_16, UINT_32, UINT_64, UTF8};
        use Physical::{BOOLEAN, BYTE_ARRAY, INT32, INT64};
        let name = |p: &usize| self.run.points()[*p].point.to_string();
        let (no, yes) = (Repetition::REQUIRED, Repetition::OPTIONAL);
        let mut columns = vec![
            ("stream".to_owned(), BYTE_ARRAY, UTF8, no),
            ("key".into(), INT32, UINT_32, no),
            ("number".into(), INT64, UINT_64, no),
            ("utc_ns".into(), INT64, NONE, no),
            ("t_ns".into(), INT64, NONE, no),
        ];
        columns.extend(self.order.iter().map(|p| (name(p), INT64, NONE, yes)));
        for p in self.order.iter().filter(|_| self.details) {
            columns.push((format!("cpu:{}", name(p)), INT32, UINT_16, yes));
            columns.push((format!("tid:{}", name(p)), INT32, UINT_32, yes));
        }
        columns.push(("duplicates".into(), INT32, UINT_32, no));
        columns.push(("out_of_order".into(), BOOLEAN, NONE, no));
        columns.push(("missing_before".into(), INT32, UINT_32, no));
        columns.push(("drop_reason".into(), BYTE_ARRAY, UTF8, yes));
        let field = |(name, physical, converted, repetition): (String, _, _, _)| {
            let field = Type::primitive_type_builder(&name, physical);
            field.with_repetition(repetition).with_converted_type(converted).build().map(Arc::new)
        };
        let fields = columns.into_iter().map(field).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        Type::group_type_builder("journey").with_fields(fields).build().map(Arc::new).map_err(failed)
    }

    fn write_group(&self, rows: &Rows, file: &mut SerializedFileWriter<Encoded>) -> io::Result<()> {
        self.encode(rows, file).map_err(failed)
    }

    fn encode(&self, rows: &Rows, file: &mut SerializedFileWriter<Encoded>) -> Result<(), ParquetError> {
        let manifest = self.run.manifest();
        let all = || 0..rows.len();
        let streams: Vec<ByteArray> = manifest.streams.iter().map(|s| s.to_string().as_str().into()).collect();
        let stream = |row: usize| streams.get(usize::from(rows.stream[row])).cloned().unwrap_or_else(|| "".into());
        let first: Vec<i64> = all().map(|row| rows.first_time(row)).collect();
        let time_of_day = manifest.time_of_day();
        let mut group = file.next_row_group()?;
        put::<ByteArrayType>(&mut group, all().map(|row| Some(stream(row))))?;
        put::<Int32Type>(&mut group, rows.key.iter().map(|key| Some(*key as i32)))?;
        put::<Int64Type>(&mut group, rows.number.iter().map(|number| Some(*number as i64)))?;
        put::<Int64Type>(&mut group, first.iter().map(|t| Some(time_of_day.utc(*t))))?;
        put::<Int64Type>(&mut group, first.iter().copied().map(Some))?;
        let seen = |p: usize, row: usize| rows.seen[row] >> p & 1 == 1;
        for p in self.order.iter().copied() {
            let offset = |row: usize| seen(p, row).then(|| rows.t[p][row].wrapping_sub(first[row]));
            put::<Int64Type>(&mut group, all().map(offset))?;
        }
        for p in self.order.iter().copied().filter(|_| self.details) {
            put::<Int32Type>(&mut group, all().map(|row| seen(p, row).then(|| i32::from(rows.cpu[p][row]))))?;
            put::<Int32Type>(&mut group, all().map(|row| seen(p, row).then(|| rows.tid[p][row] as i32)))?;
        }
        put::<Int32Type>(&mut group, rows.duplicates.iter().map(|n| Some(*n as i32)))?;
        put::<BoolType>(&mut group, rows.out_of_order.iter().copied().map(Some))?;
        put::<Int32Type>(&mut group, rows.missing_before.iter().map(|n| Some(*n as i32)))?;
        let note = |row: usize| self.drops.of_packet(rows.stream[row], rows.seen[row], rows.drop_note[row])?.1;
        let reason = |row| note(row).map(|n| ByteArray::from(format!("{} in {}", n.reason, n.function).as_str()));
        put::<ByteArrayType>(&mut group, all().map(reason))?;
        group.close().map(|_| ())
    }
}

/// Writes the next column; `None` is null.
fn put<D: DataType>(
    group: &mut SerializedRowGroupWriter<Encoded>,
    values: impl Iterator<Item = Option<D::T>>,
) -> Result<(), ParquetError> {
    let (mut there, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        there.extend(value);
    }
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("more columns than the table has".into()));
    };
    // The levels of a column without nulls are ignored.
    column.typed::<D>().write_batch(&there, Some(&levels), None)?;
    column.close()
}
