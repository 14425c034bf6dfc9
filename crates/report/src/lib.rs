//! Shows figures: the text of `latpath report`, the lines of `latpath live` where its output is no terminal, journeys as
//! CSV; computes a summary from a run; and checks figures against limits.
//!
//! All of it takes a [`latpath_stats::Summary`], which live measuring and recorded runs fill the same way.

mod captures;
mod charts;
mod chosen;
pub mod compare;
pub mod cpu_profile;
mod document;
pub mod exits;
mod explain;
pub mod export;
mod header;
mod histogram;
mod intervals;
mod json;
mod junit;
mod ladder;
mod late;
mod layout;
mod limit;
mod lines;
mod page;
mod paths;
mod patterns;
mod profile;
mod quality;
pub mod queues;
mod replay;
mod segments;
mod span;
mod streams;
pub mod study;
mod summarise;
mod text;
mod warnings;
mod weaknesses;
mod without;
mod worst;

pub use captures::{RunCaptures, SelectError, Selection};
pub use charts::{summarise_with_charts, ChartedSegment, Charts};
pub use chosen::Chosen;
pub use document::{asciidoc, digest, explain_run, html, markdown, Explained, Findings};
pub use explain::{
    by_cause, by_culprit, explanation_json, explanation_text, fixes_of, late_figures, latpath_ns, packet_text,
    run_context, with_fixes, CauseTotal, CulpritTotal, ExplainedPacket, ExplainedSpike, Explainer, Explanation, Fix,
    Head, LiveExplainer, PacketSelector, RankedCause,
};
pub use json::{exits_schema, live_schema, report_json, report_schema, schema};
pub use junit::{is_junit_of_latpath, junit};
pub use ladder::ladder_text;
pub use layout::{layout_of, possible_segments};
pub use limit::{parse_duration, About, BadLimit, Limit, LimitVerdict};
pub use lines::Lines;
pub use page::{Style, WIDTH};
pub use profile::{names as profile_names, profile, BadProfile, Profile};
pub use replay::Replay;
pub use span::{instant, span, When};
pub use summarise::{summarise, SummaryOptions};
pub use text::{text, Options};
