//! Times as tables and histograms, of both ends.

use crate::cmd::{ns, Usage};
use clap::Args as ClapArgs;
use latpath_model::Ns;
use latpath_ping::fixed_width::HistogramAxis;
use latpath_ping::sequenced::SequencedFigures;
use latpath_stats::text::Table;
use latpath_stats::units::{count, duration};
use latpath_stats::{Bucket, Percentile};
use std::time::Duration;

/// Maximum number of times beyond a histogram's end that a text lists.
const LISTED: usize = 100;

/// Flags of a histogram with buckets of equal width.
#[derive(ClapArgs, Debug)]
pub struct Drawn {
    /// Draw the times as a histogram, with buckets of this width, e.g. 1us: round trips, or a reflector's own times
    #[arg(long, value_name = "TIME", value_parser = crate::cmd::values::some_time)]
    pub bucket: Option<Duration>,
    /// End of the histogram; longer times are listed one by one
    #[arg(long, value_name = "TIME", default_value = "100us", requires = "bucket", value_parser = crate::cmd::values::time)]
    overflow: Duration,
}

impl Drawn {
    /// Axis of the histogram, if one is drawn.
    ///
    /// # Errors
    /// If it has too many buckets.
    pub fn axis(&self) -> Result<Option<HistogramAxis>, Usage> {
        let axis = self.bucket.map(|bucket| HistogramAxis { bucket: ns(bucket), end: ns(self.overflow) });
        match axis {
            Some(axis) if axis.buckets() > HistogramAxis::MAX => {
                Err(Usage(format!("--bucket and --overflow: more than {} buckets", HistogramAxis::MAX)))
            }
            axis => Ok(axis),
        }
    }
}

/// The table's lines at full width: a session's result is not fitted to the terminal.
pub fn table_lines(table: &Table) -> Vec<String> {
    table.lines(0, usize::MAX, '…')
}

/// A time in a table; `None` is a percentile for which there are too few times.
pub fn cell(time: Option<Ns>) -> String {
    time.map_or("-".into(), duration)
}

/// A table of named times; with `names_probes`, also the probes with the extreme times.
pub fn table(rows: &[(&str, &SequencedFigures)], names_probes: bool) -> Vec<String> {
    let names = Percentile::ALL.into_iter().map(|p| p.name);
    let mut table = Table::new(&["<", "min", "mean"].into_iter().chain(names).chain(["max"]).collect::<Vec<_>>());
    for (name, times) in rows {
        let percentiles = Percentile::ALL.into_iter().map(|p| times.percentile(p));
        let values = [times.min_ns, times.mean_ns].map(Some).into_iter().chain(percentiles).chain([Some(times.max_ns)]);
        table.row([name.to_string()].into_iter().chain(values.map(cell)).collect());
    }
    let extremes = |(name, times): &(&str, &SequencedFigures)| {
        Some(format!("{name}: min is probe {}, max probe {}", times.min_sequence?, times.max_sequence?))
    };
    let extremes = rows.iter().filter(|_| names_probes).filter_map(extremes);
    table_lines(&table).into_iter().chain(extremes).collect()
}

/// Bars of equal width up to the end of the axis, then the longer times one by one, each with its probe.
pub fn histogram(
    what: &str,
    buckets: &[Bucket],
    (end, overflown): (Option<Ns>, u64),
    beyond: impl ExactSizeIterator<Item = (Ns, u64)>,
) -> Vec<String> {
    let most = buckets.iter().map(|b| b.count).max().unwrap_or(1).max(1);
    let mut table = Table::new(&[what, "<", "", "count", "<"]);
    for b in buckets {
        let bar = "#".repeat((b.count * 40).div_ceil(most) as usize);
        table.row(vec![duration(b.from_ns), "..".into(), duration(b.to_ns), count(b.count), bar]);
    }
    let mut lines = table_lines(&table);
    let Some(end) = end else { return lines };
    lines.push(format!("{} from {} on{}", count(overflown), duration(end), if overflown > 0 { ":" } else { "" }));
    let more = beyond.len() > LISTED;
    lines.extend(beyond.take(LISTED).map(|(time, sequence)| format!("{:>10}  probe {sequence}", duration(time))));
    if more {
        lines.push(format!("           and {} more (--json has them)", count(overflown - LISTED as u64)));
    }
    lines
}
