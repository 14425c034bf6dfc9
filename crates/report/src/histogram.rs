//! Histogram of a segment with two logarithmic axes, as is usual for Sampled Values, but rotated: each line shows a
//! bucket and its count.

use crate::page::Page;
use latpath_model::{Ns, SegmentKind};
use latpath_stats::text::cut;
use latpath_stats::units::share;
use latpath_stats::{Bucket, SegmentFigures, Summary};

/// Width of the longest bar, columns.
const BAR: usize = 40;
/// Page width below which the column of shares is left out, columns.
const NARROW: usize = 60;
/// Maximum number of edges at which three lines per decade are too coarse; the histogram then gets ten per decade.
const FEW: usize = 14;
/// Maximum number of consecutive empty lines; more are shown as one gap.
const GAP: usize = 2;

/// Returns the segments to draw: the named ones; without names, `total`, or else the last segment.
pub(crate) fn chosen<'a>(summary: &'a Summary, names: &[String]) -> Vec<&'a SegmentFigures> {
    if names.is_empty() {
        let total = summary.segments.iter().find(|s| s.kind == SegmentKind::Total).or(summary.segments.last());
        return total.into_iter().collect();
    }
    let of_name = |name: &String| summary.segments.iter().find(|s| s.name == *name);
    names.iter().filter_map(of_name).collect()
}

pub(crate) fn write(page: &mut Page, segment: &SegmentFigures, threshold: Ns) {
    let Some(lines) = lines(&segment.histogram) else { return };
    let name = page.clean(&segment.name);
    page.heading(&format!("Histogram of {name} (both scales logarithmic)"));
    let all: u64 = lines.iter().map(|l| l.count).sum();
    let most = lines.iter().map(|l| l.count).max().unwrap_or(0);
    // On a narrow page, only the bar shows the share. It takes the columns beside the numbers.
    let is_narrow = page.width < NARROW;
    let columns = BAR.min(page.width.saturating_sub(if is_narrow { 31 } else { 50 }));
    for (i, line) in lines.iter().enumerate() {
        if line.from == Some(threshold) {
            let rule = if page.letters.is_ascii() { "-" } else { "─" }.repeat(8);
            page.line(format!("  {rule} threshold {} {rule}", page.duration(threshold)));
        }
        if line.count == 0 && in_gap(&lines, i, threshold) {
            if i == 0 || lines[i - 1].count > 0 || line.from == Some(threshold) {
                page.line(format!("  {:>10}", if page.letters.is_ascii() { ":" } else { "⋮" }));
            }
            continue;
        }
        let dash = if page.letters.is_ascii() { "-" } else { "–" };
        let edges = match (line.from, line.to) {
            (Some(from), Some(to)) => format!("{:>8} {dash} {:>8}", page.duration(from), page.duration(to)),
            (Some(from), None) => format!("from {}", page.duration(from)),
            (None, _) => "negative".into(),
        };
        let inside = line.from.is_some_and(|from| from < threshold) && line.to.is_some_and(|to| threshold < to);
        let mark = if inside { format!("  (threshold {})", page.duration(threshold)) } else { String::new() };
        let (count, share, bar) =
            (page.count(line.count), share(line.count, all), page.bar(bar(line.count, most, columns)));
        let text = match is_narrow {
            true => format!("  {edges:>19}  {count:>6}  {bar}{mark}"),
            false => format!("  {edges:>19}  {count:>12}  {share:>11}  {bar}{mark}"),
        };
        page.line(cut(&text, page.width, page.letters.ellipsis()));
    }
}

/// Whether an empty line is part of a gap of more than `GAP` empty lines, on one side of the threshold.
fn in_gap(lines: &[Line], at: usize, threshold: Ns) -> bool {
    let begins = |i: usize| i == 0 || lines[i - 1].count > 0 || lines[i].from == Some(threshold);
    let begin = (0..=at).rev().find(|i| begins(*i)).unwrap_or(0);
    let same = |(i, l): &(usize, &Line)| l.count == 0 && (*i == begin || l.from != Some(threshold));
    lines.iter().enumerate().skip(begin).take_while(same).count() > GAP
}

/// Length of a bar, eighths of a column. The scale is logarithmic, and one journey is visible.
fn bar(count: u64, most: u64, columns: usize) -> usize {
    const FLOOR: f64 = 0.35;
    if count == 0 {
        return 0;
    }
    let log = |n: u64| (n as f64).log10() + FLOOR;
    ((log(count) / log(most.max(1)) * (columns * 8) as f64).round() as usize).max(1)
}

/// Number of journeys from `from` (inclusive) to `to` (exclusive), ns; `from` is `None` for negative times.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    from: Option<Ns>,
    to: Option<Ns>,
    count: u64,
}

/// Gathers the buckets into lines with round edges: ten per decade, or three if the times span many decades.
fn lines(buckets: &[Bucket]) -> Option<Vec<Line>> {
    let positive = || buckets.iter().filter(|b| b.count > 0 && b.from_ns >= 0);
    let negative = buckets.iter().filter(|b| b.from_ns < 0).map(|b| b.count).sum();
    let mut lines = Vec::new();
    if negative > 0 {
        lines.push(Line { from: None, to: Some(0), count: negative });
    }
    if let (Some(first), Some(last)) = (positive().map(|b| b.from_ns).min(), positive().map(|b| b.from_ns).max()) {
        let coarse = edges(&[100, 200, 500], first, last);
        let fine = || edges(&[100, 120, 150, 200, 250, 300, 400, 500, 600, 800], first, last);
        let edges = if coarse.len() <= FEW { fine() } else { coarse };
        let begin = lines.len();
        for (i, from) in edges.iter().enumerate() {
            lines.push(Line { from: Some(*from), to: edges.get(i + 1).copied(), count: 0 });
        }
        for bucket in positive() {
            let line = edges.partition_point(|edge| *edge <= bucket.from_ns).max(1) - 1;
            lines[begin + line].count += bucket.count;
        }
    }
    let last = lines.iter().rposition(|l| l.count > 0)?;
    lines.truncate(last + 1);
    Some(lines)
}

/// Returns round edges, from the last one at or below `first` to the first one above `last`, ns. `steps`: edges within
/// a decade, in hundredths of its start.
fn edges(steps: &[Ns], first: Ns, last: Ns) -> Vec<Ns> {
    let mut edges = vec![0];
    let mut decade: Ns = 1;
    'all: loop {
        for step in steps {
            let Some(edge) = decade.checked_mul(*step).map(|e| e / 100) else { break 'all };
            // Some edges of the first decade coincide.
            if edges.last() != Some(&edge) {
                edges.push(edge);
            }
            if edge > last {
                break 'all;
            }
        }
        let Some(next) = decade.checked_mul(10) else { break };
        decade = next;
    }
    let begin = edges.iter().rposition(|e| *e <= first).unwrap_or(0);
    edges.split_off(begin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket(from_ns: Ns, count: u64) -> Bucket {
        Bucket { from_ns, to_ns: from_ns + from_ns / 128 + 1, count }
    }

    #[test]
    fn times_over_many_decades_have_lines_at_1_2_and_5_and_negative_ones_their_own() {
        let buckets = [bucket(-7, 4), bucket(1_000, 1), bucket(90_000, 7), bucket(150_000, 2), bucket(90_000_000, 1)];
        let lines = lines(&buckets).unwrap();
        assert_eq!(lines[0], Line { from: None, to: Some(0), count: 4 });
        assert_eq!(lines[1], Line { from: Some(1_000), to: Some(2_000), count: 1 });
        assert!(lines.contains(&Line { from: Some(100_000), to: Some(200_000), count: 2 }));
        assert_eq!(lines.last().unwrap(), &Line { from: Some(50_000_000), to: Some(100_000_000), count: 1 });
    }

    #[test]
    fn a_narrow_histogram_has_narrow_lines() {
        let lines = lines(&[bucket(21_000, 1), bucket(33_000, 7), bucket(48_000, 2)]).unwrap();
        let from: Vec<_> = lines.iter().map(|l| l.from.unwrap()).collect();
        assert_eq!(from, [20_000, 25_000, 30_000, 40_000]);
    }

    proptest! {
        #[test]
        fn no_journey_is_left_out(buckets in proptest::collection::vec((any::<i64>(), 1..1000_u64), 1..50)) {
            let buckets: Vec<Bucket> = buckets.into_iter().map(|(at, count)| Bucket { from_ns: at, to_ns: at, count }).collect();
            let lines = lines(&buckets).unwrap();
            prop_assert_eq!(lines.iter().map(|l| l.count).sum::<u64>(), buckets.iter().map(|b| b.count).sum::<u64>());
            prop_assert!(lines.len() < 300);
        }

        #[test]
        fn more_journeys_never_have_a_shorter_bar(a in 0..u64::MAX, b in 0..u64::MAX) {
            let (a, b) = (a.min(b), a.max(b));
            prop_assert!(bar(a, b, BAR) <= bar(b, b, BAR) && bar(b, b, BAR) <= BAR * 8);
        }
    }
}
