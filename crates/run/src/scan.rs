//! Reads all parts of a run with several workers.

use crate::{
    columns,
    part_reader::JourneyReader,
    reader::{Parts, Run},
    rows::Rows,
    span::{TimeSpan, IMPOSSIBLE},
    RunError, Select,
};
use latpath_journey::Journey;
use latpath_model::PointInfo;
use latpath_partstore::{Column, Group, PartFile};
use std::sync::{
    atomic::{AtomicUsize, Ordering},
    Arc, Mutex,
};

/// The result of a scan.
#[derive(Debug)]
pub struct Scan<A> {
    /// The gatherer of each worker.
    pub gathered: Vec<A>,
    /// Errors of the parts that contain unreadable row groups; their other row groups are included.
    pub damaged: Vec<RunError>,
}

impl Run {
    /// Reads all selected journeys with several workers. Each worker creates its own gatherer and adds batches of
    /// journeys to it, part by part; the assignment of parts to workers is arbitrary.
    ///
    /// Damaged row groups are skipped; the errors are returned.
    pub fn scan_rows<A: Send>(
        &self,
        select: &Select,
        workers: usize,
        make: impl Fn() -> A + Sync,
        add: impl Fn(&mut A, &Rows) + Sync,
    ) -> Scan<A> {
        let (next, damaged) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            let (mut gathered, mut reading) = (make(), Reading::new(self, select));
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= self.parts().len() {
                    break;
                }
                let mut add = |rows: &Rows| {
                    add(&mut gathered, rows);
                    true
                };
                if let Err(e) = reading.part(self, part, &mut add) {
                    damaged.lock().unwrap_or_else(|p| p.into_inner()).push(e);
                }
            }
            gathered
        };
        let gathered = match workers.min(self.parts().len()) {
            0 | 1 => vec![work()],
            n => std::thread::scope(|scope| {
                let others: Vec<_> = (1..n).map(|_| scope.spawn(work)).collect();
                let mut all = vec![work()];
                for other in others {
                    all.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
                }
                all
            }),
        };
        Scan { gathered, damaged: damaged.into_inner().unwrap_or_else(|p| p.into_inner()) }
    }

    /// Like [`Self::scan_rows`], journey by journey.
    pub fn scan<A: Send>(
        &self,
        select: &Select,
        workers: usize,
        make: impl Fn() -> A + Sync,
        add: impl Fn(&mut A, &Journey) + Sync,
    ) -> Scan<A> {
        self.scan_rows(select, workers, make, |gathered, rows| rows.for_each(|journey| add(gathered, journey)))
    }

    /// Reads all selected journeys in the order of the parts; within a part, stream by stream. `add` returns whether to
    /// continue.
    pub fn for_each(&self, select: &Select, mut add: impl FnMut(&Journey) -> bool) -> Vec<RunError> {
        let (mut reading, mut damaged, mut go_on) = (Reading::new(self, select), Vec::new(), true);
        for part in 0..self.parts().len() {
            if !go_on {
                break;
            }
            let each = &mut |rows: &Rows| {
                rows.for_each(|journey| go_on = go_on && add(journey));
                go_on
            };
            damaged.extend(reading.part(self, part, each).err());
        }
        damaged
    }
}

/// The selection, and buffers for all row groups.
struct Reading<'a> {
    select: &'a Select,
    points: usize,
    span: TimeSpan,
    table: Arc<[Column]>,
    group: Group,
    rows: Rows,
}

impl<'a> Reading<'a> {
    fn new(run: &Run, select: &'a Select) -> Self {
        let names = run.point_names();
        let table = columns::table(names, select.cpus_and_threads);
        let is_computed = |(_, info): &(usize, &PointInfo)| info.point.kind.is_computed();
        let samples = run.points().iter().enumerate().filter(is_computed).fold(0, |set, (point, _)| set | 1 << point);
        let rows = Rows { samples, ..Rows::default() };
        Self { select, points: names.len(), span: run.span(), table, group: Group::default(), rows }
    }

    /// Reads one part. Tries all row groups, then returns the first error. `add` returns whether to continue.
    fn part(&mut self, run: &Run, part: usize, add: &mut dyn FnMut(&Rows) -> bool) -> Result<(), RunError> {
        match run.parts() {
            Parts::Files(parts) => parts.get(part).map_or(Ok(()), |part| self.file(part, add)),
            Parts::Source(open) => {
                let (mut error, Self { select, span, .. }) = (None, self);
                let read = open.source.read(part, &mut |rows| {
                    if !rows.are_within(*span) {
                        error = error.take().or(Some(RunError::damaged(run.path(), IMPOSSIBLE)));
                        return true;
                    }
                    pass(select, rows, add)
                });
                error.map_or(read, Err)
            }
        }
    }

    fn file(&mut self, part: &PartFile, add: &mut dyn FnMut(&Rows) -> bool) -> Result<(), RunError> {
        let part = JourneyReader::open(part)?;
        let mut error = None;
        for group in (0..part.groups()).filter(|g| part.may_hold(*g, self.select)) {
            if let Err(e) = part.read(group, &self.table, &mut self.group) {
                error = error.or(Some(e));
                continue;
            }
            if !columns::take(&mut self.group, self.points, self.span, &mut self.rows) {
                error = error.or(Some(RunError::damaged(part.path(), IMPOSSIBLE)));
                continue;
            }
            if !pass(self.select, &mut self.rows, add) {
                break;
            }
        }
        error.map_or(Ok(()), Err)
    }
}

/// Passes the selected rows to `add`; returns whether to continue.
fn pass(select: &Select, rows: &mut Rows, add: &mut dyn FnMut(&Rows) -> bool) -> bool {
    if !select.is_everything() {
        rows.keep(|rows, row| select.matches(rows.stream[row], rows.first_time(row)));
    }
    add(rows)
}
