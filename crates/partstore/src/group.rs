//! The rows of a row group, column by column.

use crate::{chunk::Chunk, writer::Sink, Column, Kind};
use parquet::{
    data_type::{BoolType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        metadata::ParquetMetaData,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
};
use std::fs::File;

/// Values of a column, in the vector for its type. Rows without a value are omitted.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// For [`Kind::U16`] and [`Kind::U32`].
    pub i32: Vec<i32>,
    /// For [`Kind::U64`] and [`Kind::I64`].
    pub i64: Vec<i64>,
    /// For [`Kind::Bool`].
    pub bool: Vec<bool>,
    /// For optional columns, per row: 1 for a value, 0 for none.
    pub levels: Vec<i16>,
}

impl Values {
    /// Removes all values, but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.i32.clear();
        self.i64.clear();
        self.bool.clear();
        self.levels.clear();
    }

    fn sort(&mut self, order: &[u32]) {
        let Self { i32, i64, bool, levels } = self;
        sort(i32, levels, order);
        sort(i64, levels, order);
        sort(bool, levels, order);
        if !levels.is_empty() {
            *levels = order.iter().map(|row| levels[*row as usize]).collect();
        }
    }
}

fn sort<T: Copy>(values: &mut Vec<T>, levels: &[i16], order: &[u32]) {
    if values.is_empty() {
        return;
    }
    if levels.is_empty() {
        *values = order.iter().map(|row| values[*row as usize]).collect();
        return;
    }
    let place = |next: &mut usize, level: &i16| {
        *next += *level as usize;
        Some(*next - *level as usize)
    };
    let places: Vec<usize> = levels.iter().scan(0, place).collect();
    let with_value = order.iter().map(|row| *row as usize).filter(|row| levels[*row] > 0);
    *values = with_value.map(|row| values[places[row]]).collect();
}

/// The rows of a row group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Number of rows.
    pub rows: usize,
    /// One entry per column of the table.
    pub columns: Vec<Values>,
}

impl Group {
    /// An empty group of a table with `columns` columns.
    pub fn new(columns: usize) -> Self {
        Self { rows: 0, columns: vec![Values::default(); columns] }
    }

    /// Removes all rows, but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.columns.iter_mut().for_each(Values::clear);
    }

    /// Sorts rows stably by a required column of [`Kind::U16`] or [`Kind::U32`], because equal values next to each
    /// other compress better.
    pub fn sort_by(&mut self, column: usize) {
        let keys = &self.columns[column].i32;
        if keys.is_sorted() {
            return;
        }
        let mut order: Vec<u32> = (0..self.rows as u32).collect();
        order.sort_by_key(|row| keys[*row as usize]);
        self.columns.iter_mut().for_each(|values| values.sort(&order));
    }

    /// Appends the rows of a file's row group. Columns that the file lacks have no values.
    pub(crate) fn read(
        &mut self,
        file: &File,
        metadata: &ParquetMetaData,
        group: usize,
        table: &[Column],
    ) -> Result<(), String> {
        let found = metadata.row_group(group);
        let rows = usize::try_from(found.num_rows()).unwrap_or(0);
        self.columns.resize_with(table.len(), Values::default);
        for (column, values) in table.iter().zip(&mut self.columns) {
            let index = found.columns().iter().position(|c| c.column_descr().name() == column.name);
            match index {
                Some(index) => {
                    let chunk = Chunk::read(file, metadata, group, index)?;
                    chunk.decode(found.column(index), rows, column.kind, values).map_err(|e| e.to_string())?;
                    if column.is_optional {
                        // Columns may be required in parts from other writers; these have no levels.
                        values.levels.resize(self.rows + rows, 1);
                    }
                }
                None if column.is_optional => values.levels.resize(self.rows + rows, 0),
                None => return Err(format!("the file has no column {:?}", column.name)),
            }
            if !column.is_optional {
                if values.levels.contains(&0) {
                    return Err(format!("column {:?} lacks values", column.name));
                }
                values.levels.clear();
            }
        }
        self.rows += rows;
        Ok(())
    }

    pub(crate) fn write(&self, writer: &mut SerializedFileWriter<Sink>, table: &[Column]) -> Result<(), ParquetError> {
        let mut group = writer.next_row_group()?;
        for (column, values) in table.iter().zip(&self.columns) {
            let levels = column.is_optional.then_some(&values.levels[..]);
            match column.kind {
                Kind::U16 | Kind::U32 => write_column::<Int32Type>(&mut group, &values.i32, levels)?,
                Kind::U64 | Kind::I64 => write_column::<Int64Type>(&mut group, &values.i64, levels)?,
                Kind::Bool => write_column::<BoolType>(&mut group, &values.bool, levels)?,
            }
        }
        group.close()?;
        Ok(())
    }
}

fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Sink>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column =
        group.next_column()?.ok_or_else(|| ParquetError::General("the schema has fewer columns".into()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_of_the_same_key_come_together_whole_and_in_order(
            rows in prop::collection::vec((0..3_i32, prop::option::of(any::<i64>()), any::<bool>()), 0..40),
        ) {
            let mut group = Group::new(3);
            for (key, time, flag) in &rows {
                group.rows += 1;
                group.columns[0].i32.push(*key);
                group.columns[1].i64.extend(*time);
                group.columns[1].levels.push(i16::from(time.is_some()));
                group.columns[2].bool.push(*flag);
            }
            group.sort_by(0);
            let mut sorted = rows;
            sorted.sort_by_key(|row| row.0);
            prop_assert_eq!(&group.columns[0].i32, &sorted.iter().map(|r| r.0).collect::<Vec<_>>());
            prop_assert_eq!(&group.columns[1].i64, &sorted.iter().filter_map(|r| r.1).collect::<Vec<_>>());
            prop_assert_eq!(&group.columns[1].levels, &sorted.iter().map(|r| i16::from(r.1.is_some())).collect::<Vec<_>>());
            prop_assert_eq!(&group.columns[2].bool, &sorted.iter().map(|r| r.2).collect::<Vec<_>>());
        }
    }
}
