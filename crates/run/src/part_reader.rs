//! Reading one part of a run: row group by row group, only the columns that are needed.

use crate::{
    columns::{Meaning, KEY, NUMBER, STREAM, TIME},
    rows::Rows,
    RunError, Select,
};
use latpath_journey::journey::MAX_POINTS;
use latpath_model::Ns;
use latpath_partstore::{GroupReader, Kind, PartFile, PartReader, Values};

/// One part, open for reading.
pub(crate) struct JourneyReader {
    part: PartReader,
    /// Buffers that are used again for each column.
    values: Values,
    first: Vec<Ns>,
}

impl JourneyReader {
    pub fn open(part: &PartFile) -> Result<Self, RunError> {
        Ok(Self { part: part.open()?, values: Values::default(), first: Vec::new() })
    }

    /// Row groups.
    pub fn groups(&self) -> usize {
        self.part.groups()
    }

    /// Journeys.
    pub fn rows(&self) -> u64 {
        self.part.rows()
    }

    /// The points that have columns, in their order.
    pub fn points(&self) -> Vec<String> {
        self.part.columns().filter_map(Meaning::point).map(str::to_owned).collect()
    }

    /// First and last time of the part, as far as its statistics tell.
    pub fn times(&self) -> Option<(Ns, Ns)> {
        let times = (0..self.groups()).map(|group| self.part.bounds(group, TIME));
        times.reduce(|a, b| Some((a?.0.min(b?.0), a?.1.max(b?.1)))).flatten()
    }

    /// Whether a row group may hold a journey that the selection wants.
    pub fn may_hold(&self, group: usize, select: &Select) -> bool {
        if select.wants_all() {
            return true;
        }
        let in_time = |(first, last)| select.may_want(first, last);
        let in_streams = |(min, max)| {
            select.streams.as_ref().is_none_or(|s| s.iter().any(|id| (min..=max).contains(&i64::from(*id))))
        };
        self.part.bounds(group, TIME).is_none_or(in_time) && self.part.bounds(group, STREAM).is_none_or(in_streams)
    }

    /// Reads one row group into `rows`, whose points will be `points` (names in the order of their ids).
    pub fn read(&mut self, group: usize, points: &[String], details: bool, rows: &mut Rows) -> Result<(), RunError> {
        let Self { part, values, first } = self;
        Ok(part.with_group(group, |group| read_group(group, points, details, rows, values, first))?)
    }
}

fn read_group(
    group: &GroupReader<'_>,
    points: &[String],
    details: bool,
    rows: &mut Rows,
    values: &mut Values,
    first: &mut Vec<Ns>,
) -> Result<(), String> {
    let n = group.rows();
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
    let id = |name: &str| points[..stride].iter().position(|p| p == name);
    let read = |index: usize, kind, values: &mut Values| {
        values.clear();
        group.read(index, kind, values)
    };
    let required = |name: &str, kind, values: &mut Values| {
        let index = group.columns().position(|c| c == name).ok_or_else(|| format!("it has no column {name:?}"))?;
        read(index, kind, values)
    };
    required(STREAM, Kind::U16, values)?;
    rows.stream.extend(values.i32.iter().map(|v| *v as u16));
    required(KEY, Kind::U32, values)?;
    rows.key.extend(values.i32.iter().map(|v| *v as u32));
    required(NUMBER, Kind::U64, values)?;
    rows.number.extend(values.i64.iter().map(|v| *v as u64));
    required(TIME, Kind::I64, values)?;
    std::mem::swap(first, &mut values.i64);
    if [rows.stream.len(), rows.key.len(), rows.number.len(), first.len()] != [n; 4] {
        return Err("a column that every journey has holds nulls".into());
    }

    for (index, name) in group.columns().enumerate() {
        match Meaning::parse(name) {
            Meaning::Stream | Meaning::Key | Meaning::Number | Meaning::Time => {}
            Meaning::Offset(point) => {
                let Some(p) = id(point) else { continue };
                read(index, Kind::I64, values)?;
                let (times, seen) = (&mut rows.t[p], &mut rows.seen);
                scatter(&values.i64, &values.levels, |row, offset| {
                    times[row] = first[row].wrapping_add(offset);
                    seen[row] |= 1 << p;
                });
            }
            Meaning::Cpu(point) => {
                let Some(p) = id(point).filter(|_| details) else { continue };
                read(index, Kind::U16, values)?;
                let cpus = &mut rows.cpu[p];
                scatter(&values.i32, &values.levels, |row, cpu| cpus[row] = cpu as u16);
            }
            Meaning::Tid(point) => {
                let Some(p) = id(point).filter(|_| details) else { continue };
                read(index, Kind::U32, values)?;
                let tids = &mut rows.tid[p];
                scatter(&values.i32, &values.levels, |row, tid| tids[row] = tid as u32);
            }
            Meaning::Duplicates => {
                read(index, Kind::U32, values)?;
                scatter(&values.i32, &values.levels, |row, count| rows.duplicates[row] = count as u32);
            }
            Meaning::OutOfOrder => {
                read(index, Kind::Bool, values)?;
                scatter(&values.bool, &values.levels, |row, flag| rows.out_of_order[row] = flag);
            }
            Meaning::DropNote => {
                read(index, Kind::U16, values)?;
                scatter(&values.i32, &values.levels, |row, note| rows.drop_note[row] = (note as u16).saturating_add(1));
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
