//! Columns of a table: names, types, encodings. All encodings exist since Parquet 2.0, so that any reader supports
//! them.

use crate::GROUP_ROWS;
use parquet::{
    basic::{self, Compression, LogicalType, Repetition, Type, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::KeyValue,
        properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr},
    },
    schema::types::{ColumnPath, Type as SchemaType, TypePtr},
};
use std::sync::Arc;

/// Type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 16-bit unsigned.
    U16,
    /// 32-bit unsigned.
    U32,
    /// 64-bit unsigned.
    U64,
    /// 64-bit signed.
    I64,
    /// Boolean.
    Bool,
}

/// Encoding of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// For times, whose differences resemble noise: delta encoding packs them to within a few percent of their entropy.
    /// General compression would save little space and slow down reading.
    Noise,
    /// For numbers that rise regularly: delta encoding, and zstd, which compresses the pattern.
    Counter,
    /// For few distinct values: a dictionary and zstd.
    Regular,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Type of its values.
    pub kind: Kind,
    /// Whether rows may lack a value.
    pub is_optional: bool,
    /// Encoding of the values.
    pub encoding: Encoding,
    /// Whether row groups store the minimum and maximum value.
    pub has_statistics: bool,
}

impl Column {
    /// A column in which every row has a value.
    pub fn required(name: impl Into<String>, kind: Kind, encoding: Encoding) -> Self {
        Self { name: name.into(), kind, is_optional: false, encoding, has_statistics: false }
    }

    /// A column in which rows may lack a value.
    pub fn optional(name: impl Into<String>, kind: Kind, encoding: Encoding) -> Self {
        Self { is_optional: true, ..Self::required(name, kind, encoding) }
    }

    /// Adds statistics to this column: the minimum and maximum value of each row group.
    pub fn with_statistics(self) -> Self {
        Self { has_statistics: true, ..self }
    }

    fn field(&self) -> Result<SchemaType, ParquetError> {
        let (physical, bits) = match self.kind {
            Kind::U16 => (Type::INT32, Some(16)),
            Kind::U32 => (Type::INT32, Some(32)),
            Kind::U64 => (Type::INT64, Some(64)),
            Kind::I64 => (Type::INT64, None),
            Kind::Bool => (Type::BOOLEAN, None),
        };
        SchemaType::primitive_type_builder(&self.name, physical)
            .with_repetition(if self.is_optional { Repetition::OPTIONAL } else { Repetition::REQUIRED })
            .with_logical_type(bits.map(|bits| LogicalType::integer(bits, false)))
            .build()
    }
}

pub(crate) fn schema(table: &str, columns: &[Column]) -> Result<TypePtr, ParquetError> {
    let fields = columns.iter().map(|c| c.field().map(Arc::new)).collect::<Result<_, _>>()?;
    Ok(Arc::new(SchemaType::group_type_builder(table).with_fields(fields).build()?))
}

/// Writer properties for `columns`; `notes` are stored in each file's metadata.
pub(crate) fn properties(columns: &[Column], notes: &[(&str, String)]) -> WriterPropertiesPtr {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1).unwrap_or_default());
    let notes: Vec<_> = notes.iter().map(|(key, value)| KeyValue::new((*key).into(), value.clone())).collect();
    let mut p = WriterProperties::builder()
        .set_created_by(concat!("latpath ", env!("CARGO_PKG_VERSION")).into())
        .set_key_value_metadata((!notes.is_empty()).then_some(notes))
        .set_compression(zstd)
        .set_dictionary_enabled(true)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_data_page_row_count_limit(GROUP_ROWS)
        .set_write_batch_size(8192);
    for column in columns {
        let path = || ColumnPath::new(vec![column.name.clone()]);
        if column.has_statistics {
            p = p.set_column_statistics_enabled(path(), EnabledStatistics::Chunk);
        }
        if column.kind == Kind::Bool {
            p = p.set_column_dictionary_enabled(path(), false);
        } else if column.encoding != Encoding::Regular {
            p = p.set_column_dictionary_enabled(path(), false);
            p = p.set_column_encoding(path(), basic::Encoding::DELTA_BINARY_PACKED);
        }
        if column.encoding == Encoding::Noise {
            p = p.set_column_compression(path(), Compression::UNCOMPRESSED);
        }
    }
    Arc::new(p.build())
}
