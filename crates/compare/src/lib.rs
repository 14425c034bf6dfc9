//! Compares two groups of recordings: which figures differ, by how much and with what confidence, and which cannot be
//! compared. docs/compare.md explains the method and its formulas.
//!
//! The method uses no random numbers: the same recordings give the same result.

mod comparable;
mod compare;
pub mod comparison;
pub mod difference;
pub mod estimate;
mod pairs;
pub mod recording;
pub mod sentence;
pub mod student;
mod study;

pub use compare::{compare, compare_all, NamedGroup, SIGNIFICANCE};
pub use comparison::{Comparison, Verdict};
pub use estimate::Span;
pub use recording::{Excluded, Figure, Losses, Measured, Recording, Source};
pub use study::{study, Study, StudyRow};
