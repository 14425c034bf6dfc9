//! One table of points and one of drop notes for all machines: each source numbers its own, these map them.

use latpath_model::pattern::fits;
use latpath_model::{DropNote, PointId, PointInfo, Sighting, HOST};

/// Points that one run can have.
pub const MAX_POINTS: usize = latpath_journey::journey::MAX_POINTS;

/// Points that one other machine can have of them: what it announces must not keep others out.
const MOST_OF_A_MACHINE: usize = MAX_POINTS / 3;

/// Which points are requested: patterns with `*` for any text. None at all: every point.
#[derive(Clone, Debug, Default)]
pub struct PointFilter(Vec<String>);

impl PointFilter {
    /// A filter of these patterns: `host/*@eth*`, `guest0/app-read@*`.
    pub fn new(patterns: Vec<String>) -> Self {
        Self(patterns)
    }

    /// Whether a point is requested. Drop points always are: they explain losses.
    pub fn matches(&self, info: &PointInfo) -> bool {
        let name = info.point.to_string();
        self.0.is_empty() || info.point.kind == latpath_model::PointKind::Drop || self.0.iter().any(|p| fits(p, &name))
    }

    /// Patterns that match none of these points.
    pub fn unmatched(&self, points: &[PointInfo]) -> Vec<&str> {
        let hit = |p: &&String| points.iter().any(|i| fits(p, i.point.to_string()));
        self.0.iter().filter(|p| !hit(p)).map(String::as_str).collect()
    }
}

#[derive(Default)]
pub struct Tables {
    pub points: Vec<PointInfo>,
    pub notes: Vec<DropNote>,
    pub filter: PointFilter,
    /// Points that found no room.
    pub refused: usize,
}

/// One source's numbers in the common tables.
#[derive(Default)]
pub(crate) struct Mapping {
    points: Vec<Option<PointId>>,
    notes: Vec<u16>,
}

impl Mapping {
    /// Takes over what a source has found since the last call.
    pub fn refresh(&mut self, points: &[PointInfo], notes: &[DropNote], tables: &mut Tables) {
        for info in points.iter().skip(self.points.len()) {
            let machine = &info.point.machine;
            let of_machine = tables.points.iter().filter(|known| known.point.machine == *machine).count();
            let is_full = tables.points.len() == MAX_POINTS || (machine != HOST && of_machine >= MOST_OF_A_MACHINE);
            let id = if !tables.filter.matches(info) {
                None
            } else if is_full {
                tables.refused += 1;
                None
            } else {
                tables.points.push(info.clone());
                Some((tables.points.len() - 1) as PointId)
            };
            self.points.push(id);
        }
        for note in notes.iter().skip(self.notes.len()) {
            let at = tables.notes.iter().position(|n| n == note).unwrap_or_else(|| {
                tables.notes.push(note.clone());
                tables.notes.len() - 1
            });
            self.notes.push(at as u16 + 1);
        }
    }

    /// Whether a sighting names what `refresh` has not seen yet.
    pub fn is_stale_for(&self, s: &Sighting) -> bool {
        usize::from(s.point) >= self.points.len() || usize::from(s.note) > self.notes.len()
    }

    /// The sighting in common numbers; none if its point is not requested.
    pub fn map(&self, s: Sighting) -> Option<Sighting> {
        let point = self.points.get(usize::from(s.point)).copied().flatten()?;
        let note = usize::from(s.note).checked_sub(1).and_then(|n| self.notes.get(n)).copied().unwrap_or(0);
        Some(Sighting { point, note, ..s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_model::Point;

    fn info(text: &str) -> PointInfo {
        text.parse::<Point>().unwrap().into()
    }

    #[test]
    fn points_that_are_not_requested_get_no_number_and_drops_always_do() {
        let mut tables = Tables { filter: PointFilter::new(vec!["host/tx@*".into()]), ..Default::default() };
        let mut mapping = Mapping::default();
        mapping.refresh(&[info("host/nic-rx@a"), info("host/tx@b"), info("host/drop@b")], &[], &mut tables);
        let map = |point| mapping.map(Sighting { point, ..Default::default() }).map(|s| s.point);
        assert_eq!((map(0), map(1), map(2), map(3)), (None, Some(0), Some(1), None));
        assert!(mapping.is_stale_for(&Sighting { point: 3, ..Default::default() }));
    }

    #[test]
    fn a_machine_that_announces_points_without_end_keeps_no_other_out() {
        let mut tables = Tables::default();
        let flood: Vec<_> = (0..MAX_POINTS).map(|n| info(&format!("evil/tx@d{n}"))).collect();
        Mapping::default().refresh(&flood, &[], &mut tables);
        Mapping::default().refresh(&[info("guest0/app-read@relay")], &[], &mut tables);
        assert!(tables.points.iter().any(|p| p.point.machine == "guest0"));
        assert_eq!(tables.refused, MAX_POINTS - MOST_OF_A_MACHINE);
    }

    #[test]
    fn equal_notes_of_two_machines_are_one() {
        let note = |f: &str| DropNote { reason: "FULL_RING".into(), function: f.into() };
        let mut tables = Tables::default();
        let (mut a, mut b) = (Mapping::default(), Mapping::default());
        a.refresh(&[info("host/tx@a")], &[note("x"), note("y")], &mut tables);
        b.refresh(&[info("guest0/tx@a")], &[note("y")], &mut tables);
        assert_eq!(tables.notes.len(), 2);
        assert_eq!(b.map(Sighting { note: 1, ..Default::default() }).unwrap().note, 2);
    }
}
