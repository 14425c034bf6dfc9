//! `latpath compare`: from runs to what they are compared by, and the page that shows it.

mod limit;
mod page;
mod recording;

pub use limit::{BadDifference, DifferenceLimit};
pub use page::{comparison_text, study_text};
pub use recording::{recording, RecordingOptions};
