//! Reads one part of a run: row group by row group, and only the needed columns.

use crate::{
    columns::{point_of, STREAM, TIME},
    RunError, Select,
};
use latpath_model::Ns;
use latpath_partstore::{Column, Group, PartFile, PartReader};
use std::path::Path;

/// A part that is open for reading.
pub(crate) struct JourneyReader(PartReader);

impl JourneyReader {
    pub fn open(part: &PartFile) -> Result<Self, RunError> {
        Ok(Self(part.open()?))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn groups(&self) -> usize {
        self.0.groups()
    }

    pub fn rows(&self) -> u64 {
        self.0.rows()
    }

    /// The points that have columns, in the order of the columns.
    pub fn points(&self) -> impl Iterator<Item = &str> {
        self.0.columns().filter_map(point_of)
    }

    /// First and last time of the part, from its statistics.
    pub fn times(&self) -> Option<(Ns, Ns)> {
        let times = (0..self.groups()).map(|group| self.0.bounds(group, TIME));
        times.reduce(|a, b| Some((a?.0.min(b?.0), a?.1.max(b?.1)))).flatten()
    }

    /// Whether a row group may contain a selected journey, according to its statistics.
    pub fn may_hold(&self, group: usize, select: &Select) -> bool {
        let in_time = |(first, last)| select.may_match(first, last);
        let in_streams = |(min, max)| {
            select.streams.as_ref().is_none_or(|s| s.iter().any(|id| (min..=max).contains(&i64::from(*id))))
        };
        self.0.bounds(group, TIME).is_none_or(in_time) && self.0.bounds(group, STREAM).is_none_or(in_streams)
    }

    /// Reads the columns `table` of one row group.
    pub fn read(&self, index: usize, table: &[Column], group: &mut Group) -> Result<(), RunError> {
        group.clear();
        Ok(self.0.read(index, table, group)?)
    }
}
