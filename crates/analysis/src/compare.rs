//! Figures by which runs are compared, and limits on differences.

mod limit;
mod recording;

pub use limit::{BadDifference, DifferenceLimit};
pub use recording::{recording, RecordingOptions};
