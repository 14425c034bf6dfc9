//! Merges small parts: one part per second would make 14,400 files in 4 h.
//!
//! No row is lost or duplicated at any instant: the merged part appears complete, and its name supersedes the parts
//! that it contains, which are removed afterwards. Readers skip superseded parts.

use crate::{sync_directory, Column, Group, Names, PartWriter, Span, StoreError, GROUP_ROWS};

/// Number of small parts at which they are merged.
const MERGE_PARTS: usize = 60;
/// Minimum number of rows of a group that is copied unchanged; smaller groups are combined into new ones.
const LARGE_GROUP: usize = GROUP_ROWS / 2;

/// Consecutive small parts that are not merged yet.
#[derive(Debug)]
pub struct SmallParts {
    large: u64,
    enough: u64,
    small: Vec<Span>,
    rows: u64,
}

impl SmallParts {
    /// Parts of `large` or more rows are not merged. Smaller ones are merged once there are 60 of them, or once they
    /// have `enough` rows in total.
    pub fn new(large: u64, enough: u64) -> Self {
        Self { large, enough, small: Vec::new(), rows: 0 }
    }

    /// Adds a part. Returns the parts to merge now, at least two. If `span` does not follow the last part, earlier
    /// parts remain unmerged.
    pub fn add(&mut self, span: Span, rows: u64) -> Option<Vec<Span>> {
        // A merged part's name must not cover numbers that it does not contain.
        if self.small.last().is_some_and(|last| last.last.checked_add(1) != Some(span.first)) {
            self.take();
        }
        if rows >= self.large {
            return self.take();
        }
        self.small.push(span);
        self.rows += rows;
        (self.rows >= self.enough || self.small.len() >= MERGE_PARTS).then(|| self.take())?
    }

    /// Takes the remaining parts, if there are at least two.
    pub fn take(&mut self) -> Option<Vec<Span>> {
        self.rows = 0;
        Some(std::mem::take(&mut self.small)).filter(|small| small.len() > 1)
    }
}

/// Writes the rows of these parts to `merged`, publishes it, and removes the parts. Columns that a part lacks have no
/// values. `sort_by`: column by which the rows of a group are sorted (see [`Group::sort_by`]). Calls `step`
/// periodically.
///
/// # Errors
/// If a part cannot be read, or the merged one cannot be written. All parts then remain.
pub fn merge(
    names: &Names,
    spans: &[Span],
    mut merged: PartWriter,
    table: &[Column],
    sort_by: Option<usize>,
    mut step: impl FnMut(),
) -> Result<(), StoreError> {
    let mut gathered = Group::new(table.len());
    let write = |merged: &mut PartWriter, gathered: &mut Group| {
        if let Some(column) = sort_by {
            gathered.sort_by(column);
        }
        merged.write(gathered)?;
        gathered.clear();
        Ok(())
    };
    for span in spans {
        let part = names.open(*span)?;
        let is_alike = part.columns().eq(table.iter().map(|c| c.name.as_str()));
        for index in 0..part.groups() {
            let rows = part.metadata().row_group(index).num_rows().unsigned_abs() as usize;
            let is_copied = is_alike && rows >= LARGE_GROUP;
            if gathered.rows > 0 && (is_copied || gathered.rows + rows > GROUP_ROWS) {
                write(&mut merged, &mut gathered)?;
            }
            match is_copied {
                true => merged.copy(&part, index)?,
                false => part.read(index, table, &mut gathered)?,
            }
            step();
        }
    }
    write(&mut merged, &mut gathered)?;
    merged.publish()?;
    for span in spans {
        names.directory.remove(names.name(*span)).map_err(StoreError::write(names.path(*span)))?;
    }
    sync_directory(&names.directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_neighbours_are_merged() {
        let mut small = SmallParts::new(100, 1_000);
        assert_eq!((small.add(Span::one(0), 9), small.add(Span::one(1), 9)), (None, None));
        assert_eq!(small.add(Span::one(2), 100), Some(vec![Span::one(0), Span::one(1)]), "a large part ends them");
        assert_eq!(small.add(Span { first: 0, last: 1 }, 18), None);
        let next = (3..62).map(|number| small.add(Span::one(number), 9)).collect::<Vec<_>>();
        assert!(next.iter().all(Option::is_none));
        let merged = small.add(Span::one(62), 9).expect("60 parts");
        assert_eq!((merged.len(), merged[0], small.take()), (60, Span::one(3), None));
    }
}
