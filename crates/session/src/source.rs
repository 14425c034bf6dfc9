//! Where a live view takes its figures from.

use latpath_capture::RankedCapture;
use latpath_clock::TimeOfDay;
use latpath_follow::{Follow, Live};
use latpath_journey::Layout;
use latpath_model::{Ns, PointInfo};
use latpath_stats::Summary;

/// Figures that grow: of streams as they come, or of a recorded run.
pub trait FigureSource {
    /// Counts what has come since the last call.
    fn step(&mut self);

    /// Starts all figures from zero.
    fn reset(&mut self);

    /// Finds the longest rows of packets that took longer than each of these too. Figures start from zero.
    fn find_rows_over(&mut self, limits: Vec<Ns>);

    /// Packets of each stream since the start.
    fn seen(&self) -> &[u64];

    /// The points found so far.
    fn points(&self) -> &[PointInfo];

    /// Route and segments as they are known now.
    fn layout(&self) -> &Layout;

    /// UTC of the packets' times.
    fn time_of_day(&self) -> TimeOfDay;

    /// The next complete capture. Each is returned once.
    fn next_capture(&mut self) -> Option<RankedCapture>;

    /// Late packets so far.
    fn late(&self) -> u64;

    /// All figures as of now. After [`Self::stop`], and where it [`is_over`](Self::is_over), those of all packets.
    fn summary(&mut self) -> Summary;

    /// Whether no packet comes any more.
    fn is_over(&self) -> bool {
        false
    }

    /// Ends it, and counts what is finished.
    fn stop(&mut self) {}

    /// The streams that are followed; none where a run is read.
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
