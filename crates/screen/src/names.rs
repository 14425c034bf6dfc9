//! Short names: the points of the path numbered from 1, and segments as `2→3`.

use crate::theme::{columns, Theme};
use latpath_model::{Point, SegmentKind, StreamSpec, HOST};
use latpath_stats::{SegmentFigures, Summary};
use std::collections::HashMap;

/// The numbers of the path's points.
pub struct Path<'a> {
    points: &'a [Point],
    numbers: HashMap<String, usize>,
}

impl<'a> Path<'a> {
    /// The path of a summary.
    pub fn of(summary: &'a Summary) -> Self {
        let numbers = summary.points.iter().enumerate().map(|(i, p)| (p.to_string(), i + 1)).collect();
        Self { points: &summary.points, numbers }
    }

    /// A point by its full name: its number and its short name, or the full name alone if it is not on the path.
    pub fn point(&self, name: &str, theme: &Theme) -> String {
        match self.numbers.get(name) {
            Some(n) => format!("{n} {}", theme.clean(&short(&self.points[n - 1]))),
            None => theme.clean(name),
        }
    }

    /// `2→3`, if both ends are on the path.
    fn numbers(&self, segment: &SegmentFigures, theme: &Theme) -> Option<String> {
        let (from, to) = (self.numbers.get(&segment.from)?, self.numbers.get(&segment.to)?);
        Some(format!("{from}{}{to}", theme.arrow()))
    }

    /// A segment's name in at most `width` columns: `Thyp 2→5`, or `2→3 tx@vnet0` (where it leads) for neighbours.
    pub fn segment(&self, segment: &SegmentFigures, theme: &Theme, width: usize) -> String {
        let Some(numbers) = self.numbers(segment, theme) else { return theme.cut(&theme.clean(&segment.name), width) };
        if segment.kind != SegmentKind::Step {
            let name = theme.clean(&segment.name);
            let both = format!("{name:5} {numbers}");
            return if columns(&both) <= width { both } else { theme.cut(&name, width) };
        }
        let end =
            |name: &str| self.numbers.get(name).map_or(String::new(), |n| theme.clean(&short(&self.points[n - 1])));
        let (from, to) = (end(&segment.from), end(&segment.to));
        let whole = format!("{numbers} {from}{}{to}", theme.arrow());
        if columns(&whole) <= width {
            return whole;
        }
        theme.cut(&format!("{numbers} {to}"), width)
    }

    /// A segment in the fewest letters: `2→3`, or its name if its ends are not on the path.
    pub fn segment_number(&self, segment: &SegmentFigures, theme: &Theme) -> String {
        self.numbers(segment, theme).unwrap_or_else(|| theme.cut(&theme.clean(&segment.name), 16))
    }

    /// The path in pieces that belong together on a line: (machine, if it changes here; number and short name).
    pub fn pieces(&self, theme: &Theme) -> Vec<(Option<String>, String)> {
        let mut machine = None;
        let piece = |(i, p): (usize, &Point)| {
            let new = machine.as_deref() != Some(p.machine.as_str());
            machine = Some(p.machine.clone());
            (new.then(|| theme.clean(&p.machine)), format!("{} {}", i + 1, theme.clean(&short(p))))
        };
        self.points.iter().enumerate().map(piece).collect()
    }
}

/// A point without its machine.
fn short(point: &Point) -> String {
    format!("{}@{}", point.kind, point.device)
}

/// A stream's short name: the svID of Sampled Values.
pub fn stream(text: &str, theme: &Theme) -> String {
    theme.clean(&text.parse::<StreamSpec>().map_or_else(|_| text.to_string(), |s| s.short()))
}

/// Whether all points lie on latpath's own machine.
pub fn one_machine(summary: &Summary) -> bool {
    summary.points.iter().all(|p| p.machine == HOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_stats::units::Letters;

    fn summary() -> Summary {
        let points = ["host/tx@pub", "host/tx@vnet0", "guest0/nic-rx@eth1"];
        Summary { points: points.iter().map(|p| p.parse().unwrap()).collect(), ..Summary::default() }
    }

    #[test]
    fn segments_are_named_by_the_numbers_of_their_points() {
        let (summary, theme) = (summary(), Theme::of(Letters::Unicode, "xterm", ""));
        let path = Path::of(&summary);
        let mut segment = SegmentFigures {
            kind: SegmentKind::Step,
            name: "host/tx@vnet0→guest0/nic-rx@eth1".into(),
            from: "host/tx@vnet0".into(),
            to: "guest0/nic-rx@eth1".into(),
            ..SegmentFigures::default()
        };
        assert_eq!(path.segment(&segment, &theme, 40), "2→3 tx@vnet0→nic-rx@eth1");
        assert_eq!(path.segment(&segment, &theme, 16), "2→3 nic-rx@eth1");
        (segment.kind, segment.name) = (SegmentKind::Thyp, "Thyp".into());
        assert_eq!(path.segment(&segment, &theme, 16), "Thyp  2→3");
        segment.to = "guest0/app-read@x".into();
        assert_eq!(path.segment(&segment, &theme, 16), "Thyp");
    }

    #[test]
    fn a_stream_is_shown_by_its_svid() {
        let theme = Theme::of(Letters::Unicode, "xterm", "");
        assert_eq!(stream("svid:MU01,vlan=7", &theme), "MU01");
        assert_eq!(stream("whatever", &theme), "whatever");
    }
}
