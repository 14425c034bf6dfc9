//! The lines of `latpath live` if its output is not a terminal: a block per second, and between blocks the cause of a
//! late packet as soon as it is known. Suitable for `grep`.

use crate::page::{Page, Style};
use crate::segments::{numbers, short_name};
use crate::{lans, late};
use latpath_model::Point;
use latpath_stats::figures::packets;
use latpath_stats::text::pad;
use latpath_stats::units::elapsed;
use latpath_stats::units::share;
use latpath_stats::Summary;

/// Renders summaries as blocks of lines. Every line begins with the time since the start and its subject.
#[derive(Clone, Debug)]
pub struct Lines {
    style: Style,
    notes: Vec<String>,
    points: Vec<Point>,
    latest: Option<String>,
    /// Whether the warning that latpath itself makes packets late was printed.
    warned_of_itself: bool,
}

/// Maximum number of causes of late packets in a block.
const CAUSES: usize = 3;

impl Lines {
    /// Creates lines in this style, except for its width: lines are not wrapped.
    pub fn new(style: impl Into<Style>) -> Self {
        Self { style: style.into(), notes: Vec::new(), points: Vec::new(), latest: None, warned_of_itself: false }
    }

    /// Writes the largest causes of late packets, and the latest packet if it is new.
    fn late(&mut self, page: &mut Page, at: &str, summary: &Summary) {
        let Some(late) = summary.late.as_ref().filter(|late| late.late > 0) else { return };
        let skipped = match late.skipped {
            0 => String::new(),
            n => format!("  spikes passed over {}", page.count(n)),
        };
        let after = late.shown_after.map_or(String::new(), |after| {
            format!("  shown after {} (at most {})", page.duration(after.median_ns), page.duration(after.worst_ns))
        });
        page.line(format!(
            "{at}  late {}  explained {}  beyond the baseline {}  unexplained {:.1} %{skipped}{after}",
            page.count(late.late),
            page.count(late.explained),
            page.duration(late.excess_ns),
            late.unexplained_percent
        ));
        for (what, sums) in [("by cause", &late.by_cause), ("by culprit", &late.by_culprit)] {
            let sums = late::sums(page, sums);
            if !sums.is_empty() {
                page.line(format!("{at}  {what}  {sums}"));
            }
        }
        match late::own_share(late) {
            Some(text) if !self.warned_of_itself => {
                self.warned_of_itself = true;
                page.line(format!("{at}  ! {text}"));
            }
            _ => {}
        }
        for (i, cause) in late.causes.iter().take(CAUSES).enumerate() {
            let machine =
                if cause.machine.is_empty() { String::new() } else { format!("{} ", page.clean(&cause.machine)) };
            let cpu = cause.cpus.first().map_or(String::new(), |cpu| format!("CPU {cpu} "));
            page.line(format!(
                "{at}  cause {}  {}  packets {}  delay {}  {:.1} %  {machine}{cpu}{}  {}",
                i + 1,
                page.clean(&cause.cause),
                page.count(cause.first),
                page.duration(cause.excess_ns),
                cause.share_percent,
                page.clean(&cause.segment),
                page.clean(&cause.description)
            ));
        }
        if late.latest != self.latest {
            self.latest.clone_from(&late.latest);
            if let Some(latest) = &late.latest {
                page.line(format!("{at}  latest  {}", page.clean(latest)));
            }
        }
    }

    /// Returns only the lines on late packets, for a cause found between two blocks.
    pub fn late_block(&mut self, summary: &Summary) -> String {
        let mut page = Page::new(self.style);
        self.late(&mut page, &elapsed(summary.elapsed_ns), summary);
        page.finish()
    }

    /// Returns one block: the path's points if they changed, a line for all journeys, a line per segment, and new
    /// notes.
    ///
    /// ```text
    /// 0:07  path  1 host/nic-rx@enp7s0  2 host/tx@vnet0  …
    /// 0:07  journeys 28 000  complete 27 990  lost 2  duplicates 0  out of order 0  sightings dropped 0
    /// 0:07  total 1→5  n 27 998  4000/s  min 199.0 µs  mean 249.5 µs  p50 …  over 200.0 µs 41
    /// ```
    pub fn block(&mut self, summary: &Summary) -> String {
        let mut page = Page::new(self.style);
        let at = elapsed(summary.elapsed_ns);
        if self.points != summary.points {
            let named =
                summary.points.iter().enumerate().map(|(i, p)| format!("  {} {}", i + 1, page.clean(&p.to_string())));
            let path: String = named.collect();
            page.line(format!("{at}  path{path}"));
            self.points = summary.points.clone();
        }
        page.line(format!(
            "{at}  journeys {}  complete {}  incomplete {}  lost {}  duplicates {}  out of order {}  malformed {}  sightings dropped {}",
            page.count(summary.journeys),
            page.count(summary.complete),
            page.count(summary.incomplete),
            page.count(packets(&summary.lost)),
            page.count(summary.duplicates),
            page.count(summary.out_of_order),
            page.count(summary.malformed),
            page.count(summary.tool.sightings_dropped),
        ));
        if let Some(lans) = lans::line(&page, summary) {
            page.line(format!("{at}  {lans}"));
        }
        for s in &summary.segments {
            let name = format!("{} {}", short_name(&page, s), numbers(&page, summary, s));
            let (name, rate) = (pad(name.trim(), 10), page.rate(s.rate_hz));
            let mut line = format!("{at}  {name}  n {}  {rate}/s", page.count(s.times.count));
            let times = [
                ("min", s.times.min_ns),
                ("mean", s.times.mean_ns),
                ("p50", s.times.p50_ns),
                ("p99", s.times.p99_ns),
                ("p99.9", s.times.p99_9_ns),
                ("p99.99", s.times.p99_99_ns),
                ("max", s.times.max_ns),
            ];
            for (figure, time) in times.into_iter().filter(|_| s.times.count > 0) {
                line += &format!("  {figure} {}", page.time(s, time));
            }
            line.push_str(&format!("  over {} {}", page.duration(summary.threshold_ns), page.count(s.over_threshold)));
            if s.times.negative > 0 {
                line.push_str(&format!("  negative {}", page.count(s.times.negative)));
            }
            if s.error_bound_ns > 0 {
                line.push_str(&format!("  {}{}", page.letters.plus_minus(), page.duration(s.error_bound_ns)));
            }
            page.line(line);
        }
        for path in &summary.paths {
            let mut line = format!(
                "{at}  via {}  n {}  {}  lost {}",
                page.clean(&path.path),
                page.count(path.journeys),
                share(path.journeys, summary.journeys),
                page.count(path.lost)
            );
            for s in path.segments.iter().filter(|s| s.times.count > 0) {
                let times = [("p50", s.times.p50_ns), ("p99", s.times.p99_ns), ("max", s.times.max_ns)];
                line.push_str(&format!("  {}", page.clean(&s.name)));
                times.into_iter().for_each(|(f, t)| line.push_str(&format!(" {f} {}", page.duration(t))));
            }
            page.line(line);
        }
        self.late(&mut page, &at, summary);
        for note in summary.notes.iter().filter(|note| !self.notes.contains(note)) {
            page.line(self.style.alarm(&format!("{at}  ! {}", page.clean(note))));
        }
        self.notes = summary.notes.clone();
        page.finish()
    }
}
