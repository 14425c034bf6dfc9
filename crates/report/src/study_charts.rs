//! Pictures of a study, as SVG: for each cell, the times over its runs, and to the right of them their histogram. All
//! pictures have the same axes. The HTML page contains the pictures; AsciiDoc refers to files beside it.

use crate::page::Picture;
use latpath_model::Ns;
use latpath_stats::units::duration;
use latpath_stats::Bucket;
use latpath_study::{CellRow, Point, RunSeries, StudyTable};
use std::fmt::Write;

/// Size of a picture, and position and size of its time chart and histogram, SVG units.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 70.0;
const SERIES: f64 = 640.0;
const GAP: f64 = 16.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 160.0;
const HISTOGRAM_FROM: f64 = LEFT + SERIES + GAP;
const HISTOGRAM: f64 = WIDTH - HISTOGRAM_FROM - 4.0;

/// Common axes of all pictures.
struct Axes {
    /// Lower and upper (`to`) end of the axis of times: log10 of a time in ns.
    from: f64,
    to: f64,
    /// Largest share of packets in a single bar of the histograms.
    most: f64,
    threshold: Ns,
}

/// Number of bars of a histogram, over the whole height.
const BARS: usize = 75;

impl Axes {
    fn of(table: &StudyTable) -> Option<Self> {
        let buckets = || table.cells.iter().filter_map(|cell| cell.figures.as_ref()).flat_map(|row| &row.histogram);
        let from = buckets().map(|bucket| bucket.from_ns.max(1)).min()?;
        let to = buckets().map(|bucket| bucket.to_ns.max(2)).max()?;
        let (from, to) = ((from as f64).log10().floor(), (to as f64).log10().ceil());
        let mut axes = Self { from, to: to.max(from + 1.0), most: 1.0, threshold: table.threshold_ns };
        let bars =
            table.cells.iter().filter_map(|cell| cell.figures.as_ref()).flat_map(|row| axes.bars(&row.histogram));
        axes.most = bars.fold(f64::MIN_POSITIVE, f64::max);
        Some(axes)
    }

    /// Vertical position of a time in the picture.
    fn y(&self, ns: f64) -> f64 {
        let share = (ns.max(1.0).log10() - self.from) / (self.to - self.from);
        BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

    /// Shares of packets in bars of equal height, from the bottom.
    fn bars(&self, histogram: &[Bucket]) -> Vec<f64> {
        let all: u64 = histogram.iter().map(|bucket| bucket.count).sum();
        let mut bars = vec![0.0; BARS];
        let row = |ns: Ns| (BOTTOM - self.y(ns.max(1) as f64)) / (BOTTOM - TOP) * BARS as f64;
        for bucket in histogram {
            // A bucket that covers several bars is spread evenly over them.
            let first = (row(bucket.from_ns) as usize).min(BARS - 1);
            let last = ((row(bucket.to_ns).ceil() as usize).max(first + 1)).min(BARS).max(first + 1);
            let share = bucket.count as f64 / all.max(1) as f64 / (last - first) as f64;
            bars[first..last].iter_mut().for_each(|bar| *bar += share);
        }
        bars
    }

    /// Draws a grid line and a label for each decade, and the threshold.
    fn draw(&self, out: &mut String) {
        for exponent in self.from as i32..=self.to as i32 {
            let y = self.y(10_f64.powi(exponent));
            let name = duration(10_i64.saturating_pow(exponent.clamp(0, 18) as u32));
            for (from, to) in [(LEFT, LEFT + SERIES), (HISTOGRAM_FROM, HISTOGRAM_FROM + HISTOGRAM)] {
                let _ = write!(
                    out,
                    "<path d=\"M{from:.0} {y:.1}H{to:.0}\" stroke=\"currentColor\" stroke-opacity=\"0.15\"/>"
                );
            }
            let (x, y) = (LEFT - 6.0, y + 4.0);
            let _ = write!(out, "<text x=\"{x:.0}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>", shortened(&name));
        }
        let y = self.y(self.threshold as f64);
        let _ = write!(
            out,
            "<path d=\"M{LEFT:.0} {y:.1}H{:.0}\" stroke=\"#c0392b\" stroke-dasharray=\"4 4\" stroke-opacity=\"0.8\"/>",
            LEFT + SERIES
        );
    }
}

/// Formats a round time without its decimals: `10 µs`.
fn shortened(name: &str) -> String {
    let (number, unit) = name.split_once(' ').unwrap_or((name, ""));
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

/// Draws a picture of each cell that has recordings. `name` returns a cell's name; the pictures' file names begin with
/// `stem`.
pub(crate) fn pictures(
    table: &StudyTable,
    series: &[Vec<RunSeries>],
    stem: &str,
    name: impl Fn(&CellRow) -> String,
) -> Vec<Picture> {
    let Some(axes) = Axes::of(table) else { return Vec::new() };
    let of_cell = |(at, cell): (usize, &CellRow)| {
        let row = cell.figures.as_ref()?;
        let runs = series.get(at).map_or(&[][..], Vec::as_slice);
        let caption = format!(
            "{}: times of {} over the time of {} runs (band from minimum to maximum, line: mean), and their histogram",
            name(cell),
            table.segment,
            row.recordings
        );
        let CellRow { direction, topology, settings, load, .. } = cell;
        let file = format!("{stem}-{direction}-{topology}-{settings}-{load}.svg");
        Some(Picture { file, svg: svg(&axes, runs, &row.histogram, &caption), caption })
    };
    table.cells.iter().enumerate().filter_map(of_cell).collect()
}

fn svg(axes: &Axes, runs: &[RunSeries], histogram: &[Bucket], caption: &str) -> String {
    let caption = crate::document::escaped(caption);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" role=\"img\" aria-label=\"{caption}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"currentColor\"><title>{caption}</title>"
    );
    axes.draw(&mut out);
    let width = SERIES / runs.len().max(1) as f64;
    for (at, run) in runs.iter().enumerate() {
        let left = LEFT + width * at as f64;
        draw_run(&mut out, axes, run, (left, width));
    }
    draw_histogram(&mut out, axes, histogram);
    out + "</svg>\n"
}

/// Draws a run's times: a band from minimum to maximum, and the mean.
fn draw_run(out: &mut String, axes: &Axes, run: &RunSeries, (left, width): (f64, f64)) {
    let step = width / run.points.len().max(1) as f64;
    let x = |at: usize| left + step * (at as f64 + 0.5);
    let points = || run.points.iter().enumerate().filter_map(|(at, point)| Some((at, point.as_ref()?)));
    let mut band = String::new();
    for (at, Point { min_ns, max_ns, .. }) in points() {
        let (low, high) = (axes.y(*min_ns as f64), axes.y(*max_ns as f64));
        let _ = write!(band, "M{:.1} {:.1}V{:.1}", x(at), low.max(high + 0.8), high);
    }
    let _ = write!(
        out,
        "<path d=\"{band}\" stroke=\"#4a90d9\" stroke-width=\"{:.2}\" fill=\"none\"/>",
        step.clamp(0.8, 4.0)
    );
    let mut mean = String::new();
    let mut last = None;
    for (at, point) in points() {
        let pen = if last == Some(at.wrapping_sub(1)) { 'L' } else { 'M' };
        let _ = write!(mean, "{pen}{:.1} {:.1}", x(at), axes.y(point.mean_ns));
        last = Some(at);
    }
    let _ = write!(out, "<path d=\"{mean}\" stroke=\"#1b3a5c\" stroke-width=\"1\" fill=\"none\"/>");
    let _ = write!(out, "<path d=\"M{left:.1} {TOP:.0}V{BOTTOM:.0}\" stroke=\"currentColor\" stroke-opacity=\"0.4\"/>");
    let (middle, below) = (left + width / 2.0, BOTTOM + 16.0);
    let _ =
        write!(out, "<text x=\"{middle:.1}\" y=\"{below:.0}\" text-anchor=\"middle\">run {}</text>", run.repetition);
}

/// Draws the histogram on the same axis of times: the width of a bar is proportional to the logarithm of its share.
fn draw_histogram(out: &mut String, axes: &Axes, histogram: &[Bucket]) {
    /// Smallest share that is drawn.
    const MIN: f64 = 1e-7;
    let height = (BOTTOM - TOP) / BARS as f64;
    let scale = |share: f64| (share.max(MIN) / MIN).log10() / (axes.most.max(MIN * 10.0) / MIN).log10();
    let mut bars = String::new();
    for (at, share) in axes.bars(histogram).into_iter().enumerate().filter(|(_, share)| *share > 0.0) {
        let y = BOTTOM - height * (at as f64 + 1.0);
        let width = (scale(share) * HISTOGRAM).max(1.0);
        let _ = write!(bars, "M{HISTOGRAM_FROM:.0} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
    }
    let _ = write!(out, "<path d=\"{bars}\" fill=\"#4a90d9\"/>");
    let (x, y) = (HISTOGRAM_FROM, BOTTOM + 16.0);
    let _ = write!(out, "<text x=\"{x:.0}\" y=\"{y:.0}\">share of packets, logarithmic</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decades_are_named_without_decimals() {
        assert_eq!(["1.000 µs", "10.00 ms", "100 ns"].map(shortened), ["1 µs", "10 ms", "100 ns"]);
    }

    #[test]
    fn a_time_is_as_high_in_the_histogram_as_in_the_course() {
        let axes = Axes { from: 3.0, to: 7.0, most: 1.0, threshold: 200_000 };
        assert!((axes.y(1e3) - BOTTOM).abs() < 1e-9 && (axes.y(1e7) - TOP).abs() < 1e-9);
        let bars = axes.bars(&[Bucket { from_ns: 99_000, to_ns: 101_000, count: 7 }]);
        let at = bars.iter().position(|share| *share > 0.0).unwrap();
        assert_eq!(at, BARS / 2, "10^5 is in the middle of 10^3 and 10^7");
        assert!((bars.iter().sum::<f64>() - 1.0).abs() < 1e-9, "no packet is drawn twice");
    }
}
