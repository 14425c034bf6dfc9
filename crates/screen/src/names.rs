//! Short names: the points of the route numbered from 1, and segments as `2→3`.

use crate::theme::Theme;
use latpath_model::{Point, SegmentKind, HOST};
use latpath_stats::{text::short_stream, SegmentFigures, Summary};
use unicode_width::UnicodeWidthStr;

pub struct Path<'a>(pub &'a Summary);

impl Path<'_> {
    /// Short name of a point, given its full name: its number and short name, or the full name if it is not on the
    /// path.
    pub fn point(&self, name: &str, theme: &Theme) -> String {
        match self.0.number(name) {
            Some(n) => format!("{n} {}", theme.clean(&short(&self.0.points[n - 1]))),
            None => theme.clean(name),
        }
    }

    /// Name of a segment in at most `width` columns: `Thyp 2→5`, or for neighbours `2→3 tx@vnet0` with the segment's
    /// end.
    pub fn segment(&self, segment: &SegmentFigures, theme: &Theme, width: usize) -> String {
        let name = theme.clean(&segment.name);
        let Some(numbers) = self.0.numbers(segment, theme.letters) else { return theme.cut(&name, width) };
        if segment.kind != SegmentKind::Step {
            let both = format!("{name:5} {numbers}");
            return if both.width() <= width { both } else { theme.cut(&name, width) };
        }
        let end = |name| self.0.number(name).map_or(String::new(), |n| theme.clean(&short(&self.0.points[n - 1])));
        let (from, to) = (end(&segment.from), end(&segment.to));
        let whole = format!("{numbers} {from}{}{to}", theme.letters.arrow());
        if whole.width() <= width {
            return whole;
        }
        theme.cut(&format!("{numbers} {to}"), width)
    }

    /// Shortest name of a segment: `2→3`, or its name if its ends are not on the path.
    pub fn segment_number(&self, segment: &SegmentFigures, theme: &Theme) -> String {
        self.0.numbers(segment, theme.letters).unwrap_or_else(|| theme.cut(&theme.clean(&segment.name), 16))
    }

    /// The path as pieces; a line may be wrapped only between them. Each is the machine (if it differs from the
    /// previous piece's), and the point's number and short name.
    pub fn pieces(&self, theme: &Theme) -> Vec<(Option<String>, String)> {
        let mut machine = None;
        let piece = |(i, p): (usize, &Point)| {
            let new = machine.as_deref() != Some(p.machine.as_str());
            machine = Some(p.machine.clone());
            (new.then(|| theme.clean(&p.machine)), format!("{} {}", i + 1, theme.clean(&short(p))))
        };
        self.0.points.iter().enumerate().map(piece).collect()
    }
}

/// Name of a point without its machine.
fn short(point: &Point) -> String {
    format!("{}@{}", point.kind, point.device)
}

/// A stream's short name, e.g. the svID of Sampled Values.
pub fn stream(text: &str, theme: &Theme) -> String {
    theme.clean(&short_stream(text))
}

/// Whether all points are on latpath's own machine.
pub fn one_machine(summary: &Summary) -> bool {
    summary.points.iter().all(|p| p.machine == HOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_stats::units::CharacterSet;

    fn summary() -> Summary {
        let points = ["host/tx@pub", "host/tx@vnet0", "guest0/nic-rx@eth1"];
        Summary { points: points.iter().map(|p| p.parse().unwrap()).collect(), ..Summary::default() }
    }

    #[test]
    fn segments_are_named_by_the_numbers_of_their_points() {
        let (summary, theme) = (summary(), Theme::of(CharacterSet::Unicode, "xterm", ""));
        let path = Path(&summary);
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
        let theme = Theme::of(CharacterSet::Unicode, "xterm", "");
        assert_eq!(stream("svid:MU01,vlan=7", &theme), "MU01");
        assert_eq!(stream("whatever", &theme), "whatever");
    }
}
