//! The pages of `latpath compare`.

mod document;
mod page;

pub use document::{comparison_html, study_html};
pub use page::{comparison_text, study_text};
