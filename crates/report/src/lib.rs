//! Shows figures and explanations: the text of `latpath report`, the lines of `latpath live` if its output is not a
//! terminal, documents, JSON.
//!
//! The input is a [`latpath_stats::Summary`], which live measurements and recorded runs fill the same way.

mod clocks;
pub mod compare;
mod cpu_map;
pub mod cpu_profile;
pub mod demo;
pub mod doctor;
mod document;
pub mod exits;
mod explain;
mod header;
mod histogram;
mod intervals;
mod json;
mod junit;
mod ladder;
mod lans;
mod late;
mod lines;
mod page;
mod paths;
mod patterns;
mod quality;
pub mod queues;
mod segments;
mod settings;
mod streams;
pub mod study;
mod study_charts;
mod study_table;
mod text;
mod without;
mod worst;

pub use clocks::clocks_text;
pub use document::{asciidoc, html, markdown, Findings};
pub use explain::explanation::{self, ExplanationDocument};
pub use explain::{explanation_document, explanation_text, packet_text, Head};
pub use json::{live_schema, report_json, report_schema, schema, MarkHead, Report, RunHead};
pub use junit::{is_junit_of_latpath, junit};
pub use ladder::ladder_text;
pub use lines::Lines;
pub use page::{Style, WIDTH};
pub use settings::Settings;
pub use study_table::{study_table_asciidoc, study_table_html, study_table_text};
pub use text::{text, Options};
