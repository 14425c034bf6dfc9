//! Sources of a live view's figures.

use latpath_capture::RankedCapture;
use latpath_clock::TimeOfDay;
use latpath_follow::{Follow, Live};
use latpath_journey::Layout;
use latpath_model::{Ns, PointInfo};
use latpath_stats::Summary;

/// Figures of the packets counted so far, for followed streams or a recorded run.
pub trait FigureSource {
    /// Counts the packets that have arrived since the last call.
    fn step(&mut self);

    /// Resets all figures to zero.
    fn reset(&mut self);

    /// Also finds the longest run of consecutive packets over each of these limits; a change of the limits resets all
    /// figures to zero.
    fn find_rows_over(&mut self, limits: Vec<Ns>);

    /// Number of packets per stream since the start; a reset does not change it.
    fn seen(&self) -> &[u64];

    /// The points found so far.
    fn points(&self) -> &[PointInfo];

    /// Route and segments as known so far.
    fn layout(&self) -> &Layout;

    /// The conversion from packet times to UTC.
    fn time_of_day(&self) -> TimeOfDay;

    /// The next complete capture. Each is returned once.
    fn next_capture(&mut self) -> Option<RankedCapture>;

    /// Number of late packets so far.
    fn late(&self) -> u64;

    /// All figures so far; after [`Self::stop`], or once [`is_over`](Self::is_over) returns true, the figures of all
    /// packets.
    fn summary(&mut self) -> Summary;

    /// Whether no more packets can arrive.
    fn is_over(&self) -> bool {
        false
    }

    /// Ends the source, and counts the remaining packets that are complete.
    fn stop(&mut self) {}

    /// The followed streams; `None` for a recorded run.
    fn followed(&mut self) -> Option<&mut Follow> {
        None
    }
}

impl FigureSource for Live {
    fn step(&mut self) {
        Live::step(self);
    }

    fn reset(&mut self) {
        Live::reset(self);
    }

    fn find_rows_over(&mut self, limits: Vec<Ns>) {
        Live::find_rows_over(self, limits);
    }

    fn seen(&self) -> &[u64] {
        Live::seen(self)
    }

    fn points(&self) -> &[PointInfo] {
        self.follow.points()
    }

    fn layout(&self) -> &Layout {
        self.follow.layout()
    }

    fn time_of_day(&self) -> TimeOfDay {
        Live::time_of_day(self)
    }

    fn next_capture(&mut self) -> Option<RankedCapture> {
        self.follow.next_capture()
    }

    fn late(&self) -> u64 {
        self.follow.late().map_or(0, |counted| counted.late.iter().sum())
    }

    fn summary(&mut self) -> Summary {
        Live::summary(self)
    }

    fn stop(&mut self) {
        Live::stop(self);
    }

    fn followed(&mut self) -> Option<&mut Follow> {
        Some(&mut self.follow)
    }
}
