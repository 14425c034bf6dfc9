//! The histogram of a segment, both axes logarithmic, as people draw it for Sampled Values; turned, so that each bucket
//! is a line with its count.

use crate::page::{right, Page};
use latpath_stats::{Bucket, SegmentFigures, Summary};
use latpath_words::Ns;

/// Columns for the longest bar.
const BAR: usize = 60;
/// Fewer lines than this are too coarse: then a decade is cut into ten, not into three.
const FEW: usize = 12;
/// More neighbouring lines than this without a journey are shown as one gap.
const GAP: usize = 2;

/// The segments to draw: those named, else `total`, else the last.
pub(crate) fn chosen<'a>(summary: &'a Summary, names: &[String]) -> Vec<&'a SegmentFigures> {
    if names.is_empty() {
        let total = summary.segments.iter().find(|s| s.name == "total").or(summary.segments.last());
        return total.into_iter().collect();
    }
    let of_name = |name: &String| summary.segments.iter().find(|s| s.name == *name);
    names.iter().filter_map(of_name).collect()
}

/// Draws one.
pub(crate) fn write(page: &mut Page, segment: &SegmentFigures, threshold: Ns) {
    let Some(lines) = lines(&segment.histogram, threshold) else { return };
    let name = page.clean(&segment.name);
    page.heading(&format!("Histogram of {name} (both scales logarithmic)"));
    let all: u64 = lines.iter().map(|l| l.count).sum();
    let most = lines.iter().map(|l| l.count).max().unwrap_or(0);
    for (i, line) in lines.iter().enumerate() {
        if line.from == Some(threshold) {
            let rule = if page.ascii() { "-" } else { "─" }.repeat(8);
            page.line(format!("  {rule} threshold {} {rule}", page.duration(threshold)));
        }
        if line.count == 0 && in_gap(&lines, i, threshold) {
            if i == 0 || lines[i - 1].count > 0 || line.from == Some(threshold) {
                page.line(format!("  {}", right(if page.ascii() { ":" } else { "⋮" }, 10)));
            }
            continue;
        }
        let edges = match (line.from, line.to) {
            (Some(from), Some(to)) => (page.duration(from), page.duration(to)),
            (None, Some(to)) => ("".into(), page.duration(to)),
            (Some(from), None) => (page.duration(from), "".into()),
            (None, None) => Default::default(),
        };
        let dash = if page.ascii() { "-" } else { "–" };
        page.line(format!(
            "  {} {dash} {}  {}  {}  {}",
            right(&edges.0, 8),
            right(&edges.1, 8),
            right(&page.count(line.count), 12),
            right(&page.share(line.count, all), 11),
            page.bar(bar(line.count, most))
        ));
    }
}

/// Whether this empty line is one of many, on its side of the threshold.
fn in_gap(lines: &[Line], at: usize, threshold: Ns) -> bool {
    let begins = |i: usize| i == 0 || lines[i - 1].count > 0 || lines[i].from == Some(threshold);
    let begin = (0..=at).rev().find(|i| begins(*i)).unwrap_or(0);
    let same = |(i, l): &(usize, &Line)| l.count == 0 && (*i == begin || l.from != Some(threshold));
    lines.iter().enumerate().skip(begin).take_while(same).count() > GAP
}

/// Eighths of a column: a decade is as long everywhere, and one journey shows.
fn bar(count: u64, most: u64) -> usize {
    const FLOOR: f64 = 0.35;
    if count == 0 {
        return 0;
    }
    let log = |n: u64| (n as f64).log10() + FLOOR;
    ((log(count) / log(most.max(1)) * (BAR * 8) as f64).round() as usize).max(1)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    /// None: everything below `to`.
    from: Option<Ns>,
    to: Option<Ns>,
    count: u64,
}

/// The buckets gathered into lines whose edges are round, the threshold one of them. A bucket that an edge divides (it is
/// at most 1 % wide) counts where it begins.
fn lines(buckets: &[Bucket], threshold: Ns) -> Option<Vec<Line>> {
    let full = || buckets.iter().filter(|b| b.count > 0);
    let (first, last) = (full().map(|b| b.from_ns).min()?, full().map(|b| b.from_ns).max()?);
    let coarse = edges(&[100, 200, 500], first, last, threshold);
    let edges = if coarse.len() <= FEW {
        edges(&[100, 120, 150, 200, 250, 300, 400, 500, 600, 800], first, last, threshold)
    } else {
        coarse
    };
    let mut lines = vec![Line { from: None, to: edges.first().copied(), count: 0 }];
    for (i, from) in edges.iter().enumerate() {
        lines.push(Line { from: Some(*from), to: edges.get(i + 1).copied(), count: 0 });
    }
    for bucket in full() {
        let line = edges.partition_point(|edge| *edge <= bucket.from_ns);
        lines[line].count = lines[line].count.saturating_add(bucket.count);
    }
    // Below the first and from the last edge on there is something only where edges end.
    let used = |l: &Line| l.count > 0;
    let (begin, end) = (lines.iter().position(used)?, lines.iter().rposition(used)?);
    Some(lines[begin..=end].to_vec())
}

/// Round edges (hundredths of a decade's start, in `steps`) from the last at or below `first` to the first above `last`.
fn edges(steps: &[Ns], first: Ns, last: Ns, threshold: Ns) -> Vec<Ns> {
    let mut edges = Vec::new();
    let mut decade: Ns = 1;
    loop {
        for step in steps {
            let Some(edge) = decade.checked_mul(*step).map(|e| e / 100) else { return edges };
            // Steps below 1 ns coincide in the first decade.
            if edges.last() == Some(&edge) {
                continue;
            }
            edges.push(edge);
            if edge > last {
                if threshold > 0 {
                    edges.extend(Some(threshold).filter(|t| !edges.contains(t) && (first..=last).contains(t)));
                    edges.sort_unstable();
                }
                let begin = edges.iter().rposition(|e| *e <= first.max(0)).unwrap_or(0);
                return edges.split_off(begin);
            }
        }
        let Some(next) = decade.checked_mul(10) else { return edges };
        decade = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket(from_ns: Ns, count: u64) -> Bucket {
        Bucket { from_ns, to_ns: from_ns + from_ns / 128 + 1, count }
    }

    #[test]
    fn lines_have_round_edges_and_the_threshold_is_one_of_them() {
        let buckets =
            [bucket(1_100, 1), bucket(90_000, 7), bucket(199_000, 2), bucket(201_000, 3), bucket(9_000_000, 1)];
        let lines = lines(&buckets, 180_000).unwrap();
        assert!(lines.iter().any(|l| (l.from, l.to, l.count) == (Some(100_000), Some(180_000), 0)), "{lines:?}");
        assert!(lines.iter().any(|l| (l.from, l.to, l.count) == (Some(180_000), Some(200_000), 2)), "{lines:?}");
        assert_eq!((lines[0].from, lines[0].count), (Some(1_000), 1));
    }

    #[test]
    fn a_narrow_histogram_has_narrow_lines() {
        let lines = lines(&[bucket(21_000, 1), bucket(33_000, 7), bucket(48_000, 2)], 200_000).unwrap();
        let from: Vec<_> = lines.iter().map(|l| l.from.unwrap()).collect();
        assert_eq!(from, [20_000, 25_000, 30_000, 40_000]);
    }

    proptest! {
        #[test]
        fn no_journey_is_left_out(
            buckets in proptest::collection::vec((any::<i64>(), 1..1000_u64), 1..50),
            threshold in any::<i64>(),
        ) {
            let buckets: Vec<Bucket> = buckets.into_iter().map(|(at, count)| Bucket { from_ns: at, to_ns: at, count }).collect();
            let lines = lines(&buckets, threshold).unwrap();
            prop_assert_eq!(lines.iter().map(|l| l.count).sum::<u64>(), buckets.iter().map(|b| b.count).sum::<u64>());
            prop_assert!(lines.len() < 300);
        }

        #[test]
        fn more_journeys_never_have_a_shorter_bar(a in 0..u64::MAX, b in 0..u64::MAX) {
            let (a, b) = (a.min(b), a.max(b));
            prop_assert!(bar(a, b) <= bar(b, b) && bar(b, b) <= BAR * 8);
        }
    }
}
