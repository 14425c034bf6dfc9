//! Figures over journeys: the single model used by the live view, the reports and their JSON.

pub mod aggregate;
mod batch;
mod by_path;
mod clocks;
pub mod consecutive;
mod counting;
mod deficiencies;
mod drop_place;
pub mod figures;
pub mod lans;
pub mod lost;
mod over_time;
mod pacing;
pub mod patterns;
mod reader_gaps;
mod summarise;
pub mod text;
mod times;
pub mod track;
mod tracks;
pub mod units;
mod worst;

pub use aggregate::{Aggregate, Context, FineHistograms, Setup};
pub use batch::{Batch, Batches};
pub use clocks::{ClockEventFigures, ClockFigures, ClockLinkFigures, DisorderedFigures};
pub use counting::Counting;
pub use deficiencies::{clock_fault, dropped_sightings, negative_times};
pub use drop_place::{place_of_drop, DropPlace};
pub use figures::{
    Band, CauseFigures, ConsecutiveFigures, ConsecutiveOver, DelayShare, IntervalFigures, LateFigures, Loss, PacketAt,
    PathFigures, Percentile, SegmentFigures, ShownAfter, StreamFigures, Summary, TimeFigures, WithoutPatterns, Worst,
    WorstStep,
};
pub use lans::LanFigures;
pub use latpath_histogram::{Bucket, Histogram};
pub use latpath_run::{Deficiency, DeficiencyKind, MachineFigures, Reach, ToolCost};
pub use over_time::{OverTime, Slot};
pub use pacing::{Pacing, PacingFigures};
pub use patterns::{DetectedPattern, Pattern, PatternKind, Patterns, Touched};
pub use reader_gaps::ReaderGap;
pub use summarise::{summarise, utc_steps, Facts};
pub use tracks::Tracks;
