//! `latpath compare`: from runs to what they are compared by, and the pages that show it.

mod document;
mod limit;
mod page;
mod recording;

pub use document::{comparison_html, study_html};
pub use limit::{BadDifference, DifferenceLimit};
pub use page::{comparison_text, study_text};
pub use recording::{recording, RecordingOptions};
