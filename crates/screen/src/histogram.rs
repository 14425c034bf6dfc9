//! The histogram of one segment, both axes logarithmic, as is usual for Sampled Values.

use crate::{
    lines::{self, fit, part},
    theme::{Blocks, Theme},
};
use latpath_model::Ns;
use latpath_stats::{text::right, Bucket, SegmentFigures};
use ratatui::{buffer::Buffer, layout::Rect, style::Style, text::Span};
use unicode_width::UnicodeWidthStr;

/// Width of the labels of the vertical axis, columns.
const MARGIN: usize = 5;
/// Distance of the vertical axis's lower end below a count of 1, decades, so that a single journey has a visible bar.
const FLOOR: f64 = 0.35;
/// Maximum distance between the threshold and the data at which the threshold is still drawn, decades.
const REACH: f64 = 2.0;

/// The horizontal axis: its bounds as decimal logarithms of ns, and its width in columns.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    lo: f64,
    hi: f64,
    width: usize,
}

fn log(ns: Ns) -> f64 {
    (ns.max(1) as f64).log10()
}

/// The logarithm of the nearest of 1, 2, 5, 10... at or below this one (`up`: at or above).
fn snap(log: f64, up: bool) -> f64 {
    let steps = [0.0, 2_f64.log10(), 5_f64.log10(), 1.0];
    let (whole, rest) = (log.floor(), log - log.floor());
    let near = 1e-9;
    let step = if up {
        steps.into_iter().find(|s| *s >= rest - near)
    } else {
        steps.into_iter().rev().find(|s| *s <= rest + near)
    };
    whole + step.unwrap_or(if up { 1.0 } else { 0.0 })
}

impl Axis {
    /// An axis that covers all these buckets, and the threshold if it is near.
    fn over(buckets: &[Bucket], threshold: Ns, width: usize) -> Option<Self> {
        let full = buckets.iter().filter(|b| b.count > 0 && b.to_ns > 0);
        let lo = full.clone().map(|b| log(b.from_ns)).min_by(f64::total_cmp)?;
        let hi = full.map(|b| log(b.to_ns.max(b.from_ns))).max_by(f64::total_cmp)?;
        let (mut lo, mut hi) = (snap(lo, false), snap(hi, true));
        if threshold > 0 {
            let at = log(threshold);
            if at < hi + REACH && at > lo - REACH {
                // Extend the axis slightly beyond the threshold, so that its line is visible.
                (lo, hi) = (lo.min(snap(at - 0.05, false)), hi.max(snap(at + 0.05, true)));
            }
        }
        if hi - lo < 0.2 {
            hi = snap(lo + 0.25, true);
        }
        (width > 0).then_some(Self { lo, hi, width })
    }

    /// Position of a time on the axis, columns; may be outside the axis.
    fn at(&self, ns: Ns) -> f64 {
        (log(ns) - self.lo) / (self.hi - self.lo) * self.width as f64
    }

    /// The column of a time; `None` if it is outside the axis.
    fn column(&self, ns: Ns) -> Option<usize> {
        let at = self.at(ns);
        (at >= 0.0 && at < self.width as f64).then_some(at as usize)
    }

    /// Number of journeys per column. The journeys of a bucket that spans several columns are distributed evenly over
    /// them; otherwise columns slightly wider than a bucket would show artificial teeth.
    fn counts(&self, buckets: &[Bucket]) -> Vec<u64> {
        let mut counts = vec![0_u64; self.width];
        let last = self.width - 1;
        for bucket in buckets.iter().filter(|b| b.count > 0 && b.to_ns > 0) {
            let inside = |at: f64| at.clamp(0.0, self.width as f64);
            let (a, b) = (inside(self.at(bucket.from_ns)), inside(self.at(bucket.to_ns)));
            let (first, end) = ((a as usize).min(last), (b.ceil() as usize).clamp(1, self.width));
            let mut given = 0;
            for (column, sum) in counts.iter_mut().enumerate().take(end).skip(first) {
                let share = if b > a { ((column as f64 + 1.0).min(b) - a) / (b - a) } else { 1.0 };
                // Round the running sum, so that the columns' shares add up to the bucket's count.
                let upto = if column + 1 == end { bucket.count } else { (bucket.count as f64 * share).round() as u64 };
                let upto = upto.clamp(given, bucket.count);
                *sum = sum.saturating_add(upto - given);
                given = upto;
            }
        }
        counts
    }

    /// Ticks with labels that do not touch: decades first, then 5 and 2 if there is room.
    fn ticks(&self, theme: &Theme) -> Vec<(usize, String)> {
        let mut taken = vec![false; self.width];
        let mut ticks = Vec::new();
        for step in [1, 5, 2] {
            for power in 0..=18_u32 {
                let ns = step * 10_i64.pow(power);
                let Some(column) = self.column(ns) else { continue };
                let label = theme.tick(ns);
                let end = column + 1 + label.width();
                if end < self.width && !taken[column.saturating_sub(2)..(end + 2).min(self.width)].contains(&true) {
                    taken[column..end].fill(true);
                    ticks.push((column, label));
                }
            }
        }
        ticks
    }
}

/// Height of a bar in eighths of a line; at least 1 unless the count is 0.
fn eighths(count: u64, top: f64, rows: usize) -> usize {
    if count == 0 {
        return 0;
    }
    let share = ((count as f64).log10() + FLOOR) / (top + FLOOR);
    ((share * rows as f64 * 8.0).round() as usize).clamp(1, rows * 8)
}

/// The character for a bar of 1 to 8 eighths of a line.
fn block(eighths: usize, theme: &Theme) -> char {
    match (theme.blocks, eighths) {
        (Blocks::Eighths, e) => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][e - 1],
        (Blocks::Halves, 1..=4) => '▄',
        (Blocks::Halves, _) => '█',
        (Blocks::Ascii, 1..=4) => '.',
        (Blocks::Ascii, _) => '#',
    }
}

/// Draws the histogram of a segment called `name`. With fewer than three rows or 24 columns, draws only the title.
pub fn draw(segment: &SegmentFigures, name: &str, threshold: Ns, theme: &Theme, area: Rect, buf: &mut Buffer) {
    title(segment, name, threshold, theme, area, buf);
    if area.height < 3 || area.width < 24 {
        return;
    }
    let plot = lines::below(area, 1);
    let rows = usize::from(plot.height) - 1;
    let width = usize::from(area.width) - MARGIN - 1;
    let Some(axis) = Axis::over(&segment.histogram, threshold, width) else {
        let text = if segment.times.count == 0 { "no journey yet" } else { "no histogram" };
        buf.set_string(area.x + MARGIN as u16 + 1, plot.y + plot.height / 2, text, theme.faint());
        return;
    };
    let counts = axis.counts(&segment.histogram);
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    let top = (most as f64).log10().max(0.3);
    let limit = (threshold > 0).then(|| axis.column(threshold)).flatten();

    let (x0, y0) = (plot.x + MARGIN as u16, plot.y + rows as u16 - 1);
    for (x, count) in (x0..).zip(&counts) {
        let column = usize::from(x - x0);
        let over = threshold > 0 && axis.at(threshold) < column as f64 + 0.5;
        let style = if over { theme.bad() } else { Style::new() };
        let height = eighths(*count, top, rows);
        for row in 0..rows {
            let part = height.saturating_sub(row * 8).min(8);
            if part > 0 {
                buf[(x, y0 - row as u16)].set_char(block(part, theme)).set_style(style);
            } else if limit == Some(column) {
                let line = if theme.blocks == Blocks::Ascii { '|' } else { '│' };
                buf[(x, y0 - row as u16)].set_char(line).set_style(theme.bad());
            }
        }
    }
    vertical(top, rows, plot, theme, buf);
    horizontal(&axis, lines::below(plot, rows), theme, buf);
    if let Some(column) = limit {
        let mark = if theme.blocks == Blocks::Eighths { '▲' } else { '^' };
        buf[(x0 + column as u16, y0 + 1)].set_char(mark).set_style(theme.bad());
    }
}

fn title(segment: &SegmentFigures, name: &str, threshold: Ns, theme: &Theme, area: Rect, buf: &mut Buffer) {
    let mut parts = vec![
        part(0, Span::styled(format!(" {name}"), theme.strong())),
        part(3, format!("{} journeys by time", theme.count(segment.times.count))),
    ];
    if threshold > 0 {
        let share = segment.over_threshold as f64 * 100.0 / segment.times.count.max(1) as f64;
        let text = format!("{} over {}", theme.count(segment.over_threshold), theme.limit(threshold));
        let style = if segment.over_threshold > 0 { theme.bad() } else { Style::new() };
        parts.push(part(1, Span::styled(text, style)));
        if segment.over_threshold > 0 && share < 1000.0 {
            parts.push(part(4, format!("{share:.4} %")));
        }
    }
    if segment.times.negative > 0 {
        parts.push(part(1, Span::styled(format!("{} NEGATIVE", theme.count(segment.times.negative)), theme.alarm())));
    }
    if segment.error_bound_ns != 0 {
        parts.push(part(2, format!("{}{}", theme.letters.plus_minus(), theme.duration(segment.error_bound_ns))));
    }
    let line = fit(parts, theme.dot(), usize::from(area.width), theme);
    lines::put(&[line], area, buf);
}

/// Labels powers of ten at the left, each at the top of a bar of that count.
fn vertical(top: f64, rows: usize, plot: Rect, theme: &Theme, buf: &mut Buffer) {
    let mut last = None;
    for decade in 0..=top as u32 {
        let row = (eighths(10_u64.saturating_pow(decade), top, rows).saturating_sub(1)) / 8;
        // One label per row at most.
        if last.is_some_and(|l| row < l + 1) {
            continue;
        }
        last = Some(row);
        let label = match decade {
            0..=2 => 10_u64.pow(decade).to_string(),
            d => {
                let unit = ["", "k", "M", "G", "T", "P", "E"][(d / 3) as usize % 7];
                format!("{}{unit}", 10_u64.pow(d % 3))
            }
        };
        let text = right(&label, MARGIN - 1);
        buf.set_string(plot.x, plot.y + (rows - 1 - row) as u16, text, theme.faint());
    }
}

/// Draws the time axis: a line with ticks and labels.
fn horizontal(axis: &Axis, area: Rect, theme: &Theme, buf: &mut Buffer) {
    let (line, tick) = if theme.blocks == Blocks::Ascii { ("-", "+") } else { ("─", "┴") };
    let x0 = area.x + MARGIN as u16;
    buf.set_string(x0, area.y, line.repeat(axis.width), theme.faint());
    for (column, label) in axis.ticks(theme) {
        buf.set_string(x0 + column as u16, area.y, tick, theme.faint());
        buf.set_string(x0 + column as u16 + 1, area.y, label, Style::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_stats::units::CharacterSet;

    fn bucket(from_ns: Ns, to_ns: Ns, count: u64) -> Bucket {
        Bucket { from_ns, to_ns, count }
    }

    #[test]
    fn the_axis_runs_over_round_times_and_includes_a_threshold_nearby() {
        let data = [bucket(23_000, 24_000, 5), bucket(70_000, 71_000, 1)];
        let axis = Axis::over(&data, 200_000, 60).unwrap();
        assert!((axis.lo - log(20_000)).abs() < 1e-6 && (axis.hi - log(500_000)).abs() < 1e-6, "{axis:?}");
        let far = Axis::over(&data, 1_000_000_000, 60).unwrap();
        assert!((far.hi - log(100_000)).abs() < 1e-6, "{far:?}");
    }

    #[test]
    fn a_flat_distribution_shows_no_teeth() {
        // Columns 1.3 buckets wide.
        let data: Vec<_> =
            (0..230).map(|i| 1.01_f64.powi(i) * 1e5).map(|t| bucket(t as i64, (t * 1.01) as i64, 1300)).collect();
        let axis = Axis { lo: 5.0, hi: 5.99, width: 177 };
        let counts = axis.counts(&data);
        let inner = &counts[2..170];
        let (least, most) = (inner.iter().min().unwrap(), inner.iter().max().unwrap());
        assert!(most - least <= most / 50, "{least} to {most}");
    }

    proptest::proptest! {
        #[test]
        fn every_journey_is_in_one_column(
            data in proptest::collection::vec((1_i64..1_000_000_000, 1_i64..1_000_000, 1_u64..1_000_000), 1..50),
            width in 1_usize..300,
        ) {
            let data: Vec<_> = data.into_iter().map(|(from, wide, n)| bucket(from, from + wide, n)).collect();
            let axis = Axis::over(&data, 200_000, width).unwrap();
            let all: u64 = data.iter().map(|b| b.count).sum();
            proptest::prop_assert_eq!(axis.counts(&data).iter().sum::<u64>(), all);
        }
    }

    #[test]
    fn one_journey_among_millions_still_has_a_bar() {
        assert_eq!(eighths(0, 7.0, 4), 0);
        assert!(eighths(1, 7.0, 4) >= 1);
        assert_eq!(eighths(10_000_000, 7.0, 4), 32);
    }

    #[test]
    fn ticks_are_labelled_without_touching() {
        let theme = Theme::of(CharacterSet::Ascii, "xterm", "");
        let axis = Axis { lo: 4.0, hi: 6.3, width: 40 };
        let ticks = axis.ticks(&theme);
        assert!(ticks.iter().any(|(_, label)| label == "10us") && ticks.iter().any(|(_, label)| label == "1ms"));
        let mut spans: Vec<_> = ticks.iter().map(|(c, label)| (*c, c + 1 + label.len())).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|w| w[0].1 < w[1].0), "{spans:?}");
    }
}
