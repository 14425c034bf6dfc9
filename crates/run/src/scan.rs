//! Reading a run: all its parts, by several workers at once.

use crate::{part_reader::JourneyReader, reader::Run, rows::Rows, RunError, Select};
use latpath_journey::Journey;
use latpath_partstore::PartFile;
use std::sync::{
    atomic::{AtomicUsize, Ordering},
    Mutex,
};

/// What a scan brought.
#[derive(Debug)]
pub struct Scan<A> {
    /// What each worker gathered.
    pub gathered: Vec<A>,
    /// Parts of which something could not be read, and why; their other row groups are in what was gathered.
    pub damaged: Vec<RunError>,
}

impl Run {
    /// Reads all wanted journeys with several workers at once. Each makes its own gatherer and adds batches of journeys to
    /// it, one part after the other; which worker gets which part is left to chance.
    ///
    /// What is damaged is passed over, row group by row group, and returned.
    pub fn scan_rows<A: Send>(
        &self,
        select: &Select,
        workers: usize,
        make: impl Fn() -> A + Sync,
        add: impl Fn(&mut A, &Rows) + Sync,
    ) -> Scan<A> {
        let (next, damaged) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            let mut gathered = make();
            let mut rows = Rows::default();
            while let Some(part) = self.parts().get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut add = |rows: &Rows| {
                    add(&mut gathered, rows);
                    true
                };
                if let Err(e) = self.scan_part(part, select, &mut rows, &mut add) {
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

    /// The same, journey by journey.
    pub fn scan<A: Send>(
        &self,
        select: &Select,
        workers: usize,
        make: impl Fn() -> A + Sync,
        add: impl Fn(&mut A, &Journey) + Sync,
    ) -> Scan<A> {
        self.scan_rows(select, workers, make, |gathered, rows| rows.for_each(|journey| add(gathered, journey)))
    }

    /// Reads all wanted journeys in the order of the parts; within a part, stream by stream. `add` says whether to go on.
    pub fn for_each(&self, select: &Select, mut add: impl FnMut(&Journey) -> bool) -> Vec<RunError> {
        let (mut rows, mut damaged, mut go_on) = (Rows::default(), Vec::new(), true);
        for part in self.parts() {
            if !go_on {
                break;
            }
            let each = &mut |rows: &Rows| {
                rows.for_each(|journey| go_on = go_on && add(journey));
                go_on
            };
            damaged.extend(self.scan_part(part, select, &mut rows, each).err());
        }
        damaged
    }

    /// One part; the first error is returned after all row groups were tried. `add` says whether to go on.
    fn scan_part(
        &self,
        part: &PartFile,
        select: &Select,
        rows: &mut Rows,
        add: &mut dyn FnMut(&Rows) -> bool,
    ) -> Result<(), RunError> {
        let mut part = JourneyReader::open(part)?;
        let mut error = None;
        for group in (0..part.groups()).filter(|g| part.may_hold(*g, select)).collect::<Vec<_>>() {
            match part.read(group, self.point_names(), select.cpus_and_threads, rows) {
                Err(e) => error = error.or(Some(e)),
                Ok(()) => {
                    if !select.wants_all() {
                        rows.keep(|rows, row| select.wants(rows.stream[row], rows.first_time(row)));
                    }
                    if !add(rows) {
                        break;
                    }
                }
            }
        }
        error.map_or(Ok(()), Err)
    }
}
