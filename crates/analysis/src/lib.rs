//! Analysis of runs and captures: figures, intervals, data of charts, verdicts on limits, the figures by which runs are
//! compared, and the causes of late packets. The crate prints nothing.
//!
//! Figures are a [`latpath_stats::Summary`], computed in the same way for live measurements and recorded runs.
#![allow(clippy::disallowed_methods)] // its own polls and paces; tests sleep by latpath_testkit::waits

mod analysis;
mod captures;
mod charts;
mod chosen;
pub mod compare;
mod digest;
pub mod explain;
mod intervals;
mod layout;
mod limit;
mod notation;
mod profile;
mod span;
mod summarise;
mod warnings;
mod weaknesses;

pub use analysis::{Analysis, SummaryOptions};
pub use captures::{RunCaptures, SelectError, Selected, SelectedPacket, Selection};
pub use charts::{ChartedSegment, Charts};
pub use chosen::Chosen;
pub use digest::digest;
pub use explain::{Explainer, Explanation, LiveExplainer, PacketSelector};
pub use layout::{layout_of, recorded_layout, SegmentsDocument};
pub use limit::{parse_duration, time_figure, BadLimit, Limit, LimitOrigin, LimitVerdict};
pub use notation::Notation;
pub use profile::{names as profile_names, profile, BadProfile, Profile};
pub use span::{instant, span, When};
pub use summarise::summarise;
pub use warnings::{is_within, warnings};
pub use weaknesses::weaknesses;
