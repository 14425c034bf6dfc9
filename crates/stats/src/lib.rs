//! Figures over journeys: one model that the live view, the reports and their JSON all show.

pub mod aggregate;
mod by_path;
mod consecutive;
mod drop_place;
pub mod figures;
pub mod lost;
mod summarise;
pub mod text;
mod times;
pub mod track;
mod tracks;
pub mod units;
mod worst;

pub use aggregate::{Aggregate, Context, Setup};
pub use drop_place::{place_of_drop, DropPlace};
pub use figures::{
    CauseFigures, ConsecutiveFigures, LateFigures, Loss, PathFigures, Percentile, SegmentFigures, ShownAfter,
    StreamFigures, Summary, TimeFigures, Worst, WorstStep,
};
pub use latpath_histogram::{Bucket, Histogram};
pub use latpath_run::{MachineFigures, ToolCost};
pub use summarise::{summarise, utc_steps, Facts};
pub use tracks::Tracks;
