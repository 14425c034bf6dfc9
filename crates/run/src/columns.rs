//! The columns of a part: names, types, encodings. docs/run-format.md says the same to those who read runs elsewhere.

use latpath_model::Point;
use parquet::{
    basic::{Compression, Encoding, LogicalType, Repetition, Type, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::KeyValue,
        properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr},
    },
    schema::types::{ColumnPath, Type as SchemaType, TypePtr},
};
use std::sync::Arc;

/// The columns that every part has.
pub(crate) const STREAM: &str = "stream";
pub(crate) const KEY: &str = "key";
pub(crate) const NUMBER: &str = "number";
pub(crate) const TIME: &str = "t_ns";
pub(crate) const DUPLICATES: &str = "duplicates";
pub(crate) const OUT_OF_ORDER: &str = "out_of_order";
pub(crate) const DROP_NOTE: &str = "drop_note";
const CPU_PREFIX: &str = "cpu:";
const TID_PREFIX: &str = "tid:";
/// Key of the format's number in a part's own metadata.
pub(crate) const FORMAT_KEY: &str = "latpath_format";

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column<'a> {
    Stream,
    Key,
    Number,
    Time,
    Duplicates,
    OutOfOrder,
    DropNote,
    /// ns from `t_ns` to the sighting at the point.
    Offset(&'a str),
    Cpu(&'a str),
    Tid(&'a str),
}

impl<'a> Column<'a> {
    /// The column of this name. A prefix stands before a point's name, not a suffix after it: a device's name may hold
    /// dots (`eth0.7`), which some readers take for nesting.
    pub fn parse(name: &'a str) -> Self {
        match name {
            STREAM => Self::Stream,
            KEY => Self::Key,
            NUMBER => Self::Number,
            TIME => Self::Time,
            DUPLICATES => Self::Duplicates,
            OUT_OF_ORDER => Self::OutOfOrder,
            DROP_NOTE => Self::DropNote,
            _ => {
                if let Some(point) = name.strip_prefix(CPU_PREFIX) {
                    Self::Cpu(point)
                } else if let Some(point) = name.strip_prefix(TID_PREFIX) {
                    Self::Tid(point)
                } else {
                    Self::Offset(name)
                }
            }
        }
    }
}

/// A part's schema: the fixed columns, then the times of all points, then their CPUs and threads, then the rare flags.
pub(crate) fn schema(points: &[Point]) -> Result<TypePtr, ParquetError> {
    let unsigned = |name: &str, bits: i8, repetition| {
        let physical = if bits == 64 { Type::INT64 } else { Type::INT32 };
        SchemaType::primitive_type_builder(name, physical)
            .with_repetition(repetition)
            .with_logical_type(Some(LogicalType::integer(bits, false)))
            .build()
    };
    let time = |name: &str, repetition| {
        SchemaType::primitive_type_builder(name, Type::INT64).with_repetition(repetition).build()
    };
    let (all, some) = (Repetition::REQUIRED, Repetition::OPTIONAL);
    let mut fields =
        vec![unsigned(STREAM, 16, all)?, unsigned(KEY, 32, all)?, unsigned(NUMBER, 64, all)?, time(TIME, all)?];
    for point in points {
        fields.push(time(&point.to_string(), some)?);
    }
    for point in points {
        fields.push(unsigned(&format!("{CPU_PREFIX}{point}"), 16, some)?);
        fields.push(unsigned(&format!("{TID_PREFIX}{point}"), 32, some)?);
    }
    fields.push(unsigned(DUPLICATES, 32, all)?);
    fields.push(SchemaType::primitive_type_builder(OUT_OF_ORDER, Type::BOOLEAN).with_repetition(all).build()?);
    fields.push(unsigned(DROP_NOTE, 16, some)?);
    let group = SchemaType::group_type_builder("journeys").with_fields(fields.into_iter().map(Arc::new).collect());
    Ok(Arc::new(group.build()?))
}

/// How the columns are encoded. Every choice is in Parquet since version 2.0, so that any reader has it.
///
/// Times are noise: delta encoding packs them to within a few percent of their entropy, and what a general compressor
/// could still gain costs more in reading than it saves on disk. Everything else is regular: there zstd finds the pattern.
pub(crate) fn properties(points: &[Point]) -> WriterPropertiesPtr {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1).unwrap_or_default());
    let path = |name: &str| ColumnPath::new(vec![name.to_owned()]);
    let mut p = WriterProperties::builder()
        .set_created_by(concat!("latpath ", env!("CARGO_PKG_VERSION")).into())
        .set_key_value_metadata(Some(vec![KeyValue::new(FORMAT_KEY.into(), crate::FORMAT.to_string())]))
        .set_compression(zstd)
        .set_dictionary_enabled(true)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(Some(crate::rows::GROUP_ROWS))
        .set_data_page_row_count_limit(crate::rows::GROUP_ROWS)
        .set_write_batch_size(8192)
        .set_column_dictionary_enabled(path(OUT_OF_ORDER), false)
        .set_column_statistics_enabled(path(STREAM), EnabledStatistics::Chunk)
        .set_column_statistics_enabled(path(TIME), EnabledStatistics::Chunk);
    let times = points.iter().map(ToString::to_string).chain([TIME.to_owned()]);
    let noise = times.map(|name| (name, Compression::UNCOMPRESSED));
    for (name, compression) in [(KEY.to_owned(), zstd), (NUMBER.to_owned(), zstd)].into_iter().chain(noise) {
        p = p
            .set_column_dictionary_enabled(path(&name), false)
            .set_column_encoding(path(&name), Encoding::DELTA_BINARY_PACKED)
            .set_column_compression(path(&name), compression);
    }
    Arc::new(p.build())
}
