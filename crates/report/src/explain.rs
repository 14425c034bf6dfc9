//! `latpath explain`: explanations as text and as JSON.

mod advice_text;
pub mod explanation;
mod json;
mod text;
mod waterfall;
mod worst;

pub use json::explanation_document;
pub(crate) use text::{document, latpath_warning};
pub use text::{explanation_text, packet_text, Head};
