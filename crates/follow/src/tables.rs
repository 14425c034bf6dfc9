//! The common tables of points and drop notes. Each source has its own IDs, which are mapped to the common ones.

use latpath_model::pattern::fits;
use latpath_model::{DropNote, Point, PointId, PointInfo, PointKind, Sighting, HOST};
use std::collections::{BTreeSet, HashMap};

/// Maximum number of points of a run.
pub const MAX_POINTS: usize = latpath_journey::journey::MAX_POINTS;

/// Maximum number of points of another machine, so that it leaves room for others.
const MAX_OF_A_MACHINE: usize = MAX_POINTS / 3;

/// Maximum number of drop notes of a run; `MAX_NOTES_OF_A_MACHINE` limits those of one machine.
const MAX_NOTES: usize = 4096;
const MAX_NOTES_OF_A_MACHINE: usize = MAX_NOTES / 4;

/// The requested points: patterns in which `*` matches any text. Without patterns, every point is requested.
#[derive(Clone, Debug, Default)]
pub struct PointFilter(Vec<String>);

impl PointFilter {
    /// Creates a filter from patterns such as `host/*@eth*`, `guest0/app-read@*`.
    pub fn new(patterns: Vec<String>) -> Self {
        Self(patterns)
    }

    /// Whether every point is requested.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a point is requested. Drop points always are: they explain losses.
    pub fn matches(&self, info: &PointInfo) -> bool {
        let name = info.point.to_string();
        self.0.is_empty() || info.point.kind.is_drop() || self.0.iter().any(|p| fits(p, &name))
    }

    /// Requested names of the threads that read on a machine; `*` in a name matches any text.
    pub fn readers(&self, machine: &str) -> Vec<String> {
        let of = |pattern: &String| {
            let (point, device) = pattern.rsplit_once('@')?;
            let (at, kind) = point.split_once('/').unwrap_or(("*", point));
            let is_reader = |named: &PointKind| named.is_named_by_thread() && fits(kind, named.name());
            let reads = fits(at, machine) && PointKind::ALL.iter().any(is_reader);
            let name = device.split_once('%').map_or(device, |(name, _)| name);
            reads.then(|| name.to_owned())
        };
        self.0.iter().filter_map(of).collect()
    }

    /// The requested points whose full names were given.
    pub fn named(&self) -> Vec<Point> {
        self.0.iter().filter(|pattern| !pattern.contains('*')).filter_map(|pattern| pattern.parse().ok()).collect()
    }

    /// Patterns that match none of these points.
    pub fn unmatched(&self, points: &[PointInfo]) -> Vec<&str> {
        let hit = |p: &&String| points.iter().any(|i| fits(p, i.point.to_string()));
        self.0.iter().filter(|p| !hit(p)).map(String::as_str).collect()
    }
}

/// The common tables.
#[derive(Default)]
pub struct Tables {
    /// The points.
    pub points: Vec<PointInfo>,
    /// The drop notes.
    pub notes: Vec<DropNote>,
    /// The requested points.
    pub filter: PointFilter,
    /// Number of points rejected because of the limits.
    pub refused: usize,
    /// Points whose devices were replaced.
    pub renewed: BTreeSet<PointId>,
}

impl Tables {
    fn update(&mut self, point: PointId, info: &PointInfo) {
        let Some(known) = self.points.get_mut(usize::from(point)) else { return };
        if info.error_bound_ns > 0 {
            known.error_bound_ns = info.error_bound_ns;
        }
        if known.ifindex != info.ifindex {
            known.ifindex = info.ifindex;
            self.renewed.insert(point);
        }
    }
}

/// Maps one source's IDs to the common tables.
#[derive(Default)]
pub(crate) struct Mapping {
    points: Vec<Option<PointId>>,
    /// The source's own notes.
    notes: Vec<DropNote>,
    /// Common ID of a note at a point, by the source's ID of the note and the common ID of the point.
    common_notes: HashMap<(u16, PointId), u16>,
}

impl Mapping {
    /// Updates the variable properties of known points: the error bounds of their times, and the devices of taps that
    /// were recreated.
    pub fn update(&self, points: &[PointInfo], tables: &mut Tables) {
        let known = self.points.iter().zip(points).filter_map(|(id, info)| Some(((*id)?, info)));
        known.for_each(|(id, info)| tables.update(id, info));
    }

    /// Adds the points and drop notes that a source has found since the last call.
    pub fn refresh(&mut self, points: &[PointInfo], notes: &[DropNote], tables: &mut Tables) {
        self.update(points, tables);
        for info in points.iter().skip(self.points.len()) {
            let machine = &info.point.machine;
            let of_machine = tables.points.iter().filter(|known| known.point.machine == *machine).count();
            let is_full = tables.points.len() == MAX_POINTS || (machine != HOST && of_machine >= MAX_OF_A_MACHINE);
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
        self.notes.extend(notes.iter().skip(self.notes.len()).cloned());
    }

    /// Common ID of a source's point; `None` if the point is not in the table.
    pub fn point(&self, point: PointId) -> Option<PointId> {
        self.points.get(usize::from(point)).copied().flatten()
    }

    /// Whether a sighting has IDs that `refresh` has not seen yet.
    pub fn is_stale_for(&self, s: &Sighting) -> bool {
        usize::from(s.point) >= self.points.len() || usize::from(s.note) > self.notes.len()
    }

    /// Converts a sighting to common IDs; `None` if its point is not in the table.
    pub fn map(&mut self, s: Sighting, tables: &mut Tables) -> Option<Sighting> {
        let point = self.point(s.point)?;
        let note = if s.note == 0 { 0 } else { self.common_note(s.note, point, tables) };
        Some(Sighting { point, note, ..s })
    }

    /// Common ID of a source's note at a point: notes are stored per point, because a drop reason needs its device. 0
    /// beyond the limit.
    fn common_note(&mut self, note: u16, point: PointId, tables: &mut Tables) -> u16 {
        if let Some(number) = self.common_notes.get(&(note, point)) {
            return *number;
        }
        let Some(own) = self.notes.get(usize::from(note) - 1) else { return 0 };
        let at = tables.points.get(usize::from(point)).map(|info| info.point.clone());
        let noted = DropNote { at, ..own.clone() };
        let known = tables.notes.iter().position(|n| *n == noted);
        let place = known.unwrap_or(tables.notes.len());
        if place >= MAX_NOTES || self.common_notes.len() == MAX_NOTES_OF_A_MACHINE {
            return 0;
        }
        if known.is_none() {
            tables.notes.push(noted);
        }
        let number = place as u16 + 1;
        self.common_notes.insert((note, point), number);
        number
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
        let mut map = |point| mapping.map(Sighting { point, ..Default::default() }, &mut tables).map(|s| s.point);
        assert_eq!((map(0), map(1), map(2), map(3)), (None, Some(0), Some(1), None));
        assert!(mapping.is_stale_for(&Sighting { point: 3, ..Default::default() }));
    }

    #[test]
    fn a_tap_that_returned_is_at_its_new_device() {
        let mut tables = Tables::default();
        let at = |ifindex| PointInfo { ifindex, netns: 7, ..info("host/tx@vnet7") };
        let mut mapping = Mapping::default();
        mapping.refresh(&[at(10)], &[], &mut tables);
        mapping.update(&[PointInfo { error_bound_ns: 5, ..at(10) }], &mut tables);
        assert!(tables.renewed.is_empty());
        mapping.refresh(&[at(11), PointInfo { ifindex: 11, netns: 7, ..info("host/drop@vnet7") }], &[], &mut tables);
        assert_eq!(tables.points[1].ifindex, 11);
        assert_eq!((tables.points[0].ifindex, tables.points[0].error_bound_ns), (11, 5));
        assert!(tables.renewed.contains(&0));
    }

    #[test]
    fn endless_points_of_a_machine_do_not_displace_others() {
        let mut tables = Tables::default();
        let flood: Vec<_> = (0..MAX_POINTS).map(|n| info(&format!("evil/tx@d{n}"))).collect();
        Mapping::default().refresh(&flood, &[], &mut tables);
        Mapping::default().refresh(&[info("guest0/app-read@relay")], &[], &mut tables);
        assert!(tables.points.iter().any(|p| p.point.machine == "guest0"));
        assert_eq!(tables.refused, MAX_POINTS - MAX_OF_A_MACHINE);
    }

    #[test]
    fn patterns_name_readers_of_one_machine() {
        let patterns =
            ["host/app-read@relay", "*@prot*%blue", "guest0/app-read@p2", "host/tx@eth0", "h*/*@x", "host/*"];
        let filter = PointFilter::new(patterns.map(String::from).to_vec());
        assert_eq!(filter.readers("host"), ["relay", "prot*", "x"]);
        assert_eq!(filter.readers("guest0"), ["prot*", "p2"]);
    }

    #[test]
    fn a_reason_at_two_devices_is_two_notes_and_at_one_device_one() {
        let note = |f: &str| DropNote { reason: "FULL_RING".into(), function: f.into(), at: None };
        let mut tables = Tables::default();
        let (mut a, mut b) = (Mapping::default(), Mapping::default());
        a.refresh(&[info("host/drop@a"), info("host/drop@b")], &[note("x"), note("y")], &mut tables);
        b.refresh(&[info("guest0/drop@a")], &[note("y")], &mut tables);
        let dropped = |point, note| Sighting { point, note, ..Sighting::default() };
        let mut number = |s: Sighting| a.map(s, &mut tables).unwrap().note;
        let numbers = [dropped(0, 1), dropped(1, 1), dropped(0, 1), dropped(1, 2), dropped(0, 3), dropped(0, 0)];
        assert_eq!(numbers.map(&mut number), [1, 2, 1, 3, 0, 0], "the source has two notes");
        assert_eq!(b.map(dropped(0, 1), &mut tables).unwrap().note, 4);
        let at: Vec<String> = tables.notes.iter().map(|n| n.at.as_ref().unwrap().to_string()).collect();
        assert_eq!(at, ["host/drop@a", "host/drop@b", "host/drop@b", "guest0/drop@a"]);
    }
}
